"""Helpers of tests, for the suites of all distributions.

calls     log of flushes and renames of files, in the sequence of the system calls
refusals  expected errors and warnings by type, fields and values, not by sentences
"""
