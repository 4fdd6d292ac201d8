"""pi0.5 and pi0 as folders of other tools.

robot             the robot's part of a normalization, and checks common to the tools
lerobot           LeRobot's folder: config.json and processor files
openpi            openpi's folder: config.json and norm_stats.json
implied_config    settings that the files beside released weights imply
"""
