"""pi0.5 and pi0: a vision-language model and an action expert that attend to each other, layer by
layer.

export    folders of LeRobot and openpi
jax_tree  weights in openpi's JAX format
"""
