"""Which of the files that a dataset's metadata names are there: cameras without any, episodes that lack one.

Looks at the names in folder listings, and at the beginning of some files, which tells a git LFS pointer. Where folders
cannot be listed (plain HTTP) only a few names are asked for.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from understudy.data.format.episode_table import EpisodeTable, FileTable, Videos
from understudy.storage.files import Files

_CHUNK = re.compile(r"chunk-\d+")
_ASKED = 8  # files of a camera that are asked for where folders are elsewhere
_FOLDERS = 100  # folders that are listed where each listing is a request
_LOOKED_INTO = 64  # files of a kind that are looked into; all of them where one is a git LFS pointer


def spread(count: int, limit: int | None) -> list[int]:
    """At most `limit` of range(count), from the first to the last."""
    if limit is None or count <= limit:
        return list(range(count))
    return sorted(set(np.linspace(0, count - 1, limit).round().astype(int).tolist()))


@dataclass(frozen=True)
class Gap:
    """What is wrong with some files of one kind: all of them for one reason.

    Attributes:
        what: "data" or the camera.
        line: how many of how many files, why, the first of them, and what helps.
        rows: int64 (K,), table rows of the episodes that are incomplete for it, ascending.
    """

    what: str
    line: str
    rows: np.ndarray


def gaps(files: Files, table: EpisodeTable, cameras: Iterable[str]) -> list[Gap] | None:
    """What is not there of the rows and of these cameras' videos; None where folders cannot be listed.

    Raises:
        DatasetError: a folder that may not be looked into.
    """
    found: list[Gap] = []
    kinds: list[tuple[str, FileTable, np.ndarray]] = [("data", table.data, table.data_file)]
    kinds += [(key, table.videos[key].files, table.videos[key].file) for key in cameras if key in table.videos]
    listing = _Listing(files)
    for what, places, file_of in kinds:
        used = np.flatnonzero((table.lengths > 0) & (file_of >= 0))  # without frames there need not be a file
        needed = np.unique(file_of[used])
        lie: dict[int, str] = {}
        for file in needed.tolist():
            path = listing.find(places, file)
            if path is None:
                return None
            lie[file] = path
        bad = {_MISSING: [file for file, path in lie.items() if not path], _LFS: _pointers(files, lie)}
        for why, numbers in bad.items():
            if not numbers:
                continue
            rows = used[np.isin(file_of[used], numbers)]
            line = f"{what}: {len(numbers)} of {len(needed)} files {why}, first {places.path(numbers[0])} "
            line += f"(episode {int(table.ids[rows[0]])})" + (f": run `git lfs pull` in {files.root}" * (why == _LFS))
            found.append(Gap(what, line, rows))
        unnamed = np.flatnonzero((table.lengths > 0) & (file_of < 0))
        if len(unnamed):
            line = f"{what}: {len(unnamed)} episodes name no video, first {int(table.ids[unnamed[0]])}"
            found.append(Gap(what, line, unnamed))
    return found


def has_any(files: Files, videos: Videos) -> bool:
    """Whether a camera has a video file, where its path template points or under the same name in another chunk folder.

    Elsewhere a few of the files are asked for, evenly spread. If none is there, folders are listed where they can be.
    """
    table = videos.files
    if not files.is_local and any(files.exists(table.path(file)) for file in spread(len(table), _ASKED)):
        return True
    listing = _Listing(files)
    for file in range(len(table)):
        path = listing.find(table, file)
        if path or path is None:
            return path is not None
    return False


def near_miss(files: Files, path: str, others: Iterable[str] = ()) -> str:
    """A folder whose name is almost that of the first folder of `path` which is not there; "" for none.

    others: names that mean something else.
    """
    parts: list[str] = []
    for part in path.split("/")[:-1]:
        folders = [name for name, is_folder in files.entries("/".join(parts)) or [] if is_folder]
        if part in folders:
            parts.append(part)
        elif _CHUNK.fullmatch(part) and (chunks := [name for name in folders if _CHUNK.fullmatch(name)]):
            parts.append(chunks[0])
        else:
            folders = [name for name in folders if name not in set(others)]
            near = get_close_matches(part, folders, n=1) or [name for name in folders if part.endswith(name)]
            return "/".join([*parts, near[0]]) if near else ""
    return ""


_MISSING, _LFS = "are not there", "are git LFS pointers"


def _pointers(files: Files, lie: Mapping[int, str]) -> list[int]:
    """Numbers of the files (number -> path, "" for one that is not there) that are git LFS pointers."""
    there = [file for file, path in lie.items() if path] if files.is_local else []
    some = [there[place] for place in spread(len(there), _LOOKED_INTO)]
    if not any(files.is_pointer(lie[file]) for file in some):
        return []
    return [file for file in there if files.is_pointer(lie[file])]


class _Listing:
    """What folders hold, each looked into once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._names: dict[str, frozenset[str] | None] = {}
        self._chunks: dict[tuple[str, str], dict[str, str]] = {}

    def find(self, table: FileTable, file: int) -> str | None:
        """Where a file lies (see `FileTable.find`), "" for nowhere, None where that cannot be known."""
        path = table.path(file)
        folder, _, name = path.rpartition("/")
        if folder not in self._names and not self._files.is_local and len(self._names) >= _FOLDERS:
            return None
        names = self._listed(folder)
        if names is None or name in names:
            return None if names is None else path
        return self._in_another_chunk(path) if table.named_apart and self._files.is_local else ""

    def _listed(self, folder: str) -> frozenset[str] | None:
        if folder not in self._names:
            listed = self._files.entries(folder)
            self._names[folder] = None if listed is None else frozenset(n for n, is_folder in listed if not is_folder)
        return self._names[folder]

    def _in_another_chunk(self, path: str) -> str:
        """Where the same name lies in another chunk folder, "" for nowhere."""
        parts = path.split("/")
        at = next((i for i, part in enumerate(parts[:-1]) if _CHUNK.fullmatch(part)), None)
        if at is None:
            return ""
        head, under = "".join(f"{part}/" for part in parts[:at]), "".join(f"{part}/" for part in parts[at + 1 : -1])
        if (head, under) not in self._chunks:  # once: a download that broke off lacks most of its files
            found: dict[str, str] = {}
            for chunk, is_folder in self._files.entries(head.rstrip("/")) or []:
                if is_folder and _CHUNK.fullmatch(chunk):
                    for name in self._listed(f"{head}{chunk}/{under}".rstrip("/")) or ():
                        found.setdefault(name, chunk)
            self._chunks[head, under] = found
        chunk = self._chunks[head, under].get(parts[-1], "")
        return f"{head}{chunk}/{under}{parts[-1]}" if chunk else ""
