"""pi0.5 and pi0: a vision-language model and an action expert that attend to each other, layer by layer.

sizes    dimensions of a network
"""
