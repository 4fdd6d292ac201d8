"""Several runs on one page: `understudy report A B`.

page            the page, its curves, and the same as data
runs            the files of a run, its throughput, waiting and memory
differences     settings, versions and datasets that differ, and the reasons why losses are not comparable
intervals       intervals of losses, of paired differences and of success
results         validation losses of each dataset, worst validation episodes, success of rollouts
"""
