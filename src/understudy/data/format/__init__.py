"""Metadata of a dataset, whichever LeRobot version wrote it.

catalog           `Catalog`: features, episodes, files and tasks of a dataset
features          declared columns and cameras
depth             depth images: dtype, unit and scale as declared
sensors           signals at their own rates, as meta/sensors.json declares them
episode_table     the episode table: lengths, data files and video files of every episode
episode_store     that table in shared memory, for large datasets
lerobot_v2        reader of v2.0 and v2.1
lerobot_v3        reader of v3.0 and v3.1
json_files        JSON files of `meta/`, checked value by value
path_templates    path templates of info.json
recorded_stats    statistics recorded with a dataset
missing_files     data and video files that are missing
joined_keys       vectors of several columns under one key
standard_keys     a dataset under standard key names
"""
