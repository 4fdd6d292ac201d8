"""Rules of depth images: they measure something, within the range that the recorded statistics name."""

from collections.abc import Iterator

import numpy as np

from understudy.check.findings import Finding, Place
from understudy.check.image_facts import DepthRange, ImageFacts
from understudy.check.remedies import LOOK
from understudy.data.format.catalog import Catalog
from understudy.errors import DatasetError

_SLACK = 1e-3  # of the range: values are rounded to the codes of a video


def check_depth(catalog: Catalog, facts: ImageFacts) -> Iterator[Finding]:
    """Yield findings about sampled depth images."""
    for camera, ranges in facts.depth.items():
        flat = [span for span in ranges if not span.most > span.least]
        if flat:
            place = Place(tuple(int(catalog.episodes.ids[span.row]) for span in flat), camera=camera)
            message = "depth images hold one value: the camera measured nothing"
            yield Finding("depth.empty", "warning", message, place, flat[0].most, None, LOOK)
        yield from _range(catalog, camera, [span for span in ranges if span not in flat])


def _range(catalog: Catalog, camera: str, ranges: list[DepthRange]) -> Iterator[Finding]:
    """Sampled values beyond the recorded minimum and maximum, as after a change of unit."""
    try:
        entry = catalog.stats.get(camera, {})
    except DatasetError:
        return
    recorded_range = [np.asarray(entry.get(name, np.zeros(0)), np.float64).reshape(-1) for name in ("min", "max")]
    if not ranges or any(len(entry_range) != 1 or not np.isfinite(entry_range).all() for entry_range in recorded_range):
        return
    low, high = float(recorded_range[0][0]), float(recorded_range[1][0])
    slack = _SLACK * (high - low) + 1e-3 * abs(high)
    codes = catalog.features[camera].pixels.codes
    low, high = (low, high) if codes is None else np.clip([low, high], codes.minimum, codes.maximum).tolist()
    for measured, recorded, over in (
        (min(span.least for span in ranges), low, low - min(span.least for span in ranges)),
        (max(span.most for span in ranges), high, max(span.most for span in ranges) - high),
    ):
        if over > slack:
            message = f"sampled depth reaches {measured:.4g}, the recorded statistics end at {recorded:.4g}"
            fix = "correct depth_unit or the scale in meta/info.json, or compute the statistics again"
            yield Finding("depth.range", "warning", message, Place(camera=camera), measured, recorded, fix)
            return
