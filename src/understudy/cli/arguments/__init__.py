"""Arguments of the command line as settings.

parse          defaults, then a file or a run, then flags
examples       texts of the help
messages       messages about unknown settings and wrong values
setting_paths  settings by their dotted paths
"""
