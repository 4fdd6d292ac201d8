"""pi0.5 and pi0 as folders of other tools.

robot             the robot's part of a normalization, and checks common to the tools
lerobot           LeRobot's folder: config.json and processor files
openpi            openpi's folder: config.json and norm_stats.json
released_folder   a folder of any of the tools, read as one of ours
tensor_sizes      dimensions of a network from the shapes of its tensors
implied_config    settings that the files beside released weights imply
"""
