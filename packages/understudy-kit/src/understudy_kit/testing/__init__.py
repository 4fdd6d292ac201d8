"""Helpers of tests, for the suites of all distributions.

browser   a headless browser that audits a page: texts too small, too pale, cut off or wider than
          the screen
packages  installed packages with entry points, as an installer writes them
"""
