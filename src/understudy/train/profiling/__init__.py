"""Time and memory of a training step.

profile    measure the step
timer      phases of the step
flops      arithmetic of a step, and of a device
"""
