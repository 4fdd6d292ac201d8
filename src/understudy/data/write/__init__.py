"""Record a LeRobot v3.0 dataset that is valid after every episode.

writer    `EpisodeWriter`
frame     checks of a frame when it is added
group     the group of episodes that is being recorded
layout    paths, schemas and info.json
resume    continue a recording that was interrupted
"""
