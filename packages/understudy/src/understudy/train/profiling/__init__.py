"""Time and memory of a step.

plan          memory and arithmetic of a step, from shapes alone
profile       measured time and memory of a step
live_bytes    bytes of live tensors
data_sheets   arithmetic of graphics cards
"""
