"""Files of a run.

export_formats  the same as a folder of another tool, or as a graph of tensors
"""
