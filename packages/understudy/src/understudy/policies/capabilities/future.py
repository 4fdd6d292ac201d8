"""Future images that the network predicts: the capability `ImaginesImages`."""

from typing import ClassVar, Protocol, runtime_checkable


@runtime_checkable
class ImaginesImages(Protocol):
    """Settings of a policy whose runs with a future also read future images."""

    ALWAYS: ClassVar[tuple[str, ...]]
    """Loss terms that every sample of a run with mode `policy` trains, whatever its own mode is."""

    def images_ahead(self, chunk: int) -> tuple[int, ...]:
        """Return the frames ahead, 1 to `chunk`, of these images.

        Empty: none. Otherwise images have a dimension of time, the present first.
        """


def images_ahead(settings: object, chunk: int) -> tuple[int, ...]:
    """Return the frames ahead of the future images; none without the capability."""
    return settings.images_ahead(chunk) if isinstance(settings, ImaginesImages) else ()
