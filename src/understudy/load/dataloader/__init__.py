"""The order for torch's DataLoader.

sampler     `EpisodeSampler`, for a map-style dataset
iterable    `EpisodeStream`, an iterable dataset
"""
