"""Record a LeRobot v3.0 dataset that is valid after every episode.

writer              `EpisodeWriter`, checks of a frame when it is added, and resume of an
                    interrupted recording
dataset_files       paths, schemas and info.json; the open group of episodes, and its packing into
                    files
"""
