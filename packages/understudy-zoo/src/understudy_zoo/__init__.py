"""Policies of LeRobot, the world-action model, value functions, and foreign formats.

checkpoint          values of `export --format`
cli                 the command `score`
flow_graph          the policy as a function of tensors
folder_formats      a policy as a folder of another tool
graph               policies as graphs of tensors: torch.export, ONNX
lerobot             policies of LeRobot, where it is installed
lerobot_processors  processor files of LeRobot, written
pi05                pi0.5 and pi0
score               values of all frames of a dataset by a value function
testing             helpers of tests
value               a value function: distribution of returns, for advantages of frames
world_action        the world-action model: actions, and the states and images that follow
"""
