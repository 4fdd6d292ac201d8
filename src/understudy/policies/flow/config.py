"""Settings and config of the flow-matching policy. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from understudy.policies.registry import PolicyConfig, PolicySettings, PolicyType

LIMITS = {
    "text_bytes": 2**20,
    "channels": 2**16,
    "blocks": 10**4,
    "keypoints": 2**16,
    "width": 2**20,
    "layers": 10**4,
    "noise_samples": 2**12,
}
"""Largest value of each number; the smallest is 1."""


@dataclass(frozen=True, kw_only=True)
class FlowSettings(PolicySettings):
    """The flow-matching policy: a small network of about a million parameters."""

    RUN_ONLY: ClassVar[tuple[str, ...]] = ("compute", "noise_samples")
    OLD_NAMES: ClassVar[Mapping[str, str]] = {
        "picture": "image_size",
        "points": "keypoints",
        "draws": "noise_samples",
    }
    OLD_MODULES: ClassVar[Mapping[str, str]] = {
        "eyes": "vision",
        "fuse_again": "fuse2",
        "enter": "in_proj",
        "leave": "out_proj",
    }

    type: Literal["flow"] = "flow"
    """Type of the policy."""
    text_bytes: int = 96
    """Length of the instruction in bytes, with its start token; longer ones are cut."""
    channels: int = 24
    """Channels of the image network (a multiple of 8)."""
    blocks: int = 3
    """Residual blocks of the image network."""
    keypoints: int = 32
    """Keypoints read from each image (even: half from the network's maps, half from the plain colors)."""
    width: int = 192
    """Width of the condition and of the action network (a multiple of 8)."""
    layers: int = 3
    """Residual layers of the action network."""
    noise_samples: int = 4
    """Noises and flow times per sample and step; they share one pass over the images, which is most of the cost."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        found = [
            f"{name}: {getattr(self, name)}: must be from 1 to {most}"
            for name, most in LIMITS.items()
            if not 1 <= getattr(self, name) <= most
        ]
        found += [
            f"{name}: {getattr(self, name)}: must be a multiple of 8"
            for name in ("channels", "width")
            if getattr(self, name) % 8
        ]
        if self.keypoints % 2:
            found.append(f"keypoints: {self.keypoints}: must be even, half of them look at plain colors")
        if len(self.image_size) != 2 or any(side < 8 or side % 4 or side > 8192 for side in self.image_size):
            found.append(f"image_size: {self.image_size}: height and width must be multiples of 4, from 8 to 8192")
        return found


@dataclass(frozen=True)
class FlowPolicyConfig(FlowSettings, PolicyConfig):
    """Config of a `FlowPolicy`: the run's settings and the facts of its data."""

    @property
    def noise_dim(self) -> int:
        """Width of the noise of one slot: of the action, and with a future of the state behind it."""
        return self.action_dim + (self.state_dim if self.future else 0)

    def __post_init__(self) -> None:
        found = [
            f"{n}: {getattr(self, n)}: must be at least 1" for n in ("action_dim", "chunk") if getattr(self, n) < 1
        ]
        if self.state_dim < 0:
            found.append(f"state_dim: {self.state_dim}: must be 0 (no state) or more")
        if self.future and not self.state_dim:
            found.append("future: True: needs a state, and state_dim is 0")
        if found := [*found, *self.problems()]:
            raise ValueError("; ".join(found))


FLOW = PolicyType(FlowSettings, FlowPolicyConfig, "understudy.policies.flow.model:FlowPolicy")
