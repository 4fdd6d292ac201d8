"""A world-action model: actions, and the states and images that follow them, from one network.

config   settings, and the config of a network
network  streams of a batch, context tower and stream tower
policy   `WorldActionPolicy`
"""
