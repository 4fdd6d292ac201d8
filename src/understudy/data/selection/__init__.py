"""Which frames of which episodes are used.

select         the kept segments of a dataset
keep_keys      the episode that a key of a keep-ranges file means
keep_report    which keys matched, and how many frames are left
idle           frame ranges without long pauses of the robot
"""
