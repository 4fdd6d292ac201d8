"""Statistics of the training episodes, and the numbers by which a policy normalises.

Here: per-dimension statistics of column arrays, the choice of offset and spread for each way of normalising, and their
JSON form. Not here: the formula itself, (x - offset) / spread with a constant dimension at 0; it belongs to the policy
(`policies/affine.py`), which is handed these numbers as plain arrays and carries them to the robot.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Literal

import numpy as np

from understudy.data.errors import DatasetError

Mode = Literal["mean_std", "min_max", "quantile"]


@dataclass(frozen=True)
class Statistics:
    """One column over the rows it was computed from; float64 [dim] each. Exact quantiles, population deviation."""

    count: int
    mean: np.ndarray
    std: np.ndarray
    min: np.ndarray
    max: np.ndarray
    q01: np.ndarray
    q99: np.ndarray


def statistics(
    columns: Mapping[str, np.ndarray], episode_index: np.ndarray, episodes: Iterable[int]
) -> dict[str, Statistics]:
    """Statistics of each column over the rows of `episodes`: pass the training episodes, and only those.

    Args:
        columns: key -> numbers or bools [rows] or [rows, dim].
        episode_index: int [rows], the episode of each row.
        episodes: ids of the episodes to use.
    Raises:
        DatasetError: no row is left, or a value is not finite (names the column, the episode and the dimension).
    """
    keep = np.isin(episode_index, np.fromiter(episodes, dtype=np.int64))
    if not keep.any():
        raise DatasetError("no rows to compute statistics from", fix="name training episodes that the dataset has")
    return {key: _of_column(key, np.asarray(column)[keep], episode_index[keep]) for key, column in columns.items()}


def _of_column(key: str, rows: np.ndarray, episode_index: np.ndarray) -> Statistics:
    table = rows.reshape(len(rows), -1)  # [rows, dim]
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        row, dim = bad[0]
        raise DatasetError(
            f"{key}[{dim}] is {table[row, dim]} ({len(bad)} such values)",
            where=f"episode {episode_index[row]}",
            fix="leave the episode out (exclude_episodes) or the column",
        )
    found = []
    for dim in range(table.shape[1]):  # one dimension at a time: a quantile sorts a copy
        x = table[:, dim].astype(np.float64)
        found.append([x.mean(), x.std(), x.min(), x.max(), *np.quantile(x, [0.01, 0.99])])
    return Statistics(len(table), *np.array(found).T)


def offset_and_spread(statistics: Statistics, mode: Mode = "mean_std") -> dict[str, np.ndarray]:
    """The affine map of one column: {"offset", "spread"}, float32 [dim], so that (x - offset) / spread is normal.

    "mean_std" gives mean 0 and deviation 1, "min_max" gives -1..1, "quantile" puts the 1 % and 99 % quantiles at -1 and
    1 (values beyond stay beyond: nothing is clipped, so the inverse is exact). A dimension that never changes gets
    spread 0 and its constant as offset. One that changes, but so rarely that both quantiles are equal (a gripper that
    closes in one frame of two hundred), falls back to its range; spread 0 would lose it.
    """
    s = statistics
    if mode == "mean_std":
        offset, spread = s.mean, s.std
    elif mode == "min_max":
        offset, spread = (s.min + s.max) / 2, (s.max - s.min) / 2
    elif mode == "quantile":
        rare = s.q99 <= s.q01
        low, high = np.where(rare, s.min, s.q01), np.where(rare, s.max, s.q99)
        offset, spread = (low + high) / 2, (high - low) / 2
    else:
        raise ValueError(f"mode={mode!r}: must be mean_std, min_max or quantile")
    # Rounding leaves a deviation of 1e-17 on a column of equal numbers: only min == max says constant.
    constant = s.min == s.max
    offset = np.where(constant, s.min, offset).astype(np.float32)
    spread = np.where(constant, 0.0, spread).astype(np.float32)
    return {"offset": offset, "spread": spread}


def to_json(statistics: Mapping[str, Statistics]) -> str:
    """JSON text of the statistics by key; float64 survives unchanged."""
    plain = {
        key: {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(s).items()}
        for key, s in statistics.items()
    }
    return json.dumps(plain, indent=2) + "\n"


def from_json(text: str) -> dict[str, Statistics]:
    """The inverse of `to_json`. Raises DatasetError where the text is not of that form."""
    names = {field.name for field in fields(Statistics)} - {"count"}
    try:
        return {
            key: Statistics(count=int(s["count"]), **{name: np.array(s[name], dtype=np.float64) for name in names})
            for key, s in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DatasetError(f"these are not statistics: {error!r}", fix="compute them anew") from error
