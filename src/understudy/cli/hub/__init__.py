"""Commands that publish folders on the hub and fetch them.

push    `understudy push`
pull    `understudy pull`
kinds   the kind of a folder: a policy, a run or a dataset, and the files of it to publish
"""
