"""Rows and images of episodes.

rows             values by episode and frame, with columns of data files in memory within a budget
                 or mapped
columns          columns of data files as numpy arrays of their declared type
row_parts        rows of single episodes of data files on a server
row_tables       mapped files of columns, decoded once per host
row_lengths      lengths of episodes by their rows, where meta/ records others
task_runs        runs of frames with one task
texts            texts that a policy learns to answer with, and metadata of episodes for prompts
returns          returns of frames, by outcomes or rewards of episodes
sensors          samples of sensors at their own rates, by time
video_frames     images from video files, by episode and frame
video_facts      facts about videos of many small datasets, kept in the cache of the host
clips            frames of a video file, copied by their packets or encoded again
outside_video    video files that were recorded apart from a dataset, read at times
video_file       facts of a video file
image_column     images that are stored in parquet rows
recorded_images  images of single episodes, to look at
"""
