"""Parts that policies share.

layers           linear, norm and attention layers with explicit precision
flow_matching    flow matching on action chunks
affine           normalization as an affine map per norm head
normalizer       between the robot's units and the network's, per norm head
fast             FAST action tokens
augment          image augmentation from explicit draws
task_modes       task modes: policy, forward, inverse and joint
"""
