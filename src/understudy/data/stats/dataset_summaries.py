"""Summaries of one source from one pass over its rows: action, state, and action minus state.

Reads the two columns only, file by file, and opens no image. Memory holds one file's columns and the sampled rows of
`summary.py`.
"""

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.data.dataset import EpisodeDataset
from understudy.data.read.rows import Rows
from understudy.data.stats.summary import Summary, SummaryBuilder
from understudy.errors import DatasetError

DELTA = "action - observation.state"
"""Key of the action's dimensions learnt as differences, over all pairs of a frame and a valid step of its window."""

LOADED_BYTES = 256 << 20  # bytes of loaded rows; more than one file where an order alternates between files
PAIRS = 1 << 18  # pairs that are computed at once


def vector_widths(data: EpisodeDataset) -> dict[str, int]:
    """Return the widths of `ACTION` and, if present, `STATE`.

    Raises:
        DatasetError: there is no action, or one of them is not a vector of numbers.
    """
    found = {}
    for key in (ACTION, STATE):
        feature = data.catalog.features.get(key)
        if feature is None and key == STATE:
            continue
        if feature is None or feature.is_text or feature.is_camera or len(feature.value_shape) > 1:
            what = "there is no such feature" if feature is None else f"it is {feature.dtype} of shape {feature.shape}"
            raise DatasetError(f"{key!r} is needed as a vector: {what}", where=data.name, fix="see `inspect`")
        found[key] = int(np.prod(feature.value_shape))
    return found


def count_frames(data: EpisodeDataset) -> int:
    """Count the frames that are samples."""
    return int((data.segments[:, 2] - data.segments[:, 1]).sum())


def count_pairs(data: EpisodeDataset, chunk: int) -> int:
    """Count the pairs (frame, step of its window of `chunk` frames) without padding."""

    def up_to(n: np.ndarray) -> np.ndarray:
        """Count pairs of the last n frames before a window's bound: sum over i = 1..n of min(i, chunk)."""
        short = np.minimum(n, chunk)
        return short * (short + 1) // 2 + (n - short) * chunk

    left = data.window_stops - data.segments[:, 1]
    return int((up_to(left) - up_to(left - (data.segments[:, 2] - data.segments[:, 1]))).sum())


def summarize(
    data: EpisodeDataset,
    delta: tuple[int, ...],
    chunk: int,
    strides: Mapping[str, int],
    progress: Callable[[int], object],
) -> dict[str, Summary]:
    """Summarise `ACTION`, `STATE` (if present) and `DELTA` (if `delta` names dimensions, [len(delta)]).

    Args:
        data: the source; its segments give the frames.
        delta: dimensions of the action that are differences to the state.
        chunk: frames of the action's window from the present on.
        strides: stride of the sampled rows, by each of the three keys (see `Summary`).
        progress: receives the number of frames done since the last call.

    Raises:
        DatasetError: a file cannot be read, or a value of a sample is not finite; names the column, the episode and the
            dimension.
    """
    keys = tuple(vector_widths(data))
    totals = dict.fromkeys(keys, count_frames(data)) | ({DELTA: count_pairs(data, chunk)} if delta else {})
    builders = {key: SummaryBuilder(total, strides[key]) for key, total in totals.items()}
    rows = Rows(data.catalog, keys, LOADED_BYTES)
    # Windows reach beyond the samples of a segment: those frames are targets or past states, and must be finite, too.
    reached = {ACTION: (data.reach_of(ACTION)[0], chunk - 1), STATE: data.reach_of(STATE)}
    for (episode, start, stop), bound in zip(data.segments.tolist(), data.window_stops.tolist()):
        row = data.catalog.episodes.rows_of(np.array([episode]))
        firsts = {key: max(0, start - reached[key][0]) for key in keys}
        numbers = {key: np.arange(firsts[key], min(bound, stop + reached[key][1]))[None] for key in keys}
        values = {}
        for key, taken in rows.take(row, numbers).items():
            table = np.asarray(taken).reshape(numbers[key].shape[1], -1)  # [frames, dim]
            _check_finite(key, table, f"{data.name}, episode {episode}")
            values[key] = table[start - firsts[key] :]
            builders[key].add(values[key][: stop - start])
        for differences in _differences(values, stop - start, delta, chunk) if delta else ():
            builders[DELTA].add(differences)
        progress(stop - start)
    return {key: builder.summary() for key, builder in builders.items()}


def _differences(
    values: Mapping[str, np.ndarray], count: int, delta: tuple[int, ...], chunk: int
) -> Iterator[np.ndarray]:
    """Yield action[t + k] - state[t] of `delta` for t in [0, count) and every valid k, k fastest.

    Parts are [pairs, len(delta)], in the wider of the two dtypes and at least float32.
    """
    wide = np.result_type(values[ACTION], values[STATE], np.float32)
    action, state = (values[key][:, list(delta)].astype(wide) for key in (ACTION, STATE))
    step = max(1, PAIRS // chunk)
    for first in range(0, count, step):
        now = np.arange(first, min(first + step, count))
        at = now[:, None] + np.arange(chunk)  # [frames, chunk]
        there = at < len(action)
        yield (action[np.where(there, at, 0)] - state[now][:, None])[there]


def _check_finite(key: str, table: np.ndarray, where: str) -> None:
    bad = np.argwhere(~np.isfinite(table))
    if len(bad):
        row, dim = bad[0]
        raise DatasetError(
            f"{key}[{dim}] is {table[row, dim]} ({len(bad)} such values)",
            where=where,
            fix="leave the episode out (exclude_episodes) or the column",
        )
