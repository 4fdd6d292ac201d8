"""Record a LeRobot v3.0 dataset that is valid after every episode.

writer              `EpisodeWriter`
check_frame         checks of a frame when it is added
pack_episodes       the open group of episodes, and its packing into files
dataset_files       paths, schemas and info.json
resume_recording    continue an interrupted recording
"""
