"""Commands that examine and mend datasets.

check      `understudy check`
edit       `understudy edit`
segment    `understudy segment`
summary    progress and summary of both
"""
