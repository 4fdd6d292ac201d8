"""Actions learnt as differences to the state: taken and added back by the policy, absolute grippers
left alone.
"""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy.policies.common.normalizer import Normalizer
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.policies import config
from understudy_base.testing.refusals import refused

WIDTHS = {"action": 3, "observation.state": 3}


def normalizer(delta: list[list[bool]], **more: Any) -> Normalizer:
    rows = {"offset": [[0.0, 0.5, 0.1]] * len(delta), "spread": [[1.0, 0.25, 2.0]] * len(delta)}
    maps: dict[str, Any] = {
        "heads": [f"h{i}" for i in range(len(delta))],
        "action": rows,
        "observation.state": rows,
    }
    return Normalizer(maps | {"delta": delta} | more, WIDTHS)


@given(st.integers(0, 2**20), st.integers(-6, 6))
def test_there_and_back_is_exact_to_float32_and_a_gripper_is_untouched(
    seed: int, magnitude: int
) -> None:
    """Three roundings: of the difference (and of its scaling, and back), of the sum."""
    generator = torch.Generator().manual_seed(seed)
    data = {
        "action": torch.randn(4, 5, 3, generator=generator) * 10.0**magnitude,
        "observation.state": torch.randn(4, 3, generator=generator) * 10.0**magnitude,
    }
    some = normalizer([[True, True, False]])
    none = normalizer([[False] * 3])
    there = some.actions(data)
    now = data["observation.state"][:, None]
    torch.testing.assert_close(there[..., 0], (data["action"] - now)[..., 0], rtol=0, atol=0)
    # absolute: as if there were no differences
    assert torch.equal(there[..., 2], none.actions(data)[..., 2])
    back = some.robot_actions(there, data)
    bound = 4 * 2**-23 * (data["action"].abs() + now.abs() + 1)
    assert ((back - data["action"]).abs() <= bound).all()
    assert torch.equal(back[..., 2], none.robot_actions(there, data)[..., 2])


def test_each_head_has_its_own_mask_and_the_future_behind_the_state_is_not_taken() -> None:
    generator = torch.Generator().manual_seed(0)
    future = torch.randn(2, 6, 3, generator=generator)
    data = {"action": torch.randn(2, 5, 3, generator=generator), "head": torch.tensor([1, 0])}
    mine = normalizer([[True, False, False], [False, False, True]])
    there = mine.actions(data | {"observation.state": future})
    assert torch.equal(there, mine.actions(data | {"observation.state": future[:, 0]}))
    plain = normalizer([[False] * 3] * 2).actions(data)
    assert (there != plain).flatten(0, 1).reshape(2, 5, 3).any(dim=1).tolist() == [
        [False, False, True],
        [True, False, False],
    ]


def test_what_could_not_be_told_back_is_refused_at_the_start() -> None:
    maps: dict[str, Any] = {
        "action": {"offset": [0.0] * 3, "spread": [1.0] * 3},
        "observation.state": {"offset": [0.0] * 2, "spread": [1.0] * 2},
    }
    FlowPolicy(config(), maps | {"delta": [[True, True, False]]})
    with refused("action[2]", 2, kind=ValueError):
        FlowPolicy(config(), maps | {"delta": [[False, False, True]]})
    with refused("action[0]", kind=ValueError):
        FlowPolicy(config(state_dim=0), maps | {"delta": [[True, False, False]]})
    with refused("action[1]", "'h1'", 1, kind=ValueError):
        normalizer([[True, False, False], [False, True, False]], dims={"observation.state": [3, 1]})
    with refused("action[2]", 2, kind=ValueError):
        normalizer([[False, False, True]], dims={"action": [2]})


def test_a_nan_in_a_state_that_is_not_there_does_not_spoil_a_difference() -> None:
    mine = normalizer([[True, False, False]], dims={"observation.state": [2]})
    data = {
        "action": torch.ones(1, 2, 3),
        "observation.state": torch.tensor([[1.0, 2.0, float("nan")]]),
    }
    assert torch.isfinite(mine.actions(data)).all()
