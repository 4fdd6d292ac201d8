"""Time and memory of a training step.

profile       measure the step
plan          predict its memory and arithmetic from shapes
live_bytes    bytes of live tensors over time
memory_check  a state that exceeds the memory
stored_base   dtype of the frozen base of a run
resident      bytes of the state between steps
timer         phases of the step
flops         arithmetic of a step, and of a device
"""
