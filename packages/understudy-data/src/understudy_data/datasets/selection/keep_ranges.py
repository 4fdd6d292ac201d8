"""Keep-ranges: frames to use, by episode. A key is an episode id, or a text that the dataset holds
about its episodes.

DROID's files use "<recording_folderpath>--<file_path>". The text is matched against the episode
metadata first, then against the text columns of the rows. Its form is interpreted only where no
text is equal: in a DROID key "<ROOT>/<PATH>/recordings/MP4--<ROOT>/<PATH>/trajectory.h5" the
episode's path, "LAB/success/DATE/TIME", is matched against texts that are such a path, like the
`episode_id` of NVIDIA's conversion.

`KeepReport` counts matched and unmatched keys, and the remaining frames. The start of a run,
`check` and `ranges` print it.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from understudy_base import DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.selection_fields import KeepRanges
from understudy_data.plain_values import storable

_FORM = "an object: key of an episode -> [[start, end], ...]"
_PARTS = ("recording_folderpath", "file_path")
_DROID_KEY = re.compile(r"(?P<path>.+)/recordings/[^/]+--(?P=path)/[^/]+")


class EpisodeNames:
    """Names of the episodes of a dataset in files: ids, or texts that it holds about them.

    Args:
        catalog: the dataset.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def match(self, keys: list[object], where: str) -> tuple[dict[object, int], dict[str, int]]:
        """Match keys to episodes.

        Returns:
            Key -> table row for the matching keys, and known name -> table row for all names of
            that kind.

        Raises:
            DatasetError: no key matches an episode; shows the keys of both sides.
        """
        if all(isinstance(key, int) or (isinstance(key, str) and key.isdigit()) for key in keys):
            by_id = {
                str(int(episode)): row for row, episode in enumerate(self._catalog.episodes.ids)
            }
            candidates: Iterator[dict[str, int]] = iter([by_id])
        else:
            candidates = self._candidates()
        examples: list[str] = []
        tried: list[dict[str, int]] = []
        for names in candidates:
            matched = {key: names[str(key)] for key in keys if str(key) in names}
            if matched:
                return matched, names
            tried.append(names)
            examples += list(names)[: max(0, 3 - len(examples))]
        for names in tried:
            if matched := _match_paths(keys, names):
                return matched, names
        shown = ", ".join(
            map(repr, examples)
        ) or "no texts about its episodes; their ids are " + ", ".join(
            str(int(i)) for i in self._catalog.episodes.ids[:3]
        )
        raise DatasetError(
            f"none of its {len(keys)} keys matches an episode: keys are "
            f"{', '.join(repr(k) for k in keys[:3])}, ...; the dataset has {shown}, ...",
            where=where,
            fix="give the keep-ranges of this dataset, or use episode ids as keys",
        )

    def droid(self) -> dict[int, str]:
        """Return table row -> "<recording_folderpath>--<file_path>"; {} unless unique and known for
        every episode.
        """
        row_of_episode = {
            int(self._catalog.episodes.ids[row]): row
            for row in np.flatnonzero(self._catalog.episodes.lengths).tolist()
        }
        for texts in (self._catalog.episode_texts, self._row_texts):  # reads rows only if needed
            joined = _join_parts(texts())
            if row_of_episode.keys() <= joined.keys() and len(set(joined.values())) == len(joined):
                return {row: joined[episode] for episode, row in row_of_episode.items()}
        return {}

    def _candidates(self) -> Iterator[dict[str, int]]:
        yield from _names(self._catalog.episode_texts(), self._catalog.episodes.ids)
        yield from _names(self._row_texts(), self._catalog.episodes.ids)

    def _row_texts(self) -> dict[str, dict[int, str]]:
        """Text features of the rows, from the first row of each episode."""
        keys = [key for key, feature in self._catalog.features.items() if feature.dtype == "string"]
        if not keys:
            return {}
        from understudy_data.datasets.read.rows import Rows

        rows = Rows(self._catalog, keys, cache_bytes=0)
        columns: dict[str, dict[int, str]] = {key: {} for key in keys}
        lengths = self._catalog.episodes.lengths
        # file by file: each is read once
        for row in np.argsort(self._catalog.episodes.data_file, kind="stable"):
            if lengths[row] > 0:
                first = np.zeros(1, np.int64)
                for key, values in rows.take(np.asarray([row]), dict.fromkeys(keys, first)).items():
                    columns[key][int(self._catalog.episodes.ids[row])] = str(values[0])
        return columns

    @staticmethod
    def read_object(path: str, form: str) -> dict[str, Any]:
        """Read a JSON file that holds an object, each key once. Raises DatasetError; `form`
        describes the object.
        """

        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            # the parser itself would keep only the last value of a repeated key
            content = dict(pairs)
            if len(content) < len(pairs):
                key = Counter(key for key, _ in pairs).most_common(1)[0][0]
                raise DatasetError(
                    f"{key!r} is repeated", where=path, fix="give each key one value"
                )
            return content

        try:
            content = json.loads(Path(path).read_bytes(), object_pairs_hook=unique)
        except OSError as error:
            raise DatasetError(
                f"cannot be read: {error.strerror}", where=path, fix=f"give {form}"
            ) from error
        except DatasetError:
            raise
        except (ValueError, RecursionError) as error:
            raise DatasetError(
                f"not valid JSON: {error}", where=path, fix="repair or restore it"
            ) from error
        if not isinstance(content, dict) or not content:
            raise DatasetError("holds no object", where=path, fix=f"give {form}")
        return content


