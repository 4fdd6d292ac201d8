"""pi0.5 and pi0: a vision-language model and an action expert that attend to each other, layer by layer.

sizes     dimensions of a network
released  names of released weights, both ways
weights   first weights: of a released file, or fresh
"""
