"""The robot's part of a normalization, and the content that folders of LeRobot and openpi share."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.errors import ConfigError
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.common.towers.tower_sizes import TowerSizes
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.sizes import Sizes
from understudy.policies.pi05.text.prompt import TOKENIZER

VARIANTS = {Sizes.BASE.vlm: "gemma_2b", Sizes.BASE.expert: "gemma_300m"}
"""Names of towers in openpi and LeRobot."""
OTHER = "other"
"""Name of a tower that neither tool has; LeRobot refuses it before it reads weights."""
SIZES = "sizes.json"
"""File with the dimensions of a network that has no such name, as `Sizes.from_mapping` reads it."""


class RobotMap(NamedTuple):
    """(x - offset) / spread of one key of one robot; a constant dimension has the spread 0."""

    offset: np.ndarray
    """float64 [dim]."""
    spread: np.ndarray
    """float64 [dim]."""

    @property
    def constant(self) -> list[int]:
        """Dimensions with the spread 0."""
        return [int(dim) for dim in np.flatnonzero(self.spread == 0)]


class Robot(NamedTuple):
    """The normalization of one robot."""

    maps: dict[str, RobotMap]
    """By key, `action` and `observation.state`."""
    delta: tuple[int, ...]
    """Action dimensions that are differences to the state."""

    @classmethod
    def from_head(cls, config: Pi05PolicyConfig, normalization: Mapping[str, Any], head: int) -> "Robot":
        """Read a head of a normalization.

        Raises:
            ValueError: the normalization does not fit the config.
        """
        widths = {ACTION: config.action_dim} | ({STATE: config.state_dim} if config.state_dim else {})
        read = Normalizer(normalization, widths)
        maps = {}
        for key, affine in ((ACTION, read.action), (STATE, read.state)):
            if affine is not None:
                width = read.dims[key][head]
                maps[key] = RobotMap(
                    *(each[head, :width].double().numpy() for each in (affine.offset, affine.spread)),
                )
        delta = () if read.delta is None else tuple(int(dim) for dim in read.delta[head].nonzero().flatten())
        return cls(maps, delta)

    def width(self, key: str) -> int:
        """Return the robot's number of dimensions of a key."""
        return len(self.maps[key].offset)


def check_prompts(config: Pi05PolicyConfig, tool: str) -> None:
    """Raise ConfigError if the policy acts on a response or on past frames, which neither tool has."""
    if config.history:
        raise ConfigError(
            f"format: {tool}: policy.history is {config.history}: {tool} shows a policy the present alone; export it "
            "with --format understudy"
        )
    if config.response_tokens:
        raise ConfigError(
            f"format: {tool}: policy.response_tokens is {config.response_tokens}: {tool} predicts no responses, on "
            "which this policy acts; export it with --format understudy"
        )


def variant(tower: TowerSizes) -> str:
    """Return the name of a tower in both tools; `OTHER` if it has none."""
    return VARIANTS.get(tower, OTHER)


def common_files(config: Pi05PolicyConfig, tool: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the tokenizer and the dimensions as files, and notes on them."""
    files, notes, sizes = {}, [], config.sizes
    if config.tokenizer:
        path = Path(config.tokenizer)
        files[TOKENIZER] = (path / TOKENIZER if path.is_dir() else path).read_bytes()
    released = Sizes.BASE
    if (sizes.vision, sizes.vlm, sizes.expert, sizes.vocab) != (
        released.vision,
        released.vlm,
        released.expert,
        released.vocab,
    ):
        files[SIZES] = to_json({name: value for name, value in asdict(sizes).items() if name != "adaptive"})
        notes.append(f"dimensions: {tool} has no name for these; {SIZES} has them")
    notes.append("images: understudy resizes with antialiasing; the torch code of openpi and LeRobot without")
    return files, notes


def to_json(value: Any) -> bytes:
    """Return a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()
