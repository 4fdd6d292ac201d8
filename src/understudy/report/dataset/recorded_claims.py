"""What a dataset's recorded statistics claim, held against what was read of it: nobody has to believe them."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.errors import DatasetError

FRAMES = 16
"""Frames of which pictures that lie in the rows as arrays are read."""

_FEW = 8  # dimensions that are named in one line


def contradictions(catalog: Catalog, low: Mapping[str, np.ndarray], high: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Lines on statistics that what was read contradicts.

    Args:
        low, high: least and most that was read of each column, by dimension.
    """
    stats = {}
    with suppress(DatasetError):  # which the report says
        stats = catalog.stats
    for key in low:
        entry, least, most = stats.get(key, {}), low[key], high[key]
        known = {name: entry[name].reshape(-1) for name in ("std", "min", "max") if name in entry}
        if any(values.shape != least.shape for values in known.values()):
            continue
        names = _names(catalog, key, len(least))
        if "std" in known and (still := np.flatnonzero((known["std"] == 0) & (most > least))).size:
            yield f"{key}: the recorded statistics call {_listed(names, still)} constant, what was read is not"
        if "min" in known and "max" in known:
            slack = 1e-4 * (known["max"] - known["min"]) + 1e-6 * np.maximum(abs(known["min"]), abs(known["max"]))
            out = np.flatnonzero((least < known["min"] - slack) | (most > known["max"] + slack))
            if out.size:
                yield f"{key}: what was read leaves the range that the recorded statistics give {_listed(names, out)}"


def constant(catalog: Catalog, key: str, low: np.ndarray, high: np.ndarray) -> str:
    """A line on the dimensions of which every value that was read is the same, "" for none."""
    still = np.flatnonzero(low == high)
    if not still.size:
        return ""
    names = _names(catalog, key, len(low))
    if len(still) > _FEW:  # as ranges: names of dozens of joints would fill the screen
        runs = np.split(still, np.flatnonzero(np.diff(still) > 1) + 1)
        ranges = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
        return f"{key}: constant in {len(still)} of {len(low)} dimensions, {', '.join(ranges)}"
    said = ", ".join(str(i) if names[i] == str(i) else f"{i} ({names[i]})" for i in still.tolist())
    return f"{key}: constant in dimensions {said}"


def colours(catalog: Catalog, key: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and most of each colour, of pictures that are an array column, in some frames of the episodes of `rows`.

    Raises:
        DatasetError: they cannot be read.
    """
    feature = catalog.features[key]
    first = feature.shape[0] in (1, 3, 4) and feature.shape[2] not in (1, 3, 4)
    axis = 0 if first or feature.is_camera else 2  # a camera comes with its colours in front
    some = rows[np.linspace(0, len(rows) - 1, min(FRAMES, len(rows))).round().astype(int)]
    episodes, lengths = catalog.episodes.ids[some], catalog.episodes.lengths[some]
    data = EpisodeDataset(catalog, keys=[key], row_cache_bytes=1)
    found = [data.sample(int(e), int(n) // 2)[key].double().numpy() for e, n in zip(episodes, lengths)]
    values = np.moveaxis(np.stack(found), axis + 1, -1)
    values = values.reshape(-1, values.shape[-1])
    return values.min(0), values.max(0)


def _names(catalog: Catalog, key: str, width: int) -> list[str]:
    names = catalog.features[key].dimension_names
    return names if len(names) == width else [str(number) for number in range(width)]


def _listed(names: list[str], which: np.ndarray) -> str:
    said = ", ".join(names[i] for i in which[:_FEW].tolist())
    return f"dimension{'s' if len(which) > 1 else ''} {said}" + (f" and {len(which) - _FEW} more" * (len(which) > _FEW))
