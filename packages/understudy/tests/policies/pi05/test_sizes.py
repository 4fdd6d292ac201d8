"""Dimensions of a network: read from JSON, checked as a whole."""

from dataclasses import asdict, replace
from typing import Any

import pytest

from understudy.policies.pi05.config import BASE, TINY, Sizes


@pytest.mark.parametrize("sizes", [BASE, TINY, replace(TINY, adaptive=False)])
def test_sizes_survive_json(sizes: Sizes) -> None:
    assert Sizes.from_mapping(asdict(sizes)) == sizes


def test_sizes_read_files_of_earlier_releases_and_take_given_fields() -> None:
    stored = asdict(TINY)
    del stored["adaptive"], stored["vision"]["temporal_every"]
    assert Sizes.from_mapping(stored) == TINY
    assert Sizes.from_mapping(stored, adaptive=False) == replace(TINY, adaptive=False)
    memory = Sizes.from_mapping({**stored, "mem": {"frames": 4, "every": 2}})
    assert memory.vision == replace(TINY.vision, temporal_every=2)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("vision.heads", 7, "vision.heads"),
        ("vision.image", 65, "vision.image"),
        ("vision.depth", 0, "vision.depth"),
        ("vlm.num_kv_heads", 3, "vlm.num_kv_heads"),
        ("vlm.head_dim", 25, "vlm.head_dim"),
        ("expert.depth", 5, "expert.depth"),
        ("expert.width", 63, "expert.width"),
        ("chunk", 2.5, "chunk"),
        ("vocab", True, "vocab"),
        ("vlm.layers", 3, "vlm.layers"),
        ("color", 3, "color"),
    ],
)
def test_sizes_name_the_wrong_field(path: str, value: Any, named: str) -> None:
    stored = asdict(TINY)
    *parents, last = path.split(".")
    target = stored
    for parent in parents:
        target = target[parent]
    target[last] = value
    with pytest.raises(ValueError, match=named):
        Sizes.from_mapping(stored)


def test_sizes_name_the_missing_field() -> None:
    stored = asdict(TINY)
    del stored["vlm"]["mlp_dim"]
    with pytest.raises(ValueError, match=r"vlm\.mlp_dim"):
        Sizes.from_mapping(stored)