def _match_paths(keys: Sequence[object], names: dict[str, int]) -> dict[object, int]:
    """Key -> table row where the episode's path in a DROID key ends with a name of at least two
    parts.
    """
    row_of = {name.strip("/"): row for name, row in names.items() if "/" in name.strip("/")}
    depths = {name.count("/") + 1 for name in row_of}
    row_of_key: dict[object, int] = {}
    for key in keys:
        if match := _DROID_KEY.fullmatch(str(key)):
            folders = match["path"].split("/")
            rows = []
            for depth in depths:
                tail = "/".join(folders[-depth:])
                if tail in row_of:
                    rows.append(row_of[tail])
            if len(rows) == 1:
                row_of_key[key] = rows[0]
    return row_of_key


def _join_parts(columns: dict[str, dict[int, str]]) -> dict[int, str]:
    """Join both DROID parts by episode id; {} if one is missing."""
    folder, file = (_column_ending_in(part, columns) for part in _PARTS)
    if folder is None or file is None:
        return {}
    return {e: f"{folder[e]}--{file[e]}" for e in folder if e in file}


def _column_ending_in(part: str, columns: dict[str, dict[int, str]]) -> dict[int, str] | None:
    """First column whose name ends in a part of DROID's names; None without one."""
    for name, column in columns.items():
        if name.replace(".", "/").split("/")[-1] == part:
            return column
    return None


def _names(columns: dict[str, dict[int, str]], ids: np.ndarray) -> Iterator[dict[str, int]]:
    """Yield names of episodes by text columns (name -> episode id -> text): DROID parts joined,
    then each column.
    """
    row_of = {int(episode): row for row, episode in enumerate(ids)}
    if both := _join_parts(columns):
        columns = {"both": both, **columns}
    for column in columns.values():
        texts = {text: row_of[e] for e, text in column.items() if e in row_of}
        if len(texts) == len(column):  # a text shared by several episodes names none of them
            yield texts


FEW = 3
"""Keys and episodes to show of each kind."""


@storable
@dataclass(frozen=True)
class KeepReport:
    """Counts with a few examples: keys and episodes of the whole dataset, frames of the requested
    episodes.
    """

    where: str
    """The file, or "keep_ranges" for ranges given as an object."""
    keys: int
    """All keys of the ranges."""
    matched: int
    """Keys that match an episode."""
    unmatched: tuple[str, ...]
    """The first keys without an episode."""
    empty: int
    """Keys that match an episode and have an empty list of ranges."""
    first_empty: tuple[str, ...]
    episodes: int
    """Episodes with frames."""
    unnamed: int
    """Episodes with frames and without a key; all their frames are left out."""
    first_unnamed: tuple[str, ...]
    """Spelt as keys."""
    cut: int = 0
    """Ranges that end after their episode, among the requested episodes."""
    frames: int = 0
    """Frames of the requested episodes."""
    in_ranges: int = 0
    """Frames of these inside ranges."""
    samples: int = 0
    """Frames of these that remain after `keep_rule` and dropped frames."""

    def lines(self) -> list[str]:
        """Format the report; a count of 0 gives no line."""
        named = self.episodes - self.unnamed
        share = self.in_ranges / max(1, self.frames)
        lines = [
            f"{self.where}: {self.matched:,} of {self.keys:,} keys match an episode of this "
            f"dataset, {named:,} of its {self.episodes:,} episodes have a key",
            f"{self.where}: {self.in_ranges:,} of {self.frames:,} requested frames are in ranges "
            f"({share:.1%}), {self.samples:,} of them are samples",
        ]
        if missed := self.keys - self.matched:
            lines.append(
                f"{self.where}: {missed:,} keys match no episode of this dataset: "
                f"{_few(self.unmatched, missed)}"
            )
        if self.unnamed:
            shown = _few(self.first_unnamed, self.unnamed)
            lines.append(
                f"{self.where}: {self.unnamed:,} episodes have no key and are left out: {shown}"
            )
        if self.empty:
            lines.append(
                f"{self.where}: {self.empty:,} keys have no range: "
                f"{_few(self.first_empty, self.empty)}"
            )
        if self.cut:
            lines.append(
                f"{self.where}: {self.cut:,} ranges end after their episode and were cut there"
            )
        return lines


