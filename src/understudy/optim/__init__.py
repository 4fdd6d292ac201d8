"""Optimizer and float32 truth of bfloat16 weights.

adamw             AdamW with float32 state
bf16_split        bfloat16 weights and the 16 bits they drop
master_weights    float32 master weights for any torch optimizer
clip_watch        detection of a clip by others, in bfloat16
state             names, dtypes and norms, for both storages
param_groups      parameter groups and frozen parameters
loss_weights      weights of the loss terms
moving_average    the moving average (EMA) of the weights
lora              low-rank adapters on linear layers, and their merge
lr_schedule       the learning rate as a function of the step
"""
