"""Past frames and states of a batch, for policies with a history.

A batch of such a policy has a dimension of time: each camera uint8 [B, T, 3, H, W], oldest frame first, and
`<camera>_is_pad` bool [B, T], True where the episode has no such frame. States may have it too.
"""

from collections.abc import Mapping
from typing import Any

from understudy.batch_keys import STATE
from understudy.policies.batch import check_shape, value_of

STATES, STATES_IS_PAD = "state_history", "state_history_is_pad"
"""Keys of the states over time, [B, T, S], and of their padding, bool [B, T]."""


def split_states(batch: Mapping[str, Any], count: int) -> dict[str, Any]:
    """Replace states over time [B, T, S] by the present ones [B, S], and keep all of them under `STATES`.

    Args:
        batch: see the module; a batch that was split stays as it is.
        count: T.

    Raises:
        ValueError: a missing key or a wrong shape, by name.
    """
    states = value_of(batch, STATE)
    if states.ndim == 2 and STATES in batch:
        return dict(batch)
    check_shape(STATE, states, (None, count, None))
    is_pad = value_of(batch, f"{STATE}_is_pad")
    check_shape(f"{STATE}_is_pad", is_pad, (len(states), count))
    return {**batch, STATE: states[:, -1], STATES: states, STATES_IS_PAD: is_pad}
