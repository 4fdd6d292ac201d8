"""Settings and config of the world-action model. No torch."""

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
    "heads": 2**10,
    "patch": 2**10,
    "future_patch": 2**10,
    "noise_samples": 2**12,
}
"""Largest value of each number; the smallest is 1."""


@dataclass(frozen=True, kw_only=True)
class WorldActionSettings(PolicySettings):
    """The world-action model: a small transformer that predicts actions, and in other modes their consequences.

    In mode `policy` alone it predicts actions. In every other setting of `mode` it also predicts the states and images
    that follow.
    """

    RUN_ONLY: ClassVar[tuple[str, ...]] = ("compute", "noise_samples")

    type: Literal["world_action"] = "world_action"
    """Type of the policy."""
    text_bytes: int = 96
    """Length of the instruction in bytes, with its start token; longer ones are cut."""
    channels: int = 24
    """Channels of the image network (a multiple of 8)."""
    blocks: int = 3
    """Residual blocks of the image network."""
    keypoints: int = 32
    """Keypoints read from each image (even)."""
    width: int = 128
    """Width of both towers (a multiple of twice `heads`)."""
    layers: int = 4
    """Layers of both towers."""
    heads: int = 4
    """Attention heads."""
    patch: int = 16
    """Side of the patches of the present images, in pixels."""
    future_patch: int = 16
    """Side of the patches of future images, in pixels."""
    future_images: int = 1
    """Future images of each camera, spaced evenly over the chunk; the last follows its last action."""
    noise_samples: int = 2
    """Noises and flow times per sample and step; they share one pass over the present images."""

    def images_ahead(self, chunk: int) -> tuple[int, ...]:
        """Return the frames ahead of the future images, evenly spaced, the last at the end of the chunk."""
        return tuple(chunk * (number + 1) // self.future_images for number in range(self.future_images))

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        found = [
            f"{name}: {getattr(self, name)}: must be from 1 to {most}"
            for name, most in LIMITS.items()
            if not 1 <= getattr(self, name) <= most
        ]
        if self.channels % 8:
            found.append(f"channels: {self.channels}: must be a multiple of 8")
        if self.keypoints % 2:
            found.append(f"keypoints: {self.keypoints}: must be even")
        if self.heads >= 1 and self.width % (2 * self.heads):
            found.append(f"width: {self.width}: must be a multiple of {2 * self.heads}, twice the heads")
        if not 0 <= self.future_images <= 2**10:
            found.append(f"future_images: {self.future_images}: must be from 0 to {2**10}")
        for name in ("patch", "future_patch"):
            side = getattr(self, name)
            if side >= 1 and any(length % side for length in self.image_size):
                found.append(f"{name}: {side}: must divide the image_size of {self.image_size}")
        if len(self.image_size) != 2 or any(side < 8 or side % 4 or side > 8192 for side in self.image_size):
            found.append(f"image_size: {self.image_size}: height and width must be multiples of 4, from 8 to 8192")
        return found


@dataclass(frozen=True)
class WorldActionConfig(WorldActionSettings, PolicyConfig):
    """Config of a `WorldActionPolicy`: the run's settings and the facts of its data."""

    @property
    def imagined(self) -> int:
        """Future images of each camera that the network predicts; 0 without a future."""
        return self.future_images if self.future and self.cameras else 0

    @property
    def patches(self) -> int:
        """Patches of a future image."""
        return (self.image_size[0] // self.future_patch) * (self.image_size[1] // self.future_patch)

    def __post_init__(self) -> None:
        found = [
            f"{n}: {getattr(self, n)}: must be at least 1" for n in ("action_dim", "chunk") if getattr(self, n) < 1
        ]
        if self.state_dim < 0:
            found.append(f"state_dim: {self.state_dim}: must be 0 (no state) or more")
        if self.future and not self.state_dim:
            found.append("future: True: needs a state, and state_dim is 0")
        if self.imagined > self.chunk:
            found.append(f"future_images: {self.future_images}: must be at most the chunk of {self.chunk} actions")
        if found := [*found, *self.problems()]:
            raise ValueError("; ".join(found))


WORLD_ACTION = PolicyType(
    WorldActionSettings, WorldActionConfig, "understudy.policies.world_action.policy:WorldActionPolicy"
)
