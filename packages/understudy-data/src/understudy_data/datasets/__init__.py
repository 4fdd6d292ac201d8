"""Datasets: metadata, selection, samples, statistics, recording. Knows no training.

format          metadata of LeRobot v2.0 to v3.1 in one `Catalog`
selection       frames and episodes to use
read            rows and images of episodes
time_windows    time windows around a frame, and their padding
episode_arrays  `EpisodeArrays`: samples as dictionaries of numpy arrays, and the features to
                deliver
dataset         `EpisodeDataset`: the same as dictionaries of tensors
used_files      files in use and their digests, compared on resume
split           `EpisodeSplit`: episodes to train on and to validate on
bad_episodes    `BadEpisodes`: selected episodes that cannot be used
check_files     episodes whose files are missing or unreadable
stats           statistics and normalization
write           `EpisodeWriter`: record a LeRobot v3.0 dataset
"""
