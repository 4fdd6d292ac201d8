"""Selection of frames: segments (episode, start, stop) in storage order, searched by sample number
and by frame.

`Selection` names subsets and exclusions of episodes, conditions on their metadata, dropped first
and last frames, keep-ranges and frame weights. Sets of episodes are sorted arrays: NumPy 2.3 and
later hash in `np.unique`, which takes several times as long where ids are in sequence.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from understudy_base import DatasetError, holds_boolean, parse_ids
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import describe_ids
from understudy_data.datasets.format.features import INDEX_KEYS
from understudy_data.datasets.format.selection_fields import (
    DEFAULTS,
    KINDS,
    SelectionFields,
    values_of,
)
from understudy_data.datasets.selection.keep_ranges import KeepReport, apply_ranges
from understudy_data.datasets.selection.spread import spread_over_tasks
from understudy_data.datasets.selection.where import matching_rows
from understudy_data.datasets.time_windows import frame_offsets, reach
from understudy_data.plain_values import storable
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.mapped_tables import SharedState, share, share_arrays


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values, ascending, as `np.unique` does; the array itself if they are that
    already.
    """
    values = np.asarray(values)
    if values.ndim == 1 and bool((values[1:] > values[:-1]).all()):
        return values
    ordered = np.sort(values, axis=None)
    return (
        ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered
    )


