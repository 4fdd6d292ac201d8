"""Names of the keys that every batch may have, whichever dataset it was read from and whichever policy reads it."""

STATE, ACTION, TASK = "observation.state", "action", "task"
HEAD, MODE = "head", "mode"
"""int64 [B]: norm head and task mode of each sample."""
