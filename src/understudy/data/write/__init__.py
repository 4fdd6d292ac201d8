"""Record a LeRobot v3.0 dataset that is valid after every episode.

writer    `EpisodeWriter`
frame     checks of a frame when it is added
group     the open group of episodes
layout    paths, schemas and info.json
resume    continue an interrupted recording
"""
