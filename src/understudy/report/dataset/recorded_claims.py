"""Check of a dataset's recorded statistics against the values read."""

from collections.abc import Iterator, Mapping
from contextlib import suppress

import numpy as np

from understudy.data.dataset import EpisodeDataset
from understudy.data.format.catalog import Catalog
from understudy.errors import DatasetError

FRAMES = 16
"""Most frames to read of images that are stored as arrays in the rows."""

_FEW = 8  # most dimensions to name in one line


def contradictions(catalog: Catalog, low: Mapping[str, np.ndarray], high: Mapping[str, np.ndarray]) -> Iterator[str]:
    """Yield a line for each recorded statistic that the values read contradict.

    Args:
        catalog: The dataset.
        low: Least value read of each column, by dimension.
        high: Greatest value read of each column, by dimension.
    """
    stats = {}
    with suppress(DatasetError):  # reported elsewhere
        stats = catalog.stats
    for key in low:
        entry, least, most = stats.get(key, {}), low[key], high[key]
        known = {name: entry[name].reshape(-1) for name in ("std", "min", "max") if name in entry}
        if any(values.shape != least.shape for values in known.values()):
            continue
        names = _names(catalog, key, len(least))
        if "std" in known and (still := np.flatnonzero((known["std"] == 0) & (most > least))).size:
            yield f"{key}: {_listed(names, still)} constant in the recorded statistics, but not in the values read"
        if "min" in known and "max" in known:
            slack = 1e-4 * (known["max"] - known["min"]) + 1e-6 * np.maximum(abs(known["min"]), abs(known["max"]))
            out = np.flatnonzero((least < known["min"] - slack) | (most > known["max"] + slack))
            if out.size:
                yield f"{key}: values read are outside the recorded range of {_listed(names, out)}"


def constant(catalog: Catalog, key: str, low: np.ndarray, high: np.ndarray) -> str:
    """Name the dimensions with a single value in all rows read, in one line; "" for none."""
    still = np.flatnonzero(low == high)
    if not still.size:
        return ""
    names = _names(catalog, key, len(low))
    if len(still) > _FEW:  # as ranges, since names of dozens of joints fill the screen
        runs = np.split(still, np.flatnonzero(np.diff(still) > 1) + 1)
        ranges = [f"{run[0]} to {run[-1]}" if len(run) > 1 else f"{run[0]}" for run in runs]
        return f"{key}: constant in {len(still)} of {len(low)} dimensions, {', '.join(ranges)}"
    listed = ", ".join(str(i) if names[i] == str(i) else f"{i} ({names[i]})" for i in still.tolist())
    return f"{key}: constant in dimensions {listed}"


def colors(catalog: Catalog, key: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least and greatest value of each channel, of an array column of images, in some frames of the episodes `rows`.

    Raises:
        DatasetError: The images are unreadable.
    """
    feature = catalog.features[key]
    first = feature.shape[0] in (1, 3, 4) and feature.shape[2] not in (1, 3, 4)
    axis = 0 if first or feature.is_camera else 2  # a camera comes with its colors in front
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
    listed = ", ".join(names[i] for i in which[:_FEW].tolist())
    more = f" and {len(which) - _FEW} more" * (len(which) > _FEW)
    return f"dimension{'s' if len(which) > 1 else ''} {listed}{more}"
