"""The naive second formulation against golden files of the reference port: both have the same
formulas.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from understudy.testing.naive_pi05 import NaivePi0, samples, sees

GOLDEN = Path(__file__).with_name("golden")
FAMILIES = ("pi05", "pi0")


def golden(family: str) -> tuple[NaivePi0, dict[str, Tensor], dict[str, Tensor]]:
    """(network, inputs, reference)."""
    folder = GOLDEN / family
    weights = load_file(folder / "weights.safetensors")
    sizes: dict[str, Any] = json.loads((folder / "sizes.json").read_text())
    leaves = {key: value.double().requires_grad_() for key, value in weights.items()}
    return (
        NaivePi0(leaves, sizes),
        load_file(folder / "inputs.safetensors"),
        load_file(folder / "reference.safetensors"),
    )


def distance(found: Tensor, reference: Tensor) -> float:
    """Largest difference over the largest value."""
    return float((found - reference).detach().abs().max() / reference.abs().max())


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_features_and_gradients_are_those_of_the_port(family: str) -> None:
    network, inputs, reference = golden(family)
    data = samples(inputs)
    loss = torch.stack([network.flow_loss(sample) for sample in data])
    assert distance(loss, reference["loss"]) < 1e-6
    loss.mean().backward()
    reached = {
        key.removeprefix("grad/"): value
        for key, value in reference.items()
        if key.startswith("grad/")
    }
    assert len(reached) > 100
    for key, gradient in reached.items():
        found = network.weights[key].grad
        found = torch.zeros_like(gradient) if found is None else found
        # zero in exact arithmetic: a softmax does not see it
        if key.endswith("self_attn.k_proj.bias"):
            assert float(found.norm()) < 1e-12
            assert float(gradient.norm()) < 1e-6
        else:
            assert float((found - gradient).norm()) <= 1e-5 * float(gradient.norm()), key
    unreached = {key for key, value in network.weights.items() if value.grad is None} - set(reached)
    assert {key for key in network.weights if key not in reached} == unreached
    for i, sample in enumerate(data):
        there = inputs["image_masks"][i]
        features = torch.stack([network.image_features(image) for image in sample.images])
        assert distance(features, reference["image_features"][i][there]) < 2e-6
        assert (
            distance(network.prefix(sample), reference["prefix"][i][reference["prefix_valid"][i]])
            < 2e-6
        )


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_actions_after_ten_steps_are_those_of_the_port(family: str) -> None:
    network, inputs, reference = golden(family)
    actions = torch.stack([network.sample(sample) for sample in samples(inputs)])
    assert distance(actions, reference["actions"]) < 1e-6


def test_table_of_the_mask() -> None:
    tokens = [
        ("prefix", 0),
        ("response", 0),
        ("response", 1),
        ("fast", 0),
        ("fast", 1),
        ("state", 0),
        ("action", 0),
    ]
    table = [
        "".join("x" if sees(query, key) else "." for key in tokens)
        for query in [*tokens, ("action", 1)]
    ]
    assert table == [
        "x......",
        "xx.....",
        "xxx....",
        "xxxx...",
        "xxxxx..",
        "xxx..x.",
        "xxx..xx",
        "xxx..xx",
    ]
