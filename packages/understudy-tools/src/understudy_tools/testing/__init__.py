"""Helpers of tests, for the suites of all distributions.

bags           bags written by `rosbags` and by `mcap-ros2-support`, with known values
edited         edited datasets, and the comparison of episodes between two datasets
mcap_files     MCAP files written record by record, so that each part can be left out, repeated or
               damaged
part_work      work of tests: functions of parts that count their calls, end their process, or wait
processes      processes of this host, by `ps`
robot_rows     datasets of the rows of a robot arm, and the alarms of a check
s3             edits into a bucket of a real local S3 server (moto)
sensors        sensor files for the datasets of `understudy_data.testing.datasets`
"""
