"""Commands that write datasets, or look at them.

score  `understudy score`
"""
