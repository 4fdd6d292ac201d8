"""Settings and config of the world-action model: those of pi0.5, and of the future that it
predicts. No torch.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

from understudy import LossTerm, Pi05PolicyConfig, Pi05Settings, PolicyType


@dataclass(frozen=True, kw_only=True)
class WorldActionSettings(Pi05Settings):
    """The world-action model: pi0.5 whose action expert also predicts the states and images that
    follow.

    In mode `policy` alone it is pi0.5. In every other setting of `mode` the expert has streams of
    the future.
    """

    ALWAYS: ClassVar[tuple[str, ...]] = (LossTerm.FLOW,)
    # Those of pi0.5, and the layers of the future, which released weights lack.
    LORA_TARGETS: ClassVar[tuple[str, ...]] = ("layers.*_proj", "[asf]*_proj*", "*time_mlp_*")

    type: Literal["world_action"] = "world_action"  # type: ignore[assignment]  # another constant
    """Type of the policy."""
    future_images: int = 1
    """Future images of each camera, spaced evenly over the chunk; the last follows its last action.
    0: states alone.
    """
    future_patch: int = 0
    """Side of the patches of future images in pixels, one token each: an even divisor of the
    image's side. The default, 0, is 32 for dimensions of `base` and 16 for those of `tiny`.
    """

    @property
    def patch_side(self) -> int:
        """Side of the patches of future images, in pixels."""
        if self.future_patch:
            return self.future_patch
        return 32 if self.size == "base" else 16

    def images_ahead(self, chunk: int) -> tuple[int, ...]:
        """Return the frames ahead of the future images, evenly spaced, the last at the end of the
        chunk.
        """
        return tuple(
            chunk * (number + 1) // self.future_images for number in range(self.future_images)
        )

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        problems = super().problems()
        if not 0 <= self.future_images <= 2**10:
            problems.append(f"future_images: {self.future_images}: must be from 0 to {2**10}")
        if self.future_patch < 0 or self.future_patch % 2:
            problems.append(
                f"future_patch: {self.future_patch}: must be an even number of pixels, or 0"
            )
        return problems


@dataclass(frozen=True)
class WorldActionConfig(WorldActionSettings, Pi05PolicyConfig):
    """Config of a `WorldActionPolicy`: the run's settings and the facts of its data."""

    @property
    def imagined(self) -> int:
        """Future images of each camera that the network predicts; 0 without a future."""
        return self.future_images if self.future and self.cameras else 0

    @property
    def patches(self) -> int:
        """Patches of a future image."""
        return (self.sizes.vision.image // self.patch_side) ** 2

    def __post_init__(self) -> None:
        super().__post_init__()
        problems = []
        side = self.sizes.vision.image
        if self.imagined > self.chunk:
            problems.append(
                f"future_images: {self.future_images}: must be at most the chunk of {self.chunk} "
                "actions"
            )
        if self.imagined and side % self.patch_side:
            problems.append(
                f"future_patch: {self.patch_side}: must divide the image's side of {side}"
            )
        problems += [
            f"{name}: {getattr(self, name)}: a run that trains a future has none; leave it out"
            for name in ("history", "max_delay")
            if self.future and getattr(self, name)
        ]
        if problems:
            raise ValueError("; ".join(problems))


WORLD_ACTION = PolicyType(
    WorldActionSettings,
    "understudy_zoo.world_action.policy:WorldActionPolicy",
    config=WorldActionConfig,
)
