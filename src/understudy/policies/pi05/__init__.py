"""pi0.5 and pi0: a vision-language model and an action expert that attend to each other, layer by layer.

sizes         dimensions of a network
config        settings and configs
policy        `Pi05Policy`
flow_targets  noisy chunks of actions, and their loss
network       `Pi0Network`
observation   its inputs: text, past states, embedded prefix and tail
siglip        the vision encoder
extents       images of a batch, cameras and numbers of tokens of a sample
text          prompts and responses as tokens
weights       released weights: names, first weights, normalization
formats       folders of LeRobot and openpi
"""
