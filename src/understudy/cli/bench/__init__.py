"""`understudy bench`: loader throughput beside the decode limit.

bench         the command
measure       our loader and another one, in rounds
limit         the decode limit of a dataset
other_load    load by other processes during a measurement
"""
