"""Networks: tensors in, per-sample losses or actions out.

registry           types of policies by name, their settings and configs
policy             `Policy`, the base class of all of them
draws              random numbers of a policy, keyed by position
losses             per-sample losses
imagined           predicted consequences of actions
batch              checks of the batch
common             layers, normalization, flow matching and augmentation
flow               the small flow-matching policy
graph              policies as graphs of tensors: torch.export, ONNX
pi05               pi0.5 and pi0
lerobot            policies of LeRobot, where it is installed
world_action       the world-action model: actions, and the states and images that follow
inference          `load_policy`: a saved policy that acts on observations
acting             its parts: passes for several robots, reactions to other inputs than those of training
observation_history  past observations of an episode, as training read them
meta_device        construction without memory for large tensors
field_types        types of the values in a config.json
companion_files    files that a policy needs besides its weights
policy_folder      a policy as a folder: weights, config, normalization
folder_formats     a policy as a folder of another tool
weight_files       tensors in safetensors files, read row by row
"""
