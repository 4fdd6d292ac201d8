"""Keys of a batch that are independent of the dataset and of the policy."""

STATE = "observation.state"
ACTION = "action"
TASK = "task"
HEAD = "head"
MODE = "mode"
SOURCE = "source"
"""int64 [B]: norm head, task mode and source of each sample."""
RESPONSE = "response"
"""B strings that a policy learns to answer with, such as the subtask; empty ones train nothing."""
PROMPT_METADATA = "prompt_metadata"
"""B strings: metadata of the episode for the prompt, one field per line (`prompt_metadata.py`)."""
RETURN = "return"
RETURN_IS_PAD = "return_is_pad"
"""float32 [B] and bool [B]: return of each frame, the target of a value function, and whether it is
not known.
"""
LOSS_WEIGHT = "loss_weight"
"""float32 [B]: factor of a sample's losses, and of its elements in their mean
(docs/frame_weights.md).
"""
