"""Time and memory of a training step.

profile       measure the step
plan          predict its memory and arithmetic from shapes
live_bytes    bytes of live tensors over time
shape_cache   results of repeated operations on shapes
stored_base   dtype of the frozen base of a run
resident      bytes of the state between steps
memory_check  state of a run against the memory of machine and GPU
peak_check    predicted peak against the memory of the GPU, before a run
timer         phases of the step
flops         arithmetic of a step, and of a device
"""
