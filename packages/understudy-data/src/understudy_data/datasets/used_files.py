"""`UsedFiles`: the files of a dataset that are in use, and their digests, by which a resumed run
notices changes.

    rows      each parquet file whole while all together are at most `MAX_WHOLE` bytes; beyond that
              size and footer of each (the footer holds the least and largest values and the
              compressed size of each column chunk)
    videos    each file whole while all of a camera are at most `MAX_VIDEOS` bytes; beyond that the
              size of each
    sensors   those in use, like rows, and their declaration
    a sample  of `SAMPLE` files of each kind, spread evenly: size and footer, or size, first and
              last bytes

Modification times do not count: a copy of a dataset is the same dataset. Of a remote root only the
sample is read. Results are cached under each file's version, so that the next run on this host
reads no content again: those of a dataset next to the statistics, those of many small datasets in
groups (`mapped_tables.once_per_group`).
"""

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from understudy_base import DatasetError, write_text
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.episode_table import FileTable, describe_ids
from understudy_data.datasets.format.sensors import SENSORS
from understudy_data.datasets.selection.select import distinct
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.dataset_version import folder_of
from understudy_data.storage.mapped_tables import Member, are_many, first_key, once_per_group

MAX_WHOLE = 4 << 30
MAX_VIDEOS = 1 << 30  # a second of one core
SMALL = 4 << 20
"""Most bytes of the files of a small dataset: a change of one makes those of its group be read
again.
"""
MAX_FILES = 50_000  # files of a kind that are read, spread evenly if there are more
SAMPLE = 16
ENDS = 1 << 16  # bytes at each end of a video
PARTS = 32  # digests per kind; with more files each covers several
THREADS = 8
MISSING = "missing"

ROWS = "data files"
VIDEOS = "video files"
SOME = "a sample of the"
CONTENTS = "the contents of the"  # of videos


Digests = dict[str, list[str] | None]
"""Kind of files -> "PATH DIGEST" of each file; None for a kind that is not read."""


