"""Sizes of images: the capabilities `ResizesImages` and `FitsImages`."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Protocol, TypeVar, runtime_checkable

Settings = TypeVar("Settings")
Resize = Callable[[Any, Any], None]
"""Function that writes an image uint8 [3, H, W] into another one, uint8 [3, height, width]."""


@runtime_checkable
class ResizesImages(Protocol):
    """Settings of a policy that resizes images in another way than area averaging."""

    RESIZED: ClassVar[str]
    """Name of the way, for messages."""

    def resize(self) -> Resize:
        """Return the function by which a loader resizes the images of sources that differ in size.

        Its result is that of the policy's own resizing.
        """


def resize_of(settings: object) -> Resize | None:
    """Return the function of `ResizesImages`; None: area averaging."""
    return settings.resize() if isinstance(settings, ResizesImages) else None


def way_of_resizing(settings: object) -> str:
    """Return the name of the way in which images are resized."""
    return settings.RESIZED if isinstance(settings, ResizesImages) else "area"


@runtime_checkable
class FitsImages(Protocol):
    """Settings of a policy of which some follow from the recorded images."""

    def fitted(self, sizes: Mapping[str, tuple[int, int] | None]) -> Any:
        """Return the settings with those that follow.

        Args:
            sizes: camera -> (height, width); None where the dataset has no size.

        Raises:
            ConfigError: the sizes differ, or are not known, and this policy needs one.
        """


def fit_images(settings: Settings, sizes: Mapping[str, tuple[int, int] | None]) -> Settings:
    """Return the settings of a run on these images; see `FitsImages.fitted`."""
    fitted: Settings = settings.fitted(sizes) if isinstance(settings, FitsImages) else settings
    return fitted
