"""A world-action model: actions, and the states and images that follow them, from one network.

config     settings, and the config of a network
streams    the streams that are predicted side by side: their targets, masks and given parts
patches    images as rows of patches, and back
network    context tower and stream tower, of the layers of pi0.5
policy     `WorldActionPolicy`
"""
