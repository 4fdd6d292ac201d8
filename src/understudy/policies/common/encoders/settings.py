"""Settings of the text and image encoders, which the small policies share. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from understudy.policies.registry import PolicySettings


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
    """Keypoints read from each image, an even number: half from the network's maps, half from the plain colors."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        found = [
            f"{name}: {getattr(self, name)}: must be from 1 to {most}"
            for name, most in self.LIMITS.items()
            if not 1 <= getattr(self, name) <= most
        ]
        if self.channels % 8:
            found.append(f"channels: {self.channels}: must be a multiple of 8")
        if self.keypoints % 2:
            found.append(f"keypoints: {self.keypoints}: must be even, half of them look at plain colors")
        if len(self.image_size) != 2 or any(side < 8 or side % 4 or side > 8192 for side in self.image_size):
            found.append(f"image_size: {self.image_size}: height and width must be multiples of 4, from 8 to 8192")
        return found
