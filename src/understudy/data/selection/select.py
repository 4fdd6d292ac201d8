"""Selection of frames: segments (episode, start, stop) in storage order.

Covers subsets and exclusions of episodes, conditions on their metadata, dropped first and last frames, keep-ranges, and
the split by episode into training and validation.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import describe_ids
from understudy.data.selection.distinct import common, difference, distinct
from understudy.data.selection.keep_keys import match_keys
from understudy.data.selection.keep_report import FEW, KeepReport
from understudy.data.selection.where import matching_rows
from understudy.errors import DatasetError

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
            what = f"where is {where!r}, which holds for none of the chosen `episodes`"
            raise DatasetError(what, where=catalog.root, fix="choose other episodes, or another condition")
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
        what = f"no frame is left: {len(rows)} episodes of {int(table.lengths[rows].min())} to "
        what += f"{int(table.lengths[rows].max())} frames, {drop_first} dropped first, {drop_last} dropped last"
        if keep_ranges is not None:
            what += (
                f", keep_ranges by the rule {keep_rule!r} with windows reaching {reach[0]} back and {reach[1]} ahead"
            )
        raise DatasetError(
            what, where=catalog.root, fix="drop fewer frames, or use shorter windows or keep_rule='start'"
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
        what = f"{keys} are both episode {int(catalog.episodes.ids[repeated[0]])}"
        raise DatasetError(what, where=where, fix="give each episode one key")
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
        what = "keeps no frame of the selected episodes: " + "; ".join(
            line.removeprefix(f"{where}: ") for line in report.lines()
        )
        raise DatasetError(what, where=where, fix="check the episodes and the ranges")
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
