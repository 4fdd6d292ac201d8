"""Checks of a whole dataset (format, rows, clocks, values, statistics, images). Knows no training.

findings        `Finding`, `Report`, the names of all rules, and remedies
threshold       origin of the numbers by which rules decide
effects         effects of broken rules on a training, and the remedies of findings that name none
column_facts    summaries of numeric columns per episode, rotations, and action against state
row_facts       facts about all rows, from one pass over the data files, and idle frames
image_facts     facts about video files and decoded images
sensor_facts    facts about the samples of sensors
rules           the rules by theme
contents        contents of a dataset, and a report as text
against         differences between two versions of a dataset
examine         `examine`, and `check_dataset`: all rules over one dataset
"""
