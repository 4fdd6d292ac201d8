"""Record a LeRobot v3.0 dataset that is valid after every episode.

writer              `EpisodeWriter`, checks of a frame when it is added, and resume of an
                    interrupted recording
written_files       `DatasetFiles`: files of a dataset, written one by one
statistics          statistics of a dataset that is written, episode by episode
dataset_files       paths, schemas and info.json; the open group of episodes, and its packing into
                    files
"""
