"""Settings: dataclasses, files and checks. No torch.

other_trainers     equivalents of settings of other trainers, from a data file
intervals          numbers of these settings, by their bounds
hints              hints of a run's settings for names of other trainers
train              settings of a training run
data               settings of its data
mesh               parts of its settings that decide processes and forward passes
samples            parts of its settings that decide samples
lora               settings of low-rank adapters
rollout            settings of rollouts
gymnasium_options  options of Gymnasium's environments
"""
