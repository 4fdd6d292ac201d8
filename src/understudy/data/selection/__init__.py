"""Selection of episodes and frames.

select         segments of a dataset to use
keep_keys      episodes named by the keys of a keep-ranges file
keep_report    matched keys and remaining frames
idle           frame ranges without long pauses of the robot
"""
