"""The interface of `understudy.policies` that semantic versioning promises: names, arguments and
defaults.

An argument may be added at the end with a default, and a field too. Any other difference is an
incompatible change: it raises the version (docs/own_policies.md), and only then this table.
"""

import inspect
from typing import Any

import pytest

import understudy as us

NONE = inspect.Parameter.empty
CALLABLES: dict[str, list[tuple[str, Any]]] = {
    "Loss": [("sum", NONE), ("count", NONE), ("detail", None)],
    "Normalizer": [("normalization", NONE), ("widths", NONE)],
    "PolicyConfig": [
        ("action_dim", NONE),
        ("state_dim", 0),
        ("cameras", ()),
        ("chunk", 8),
        ("compute", "float32"),
        ("future", False),
    ],
    "PolicySettings": [("type", "flow"), ("image_size", (64, 64))],
    "PolicyType": [("settings", NONE), ("policy", NONE)],
    "RandomSpec": [("kind", NONE), ("shape", NONE), ("transform", None)],
    "masked_squared_error": [
        ("predicted", NONE),
        ("target", NONE),
        ("is_pad", NONE),
        ("dim_is_pad", None),
        ("detail", False),
    ],
    "policy_type": [("name", NONE)],
    "valid_elements": [("is_pad", NONE), ("draws", NONE), ("dim", NONE), ("dim_is_pad", None)],
    "Policy.counts": [("self", NONE), ("batch", NONE), ("draws", NONE)],
    "Policy.losses": [
        ("self", NONE),
        ("batch", NONE),
        ("draws", NONE),
        ("terms", None),
        ("detail", False),
    ],
    "Policy.act": [
        ("self", NONE),
        ("batch", NONE),
        ("draws", NONE),
        ("steps", 10),
        ("mode", "policy"),
    ],
    "Policy.random_spec": [("self", NONE), ("use", NONE)],
    "Policy.preprocess": [("self", NONE), ("batch", NONE)],
    "Policy.blocks": [("self", NONE)],
    "Normalizer.actions": [("self", NONE), ("batch", NONE)],
    "Normalizer.states": [("self", NONE), ("batch", NONE), ("values", NONE)],
    "Normalizer.robot_actions": [("self", NONE), ("x", NONE), ("batch", NONE)],
    "Normalizer.dim_is_pad": [("self", NONE), ("key", NONE), ("batch", NONE)],
}
"""Callables of a policy's author -> arguments and defaults of the present version."""


def test_names_of_the_interface_remain() -> None:
    promised = {name.partition(".")[0] for name in CALLABLES} | {
        "ACTION",
        "STATE",
        "TASK",
        "Draws",
        "generate_draws",
    }
    assert promised == set(us.policies.__all__)
    assert (us.policies.ACTION, us.policies.STATE, us.policies.TASK) == (
        "action",
        "observation.state",
        "task",
    )
    assert isinstance(inspect.getattr_static(us.policies.Policy, "loss_terms"), property)


@pytest.mark.parametrize("name", CALLABLES)
def test_arguments_of_the_interface_remain(name: str) -> None:
    owner, _, method = name.partition(".")
    target = getattr(us.policies, owner)
    parameters = list(
        inspect.signature(getattr(target, method) if method else target).parameters.values()
    )
    promised = CALLABLES[name]
    assert [(own.name, own.default) for own in parameters[: len(promised)]] == promised
    assert all(own.default is not NONE for own in parameters[len(promised) :])
