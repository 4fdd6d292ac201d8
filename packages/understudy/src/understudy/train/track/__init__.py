"""Figures of a run.

metrics_file   metrics.jsonl, and the verdict on a run from it
trackers       log of the figures, and the trackers that mirror it
"""
