"""Encoders of the small policies: texts and images as vectors.

settings  their settings, and the rules of these
text      instructions as UTF-8 bytes
image     keypoints of images, conditioned on the instruction
"""
