"""Check of `max_num_tokens` before a run: the largest sample that its data and its policy allow."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from understudy.batch_keys import ACTION, STATE, TASK
from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.policies.policy import Policy

if TYPE_CHECKING:
    from understudy.train.data.run_data import RunData


def check_budget(policy: Policy, config: TrainConfig, data: "RunData") -> None:
    """Raise ConfigError where a sample of the data could have more tokens than `max_num_tokens`.

    A sample is taken to have all cameras of its source, and texts as long as the policy takes. So no sample of a
    run that starts exceeds the budget later.
    """
    if config.max_num_tokens is None:
        return
    tokens = largest_tokens(policy, config, data)
    if tokens is None:
        raise ConfigError(
            f"max_num_tokens: {config.max_num_tokens}: a policy of type {policy.config.type} has no tokens; "
            "set max_samples"
        )
    most = max(tokens)
    if most > config.max_num_tokens:
        raise ConfigError(
            f"max_num_tokens: {config.max_num_tokens}: a sample of source {data.names[tokens.index(most)]} may have "
            f"{most} tokens, with its cameras and the longest texts of the policy; set {most} or more, or lower the "
            "limits of its texts (policy.*_tokens)"
        )


def largest_tokens(policy: Policy, config: TrainConfig, data: "RunData") -> Sequence[int] | None:
    """Return the tokens of the largest possible sample of each source; None: the policy has no tokens."""
    rows, network = len(data.names), policy.config
    past = (len(config.policy.state_times),) if config.policy.state_times else ()
    batch: dict[str, Any] = {
        ACTION: torch.zeros(rows, config.data.actions_per_chunk, network.action_dim),
        f"{ACTION}_is_pad": torch.zeros(rows, config.data.actions_per_chunk, dtype=torch.bool),
        STATE: torch.zeros(rows, *past, network.state_dim),
        f"{STATE}_is_pad": torch.zeros(rows, *past, dtype=torch.bool),
        TASK: [""] * rows,
        "position": torch.arange(rows),
        "source": torch.arange(rows),
        "head": torch.from_numpy(data.head_of_source),
    }
    for camera in data.cameras:
        batch[camera] = torch.zeros(rows, 3, 1, 1, dtype=torch.uint8)
        batch[f"{camera}_is_missing"] = torch.tensor([camera in part.missing_cameras for part in data.training])
    return policy.tokens(policy.largest_inputs(batch))
