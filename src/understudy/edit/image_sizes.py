"""Sizes of encoded images: `224` for the longer side, `WIDTHxHEIGHT` for both."""

import re
from collections.abc import Mapping
from dataclasses import replace

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import Feature
from understudy.errors import DatasetError

_MOST = 8192  # pixels
_FORM = re.compile(r"(\d{1,5})(?:x(\d{1,5}))?")


def parse_size(text: str) -> tuple[int, int | None]:
    """Parse a size into (longer side, None) or (width, height). Raises DatasetError."""
    match = _FORM.fullmatch(text)
    sides = [int(side) for side in match.groups() if side] if match else []
    if not sides or min(sides) < 16 or max(sides) > _MOST or any(side % 2 for side in sides):
        raise DatasetError(
            f"size is {text!r}", fix=f"give even sides from 16 to {_MOST}: 224, or WIDTHxHEIGHT as in 224x168"
        )
    return sides[0], sides[1] if len(sides) > 1 else None


def fit_size(size: tuple[int, int], wanted: tuple[int, int | None]) -> tuple[int, int]:
    """Return (height, width) of images of `size` (height, width) for a parsed size.

    With the longer side alone the aspect ratio stays, up to rounding to even sides of at least 16, and images that are
    not larger keep their size.
    """
    side, second = wanted
    if second is not None:
        return second, side
    if max(size) <= side:
        return size
    height, width = (max(16, 2 * round(one * side / max(size) / 2)) for one in size)
    return height, width


def resized(catalog: Catalog, sizes: Mapping[str, tuple[int, int]]) -> Catalog:
    """Return the catalog as if its cameras had the given (height, width)."""
    changed = {key: resized_feature(catalog.features[key], size) for key, size in sizes.items()}
    return replace(catalog, features={**catalog.features, **changed})


def resized_feature(feature: Feature, size: tuple[int, int]) -> Feature:
    """Return a camera of another (height, width)."""
    return replace(feature, shape=(*size, 3), names=["height", "width", "channels"])
