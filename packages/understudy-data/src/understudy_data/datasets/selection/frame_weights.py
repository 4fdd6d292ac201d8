"""Weights of frames, as facts of the order, of the loss, or of both.

With the weight w of a frame, its count c in an epoch of the order, and the factor f of its loss:

    order   c = w, f = 1       weights that are multiples of 1/P: an epoch has P passes, and c = P w
    loss    c = 1, f = w
    both    c = w rounded, at least 1, and f = w / c: the sum of f over an epoch is w, exactly

A frame of weight 0 is not a sample. The order reads c copies of a frame as c layers: layer k has
all frames with more than k copies, as ordinary segments, and the layers follow each other in its
line. So the copies of a frame are shuffled like other frames, and an epoch has each frame exactly c
times on any ranks. Memory is a few numbers per run of equal weight, and per run and layer.

Weights are read from a parquet file or from a column of the dataset. A file has the columns
`episode`, `frame` and `weight` (or LeRobot's names `episode_index` and `frame_index`), a row per
frame, in any sequence. A column has a number per frame. Either is read in pieces: memory is needed
for the runs only.
"""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy_base import DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import describe_ids
from understudy_data.datasets.format.selection_fields import WeightsIn
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.selection.select import (
    EPISODE_STRIDE,
    SelectedFrames,
    Selection,
)
from understudy_data.storage.mapped_tables import SharedState, share_arrays

LARGEST = 1000.0
SMALLEST = 1e-6
"""Bounds of a weight above 0."""

_NAMES = {
    "episode": ("episode", "episode_index"),
    "frame": ("frame", "frame_index"),
    "weight": ("weight",),
}
_BATCH = 1 << 20  # rows read at once
_CACHE = 64 << 20  # bytes of loaded data files


class WeightRuns(NamedTuple):
    """Runs of frames of equal weight, ascending, disjoint, as long as they can be.

    `starts`, `stops`: int64 (R,), frames packed as episode * 2^32 + frame, the end excluded.
    `weights`: float64 (R,).
    """

    starts: np.ndarray
    stops: np.ndarray
    weights: np.ndarray


def is_weight_file(source: str | os.PathLike[str]) -> bool:
    """Return whether frame weights are a file; otherwise they are the name of a column."""
    return not isinstance(source, str) or source.endswith(".parquet")


def _place_of_weights(catalog: Catalog, source: str | os.PathLike[str]) -> str:
    return os.fspath(source) if is_weight_file(source) else f"{catalog.root}: column {source!r}"


def read_weights(
    catalog: Catalog, source: str | os.PathLike[str], segments: np.ndarray
) -> WeightRuns:
    """Read the weights of frames.

    Args:
        catalog: the dataset.
        source: a parquet file, or the key of a feature with one number per frame.
        segments: int64 (K, 3), rows [episode, start, stop): the frames of which a column is read.

    Raises:
        DatasetError: the file or column cannot be read, has another form, names a frame that is not
            in the dataset, or names one twice; a weight is negative, not finite, above 1000, or
            above 0 and below 1e-6.
    """
    where = _place_of_weights(catalog, source)
    if is_weight_file(source):
        parts = list(_read_file(catalog, where))
    else:
        parts = list(_read_column(catalog, str(source), segments))
    if not parts:
        raise DatasetError(
            "frame_weights has no rows",
            where=where,
            fix="give a row per frame: episode, frame, weight",
        )
    runs = WeightRuns(*(np.concatenate(columns) for columns in zip(*parts)))
    order = np.argsort(runs.starts, kind="stable")
    runs = WeightRuns(*(part[order] for part in runs))
    twice = np.flatnonzero(runs.starts[1:] < runs.stops[:-1])
    if len(twice):
        problem = f"{_place(runs.starts[twice[0] + 1])} has two weights"
        raise DatasetError(problem, where=where, fix="keep one row per frame")
    return _join(runs)


def _join(runs: WeightRuns) -> WeightRuns:
    """Join neighbours of equal weight."""
    first, last = _ends(*runs)
    return WeightRuns(runs.starts[first], runs.stops[last], runs.weights[first])


