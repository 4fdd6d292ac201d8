"""Keys of keep-ranges files: an episode id, or a text that the dataset holds about its episodes.

DROID's files use "<recording_folderpath>--<file_path>". The text is matched against the episode metadata first, then
against the text columns of the rows. Its form is interpreted only where no text is equal: in a DROID key
"<ROOT>/<PATH>/recordings/MP4--<ROOT>/<PATH>/trajectory.h5" the episode's path, "LAB/success/DATE/TIME", is matched
against texts that are such a path, like the `episode_id` of NVIDIA's conversion.

Report on keep-ranges: matched and unmatched keys, and the remaining frames.

`select.py` creates it for given ranges. The start of a run, `inspect` and `ranges` print it.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.errors import DatasetError

_PARTS = ("recording_folderpath", "file_path")
_DROID_KEY = re.compile(r"(?P<path>.+)/recordings/[^/]+--(?P=path)/[^/]+")


def match_keys(catalog: Catalog, keys: list[object], where: str) -> tuple[dict[object, int], dict[str, int]]:
    """Match keys to episodes.

    Returns:
        Key -> table row for the matching keys, and known name -> table row for all names of that kind.

    Raises:
        DatasetError: no key matches an episode; shows the keys of both sides.
    """
    if all(isinstance(key, int) or (isinstance(key, str) and key.isdigit()) for key in keys):
        by_id = {str(int(episode)): row for row, episode in enumerate(catalog.episodes.ids)}
        candidates: Iterator[dict[str, int]] = iter([by_id])
    else:
        candidates = _candidates(catalog)
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
    shown = ", ".join(map(repr, examples)) or "no texts about its episodes; their ids are " + ", ".join(
        str(int(i)) for i in catalog.episodes.ids[:3]
    )
    raise DatasetError(
        f"none of its {len(keys)} keys matches an episode: keys are {', '.join(repr(k) for k in keys[:3])}, ...; "
        f"the dataset has {shown}, ...",
        where=where,
        fix="give the keep-ranges of this dataset, or use episode ids as keys",
    )


def _match_paths(keys: Sequence[object], names: dict[str, int]) -> dict[object, int]:
    """Key -> table row where the episode's path in a DROID key ends with a name of at least two parts."""
    row_of = {name.strip("/"): row for name, row in names.items() if "/" in name.strip("/")}
    depths = {name.count("/") + 1 for name in row_of}
    row_of_key: dict[object, int] = {}
    for key in keys:
        if match := _DROID_KEY.fullmatch(str(key)):
            folders = match["path"].split("/")
            rows = [row_of[tail] for depth in depths if (tail := "/".join(folders[-depth:])) in row_of]
            if len(rows) == 1:
                row_of_key[key] = rows[0]
    return row_of_key


def droid_keys(catalog: Catalog) -> dict[int, str]:
    """Return table row -> "<recording_folderpath>--<file_path>"; {} unless unique and known for every episode."""
    there = {int(catalog.episodes.ids[row]): row for row in np.flatnonzero(catalog.episodes.lengths).tolist()}
    for texts in (catalog.episode_texts, lambda: _row_texts(catalog)):  # reads rows only if needed
        joined = _join_parts(texts())
        if there.keys() <= joined.keys() and len(set(joined.values())) == len(joined):
            return {row: joined[episode] for episode, row in there.items()}
    return {}


def _join_parts(columns: dict[str, dict[int, str]]) -> dict[int, str]:
    """Join both DROID parts by episode id; {} if one is missing."""
    ends = [
        next((c for n, c in columns.items() if n.replace(".", "/").split("/")[-1] == part), None) for part in _PARTS
    ]
    folder, file = ends
    if folder is None or file is None:
        return {}
    return {e: f"{folder[e]}--{file[e]}" for e in folder if e in file}


def _candidates(catalog: Catalog) -> Iterator[dict[str, int]]:
    yield from _names(catalog.episode_texts(), catalog.episodes.ids)
    yield from _names(_row_texts(catalog), catalog.episodes.ids)


def _names(columns: dict[str, dict[int, str]], ids: np.ndarray) -> Iterator[dict[str, int]]:
    """Yield names of episodes by text columns (name -> episode id -> text): DROID parts joined, then each column."""
    row_of = {int(episode): row for row, episode in enumerate(ids)}
    if both := _join_parts(columns):
        columns = {"both": both, **columns}
    for column in columns.values():
        texts = {text: row_of[e] for e, text in column.items() if e in row_of}
        if len(texts) == len(column):  # a text shared by several episodes names none of them
            yield texts


def _row_texts(catalog: Catalog) -> dict[str, dict[int, str]]:
    """Text features of the rows, from the first row of each episode."""
    keys = [key for key, feature in catalog.features.items() if feature.dtype == "string"]
    if not keys:
        return {}
    from understudy.data.read.rows import Rows

    rows = Rows(catalog, keys, cache_bytes=0)
    columns: dict[str, dict[int, str]] = {key: {} for key in keys}
    lengths = catalog.episodes.lengths
    for row in np.argsort(catalog.episodes.data_file, kind="stable"):  # file by file: each is read once
        if lengths[row] > 0:
            first = np.zeros(1, np.int64)
            for key, values in rows.take(np.asarray([row]), dict.fromkeys(keys, first)).items():
                columns[key][int(catalog.episodes.ids[row])] = str(values[0])
    return columns


FEW = 3
"""Keys and episodes to show of each kind."""


@dataclass(frozen=True)
class KeepReport:
    """Counts with a few examples: keys and episodes of the whole dataset, frames of the requested episodes."""

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
    cut: int
    """Ranges that end after their episode, among the requested episodes."""
    frames: int
    """Frames of the requested episodes."""
    in_ranges: int
    """Frames of these inside ranges."""
    samples: int
    """Frames of these that remain after `keep_rule` and dropped frames."""

    def lines(self) -> list[str]:
        """Format the report; a count of 0 gives no line."""
        named = self.episodes - self.unnamed
        share = self.in_ranges / max(1, self.frames)
        lines = [
            f"{self.where}: {self.matched:,} of {self.keys:,} keys match an episode of this dataset, {named:,} of its "
            f"{self.episodes:,} episodes have a key",
            f"{self.where}: {self.in_ranges:,} of {self.frames:,} requested frames are in ranges ({share:.1%}), "
            f"{self.samples:,} of them are samples",
        ]
        if missed := self.keys - self.matched:
            lines.append(
                f"{self.where}: {missed:,} keys match no episode of this dataset: {_few(self.unmatched, missed)}"
            )
        if self.unnamed:
            shown = _few(self.first_unnamed, self.unnamed)
            lines.append(f"{self.where}: {self.unnamed:,} episodes have no key and are left out: {shown}")
        if self.empty:
            lines.append(f"{self.where}: {self.empty:,} keys have no range: {_few(self.first_empty, self.empty)}")
        if self.cut:
            lines.append(f"{self.where}: {self.cut:,} ranges end after their episode and were cut there")
        return lines


def _few(shown: tuple[str, ...], count: int) -> str:
    return ", ".join(map(repr, shown)) + (", ..." if count > len(shown) else "")