def _few(shown: tuple[str, ...], count: int) -> str:
    dots = ", ..." if count > len(shown) else ""
    return ", ".join(map(repr, shown)) + dots


def apply_ranges(
    catalog: Catalog, rows: np.ndarray, keep_ranges: KeepRanges
) -> tuple[np.ndarray, np.ndarray, np.ndarray, KeepReport]:
    """Return the ranges of the selected rows as row, start, stop, int64 (K,) each, merged where
    they touch.

    The fourth value is their report, without `samples`.

    Raises:
        DatasetError: the file cannot be read, a range is malformed, no key or two keys match an
            episode, or no frame is left.
    """
    where = "keep_ranges" if isinstance(keep_ranges, Mapping) else os.fspath(keep_ranges)
    content: Mapping[Any, Any] = (
        keep_ranges if isinstance(keep_ranges, Mapping) else EpisodeNames.read_object(where, _FORM)
    )
    matched, names = EpisodeNames(catalog).match(list(content), where)
    row, count = next(iter(Counter(matched.values()).most_common(1)))
    if count > 1:
        keys = " and ".join(repr(key) for key in matched if matched[key] == row)
        problem = f"{keys} are both episode {int(catalog.episodes.ids[row])}"
        raise DatasetError(problem, where=where, fix="give each episode one key")
    selected = set(rows.tolist())
    pieces = list[tuple[int, int, int]]()
    cut = 0
    for key, row in sorted(matched.items(), key=lambda item: item[1]):
        ranges = _check_ranges(key, content[key], where)
        if row in selected:
            length = int(catalog.episodes.lengths[row])
            cut += sum(stop > length for _, stop in ranges)
            pieces += [(row, start, stop) for start, stop in _merge(ranges, length)]
    in_ranges = sum(stop - start for _, start, stop in pieces)
    report = _report(catalog, where, content, matched, names)
    report = replace(
        report, cut=cut, frames=int(catalog.episodes.lengths[rows].sum()), in_ranges=in_ranges
    )
    if not pieces:
        lines = (line.removeprefix(f"{where}: ") for line in report.lines())
        problem = f"keeps no frame of the selected episodes: {'; '.join(lines)}"
        raise DatasetError(problem, where=where, fix="check the episodes and the ranges")
    row_of, start_of, stop_of = np.asarray(pieces, np.int64).T
    return row_of, start_of, stop_of, report


def _merge(ranges: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    """Join ranges that touch, cut at the episode's end."""
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(
        (start, min(stop, length)) for start, stop in ranges if start < min(stop, length)
    ):
        if merged and start <= merged[-1][1]:
            start = merged[-1][0]
            stop = max(merged.pop()[1], stop)
        merged.append((start, stop))
    return merged


def _report(
    catalog: Catalog,
    where: str,
    content: Mapping[Any, Any],
    matched: Mapping[object, int],
    names: Mapping[str, int],
) -> KeepReport:
    """Report the keys, without counts of frames."""
    present = np.flatnonzero(catalog.episodes.lengths > 0)
    unnamed = present[~np.isin(present, list(matched.values()))]
    name_of = {row: name for name, row in names.items()} if len(unnamed) else {}
    empty = [str(key) for key in matched if not content[key]]
    return KeepReport(
        where=where,
        keys=len(content),
        matched=len(matched),
        unmatched=tuple(islice((str(key) for key in content if key not in matched), FEW)),
        empty=len(empty),
        first_empty=tuple(empty[:FEW]),
        episodes=len(present),
        unnamed=len(unnamed),
        first_unnamed=tuple(
            name_of.get(row, str(int(catalog.episodes.ids[row]))) for row in unnamed[:FEW].tolist()
        ),
    )


def _is_range(bounds: Any) -> bool:
    return (
        isinstance(bounds, (list, tuple))
        and len(bounds) == 2
        and all(type(bound) is int for bound in bounds)
        and 0 <= bounds[0] <= bounds[1]
    )


def _check_ranges(key: object, ranges: Any, where: str) -> list[tuple[int, int]]:
    if not isinstance(ranges, (list, tuple)) or not all(map(_is_range, ranges)):
        problem = f"{key!r} -> {str(ranges)[:80]}"
        raise DatasetError(problem, where=where, fix="give a list of [start, end) frame numbers")
    return [(int(start), int(stop)) for start, stop in ranges]