def _ends(
    starts: np.ndarray, stops: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First and last number of each group of pieces that touch and have one value."""
    begins_group = np.ones(len(starts), bool)
    begins_group[1:] = (starts[1:] != stops[:-1]) | (values[1:] != values[:-1])
    first = np.flatnonzero(begins_group)
    return first, np.append(first[1:], len(begins_group)) - 1


def _make_runs(packed: np.ndarray, weights: np.ndarray, where: str) -> WeightRuns:
    """Return the runs of packed frames, int64 (n,), after a check of their weights."""
    wrong = ~((weights == 0) | ((weights >= SMALLEST) & (weights <= LARGEST)))  # also NaN
    if wrong.any():
        first_wrong = int(np.flatnonzero(wrong)[0])
        problem = (
            f"{_place(packed[first_wrong])} has the weight {weights[first_wrong]:g} "
            f"({int(wrong.sum())} such frames)"
        )
        fix = f"give 0, which leaves the frame out, or a number from {SMALLEST:g} to {LARGEST:g}"
        raise DatasetError(problem, where=where, fix=fix)
    return _join(WeightRuns(packed, packed + 1, weights))


def _read_file(catalog: Catalog, where: str) -> Iterator[WeightRuns]:
    try:
        with pq.ParquetFile(where) as file:
            names = _column_names(file.schema_arrow, where)
            for batch in file.iter_batches(_BATCH, columns=list(names.values())):
                columns = {
                    role: _numbers(batch.column(name), name, where) for role, name in names.items()
                }
                if batch.num_rows:
                    packed = _pack(catalog, columns["episode"], columns["frame"], where)
                    yield _make_runs(packed, columns["weight"].astype(np.float64), where)
    except (OSError, pa.ArrowException) as error:
        problem = f"frame_weights cannot be read: {error}"
        raise DatasetError(
            problem, where=where, fix="give a parquet file with episode, frame, weight"
        ) from error


def _column_names(schema: Any, where: str) -> dict[str, str]:
    """Return the column of each of episode, frame and weight."""
    columns = {}
    for role, names in _NAMES.items():
        candidates = [name for name in schema.names if name in names]
        if len(candidates) != 1:
            problem = f"has {' and '.join(candidates)}" if candidates else f"has no column {role!r}"
            fix = (
                f"give exactly one of {' or '.join(map(repr, names))}; its columns are "
                f"{', '.join(schema.names)}"
            )
            raise DatasetError(f"frame_weights {problem}", where=where, fix=fix)
        kind = schema.field(candidates[0]).type
        good = pa.types.is_integer(kind) or (role == "weight" and pa.types.is_floating(kind))
        if not good:
            needed = "numbers" if role == "weight" else "integers"
            raise DatasetError(
                f"column {candidates[0]!r} holds {kind}", where=where, fix=f"store {needed}"
            )
        columns[role] = candidates[0]
    return columns


def _numbers(column: Any, name: str, where: str) -> np.ndarray:
    if column.null_count:
        raise DatasetError(
            f"column {name!r} has {column.null_count} nulls",
            where=where,
            fix="store a number per row",
        )
    return np.asarray(column.to_numpy(zero_copy_only=False))


def _pack(catalog: Catalog, episodes: np.ndarray, frames: np.ndarray, where: str) -> np.ndarray:
    """Return episode * 2^32 + frame, int64 (n,), of frames that are in the dataset."""
    ids = catalog.episodes.ids
    unknown = ~np.isin(episodes, ids)
    if unknown.any():
        problem = (
            f"frame_weights names episode {episodes[unknown][0]}, which the dataset does not have"
        )
        raise DatasetError(problem, where=where, fix=f"there are {describe_ids(ids)}")
    episodes = episodes.astype(np.int64)
    lengths = catalog.episodes.lengths[catalog.episodes.rows_of(episodes)]
    beyond = (frames < 0) | (frames >= lengths)
    if beyond.any():
        first_beyond = int(np.flatnonzero(beyond)[0])
        problem = (
            f"frame_weights names frame {frames[first_beyond]} of episode {episodes[first_beyond]}"
        )
        raise DatasetError(
            problem, where=where, fix=f"its frames are 0 to {lengths[first_beyond] - 1}"
        )
    return episodes * EPISODE_STRIDE + frames.astype(np.int64)


def _read_column(catalog: Catalog, key: str, segments: np.ndarray) -> Iterator[WeightRuns]:
    features = catalog.features
    numeric = [
        name
        for name, f in features.items()
        if not (f.is_text or f.is_camera) and np.prod(f.value_shape) == 1
    ]
    if key not in numeric:
        problem = (
            f"frame_weights is {key!r}, which is neither a file *.parquet nor a feature with "
            "one number per frame"
        )
        raise DatasetError(
            problem, where=catalog.root, fix=f"such features are {', '.join(numeric)}"
        )
    rows = Rows(catalog, [key], _CACHE)
    where = f"{catalog.root}: column {key!r}"
    for episode, start, stop in segments.tolist():
        values = rows.span(catalog.episodes.row_of(episode), key, start, stop)[:, 0].astype(
            np.float64
        )
        yield _make_runs(episode * int(EPISODE_STRIDE) + np.arange(start, stop), values, where)


def _place(packed: int) -> str:
    return (
        f"frame {int(packed) % int(EPISODE_STRIDE)} of episode {int(packed) // int(EPISODE_STRIDE)}"
    )


MOST_PASSES = 100
MOST_GROWTH = 100
"""Largest mean count of a frame in a pass."""
MOST_ROWS = 100_000_000
"""Largest number of segments of an epoch: 2.4 GB."""

# distance from a whole number up to which a count is one: 0.1 stored as float32 is a tenth
_EXACT = 1e-6


@dataclass(frozen=True)
class WeightFacts:
    """Figures of the weights of some frames."""

    frames: int
    """Frames of the selection, those of weight 0 included."""
    zero: int
    """Frames of weight 0."""
    largest: float
    total: float
    """Sum of the weights."""
    effective: float
    """Effective sample size, (sum w)^2 / sum w^2 (Kish): as many frames of equal weight have means
    as certain.
    """
    epoch: int
    """Samples of an epoch of the order."""
    passes: int
    """Passes of an epoch: a frame of weight w comes `passes` * w times (order)."""


class FrameWeights(SharedState):
    """Weights of the selected frames. Made by `weigh_frames`."""

    def __init__(
        self, tables: dict[str, np.ndarray], facts: WeightFacts, weights_in: WeightsIn, cache: str
    ) -> None:
        self.facts = facts
        self.weights_in = weights_in
        shared = share_arrays(tables, cache)
        self._starts, self._weights, self._counts = (
            shared[name] for name in ("starts", "weights", "counts")
        )
        self.epoch_segments = shared["epoch"]
        """int64 (K', 3), rows [episode, start, stop): the frames of an epoch of the order, with
        their copies.
        """

    @property
    def weighs_loss(self) -> bool:
        """Whether the losses of samples have factors."""
        return self.weights_in != "order"

    @property
    def pass_length(self) -> float:
        """Samples of one pass over the frames."""
        return self.facts.epoch / self.facts.passes

    @property
    def digest(self) -> str:
        """16 hex digits of the weights and their use."""
        digest = hashlib.sha256(self.weights_in.encode())
        for table in (self._starts, self._weights):
            digest.update(np.ascontiguousarray(table).data)
        return digest.hexdigest()[:16]

    def weights(self, episodes: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return the weights of selected frames: float64 (B,)."""
        return np.asarray(self._weights[self._find(episodes, frames)])

    def loss_factors(self, episodes: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return the factors of the losses of selected frames: float32 (B,)."""
        runs = self._find(episodes, frames)
        if not self.weighs_loss:
            return np.ones(len(runs), np.float32)
        return (self._weights[runs] / self._counts[runs]).astype(np.float32)

    @property
    def loss_runs(self) -> tuple[np.ndarray, np.ndarray]:
        """First frame of each run of frames, packed, and the factor of the loss from there on."""
        if not self.weighs_loss:
            return self._starts, np.ones(len(self._starts))
        return self._starts, self._weights / self._counts

    def _find(self, episodes: np.ndarray, frames: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._starts, episodes * EPISODE_STRIDE + frames, side="right") - 1


def weigh_frames(
    catalog: Catalog, selected: SelectedFrames, selection: Selection
) -> tuple[SelectedFrames, FrameWeights]:
    """Return the selected frames without those of weight 0, and the weights of the others.

    Args:
        catalog: the dataset.
        selected: its selected frames.
        selection: source and use of the weights: `frame_weights` and `frame_weights_in`.

    Raises:
        DatasetError: the weights cannot be read (`read_weights`), a selected frame has none, all
            are 0, or no order has them.
    """
    source = selection.frame_weights
    weights_in = selection.frame_weights_in
    rows = selected.segments
    assert source is not None
    if weights_in not in ("order", "loss", "both"):
        raise DatasetError(
            f"frame_weights_in is {weights_in!r}", fix="give 'order', 'loss' or 'both'"
        )
    where = _place_of_weights(catalog, source)
    segment, starts, stops, weights = _cut(rows, read_weights(catalog, source, rows), where)
    frames = int((stops - starts).sum())
    has_weight = weights > 0
    if not has_weight.any():
        raise DatasetError(
            f"all {frames} selected frames have weight 0",
            where=where,
            fix="give some a weight above 0",
        )
    segment, starts, stops, weights = (
        part[has_weight] for part in (segment, starts, stops, weights)
    )
    lengths = stops - starts
    counts, passes = _counts(weights, weights_in, where)
    left = int(lengths.sum())
    epoch = int((counts * lengths).sum())
    if epoch > MOST_GROWTH * passes * left:
        problem = f"an epoch would have {epoch} samples, {epoch / left:.3g} for each frame"
        fix = (
            f"divide the weights by their mean: {MOST_GROWTH} at most are allowed, or set "
            "frame_weights_in to 'loss'"
        )
        raise DatasetError(problem, where=where, fix=fix)
    if int(counts.sum()) > MOST_ROWS:
        problem = (
            f"{len(counts)} runs of equal weight need {int(counts.sum())} segments, "
            f"{MOST_ROWS} are allowed"
        )
        raise DatasetError(
            problem, where=where, fix="round the weights, or set frame_weights_in to 'loss'"
        )
    layers = [_layer(segment, starts, stops)]
    for copies in range(1, int(counts.max())):
        more = counts > copies
        layers.append(_layer(segment[more], starts[more], stops[more]))
    tables = {
        "starts": starts,
        "weights": weights,
        "counts": counts,
        "epoch": np.concatenate(layers),
    }
    total = float((weights * lengths).sum())
    squares = float((weights**2 * lengths).sum())
    facts = WeightFacts(
        frames, frames - left, float(weights.max()), total, total**2 / squares, epoch, passes
    )
    segment_of = segment[
        np.searchsorted(starts, layers[0][:, 0] * EPISODE_STRIDE + layers[0][:, 1])
    ]
    selected = replace(selected, segments=layers[0], stop=selected.stop[segment_of])
    return selected, FrameWeights(tables, facts, weights_in, catalog.files.cache)


def _cut(
    rows: np.ndarray, runs: WeightRuns, where: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Cut segments where the weight changes: (segment, start, stop, weight) of each piece, frames
    packed.

    Raises:
        DatasetError: a frame of a segment is in no run.
    """
    begins = rows[:, 0] * EPISODE_STRIDE + rows[:, 1]
    ends = rows[:, 0] * EPISODE_STRIDE + rows[:, 2]
    bounds = np.unique(np.concatenate([begins, ends, runs.starts, runs.stops]))
    starts = bounds[:-1]
    stops = bounds[1:]
    segment = np.searchsorted(begins, starts, side="right") - 1
    inside = (segment >= 0) & (starts < ends[np.maximum(segment, 0)])
    segment = segment[inside]
    starts = starts[inside]
    stops = stops[inside]
    run = np.searchsorted(runs.starts, starts, side="right") - 1
    lacking = (run < 0) | (starts >= runs.stops[np.maximum(run, 0)])
    if lacking.any():
        first = int(starts[lacking][0])
        count = int((stops - starts)[lacking].sum())
        episode, frame = divmod(first, int(EPISODE_STRIDE))
        problem = (
            f"{count} selected frames have no weight, the first is frame {frame} of episode "
            f"{episode}"
        )
        fix = (
            "add rows for them (1: as often as others, 0: never), or leave their episodes out of "
            "the selection"
        )
        raise DatasetError(problem, where=where, fix=fix)
    return segment, starts, stops, runs.weights[run]


def _layer(segment: np.ndarray, starts: np.ndarray, stops: np.ndarray) -> np.ndarray:
    """Join pieces that touch within a segment: int64 (K, 3), rows [episode, start, stop)."""
    first, last = _ends(starts, stops, segment)
    episode, start = np.divmod(starts[first], EPISODE_STRIDE)
    return np.stack([episode, start, stops[last] - episode * EPISODE_STRIDE], axis=1)


def _counts(weights: np.ndarray, weights_in: WeightsIn, where: str) -> tuple[np.ndarray, int]:
    """Return the copies of each weight in an epoch, int64, and the passes of an epoch.

    Raises:
        DatasetError: the order needs too many passes for these weights.
    """
    if weights_in == "loss":
        return np.ones(len(weights), np.int64), 1
    if weights_in == "both":
        return np.maximum(1, np.floor(weights + 0.5)).astype(np.int64), 1
    values, value_of = np.unique(weights, return_inverse=True)
    for passes in range(1, MOST_PASSES + 1):
        exact = values * passes
        counts = np.rint(exact)
        off = (abs(exact - counts) > _EXACT) | (counts < 1)
        if not off.any():
            return counts.astype(np.int64)[value_of.reshape(-1)], passes
        worst = values[off][0]
    problem = (
        f"the weights ({worst:g} is one of {len(values)}) are not multiples of 1/P for any P "
        f"up to {MOST_PASSES}"
    )
    fix = "round them, or set frame_weights_in to 'both', which is exact for any weight"
    raise DatasetError(problem, where=where, fix=fix)
