"""One version of a dataset: its files of `meta/` as they were when it was opened, asked again for
each further file.

The etag of a file says that the file did not change, and nothing of the others. So a dataset that
is replaced while it is open would give rows of one version with images of another. Therefore a file
that is opened for the first time is followed by a look at the `marks`: files of `meta/` of which at
least one differs in another dataset. A dataset that only grew keeps its earlier files: those that
were written before it was opened are read. A file that was written after that is refused, also
where the marks stay.

A publication (`edit/publish.py`) needs no marks: its folder and its files never change.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from understudy_base import SourceError
from understudy_data.storage.cancel import cancel_when, cancelled_when

_ASK_ALL = 60.0  # seconds after which all marks are asked, and not only the next one
# folder of the publications of a dataset, by its name
_STORE = re.compile(r"\.(.+)\.versions", re.DOTALL)
_PUBLICATION = re.compile(r"(.+)@(\d{6})", re.DOTALL)
_AGAIN = "start again, and replace no dataset that is open"
_REPLACED = "another version of this dataset was put here while it was open"


@dataclass(frozen=True)
class Stat:
    """One version of a file.

    Attributes:
        size: Size in bytes.
        tag: Unique among all versions.
        modified: Modification time in seconds since 1970 by the server's clock; 0 if unknown.
    """

    size: int
    tag: str
    modified: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class DatasetVersion:
    """Facts of the version of a dataset that was opened.

    Attributes:
        marks: Path of each asked file -> its version; None: it was not there.
        opened: Time of the opening in seconds since 1970, by the clock of the files.
        folder: Device and inode of a local root.
        changed: Latest change of a mark of a local root, in seconds since 1970, by the clock of the
            files.
    """

    marks: Mapping[str, Stat | None]
    opened: float
    folder: tuple[int, int] = (0, 0)
    changed: float = 0.0


class VersionCheck:
    """Compares the marks of a version with those of now. Safe in threads.

    A file costs one question, which several files that are opened at once share; the first file,
    and one each minute, cost a question for each mark.

    Args:
        version: The version that was opened.
        root: Address of the dataset, for messages.
        ask: Returns the version of a file now, None for no file; its second argument is the latest
            known one.
    """

    def __init__(
        self, version: DatasetVersion, root: str, ask: Callable[[str, Stat | None], Stat | None]
    ) -> None:
        self.version = version
        self._root = root
        self._ask = ask
        self._latest = dict(version.marks)
        self._lock = threading.Lock()
        self._asked = 0.0
        self._asked_all = 0.0
        self._turn = 0

    def confirm(self, path: str, stat: Stat, met: float | None = None) -> None:
        """Check that a file which was met for the first time belongs to the version.

        Args:
            path: The file.
            stat: Its version.
            met: When it was met (`time.monotonic`); None: now. A question after that time counts
                for it.

        Raises:
            SourceError: Another version was put in its place.
        """
        met = time.monotonic() if met is None else met
        with self._lock:
            # another thread asked after this file was met
            if self._asked >= met or not self._latest:
                return
            begun = time.monotonic()
            names = list(self._latest)
            asks_all = not self._asked_all or begun - self._asked_all > _ASK_ALL
            if not asks_all:
                names = [names[self._turn % len(names)]]
                self._turn += 1
            is_same = True
            for name, current in zip(names, self._ask_all(names)):
                self._latest[name] = current
                if current != self.version.marks[name]:
                    self._check_grown(name, current, path, stat)
                    is_same = False
            if is_same:
                self._asked = begun
                self._asked_all = begun if asks_all else self._asked_all

    def _ask_all(self, names: Sequence[str]) -> list[Stat | None]:
        """Ask for several marks beside each other."""
        if len(names) == 1:
            return [self._ask(names[0], self._latest[names[0]])]
        is_gone = cancelled_when()

        def ask(name: str) -> Stat | None:
            cancel_when(is_gone)
            return self._ask(name, self._latest[name])

        with ThreadPoolExecutor(len(names), "understudy-marks") as pool:
            return list(pool.map(ask, names))

    def _check_grown(self, name: str, current: Stat | None, path: str, stat: Stat) -> None:
        """Raise SourceError unless `name` was written again after the opening, and `path` was
        not.
        """
        opened = self.version.opened
        recorded = self.version.marks[name]
        is_rewritten = recorded is not None and current is not None and current.modified > opened
        if not (is_rewritten and 0 < stat.modified <= opened):
            raise replaced(self._root, name, path)


def replaced(root: str, name: str, path: str) -> SourceError:
    """Return the error of a further file `path` after the mark `name` changed."""
    problem = (
        f"{_REPLACED}: {name} changed before {path} was opened, and rows would come with "
        "images of another one"
    )
    return SourceError(problem, where=root, fix=_AGAIN)


def local_stat(path: str) -> Stat | None:
    """Return the version of a local file; None where there is none.

    Its inode is no part of it: some network file systems number a file anew. `modified` is the time
    of the last change of its content or name.
    """
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return Stat(
        stat.st_size, f"{stat.st_size}-{stat.st_mtime_ns}", max(stat.st_mtime, stat.st_ctime)
    )


class LocalCheck(VersionCheck):
    """The same for a local root: all marks are looked at each time, and a root that is another
    folder has not grown.

    A file outside `meta/` that was written or put in its place after the opening is refused, too. A
    new mode, owner or hard link changes its time as well, but neither its content nor its folder.
    """

    def __init__(self, version: DatasetVersion, root: str) -> None:
        super().__init__(version, root, lambda name, _: local_stat(f"{root}/{name}"))

    def confirm(self, path: str, stat: Stat, met: float | None = None) -> None:
        """See `VersionCheck.confirm`."""
        for name, recorded in self.version.marks.items():
            current = self._ask(name, recorded)
            if current != recorded:
                if folder_of(self._root) != self.version.folder:
                    raise replaced(self._root, name, path)
                self._check_grown(name, current, path, stat)
        opened = max(self.version.opened, self.version.changed)
        if stat.modified > opened and not path.startswith("meta/"):
            self._check_kept(path, opened)

    def _check_kept(self, path: str, opened: float) -> None:
        """Raise SourceError if the content of a file is later than the opening."""
        place = f"{self._root}/{path}"
        try:
            file = os.stat(place)
            folder = os.stat(os.path.dirname(place))
        except OSError:
            return  # opening the file explains it
        if file.st_ctime > opened and max(file.st_mtime, folder.st_mtime) > opened:
            there = f"{file.st_size:,} bytes of {_time(file.st_ctime)}"
            problem = (
                f"it was written while the dataset was open: there are {there}, and it was "
                f"opened at {_time(opened)}"
            )
            raise SourceError(problem, where=place, fix=_AGAIN)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).isoformat(" ", "milliseconds")


def changed_at(path: str) -> float:
    """Return the time of the last change of a local file in seconds since 1970, which nobody can
    set; 0: no file.
    """
    try:
        return os.stat(path).st_ctime
    except OSError:
        return 0.0


def folder_of(root: str) -> tuple[int, int]:
    """Return device and inode of a folder; (0, 0) where there is none."""
    try:
        stat = os.stat(root)
    except OSError:
        return 0, 0
    return stat.st_dev, stat.st_ino


def publication_of(root: str) -> str:
    """Return the folder of the publication at `root`; "" for any other dataset."""
    real = Path(os.path.realpath(root)) if os.path.islink(root) else Path(root)
    is_publication = real.name.isdigit() and _STORE.fullmatch(real.parent.name)
    return str(real) if is_publication else ""


def publication_is_gone(address: str) -> bool:
    """Return whether an address `PATH@NUMBER` names a publication that is not there; False for any
    other address.
    """
    folder = publication_folder(address)
    return bool(folder) and not os.path.isdir(folder)


def publication_name(root: str) -> str:
    """Return the name of the dataset whose publication the folder `root` is; "" for any other
    folder.
    """
    path = Path(root)
    match = _STORE.fullmatch(path.parent.name)
    return match[1] if match and path.name.isdigit() else ""


def publication_folder(address: str) -> str:
    """Return the folder of an address `PATH@NUMBER` of one publication; "" for any other
    address.
    """
    match = _PUBLICATION.fullmatch(address)
    if match is None or os.path.lexists(address):
        return ""
    folder, name = os.path.split(os.path.abspath(match[1]))
    place = f"{folder}/.{name}.versions/{match[2]}"
    return place if os.path.isdir(os.path.dirname(place)) else ""
