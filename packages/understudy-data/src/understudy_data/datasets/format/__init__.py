"""Metadata of a dataset, whichever LeRobot version wrote it.

catalog           `Catalog`: features, episodes, files and tasks of a dataset
catalogs          `Catalogs`: the metadata of many datasets, opened together
features          declared columns and cameras, depth, and vectors of several columns
sensors           signals at their own rates, as meta/sensors.json declares them
episode_table     lengths, data files and video files of every episode; shared memory for large
                  datasets; missing files
layouts           tables of episodes and tasks in the layouts of v2.0 to v3.1
pairing           the side that decides where the place of rows and their columns name different
                  episodes
meta_files        JSON files of `meta/`, checked value by value, and the path templates of info.json
recorded_stats    statistics recorded with a dataset
selection_fields  the fields of a selection, and the values that files may give them
views             named selections, stored with a dataset
standard_keys     a dataset under standard key names
"""
