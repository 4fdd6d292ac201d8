"""Several runs on one page: `understudy report A B`.

page            the page, and the same as data
runs            the files of a run
differences     settings, versions and datasets that differ, and the reasons why losses are not comparable
intervals       intervals of losses, of paired differences and of success
paired          paired differences of losses, episode by episode
losses          validation losses of each dataset
worst           validation episodes with the largest losses
success         success of rollouts
speed           throughput, waiting and memory
curves          curves over each other, thinned
curves.js       drawing, legend and values under the pointer
"""
