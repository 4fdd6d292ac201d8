"""Helpers of tests, for the suites of all distributions.

writable_hub  a Hugging Face hub on this machine that repositories can be published to: commits, large files, tags,
downloads
"""
