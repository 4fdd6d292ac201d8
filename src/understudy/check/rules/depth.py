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
        flat = [one for one in ranges if not one.most > one.least]
        if flat:
            place = Place(tuple(int(catalog.episodes.ids[one.row]) for one in flat), camera=camera)
            message = "depth images hold one value: the camera measured nothing"
            yield Finding("depth.empty", "warning", message, place, flat[0].most, None, LOOK)
        yield from _range(catalog, camera, [one for one in ranges if one not in flat])


def _range(catalog: Catalog, camera: str, ranges: list[DepthRange]) -> Iterator[Finding]:
    """Sampled values beyond the recorded minimum and maximum, as after a change of unit."""
    try:
        entry = catalog.stats.get(camera, {})
    except DatasetError:
        return
    known = [np.asarray(entry.get(name, np.zeros(0)), np.float64).reshape(-1) for name in ("min", "max")]
    if not ranges or any(len(one) != 1 or not np.isfinite(one).all() for one in known):
        return
    low, high = float(known[0][0]), float(known[1][0])
    slack = _SLACK * (high - low) + 1e-3 * abs(high)
    codes = catalog.features[camera].pixels.codes
    low, high = (low, high) if codes is None else np.clip([low, high], codes.minimum, codes.maximum).tolist()
    for measured, recorded, over in (
        (min(one.least for one in ranges), low, low - min(one.least for one in ranges)),
        (max(one.most for one in ranges), high, max(one.most for one in ranges) - high),
    ):
        if over > slack:
            message = f"sampled depth reaches {measured:.4g}, the recorded statistics end at {recorded:.4g}"
            fix = "correct depth_unit or the scale in meta/info.json, or compute the statistics again"
            yield Finding("depth.range", "warning", message, Place(camera=camera), measured, recorded, fix)
            return
