"""Pairs of transformer towers that attend to each other, layer by layer.

tower_sizes  dimensions of a tower
gemma        norms, layers, and a pair of layers
attention    attention between segments of tokens, rotary positions
segments     attention between segments of flat tokens, without padding
"""
