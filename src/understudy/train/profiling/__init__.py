"""Time and memory of a step.

plan          memory and arithmetic of a step, from shapes alone
profile       measured time and memory of a step
peak_check    warning of a peak beyond the memory of the GPU
live_bytes    bytes of live tensors
data_sheets   arithmetic of graphics cards
"""
