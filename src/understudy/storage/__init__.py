"""Bytes of files by position, wherever the files are. Knows no dataset.

bucket              a dataset written into a bucket, file by file
"""
