"""Settings of commands, the frame of the program, and blocks of pages.

cli        the program `understudy`, one file per command
config     settings: dataclasses, files and checks
intervals  the confidence interval of a success rate
launch     start N processes on this host: `--launch N`
report     pages and figures
signals    stop requests by signal or file
testing    helpers of tests
"""