@dataclass(frozen=True)
class UsedFiles:
    """The files of the episodes of some parts of one dataset."""

    parts: Sequence[EpisodeArrays]
    cameras: Sequence[str]
    """Cameras in use."""

    SAMPLED_ROWS: ClassVar[str] = f"{SOME} {ROWS}"
    """Kind of the digests of a sample of the data files."""

    @staticmethod
    def sampled_videos(camera: str) -> str:
        """Return the kind of the digests of a sample of the video files of a camera."""
        return f"{SOME} {VIDEOS} of {camera}"

    def digests(self, cache: Path | None) -> Digests:
        """Return "PATH DIGEST" of each file, by kind, in the sequence of the table.

        Args:
            cache: folder of earlier results; None keeps nothing.
        """
        catalog = self.parts[0].catalog
        episodes = self.parts[0].catalog.episodes
        rows = episodes.rows_of(_episodes_of(self.parts))
        files = catalog.files
        ids = episodes.ids[rows]
        digests = _kind(
            files, episodes.data, ids, episodes.data_file[rows], ROWS, cache, _footer, _rows
        )
        for camera in self.cameras:
            if camera in episodes.videos:
                videos = episodes.videos[camera]
                name = f"{VIDEOS} of {camera}"
                whole = f"{CONTENTS} {name}"
                digests |= _kind(
                    files, videos.files, ids, videos.file[rows], name, cache, _ends, _videos, whole
                )
        for key in self.parts[0].keys:
            if key in catalog.sensors:
                paths = [SENSORS, *catalog.sensor_files(catalog.sensors[key])]
                digests[f"files of sensor {key}"] = [
                    f"{path} {digest}" for path, digest in zip(paths, _rows(files, paths, cache))
                ]
        return digests

    @staticmethod
    def digests_of_all(several: Sequence["UsedFiles"], cache: Path | None) -> list[Digests]:
        """Return the `digests` of each of several datasets; those of many small ones are kept in
        groups.
        """
        members: list[Member[Digests]] = []
        small: list[int] = []
        grouped = dict[int, Digests]()
        candidates = several if are_many(len(several)) and cache is not None else ()
        for number, files in enumerate(candidates):
            if not files._are_few:
                continue
            key, size = files._inputs()
            if size <= SMALL:
                root = files.parts[0].catalog.root
                keys = first_key(key, files._key)
                members.append(Member(root, keys, files._whole_digests))
                small.append(number)
        if are_many(len(small)):
            for place, digests in once_per_group(members, str(cache), mapped=False):
                if digests is not None:
                    grouped[small[place]] = digests
        results = []
        for number, files in enumerate(several):
            if number in grouped:
                results.append(grouped[number])
            else:
                results.append(files.digests(cache))
        return results

    @staticmethod
    def distinct_digests(entries: Sequence[str] | None) -> list[str]:
        """Return the distinct digests of "PATH DIGEST" entries of files that could be read."""
        digests = dict.fromkeys(entry.rpartition(" ")[2] for entry in entries or ())
        return [digest for digest in digests if digest != MISSING]

    @staticmethod
    def changed_kinds(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        """Return the kinds of files that were read both times and differ."""
        return [
            name
            for name in now
            if isinstance(now[name], list)
            and isinstance(before.get(name), list)
            and now[name] != before[name]
        ]

    @staticmethod
    def describe_change(before: Sequence[str], now: Sequence[str]) -> str:
        """Describe the difference of the digests of one kind."""
        odd = [entry.rpartition(" ")[0] for entry in now if entry not in before]
        if not odd:
            return f"{len(before)} -> {len(now)}"
        if len(odd) == 1:
            return odd[0]
        return f"{odd[0]}, and {len(odd) - 1} more of {len(now)}"

    @property
    def _are_few(self) -> bool:
        """Whether they are few and local, and all of them are read."""
        catalog = self.parts[0].catalog
        videos = [
            catalog.episodes.videos[key] for key in self.cameras if key in catalog.episodes.videos
        ]
        few = len(catalog.episodes.data) + sum(len(of.files) for of in videos) <= SAMPLE
        return (
            few
            and catalog.files.is_local
            and not any(key in catalog.sensors for key in self.parts[0].keys)
        )

    def _inputs(self) -> tuple[str, int]:
        """Text that changes with each input of the digests, and the bytes of the files; of few
        files.
        """
        catalog = self.parts[0].catalog
        episodes = self.parts[0].catalog.episodes
        rows = episodes.rows_of(_episodes_of(self.parts))
        used = {"": (episodes.data, episodes.data_file[rows])}
        for camera in self.cameras:
            if camera in episodes.videos:
                used[camera] = episodes.videos[camera].files, episodes.videos[camera].file[rows]
        size = 0
        facts = [catalog.root, *folder_of(catalog.root), episodes.ids[rows].tolist()]
        for camera, (table, file_of) in used.items():
            for number in np.unique(file_of[file_of >= 0]).tolist():
                path = table.find(catalog.files, number)
                state = catalog.files.state(path)
                if state:
                    size += state[0]
                facts += [camera, path, state, np.flatnonzero(file_of == number).tolist()]
        return json.dumps(facts), size

    def _key(self) -> str:
        return self._inputs()[0]

    def _whole_digests(self) -> Digests | None:
        """The digests; None where a file cannot be read."""
        digests = self.digests(None)
        entries = chain.from_iterable(of_kind or () for of_kind in digests.values())
        lost = any(entry.endswith(f" {MISSING}") for entry in entries)
        return None if lost else digests


def _episodes_of(parts: Sequence[EpisodeArrays]) -> np.ndarray:
    """Ids of the episodes of parts of one dataset, ascending."""
    return distinct(np.concatenate([part.episodes for part in parts]))


def _kind(
    files: Files,
    table: FileTable,
    ids: np.ndarray,
    used: np.ndarray,
    name: str,
    cache: Path | None,
    ends: Callable[[Files, str], str],
    everything: Callable[[Files, Sequence[str], Path | None], list[str]],
    whole: str = "",
) -> dict[str, list[str] | None]:
    numbers = np.flatnonzero(np.bincount(used[used >= 0]))
    few = _spread(numbers, SAMPLE)
    digests = _each([table.find(files, number) for number in few], lambda path: ends(files, path))
    some = [f"{table.path(number)} {digest}" for number, digest in zip(few, digests)]
    if not files.is_local:
        return {f"{SOME} {name}": some, whole or name: None}
    many = _spread(numbers, MAX_FILES)
    digests = everything(files, [table.find(files, number) for number in many], cache)
    parts = []
    for group in np.array_split(np.arange(len(many)), min(PARTS, max(1, len(many)))):
        more = f" and the {len(group) - 1} after it" if len(group) > 1 else ""
        more += f" (episodes {describe_ids(ids[np.isin(used, np.array(many)[group])])})"
        digest = _digest("\n".join(digests[i] for i in group).encode())
        parts += [f"{table.path(many[i])}{more} {digest}" for i in group[:1]]
    return {f"{SOME} {name}": some, whole or name: parts}


def _spread(numbers: np.ndarray, most: int) -> list[int]:
    indexes = np.linspace(0, len(numbers) - 1, min(most, len(numbers))).round().astype(int)
    return [int(number) for number in numbers[np.unique(indexes)]]


def _rows(files: Files, paths: Sequence[str], cache: Path | None) -> list[str]:
    """Digest of each parquet file."""
    digest = _whole if _total(_sizes(files, paths)) <= MAX_WHOLE else _footer
    return _digest_all(files, paths, cache, digest)


def _videos(files: Files, paths: Sequence[str], cache: Path | None) -> list[str]:
    """Digest of each video, or its size where they are too large to be read."""
    sizes = _sizes(files, paths)
    return _digest_all(files, paths, cache, _whole) if _total(sizes) <= MAX_VIDEOS else sizes


def _total(sizes: Sequence[str]) -> int:
    return sum(int(size) for size in sizes if size != MISSING)


def _digest_all(
    files: Files, paths: Sequence[str], cache: Path | None, how: Callable[[Files, str], str]
) -> list[str]:
    """Digest of each file, from the cache where its version is the same."""
    store = cache / "files" / f"{_digest(files.root.encode())}.json" if cache is not None else None
    cached = _read_cache(store)

    def digest(path: str) -> list[str]:
        with contextlib.suppress(DatasetError):
            version = f"{how.__name__} {files.version(path)}"
            if cached.get(path, [""])[0] == version:
                return list(cached[path])
            return [version, how(files, path)]
        return ["", MISSING]

    digests = _each(paths, digest)
    fresh = {path: entry for path, entry in zip(paths, digests) if entry[0]}
    if store is not None and any(cached.get(path) != entry for path, entry in fresh.items()):
        with contextlib.suppress(OSError):
            store.parent.mkdir(parents=True, exist_ok=True)
            write_text(store, json.dumps({**cached, **fresh}), durable=False)
    return [entry[1] for entry in digests]


def _read_cache(store: Path | None) -> dict[str, list[str]]:
    """Earlier results; {} if they cannot be read."""
    try:
        entries = json.loads(store.read_text(encoding="utf-8")) if store is not None else {}
    except (OSError, ValueError):
        return {}
    good = isinstance(entries, dict)
    return {k: v for k, v in entries.items() if isinstance(v, list) and len(v) == 2} if good else {}


def _sizes(files: Files, paths: Sequence[str]) -> list[str]:
    """Size of each file."""

    def size(path: str) -> str:
        try:
            return str(os.stat(files.where(path)).st_size)
        except OSError:
            return MISSING

    return _each(paths, size)


def _each(paths: Sequence[str], work: Callable[[str], Any]) -> list[Any]:
    if len(paths) < 2:  # as of thousands of small sources: a thread costs more
        return [work(path) for path in paths]
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, paths))


def _whole(files: Files, path: str) -> str:
    with files.open(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]  # type: ignore[arg-type]


def _footer(files: Files, path: str) -> str:
    """Digest of size and footer of a parquet file; of the last bytes of any other file."""
    return _digest_spans(
        files,
        path,
        lambda size, tail: [(max(0, size - 8 - int.from_bytes(tail[-8:-4], "little")), size)],
    )


def _ends(files: Files, path: str) -> str:
    """Digest of size, first and last bytes; a video file has its sample tables at one of the
    ends.
    """
    return _digest_spans(
        files, path, lambda size, _: [(0, min(size, ENDS)), (max(0, size - ENDS), size)]
    )


def _digest_spans(
    files: Files, path: str, spans: Callable[[int, bytes], list[tuple[int, int]]]
) -> str:
    with contextlib.suppress(DatasetError):
        source = files.source(path)
        try:
            tail = source.read(max(0, source.size - 8), min(8, source.size))
            parts = [
                source.read(start, min(stop - start, 1 << 24))
                for start, stop in spans(source.size, tail)
            ]
            return _digest(str(source.size).encode(), *parts)
        finally:
            source.close()
    return MISSING


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:16]
