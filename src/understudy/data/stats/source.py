"""One pass over the rows of one source: action, state, and actions as differences to the state, summarised.

Reads the two columns and nothing else, file by file: no picture is opened, and no more than one file's columns and what
`summary.py` keeps are in memory.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.data.dataset import EpisodeDataset
from understudy.data.read.rows import Rows
from understudy.data.stats.summary import Gathering, Summary
from understudy.errors import DatasetError

DELTA = "action - observation.state"
"""Under this name: the dimensions of the action that are learnt as differences, over all pairs of a frame and a step of
its window that is no padding."""

_FILES = 256 << 20  # bytes of loaded rows; more than one file where episodes lie across
_PAIRS = 1 << 18  # pairs that are put together at once


def widths(data: EpisodeDataset) -> dict[str, int]:
    """Numbers per frame of `ACTION` and, where the dataset has one, `STATE`.

    Raises:
        DatasetError: there is no action, or one of them is no vector of numbers.
    """
    found = {}
    for key in (ACTION, STATE):
        feature = data.catalog.features.get(key)
        if feature is None and key == STATE:
            continue
        if feature is None or feature.is_text or feature.is_picture or len(feature.value_shape) > 1:
            what = "there is no such feature" if feature is None else f"it is {feature.dtype} of shape {feature.shape}"
            raise DatasetError(f"{key!r} is needed as a vector: {what}", where=data.name, fix="see `inspect`")
        found[key] = int(np.prod(feature.value_shape))
    return found


def frames(data: EpisodeDataset) -> int:
    """Frames that are samples."""
    return int((data.segments[:, 2] - data.segments[:, 1]).sum())


def pairs(data: EpisodeDataset, chunk: int) -> int:
    """Pairs (frame, step of its window of `chunk` frames) that are no padding."""

    def up_to(n: np.ndarray) -> np.ndarray:
        """Pairs of the last n frames before a window's bound: sum over i = 1..n of min(i, chunk)."""
        short = np.minimum(n, chunk)
        return short * (short + 1) // 2 + (n - short) * chunk

    left = data.window_stops - data.segments[:, 1]
    return int((up_to(left) - up_to(left - (data.segments[:, 2] - data.segments[:, 1]))).sum())


def summarise(
    data: EpisodeDataset,
    delta: tuple[int, ...],
    chunk: int,
    strides: Mapping[str, int],
    progress: Callable[[int], object],
) -> dict[str, Summary]:
    """Of `ACTION`, `STATE` (where there is one) and `DELTA` (where `delta` names dimensions, [len(delta)]).

    Args:
        data: its segments say which frames count.
        strides: how many rows to keep, by each of the three names (see `Summary`).
        progress: called with the number of frames done since the last call.

    Raises:
        DatasetError: a file cannot be read, or a value that a sample would hold is not finite; names the column, the
            episode and the dimension.
    """
    keys = tuple(widths(data))
    totals = dict.fromkeys(keys, frames(data)) | ({DELTA: pairs(data, chunk)} if delta else {})
    gathered = {key: Gathering(total, strides[key]) for key, total in totals.items()}
    rows = Rows(data.catalog, keys, _FILES)
    # Windows see frames behind the last sample of a segment: they are targets, so they must be finite, too.
    ahead = {ACTION: chunk - 1, STATE: chunk if STATE in data.windows else 0}
    for (episode, start, stop), bound in zip(data.segments.tolist(), data.window_stops.tolist()):
        row = data.catalog.episodes.rows_of(np.array([episode]))
        seen = {key: np.arange(start, min(bound, stop + ahead[key]))[None] for key in keys}
        values = {}
        for key, taken in rows.take(row, seen).items():
            values[key] = np.asarray(taken).reshape(seen[key].shape[1], -1)  # [frames, dim]
            _refuse_what_is_not_finite(key, values[key], f"{data.name}, episode {episode}")
            gathered[key].add(values[key][: stop - start])
        for differences in _differences(values, stop - start, delta, chunk) if delta else ():
            gathered[DELTA].add(differences)
        progress(stop - start)
    return {key: gathering.summary() for key, gathering in gathered.items()}


def _differences(
    values: Mapping[str, np.ndarray], count: int, delta: tuple[int, ...], chunk: int
) -> Iterator[np.ndarray]:
    """action[t + k] - state[t] of `delta` for t in [0, count) and every k that the window has, k running fastest: parts
    [pairs, len(delta)], in the wider of the two types, at least float32."""
    wide = np.result_type(values[ACTION], values[STATE], np.float32)
    action, state = (values[key][:, list(delta)].astype(wide) for key in (ACTION, STATE))
    step = max(1, _PAIRS // chunk)
    for first in range(0, count, step):
        now = np.arange(first, min(first + step, count))
        at = now[:, None] + np.arange(chunk)  # [frames, chunk]
        there = at < len(action)
        yield (action[np.where(there, at, 0)] - state[now][:, None])[there]


def _refuse_what_is_not_finite(key: str, table: np.ndarray, where: str) -> None:
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        row, dim = bad[0]
        raise DatasetError(
            f"{key}[{dim}] is {table[row, dim]} ({len(bad)} such values)",
            where=where,
            fix="leave the episode out (exclude_episodes) or the column",
        )
