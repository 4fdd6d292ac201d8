"""`understudy bench`: loader throughput beside the decode limit.

bench         the command
measure       our loader and a rival, in rounds
limit         the decode limit of a dataset
other_load    load by other processes during a measurement
lerobot       LeRobot as the rival
"""
