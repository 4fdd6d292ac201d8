"""Settings, task modes and dimensions that policies share. No torch.

Task modes of a sample are the streams that are inputs, and the streams that the network predicts:

    policy              actions and future are predicted    trains all losses
    forward_dynamics    the actions are given               trains the losses of the future only
    inverse_dynamics    the future is given                 trains the loss of the actions only

A given stream enters the network without noise, at flow time 0. A policy without a future has the
first mode only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Final

from understudy.policies.settings import PolicySettings
from understudy_base import ACTION, STATE


@dataclass(frozen=True, kw_only=True)
class EncoderSettings(PolicySettings):
    """Settings of a policy with a `TextEncoder` and an `ImageEncoder`."""

    RUN_ONLY: ClassVar[tuple[str, ...]] = ("compute", "noise_samples")
    LIMITS: ClassVar[Mapping[str, int]] = {
        "text_bytes": 2**20,
        "channels": 2**16,
        "blocks": 10**4,
        "keypoints": 2**16,
    }
    """Largest value of each number; the smallest is 1."""

    text_bytes: int = 96
    """Length of the instruction in bytes, with its start token; longer ones are cut."""
    channels: int = 24
    """Channels of the image network (a multiple of 8)."""
    blocks: int = 3
    """Residual blocks of the image network."""
    keypoints: int = 32
    """Keypoints read from each image, an even number: half from the network's maps, half from the
    plain colors.
    """

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = [
            f"{name}: {getattr(self, name)}: must be from 1 to {most}"
            for name, most in self.LIMITS.items()
            if not 1 <= getattr(self, name) <= most
        ]
        if self.channels % 8:
            problems.append(f"channels: {self.channels}: must be a multiple of 8")
        if self.keypoints % 2:
            problems.append(
                f"keypoints: {self.keypoints}: must be even, half of them look at plain colors"
            )
        if len(self.image_size) != 2 or any(
            side < 8 or side % 4 or side > 8192 for side in self.image_size
        ):
            problems.append(
                f"image_size: {self.image_size}: height and width must be multiples of 4, from 8 "
                "to 8192"
            )
        return problems


def times_of(ages: Sequence[float]) -> tuple[float, ...]:
    """Convert ages in seconds, in any order, to times from the present, oldest first, 0 last; none:
    no time at all.
    """
    return (*(-age for age in sorted(ages, reverse=True)), 0.0) if ages else ()


def age_problems(name: str, ages: Sequence[float]) -> list[str]:
    """List the rules that ages in seconds break, one line `field: value: rule` each."""
    shown = ", ".join(f"{age:g}" for age in ages)
    if any(not (isfinite(age) and age > 0) for age in ages):
        return [f"{name}: {shown}: must be seconds above 0, the ages of past frames"]
    if len(set(ages)) < len(ages):
        return [f"{name}: {shown}: must be different ages"]
    return []


class LossTerm:
    """Names of loss terms: of the action chunk, and of the states and the images that follow."""

    FLOW: Final = "flow"
    DYNAMICS: Final = "dynamics"
    IMAGES: Final = "images"
    KEYS: Final = {FLOW: ACTION, DYNAMICS: STATE}
    """Key of a batch that each term of vectors predicts."""


class TaskMode:
    """Names of task modes, and what each of them trains; see the module."""

    POLICY: Final = "policy"
    FORWARD: Final = "forward_dynamics"
    INVERSE: Final = "inverse_dynamics"
    ALL: Final = (POLICY, FORWARD, INVERSE)
    """Their positions are the numbers under `mode` in a batch."""
    TRAINS: Final[Mapping[str, tuple[str, ...]]] = {
        POLICY: (LossTerm.FLOW, LossTerm.DYNAMICS, LossTerm.IMAGES),
        FORWARD: (LossTerm.DYNAMICS, LossTerm.IMAGES),
        INVERSE: (LossTerm.FLOW,),
    }
    """Loss terms that each mode trains, of those that a policy has; the streams of the others are
    given.
    """

    @classmethod
    def is_trained(cls, term: str, mode: str) -> bool:
        """Return whether a mode trains a loss term; each mode trains terms of other names, those of
        policies of users.
        """
        return term in cls.TRAINS[mode] or term not in cls.TRAINS[cls.POLICY]


@dataclass(frozen=True, kw_only=True)
class TowerSizes:
    """Dimensions of a Gemma tower (Gemma team 2024)."""

    width: int
    """Features per token."""
    depth: int
    """Layers."""
    mlp_dim: int
    """Hidden features of the MLP."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Heads of keys and values; they divide `num_heads`."""
    head_dim: int
    """Features of a head; even."""
