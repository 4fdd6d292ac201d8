"""Optimizer and float32 truth of bfloat16 weights.

adamw             AdamW with float32 state
bf16_split        bfloat16 weights and the 16 bits they drop
master_weights    float32 master weights for any torch optimizer, and a watch on bfloat16 clips
state             names, dtypes and norms, for both storages
param_groups      parameter groups, frozen parameters, and weights of the loss terms
moving_average    the moving average (EMA) of the weights
lora              low-rank adapters on linear layers, and their merge
lr_schedule       the learning rate as a function of the step
"""
