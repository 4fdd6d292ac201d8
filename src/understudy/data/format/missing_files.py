"""Data and video files that the metadata names and that are missing, or git LFS pointers.

Reads folder listings, and the first bytes of some files to detect git LFS pointers. Where folders cannot be listed
(plain HTTP), checks a few names only.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches

import numpy as np

from understudy.data.format.episode_table import EpisodeTable, FileTable, Videos, describe_ids
from understudy.plural import plural
from understudy.storage.dataset_root import Files

_CHUNK = re.compile(r"chunk-\d+")
_REMOTE_CHECKS = 8  # files of a remote camera whose existence is checked
_MAX_LISTINGS = 100  # remote folders that are listed, one request each
_LISTED = 4  # paths in a message
_MAX_OPENED = 64  # files of a kind whose first bytes are read; all of them where one is a git LFS pointer


def spread_evenly(count: int, limit: int | None) -> list[int]:
    """Choose at most `limit` numbers of range(count), evenly from the first to the last."""
    if limit is None or count <= limit:
        return list(range(count))
    return sorted(set(np.linspace(0, count - 1, limit).round().astype(int).tolist()))


@dataclass(frozen=True)
class MissingFiles:
    """Files of one kind that are missing for the same reason.

    Attributes:
        kind: "data" or the camera.
        line: message with the count, the reason, the first file and the remedy.
        rows: int64 (K,), table rows of the incomplete episodes, ascending.
    """

    kind: str
    line: str
    rows: np.ndarray


def find_missing(files: Files, table: EpisodeTable, cameras: Iterable[str]) -> list[MissingFiles] | None:
    """Find missing data files and missing video files of `cameras`; None where folders cannot be listed.

    Raises:
        DatasetError: a folder may not be read.
    """
    found: list[MissingFiles] = []
    kinds: list[tuple[str, FileTable, np.ndarray]] = [("data", table.data, table.data_file)]
    kinds += [(key, table.videos[key].files, table.videos[key].file) for key in cameras if key in table.videos]
    listing = _Listing(files)
    for what, places, file_of in kinds:
        used = np.flatnonzero((table.lengths > 0) & (file_of >= 0))  # an episode without frames needs no file
        needed = np.unique(file_of[used])
        paths: dict[int, str] = {}
        for file in needed.tolist():
            path = listing.find(places, file)
            if path is None:
                return None
            paths[file] = path
        bad = {_MISSING: [file for file, path in paths.items() if not path], _LFS: _find_pointers(files, paths)}
        for why, numbers in bad.items():
            if not numbers:
                continue
            rows = used[np.isin(file_of[used], numbers)]
            line = f"{what}: {len(numbers)} of {len(needed)} files {why}: "
            line += ", ".join(places.path(number) for number in numbers[:_LISTED])
            line += f" and {len(numbers) - _LISTED} more" * (len(numbers) > _LISTED)
            line += f" (episode{'s' * (len(rows) > 1)} {describe_ids(table.ids[rows])})"
            line += f": run `git lfs pull` in {files.root}" * (why == _LFS)
            found.append(MissingFiles(what, line, rows))
        unnamed = np.flatnonzero((table.lengths > 0) & (file_of < 0))
        if len(unnamed):
            line = f"{what}: {plural(len(unnamed), 'episode names', 'episodes name')} no video, first "
            line += str(int(table.ids[unnamed[0]]))
            found.append(MissingFiles(what, line, unnamed))
    return found


def has_any_file(files: Files, videos: Videos) -> bool:
    """Check whether a camera has any video file, by its path template or by name in another chunk folder.

    For a remote dataset this checks a few evenly spread files first, then lists folders if possible.
    """
    table = videos.files
    if not files.is_local and any(files.exists(table.path(file)) for file in spread_evenly(len(table), _REMOTE_CHECKS)):
        return True
    listing = _Listing(files)
    for file in range(len(table)):
        path = listing.find(table, file)
        if path or path is None:
            return path is not None
    return False


def similar_folder(files: Files, path: str, others: Iterable[str] = ()) -> str:
    """Find a folder with almost the name of the first missing folder of `path`; "" for none.

    Args:
        others: names to ignore.
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


def _find_pointers(files: Files, paths: Mapping[int, str]) -> list[int]:
    """Numbers of the files (number -> path, "" for a missing one) that are git LFS pointers."""
    there = [file for file, path in paths.items() if path] if files.is_local else []
    some = [there[place] for place in spread_evenly(len(there), _MAX_OPENED)]
    if not any(files.is_pointer(paths[file]) for file in some):
        return []
    return [file for file in there if files.is_pointer(paths[file])]


class _Listing:
    """Folder listings, each read once."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._names: dict[str, frozenset[str] | None] = {}
        self._chunks: dict[tuple[str, str], dict[str, str]] = {}

    def find(self, table: FileTable, file: int) -> str | None:
        """Path of a file (see `FileTable.find`); "" when missing, None when unknown."""
        path = table.path(file)
        folder, _, name = path.rpartition("/")
        if folder not in self._names and not self._files.is_local and len(self._names) >= _MAX_LISTINGS:
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
        """Path of the same name in another chunk folder; "" for none."""
        parts = path.split("/")
        at = next((i for i, part in enumerate(parts[:-1]) if _CHUNK.fullmatch(part)), None)
        if at is None:
            return ""
        head, under = "".join(f"{part}/" for part in parts[:at]), "".join(f"{part}/" for part in parts[at + 1 : -1])
        if (head, under) not in self._chunks:  # once: an interrupted download lacks most of its files
            found: dict[str, str] = {}
            for chunk, is_folder in self._files.entries(head.rstrip("/")) or []:
                if is_folder and _CHUNK.fullmatch(chunk):
                    for name in self._listed(f"{head}{chunk}/{under}".rstrip("/")) or ():
                        found.setdefault(name, chunk)
            self._chunks[head, under] = found
        chunk = self._chunks[head, under].get(parts[-1], "")
        return f"{head}{chunk}/{under}{parts[-1]}" if chunk else ""
