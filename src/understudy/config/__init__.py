"""Settings: dataclasses, files and checks. No torch.

schema     read, check and write settings
declare    bounds and command-line markers of settings
train      settings of a training run
data       settings of its data
rollout    settings of rollouts
limits     largest values that one machine may be asked for
"""
