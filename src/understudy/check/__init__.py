"""Checks of a whole dataset (format, rows, clocks, values, statistics, images). Knows no training.

findings        `Finding`, `Report`, and the names of all rules
remedies        commands and steps that mend findings
row_facts       facts about all rows, from one pass over the data files
idle_frames     idle frames of each episode
column_facts    summaries of numeric columns per episode
pairs           action against state
rotations       angles that wrap, and quaternions
video_facts     facts about video files
image_facts     facts about decoded images
sensor_facts    facts about the samples of sensors
rules           the rules by theme
contents        contents of a dataset, and a report as text
examine         `examine`, and `check_dataset`: all rules over one dataset
"""
