"""pi0.5 and pi0: a vision-language model and an action expert that attend to each other, layer by
layer.

config           dimensions, settings and configs
policy           `Pi05Policy`
network          `Pi0Network`, its inputs, and the vision encoder
targets          images and tokens of a batch, noisy chunks, their losses, predicted responses
text             prompts and responses as tokens
tokenize_batch   tokens of a batch
released_keys    names of released weights, both ways
first_weights    first weights: of a released file, or fresh
normalization    normalization of a new run: that of released weights, or of the data
released_folder  a folder of any tool, read as one of ours
"""
