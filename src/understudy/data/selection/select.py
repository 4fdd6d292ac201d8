"""Selection of frames: segments (episode, start, stop) in storage order.

Covers subsets and exclusions of episodes, conditions on their metadata, dropped first and last frames, keep-ranges, and
the split by episode into training and validation.

Sets of episode ids or table rows as sorted arrays.

NumPy 2.3 and later hash in `np.unique`, and `setdiff1d` and `intersect1d` call it for both arguments. Sorting takes a
small part of that time where ids are in sequence.

Segments of a selection, searched by sample number and by frame. Large ones are memory-mapped.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import describe_ids
from understudy.data.selection.keep_ranges import FEW, KeepReport, match_keys
from understudy.data.selection.where import matching_rows
from understudy.errors import DatasetError
from understudy.storage.mapped_tables import dumps, loads, share_arrays


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values, ascending, as `np.unique` does."""
    ordered = np.sort(np.asarray(values), axis=None)
    return ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(ordered) else ordered


def difference(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distinct values that are not in `others`, ascending."""
    return np.setdiff1d(distinct(values), distinct(others), assume_unique=True)


def common(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distinct values that are in both, ascending."""
    return np.intersect1d(distinct(values), distinct(others), assume_unique=True)


EPISODE_STRIDE = np.int64(1) << 32
"""Packs (episode, frame) into one integer: both are below 2**31."""


class SegmentTable:
    """Segments of a selection; `len` is the number of its samples.

    Args:
        segments: int64 (K, 3), rows [episode id, start, stop), ascending.
        stops: int64 (K,), end of the windows of a segment.
        root: address of the dataset, for messages.
        cache: folder of the host's cache, or "" for its default.
    """

    def __init__(self, segments: np.ndarray, stops: np.ndarray, root: str, cache: str) -> None:
        begins = segments[:, 0] * EPISODE_STRIDE + segments[:, 1]
        tables = {"segments": segments, "stops": stops, "begins": begins}
        self._set(share_arrays(tables | {"ends": np.cumsum(segments[:, 2] - segments[:, 1])}, cache))
        self._root = root

    def _set(self, tables: Any) -> None:
        self.segments, self.stops = tables["segments"], tables["stops"]
        self._begins, self._ends = tables["begins"], tables["ends"]

    def __getstate__(self) -> dict[str, Any]:
        tables = {"segments": self.segments, "stops": self.stops, "begins": self._begins, "ends": self._ends}
        return {"root": self._root, "tables": dumps(tables)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._root = state["root"]
        self._set(loads(state["tables"]))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (episode ids, frames), int64 (B,) each, of sample numbers; negative numbers count from the end.

        Raises:
            IndexError: there is no such sample.
        """
        asked = as_integers(indices, "sample numbers")
        positions = np.where(asked < 0, asked + len(self), asked)
        wrong = (positions < 0) | (positions >= len(self))
        if wrong.any():
            raise IndexError(f"sample {int(asked[wrong][0])} of {len(self)}")
        segment = np.searchsorted(self._ends, positions, side="right")
        return self.segments[segment, 0], self.segments[segment, 2] - (self._ends[segment] - positions)

    def find(self, episodes: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return the number of the segment of each frame, int64 (B,).

        Raises:
            DatasetError: a frame is not selected, or the arguments differ in length.
        """
        if episodes.ndim != 1 or episodes.shape != frames.shape or len(episodes) == 0:
            raise DatasetError(
                f"episodes {episodes.shape} and frames {frames.shape}", fix="give one row of each, same length"
            )
        asked = episodes * EPISODE_STRIDE + np.clip(frames, -1, EPISODE_STRIDE - 1)
        segment = np.searchsorted(self._begins, asked, side="right") - 1
        held = self.segments[np.maximum(segment, 0)]
        good = (segment >= 0) & (held[:, 0] == episodes) & (frames >= held[:, 1]) & (frames < held[:, 2])
        if not good.all():
            bad = int(np.flatnonzero(~good)[0])
            selected_ranges = self.segments[self.segments[:, 0] == episodes[bad]]
            selected = ", ".join(f"[{a}, {b})" for _, a, b in selected_ranges[:4].tolist()) or "none"
            problem = f"frame {int(frames[bad])} of episode {int(episodes[bad])} is not selected"
            raise DatasetError(problem, where=self._root, fix=f"selected of that episode: {selected}")
        return segment


def as_integers(numbers: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    """Convert integers to int64. Refuses floats, which numpy would truncate.

    Raises:
        TypeError: other numbers; names `name`.
    """
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} are integers, not {array.reshape(-1)[0]!r}")
    return array.astype(np.int64)


KeepRanges = str | os.PathLike[str] | Mapping[Any, Any]
"""Frame ranges to keep: a JSON file, or its content, key of an episode -> list of [start, end)."""


@dataclass(frozen=True)
class Selection:
    """Selected segments and the bounds of their windows.

    Attributes:
        segments: int64 (K, 3), rows [episode id, start, stop), ascending, not touching within an episode.
        stop: int64 (K,), end of the windows of a segment: the episode's length, or the range's end with keep-ranges
            under the rule "start". Windows always reach back to the episode's first frame.
        notes: irregularities of the selection.
        keep_report: effect of keep-ranges; None without them.
    """

    segments: np.ndarray
    stop: np.ndarray
    notes: tuple[str, ...] = ()
    keep_report: KeepReport | None = None


def select(
    catalog: Catalog,
    *,
    episodes: Iterable[int] | None = None,
    exclude: Iterable[int] | None = None,
    where: str | None = None,
    drop_first: int = 0,
    drop_last: int = 0,
    keep_ranges: KeepRanges | None = None,
    keep_rule: Literal["window", "start"] = "window",
    reach: tuple[int, int] = (0, 0),
) -> Selection:
    """Select frames.

    Args:
        catalog: the dataset.
        episodes: ids to use, all by default.
        exclude: ids to leave out.
        where: condition on the metadata of the episodes to use (see `data/selection/where.py`).
        drop_first: frames to leave out at the start of each episode (windows still see them).
        drop_last: frames to leave out at the end of each episode.
        keep_ranges: frame ranges to keep (see `KeepRanges`); episodes without a key are left out.
        keep_rule: "window" keeps a frame when its whole window is inside a range. "start" keeps it when the frame
            itself is, and pads the window from the range's end on.
        reach: frames that windows reach (back, ahead).

    Raises:
        DatasetError: an unknown episode, an unusable condition, a malformed file of ranges, or an empty selection
            (names the cause).
    """
    table = catalog.episodes
    rows = np.arange(len(table)) if episodes is None else table.rows_of(_ids(episodes, "episodes"))
    rows = distinct(rows)
    if exclude is not None:
        rows = difference(rows, table.rows_of(_ids(exclude, "exclude_episodes")))
    if len(rows) == 0:
        raise DatasetError(
            "the selection holds no episode", where=catalog.root, fix=f"there are {describe_ids(table.ids)}"
        )
    notes: tuple[str, ...] = ()
    if where is not None:
        met = matching_rows(catalog, where)
        notes = (f"{catalog.root}: {len(met):,} of {len(table):,} episodes meet {where!r}",)
        if not len(rows := common(rows, met)):
            problem = f"where is {where!r}, which holds for none of the chosen `episodes`"
            raise DatasetError(problem, where=catalog.root, fix="choose other episodes, or another condition")
    for name, count in (("drop_n_first_frames", drop_first), ("drop_n_last_frames", drop_last)):
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 0:
            raise DatasetError(f"{name} is {count!r}", fix="give an integer, 0 or more")
    if keep_rule not in ("window", "start"):
        raise DatasetError(f"keep_rule is {keep_rule!r}", fix="give 'window' or 'start'")

    report: KeepReport | None = None
    if keep_ranges is None:
        row, start = rows, np.zeros(len(rows), np.int64)
        stop = table.lengths[rows]
        bound = stop
    else:
        row, start, stop, report = _apply_ranges(catalog, rows, keep_ranges)
        bound = stop
        if keep_rule == "window":
            start, stop, bound = start + reach[0], stop - reach[1], table.lengths[row]
    start = np.maximum(start, drop_first)
    stop = np.minimum(stop, table.lengths[row] - drop_last)
    some = stop > start
    if not some.any():
        problem = f"no frame is left: {len(rows)} episodes of {int(table.lengths[rows].min())} to "
        problem += f"{int(table.lengths[rows].max())} frames, {drop_first} dropped first, {drop_last} dropped last"
        if keep_ranges is not None:
            problem += (
                f", keep_ranges by the rule {keep_rule!r} with windows reaching {reach[0]} back and {reach[1]} ahead"
            )
        raise DatasetError(
            problem, where=catalog.root, fix="drop fewer frames, or use shorter windows or keep_rule='start'"
        )
    segments = np.stack([table.ids[row[some]], start[some], stop[some]], 1).astype(np.int64)
    bound = bound[some].astype(np.int64)
    if report is None:
        return Selection(segments, bound, notes)
    report = replace(report, samples=int((segments[:, 2] - segments[:, 1]).sum()))
    return Selection(segments, bound, (*notes, *report.lines()), report)


def split_episodes(ids: np.ndarray | Iterable[int], fraction: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split episode ids into (training, validation), int64, ascending.

    An episode goes to validation when a hash of (seed, id) is below `fraction`, so new episodes move none of the old
    ones. Each side has at least one episode (the lowest and the highest hash). Fraction 0 gives no validation.

    Raises:
        DatasetError: fraction outside [0, 1), or fewer than two episodes to split.
    """
    ids = distinct(np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), np.int64))
    if not 0 <= fraction < 1:
        raise DatasetError(f"the validation fraction is {fraction!r}", fix="give a number from 0 to below 1")
    if fraction == 0:
        return ids, ids[:0]
    if len(ids) < 2:
        raise DatasetError(f"{len(ids)} episode cannot be split", fix="record more episodes, or set the fraction to 0")
    hashes = np.asarray([_hash(seed, int(i)) for i in ids])
    validation = hashes < fraction
    validation[hashes.argmin()] = True
    validation[hashes.argmax()] = False
    return ids[~validation], ids[validation]


def _hash(seed: int, episode: int) -> float:
    digest = hashlib.blake2b(f"understudy split {seed} {episode}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


def _ids(episodes: Iterable[int], name: str) -> np.ndarray:
    if isinstance(episodes, (str, bytes)) or not isinstance(episodes, Iterable):
        raise DatasetError(f"{name} is {episodes!r}", fix=f"give episode ids, as in {name}=[0, 1]")
    ids = np.asarray(list(episodes) if not isinstance(episodes, np.ndarray) else episodes)
    if ids.size and ids.dtype.kind not in "iu":
        raise DatasetError(f"{name} holds {ids.reshape(-1)[0]!r}", fix="give integer episode ids")
    return ids.astype(np.int64).reshape(-1)


def _apply_ranges(
    catalog: Catalog, rows: np.ndarray, keep_ranges: KeepRanges
) -> tuple[np.ndarray, np.ndarray, np.ndarray, KeepReport]:
    """Return the ranges of the selected rows as row, start, stop, int64 (K,) each, merged where they touch.

    The fourth value is their report, without `samples`.
    """
    where = "keep_ranges" if isinstance(keep_ranges, Mapping) else os.fspath(keep_ranges)
    content: Mapping[Any, Any] = keep_ranges if isinstance(keep_ranges, Mapping) else _read(where)
    matched, names = match_keys(catalog, list(content), where)
    repeated = [key for key, count in Counter(matched.values()).items() if count > 1]
    if repeated:
        keys = " and ".join(repr(key) for key, row in matched.items() if row == repeated[0])
        problem = f"{keys} are both episode {int(catalog.episodes.ids[repeated[0]])}"
        raise DatasetError(problem, where=where, fix="give each episode one key")
    selected, pieces, cut = set(rows.tolist()), [], 0
    for key, row in sorted(matched.items(), key=lambda item: item[1]):
        ranges = _check_ranges(key, content[key], where)
        if row not in selected:
            continue
        length = int(catalog.episodes.lengths[row])
        cut += sum(stop > length for _, stop in ranges)
        merged: list[list[int]] = []
        for start, stop in sorted((start, min(stop, length)) for start, stop in ranges if start < min(stop, length)):
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], stop)
            else:
                merged.append([start, stop])
        pieces += [(row, start, stop) for start, stop in merged]
    present = np.flatnonzero(catalog.episodes.lengths > 0)
    unnamed = present[~np.isin(present, list(matched.values()))]
    name_of = {row: name for name, row in names.items()} if len(unnamed) else {}
    empty = [str(key) for key, row in matched.items() if not content[key]]
    report = KeepReport(
        where=where,
        keys=len(content),
        matched=len(matched),
        unmatched=tuple(islice((str(key) for key in content if key not in matched), FEW)),
        empty=len(empty),
        first_empty=tuple(empty[:FEW]),
        episodes=len(present),
        unnamed=len(unnamed),
        first_unnamed=tuple(name_of.get(row, str(int(catalog.episodes.ids[row]))) for row in unnamed[:FEW].tolist()),
        cut=cut,
        frames=int(catalog.episodes.lengths[rows].sum()),
        in_ranges=sum(stop - start for _, start, stop in pieces),
        samples=0,
    )
    if not pieces:
        problem = "keeps no frame of the selected episodes: " + "; ".join(
            line.removeprefix(f"{where}: ") for line in report.lines()
        )
        raise DatasetError(problem, where=where, fix="check the episodes and the ranges")
    row, start, stop = np.asarray(pieces, np.int64).T
    return row, start, stop, report


def _read(path: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_bytes(), object_pairs_hook=partial(_refuse_duplicates, path))
    except OSError as error:
        raise DatasetError(
            f"cannot be read: {error.strerror}", where=path, fix="give a JSON file of keep-ranges"
        ) from error
    except DatasetError:
        raise
    except (ValueError, RecursionError) as error:
        raise DatasetError(f"not valid JSON: {error}", where=path, fix="repair or restore it") from error
    if not isinstance(content, dict) or not content:
        raise DatasetError("holds no object of keep-ranges", where=path, fix="key of an episode -> [[start, end], ...]")
    return content


def _refuse_duplicates(path: str, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object of JSON with unique keys; the parser itself would keep only the last value of a key."""
    content = dict(pairs)
    if len(content) < len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise DatasetError(f"{key!r} is repeated", where=path, fix="put its ranges into one list")
    return content


def _check_ranges(key: object, ranges: object, where: str) -> list[tuple[int, int]]:
    good = isinstance(ranges, (list, tuple)) and all(
        isinstance(r, (list, tuple)) and len(r) == 2 and all(type(x) is int for x in r) and 0 <= r[0] <= r[1]
        for r in ranges
    )
    if not good:
        raise DatasetError(
            f"{key!r} -> {str(ranges)[:80]}", where=where, fix="give a list of [start, end) frame numbers"
        )
    return [(int(start), int(stop)) for start, stop in ranges]  # type: ignore[attr-defined]
