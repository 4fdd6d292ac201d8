"""Commands that show, examine and mend datasets.

check      `understudy check`
view       `understudy view`
edit       `understudy edit`
segment    `understudy segment`
summary    progress and summary of `edit` and `segment`
"""
