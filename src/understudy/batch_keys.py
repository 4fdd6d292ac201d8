"""Keys of a batch that are independent of the dataset and of the policy."""

STATE, ACTION, TASK = "observation.state", "action", "task"
HEAD, MODE = "head", "mode"
"""int64 [B]: norm head and task mode of each sample."""
