"""Released weights and the normalization that belongs to them.

released_keys          names of released weights, both ways
first_weights          first weights: of a released file, or fresh
jax_tree               weights in openpi's JAX format
jax_names              places of the parameters in that format
normalization          normalization of a new run: that of released weights, or of the data
openpi_normalization   openpi's norm_stats.json
lerobot_normalization  LeRobot's processors
stored_figures         figures as offsets and spreads, and their rounding
"""
