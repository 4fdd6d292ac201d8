"""Settings and config of the world-action model. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from understudy.policies.common.settings import EncoderSettings
from understudy.policies.registry import PolicyConfig, PolicyType


@dataclass(frozen=True, kw_only=True)
class WorldActionSettings(EncoderSettings):
    """The world-action model: a small transformer that predicts actions, and in other modes their consequences.

    In mode `policy` alone it predicts actions. In every other setting of `mode` it also predicts the states and images
    that follow.
    """

    LIMITS: ClassVar[Mapping[str, int]] = {
        **EncoderSettings.LIMITS,
        "width": 2**20,
        "layers": 10**4,
        "heads": 2**10,
        "patch": 2**10,
        "future_patch": 2**10,
        "noise_samples": 2**12,
    }

    type: Literal["world_action"] = "world_action"
    """Type of the policy."""
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
        problems = super().problems()
        if self.heads >= 1 and self.width % (2 * self.heads):
            problems.append(f"width: {self.width}: must be a multiple of {2 * self.heads}, twice the heads")
        if not 0 <= self.future_images <= 2**10:
            problems.append(f"future_images: {self.future_images}: must be from 0 to {2**10}")
        for name in ("patch", "future_patch"):
            side = getattr(self, name)
            if side >= 1 and any(length % side for length in self.image_size):
                problems.append(f"{name}: {side}: must divide the image_size of {self.image_size}")
        return problems


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
        problems = self.fact_problems()
        if self.imagined > self.chunk:
            problems.append(f"future_images: {self.future_images}: must be at most the chunk of {self.chunk} actions")
        if problems := [*problems, *self.problems()]:
            raise ValueError("; ".join(problems))


WORLD_ACTION = PolicyType(
    WorldActionSettings, WorldActionConfig, "understudy.policies.world_action.policy:WorldActionPolicy"
)
