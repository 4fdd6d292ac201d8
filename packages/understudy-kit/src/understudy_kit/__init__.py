"""Settings of commands, the frame of the program, and blocks of pages.

cli        the program `understudy`, one file per command
config     settings: dataclasses, files and checks
intervals  the confidence interval of a success rate
launch     start N processes on this host: `--launch N`
report     pages and figures
signals    stop requests by signal or file
testing    helpers of tests

The names that other distributions take are those of `__init__.pyi`; each is imported when it is
first used.
"""

from understudy_base import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
