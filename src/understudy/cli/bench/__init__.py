"""`understudy bench`: loader throughput and the decode limit.

bench           the command
measure         our loader and another one, in rounds
ranks           our loader in several processes at once
decode_limit    the decode limit of a dataset
machine_load    load by other processes during a measurement
"""