def difference(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distinct values that are not in `others`, ascending."""
    return np.setdiff1d(distinct(values), distinct(others), assume_unique=True)


def common(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distinct values that are in both, ascending."""
    return np.intersect1d(distinct(values), distinct(others), assume_unique=True)


_AT_ONCE = 1 << 16  # ids that are hashed together
_LATER = {"frame_weights", "frame_weights_in"}  # `weigh_frames` selects by them

EPISODE_STRIDE = np.int64(1) << 32
"""Packs (episode, frame) into one integer: both are below 2**31."""


class SegmentTable(SharedState):
    """Segments of a selection; `len` is the number of its samples.

    Args:
        segments: int64 (K, 3), rows [episode id, start, stop), ascending.
        stops: int64 (K,), end of the windows of a segment.
        files: files of the dataset.

    Attributes:
        segments, stops: as given.
    """

    segments: np.ndarray
    stops: np.ndarray

    def __init__(self, segments: np.ndarray, stops: np.ndarray, files: Files) -> None:
        self.__dict__.update(share_arrays({"segments": segments, "stops": stops}, files.cache))
        self._root = files.root
        self._cache = files.cache

    @cached_property
    def episodes(self) -> np.ndarray:
        """int64 (E,), ids of the episodes, ascending."""
        return self._derive(_distinct_episodes)

    @cached_property
    def _begins(self) -> np.ndarray:
        return self._derive(_pack_begins)

    @cached_property
    def _ends(self) -> np.ndarray:
        return self._derive(_running_frames)

    def _derive(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        return share(partial(function, self.segments), self.segments, cache=self._cache)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (episode ids, frames), int64 (B,) each, of sample numbers; negative numbers count
        from the end.

        Raises:
            IndexError: there is no such sample.
        """
        asked = as_integers(indices, "sample numbers")
        positions = np.where(asked < 0, asked + len(self), asked)
        wrong = (positions < 0) | (positions >= len(self))
        if wrong.any():
            raise IndexError(f"sample {int(asked[wrong][0])} of {len(self)}")
        segment = np.searchsorted(self._ends, positions, side="right")
        return self.segments[segment, 0], self.segments[segment, 2] - (
            self._ends[segment] - positions
        )

    def find(self, episodes: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return the number of the segment of each frame, int64 (B,).

        Raises:
            DatasetError: a frame is not selected, or the arguments differ in length.
        """
        if episodes.ndim != 1 or episodes.shape != frames.shape or len(episodes) == 0:
            raise DatasetError(
                f"episodes {episodes.shape} and frames {frames.shape}",
                fix="give one row of each, same length",
            )
        asked = episodes * EPISODE_STRIDE + np.clip(frames, -1, EPISODE_STRIDE - 1)
        segment = np.searchsorted(self._begins, asked, side="right") - 1
        held = self.segments[np.maximum(segment, 0)]
        good = (
            (segment >= 0)
            & (held[:, 0] == episodes)
            & (frames >= held[:, 1])
            & (frames < held[:, 2])
        )
        if not good.all():
            bad = int(np.flatnonzero(~good)[0])
            selected_ranges = self.segments[self.segments[:, 0] == episodes[bad]]
            selected = (
                ", ".join(f"[{a}, {b})" for _, a, b in selected_ranges[:4].tolist()) or "none"
            )
            problem = f"frame {int(frames[bad])} of episode {int(episodes[bad])} is not selected"
            raise DatasetError(
                problem, where=self._root, fix=f"selected of that episode: {selected}"
            )
        return segment


def _distinct_episodes(segments: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(distinct(segments[:, 0]))


def _pack_begins(segments: np.ndarray) -> np.ndarray:
    return np.asarray(segments[:, 0] * EPISODE_STRIDE + segments[:, 1])


def _running_frames(segments: np.ndarray) -> np.ndarray:
    return np.cumsum(segments[:, 2] - segments[:, 1])


def as_integers(numbers: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    """Convert integers to int64. Refuses floats, which numpy would truncate.

    Raises:
        TypeError: other numbers; names `name`.
    """
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} are integers, not {array.reshape(-1)[0]!r}")
    return array.astype(np.int64)


@dataclass(frozen=True, kw_only=True)
class Selection(SelectionFields):
    """The episodes and frames of a dataset that are samples; by default all. Its fields are those
    of `SelectionFields`.
    """

    @classmethod
    def of(cls, settings: object) -> Selection:
        """Return the selection by settings that have its fields as attributes; an empty text or
        tuple is the default.
        """
        return cls(**values_of(settings))

    def spell_out(self, catalog: Catalog) -> tuple[Selection, Catalog]:
        """Return this selection together with that of the catalog's view, and the catalog without
        the view.

        Raises:
            DatasetError: the two contradict each other (`View.combine`).
        """
        if catalog.view is None:
            return self, catalog
        beside = {**vars(self)}
        for name in ("episodes", "exclude_episodes"):
            ids = _ids(beside[name], name)
            beside[name] = ids if ids is None else ids.tolist()
        return Selection(**catalog.view.combine(beside)), replace(catalog, view=None)

    def apply(self, catalog: Catalog, reach: tuple[int, int] = (0, 0)) -> SelectedFrames:
        """Select frames of a dataset, without regard to `frame_weights` (see `weigh_frames`).

        A view of the catalog selects, too.

        Args:
            catalog: the dataset.
            reach: frames that windows reach (back, ahead).

        Raises:
            DatasetError: an unknown episode, an unusable condition, a malformed file of ranges, or
                an empty selection (names the cause).
        """
        if catalog.view is not None:
            selection, whole = self.spell_out(catalog)
            selected = selection.apply(whole, reach)
            view = catalog.view.describe(
                len(distinct(selected.segments[:, 0])), len(catalog.episodes)
            )
            return replace(selected, notes=(f"{catalog.root}{view}", *selected.notes))
        counted = [name for name, default in DEFAULTS.items() if isinstance(default, int)]
        for name in counted:
            count = getattr(self, name)
            if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
                raise DatasetError(f"{name} is {count!r}", fix="give an integer, 0 or more")
        if self.keep_rule not in ("window", "start"):
            raise DatasetError(f"keep_rule is {self.keep_rule!r}", fix="give 'window' or 'start'")
        chosen = _ids(self.episodes, "episodes")
        excluded = _ids(self.exclude_episodes, "exclude_episodes")
        selection = replace(self, episodes=chosen, exclude_episodes=excluded)
        table = catalog.episodes
        make = partial(selection._apply, catalog, reach)
        inputs = []
        for name, kind in KINDS.items():
            value = getattr(selection, name)
            if kind.needs_lengths_alone:
                inputs.append(value.item() if isinstance(value, np.generic) else value)
            elif name not in _LATER and value != DEFAULTS[name]:
                return make()
        return share(make, table.ids, table.lengths, *inputs, cache=catalog.files.cache)

    def find_episodes(
        self,
        catalog: Catalog,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        keys: Sequence[str] = (),
    ) -> tuple[np.ndarray, tuple[str, ...]]:
        """Find the episodes with a sample, without regard to `frame_weights`.

        Args:
            catalog: the dataset.
            delta_timestamps: windows of the samples, as those of `EpisodeDataset`.
            keys: keys that may have a window, besides the index keys.

        Returns:
            Their ids, int64 (E,), ascending, and irregularities of the selection.

        Raises:
            DatasetError: as `apply`, or the windows are not those of frames.
        """
        windows = frame_offsets(delta_timestamps, float(catalog.fps), (*keys, *INDEX_KEYS))
        selected = self.apply(catalog, reach(list(windows.values())))
        table = SegmentTable(selected.segments, selected.stop, catalog.files)
        return table.episodes, selected.notes

    def lacks(self, catalog: Catalog, ids: Iterable[int]) -> np.ndarray:
        """Return those of some episodes that the dataset does not have, or that do not meet
        `where`: int64, ascending.

        Raises:
            DatasetError: the condition is unusable.
        """
        there = catalog.episodes.ids
        if self.where is not None:
            there = there[matching_rows(catalog, self.where)]
        return difference(np.array(list(ids), np.int64), there)

    def _apply(self, catalog: Catalog, reach: tuple[int, int]) -> SelectedFrames:
        rows, notes = self._select_rows(catalog)
        lengths = catalog.episodes.lengths
        row = rows
        start = np.zeros(len(rows), np.int64)
        stop = lengths[rows]
        report = None
        if self.keep_ranges is not None:
            row, start, stop, report = apply_ranges(catalog, rows, self.keep_ranges)
        bound = stop
        if report is not None and self.keep_rule == "window":
            start = start + reach[0]
            stop = stop - reach[1]
            bound = lengths[row]
        start = np.maximum(start, self.drop_n_first_frames)
        stop = np.minimum(stop, lengths[row] - self.drop_n_last_frames)
        some = stop > start
        if not some.any():
            raise self._nothing_left(lengths[rows], reach, catalog.root)
        segments = np.stack([catalog.episodes.ids[row[some]], start[some], stop[some]], 1).astype(
            np.int64
        )
        if report is not None:
            report = replace(report, samples=int((segments[:, 2] - segments[:, 1]).sum()))
            notes += tuple(report.lines())
        return SelectedFrames(segments, bound[some].astype(np.int64), notes, report)

    def _select_rows(self, catalog: Catalog) -> tuple[np.ndarray, tuple[str, ...]]:
        """Table rows of the episodes, int64 (n,), ascending, and a note on the condition."""
        table = catalog.episodes
        rows = np.arange(len(table)) if self.episodes is None else table.rows_of(self.episodes)
        rows = distinct(rows)
        if self.exclude_episodes is not None:
            rows = difference(rows, table.rows_of(self.exclude_episodes))
        if len(rows) == 0:
            fix = f"there are {describe_ids(table.ids)}"
            raise DatasetError("the selection holds no episode", where=catalog.root, fix=fix)
        if self.where is None:
            return rows, ()
        met = matching_rows(catalog, self.where)
        if not len(rows := common(rows, met)):
            problem = f"where is {self.where!r}, which holds for none of the chosen `episodes`"
            raise DatasetError(
                problem, where=catalog.root, fix="choose other episodes, or another condition"
            )
        return rows, (
            f"{catalog.root}: {len(met):,} of {len(table):,} episodes meet {self.where!r}",
        )

    def _nothing_left(self, lengths: np.ndarray, reach: tuple[int, int], root: str) -> DatasetError:
        problem = (
            f"no frame is left: {len(lengths)} episodes of {int(lengths.min())} to "
            f"{int(lengths.max())} frames, "
        )
        problem += (
            f"{self.drop_n_first_frames} dropped first, {self.drop_n_last_frames} dropped last"
        )
        if self.keep_ranges is not None:
            problem += (
                f", keep_ranges by the rule {self.keep_rule!r} with windows reaching "
                f"{reach[0]} back and "
            )
            problem += f"{reach[1]} ahead"
        return DatasetError(
            problem,
            where=root,
            fix="drop fewer frames, or use shorter windows or keep_rule='start'",
        )


def open_episodes(root: str | Catalog, pairing: str | None = None) -> Catalog:
    """Open a dataset (`pairing` as in `Catalog.open`); of a view, only those episodes of which it
    selects frames.
    """
    catalog = Catalog.open(root, pairing=pairing)
    if catalog.view is None:
        return catalog
    rows = catalog.episodes.rows_of(distinct(Selection().apply(catalog).segments[:, 0]))
    return replace(catalog, episodes=catalog.episodes.take(rows), view=None)


@storable
@dataclass(frozen=True)
class SelectedFrames:
    """Selected segments and the bounds of their windows.

    Attributes:
        segments: int64 (K, 3), rows [episode id, start, stop), ascending, not touching within an
            episode.
        stop: int64 (K,), end of the windows of a segment: the episode's length, or the range's end
            with keep-ranges under the rule "start". Windows always reach back to the episode's
            first frame.
        notes: irregularities of the selection.
        keep_report: effect of keep-ranges; None without them.
    """

    segments: np.ndarray
    stop: np.ndarray
    notes: tuple[str, ...] = ()
    keep_report: KeepReport | None = None


def split_episodes(
    ids: np.ndarray | Iterable[int],
    fraction: float,
    seed: int = 0,
    *,
    appended: bool = False,
    tasks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Split episode ids into (training, validation), int64, ascending.

    An episode goes to validation when a hash of (seed, id) is below `fraction`, so new episodes
    move none of the old ones. Each side has at least one episode (the lowest and the highest hash),
    unless the episodes are `appended` to split ones. Fraction 0 gives no validation.

    With `tasks`, int64 (m, 2), rows [id, task], as few episodes are exchanged as give each task of
    several episodes one to validate on and every task one to train on, as far as their number
    allows (`spread.py`); episodes that are added to the same split may change which. `appended`
    episodes are never exchanged.

    Raises:
        DatasetError: fraction outside [0, 1), or fewer than two episodes to split.
    """
    listed = ids if isinstance(ids, np.ndarray) else list(ids)
    ids = distinct(np.asarray(listed, np.int64))
    if not 0 <= fraction < 1:
        raise DatasetError(
            f"the validation fraction is {fraction!r}", fix="give a number from 0 to below 1"
        )
    if fraction == 0:
        return ids, ids[:0]
    if len(ids) < 2 and not appended:
        raise DatasetError(
            f"{len(ids)} episode cannot be split",
            fix="record more episodes, or set the fraction to 0",
        )
    hashes = _hashes(seed, ids)
    validation = hashes < fraction
    if not appended:
        validation[hashes.argmin()] = True
        validation[hashes.argmax()] = False
    if tasks is not None and not appended:
        validation = spread_over_tasks(ids, hashes, validation, tasks)
    return ids[~validation], ids[validation]


def _hashes(seed: int, ids: np.ndarray) -> np.ndarray:
    """Hash of each id, float64 (n,) from 0 to 1."""
    hashes = np.empty(len(ids))
    text = b"understudy split %d %%d" % seed
    for start in range(0, len(ids), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        digests = [
            hashlib.blake2b(text % episode, digest_size=8).digest()
            for episode in ids[part].tolist()
        ]
        hashes[part] = np.frombuffer(b"".join(digests), "<u8") / 2.0**64
    return hashes


def _ids(episodes: Iterable[int] | None, name: str) -> np.ndarray | None:
    if episodes is None:
        return None
    if isinstance(episodes, (str, bytes)) or not isinstance(episodes, Iterable):
        raise DatasetError(f"{name} is {episodes!r}", fix=f"give episode ids, as in {name}=[0, 1]")
    listed = episodes if isinstance(episodes, np.ndarray) else list(episodes)
    if holds_boolean(listed):
        fix = "give the ids of the episodes; of a mask, np.flatnonzero(mask)"
        raise DatasetError(f"{name} holds booleans, which are no ids", fix=fix)
    try:
        texts = any(isinstance(episode, str) for episode in listed)
        numbers = parse_ids(listed) if texts else listed
        ids = np.asarray(numbers)
    except ValueError as error:
        raise DatasetError(f"{name}: {error}") from None
    if ids.size and ids.dtype.kind not in "iu":
        raise DatasetError(f"{name} holds {ids.reshape(-1)[0]!r}", fix="give integer episode ids")
    return ids.astype(np.int64, copy=False).reshape(-1)
