"""The order for torch's DataLoader.

episode_sampler    `EpisodeSampler`, for a map-style dataset
episode_stream     `EpisodeStream`, an iterable dataset
"""
