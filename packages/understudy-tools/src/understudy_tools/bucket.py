"""A dataset written into a bucket: finished files are moved there one by one, and `info.json` comes
last.

.understudy-output-…   in the bucket, until the end: names the command that writes there
WORK/new/PATH          on this host: a file until it is uploaded
WORK/uploaded/PATH     on this host: its size and version in the bucket, and its SHA-256
"""

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from understudy_base import DatasetError, hold_folder, write_text
from understudy_data import RemoteFolder, RemoteOptions

MARK = ".understudy-output-"
"""Start of the name of the file that marks an unfinished dataset."""


@dataclass(frozen=True)
class Bucket:
    """Folder of a bucket as an output. Pickles with its credentials, and writes them nowhere.

    Attributes:
        address: its URL, of any file system that fsspec writes.
        options: options for access, and deadlines.
        work: folder of this host for files until they are uploaded, and for the record of uploads.
    """

    address: str = field(repr=False)
    options: RemoteOptions = field(default_factory=RemoteOptions)
    work: Path = Path()

    def __str__(self) -> str:
        return str(self._folder)

    @property
    def _folder(self) -> RemoteFolder:
        return RemoteFolder(self.address, self.options)

    def check(self, mark: str = "") -> dict[str, str]:
        """Return the version of each file; DatasetError where there are files and no such mark."""
        files = self._folder.list()
        if files and not any(name.startswith(MARK + mark) for name in files):
            problem = f"holds {len(files):,} files: {', '.join(sorted(files)[:3])} …"
            raise DatasetError(
                problem, where=str(self), fix="name an empty folder; nothing is overwritten"
            )
        return files

    @contextmanager
    def create(self, mark: str) -> Iterator[Path]:
        """Upload all files that the block leaves in the yielded folder; a later call with this mark
        continues.

        Raises:
            DatasetError: the bucket has other files, or another file in place of an uploaded one.
            BeingWritten: another process of this host has the same `work`.
        """
        draft = self.work / "new"
        with hold_folder(self.work):
            if not self.check(mark):
                self._folder.write(MARK + mark, b"understudy\n")
            self._compare(mark)
            draft.mkdir(exist_ok=True)
            yield draft
            paths = [path for path in draft.rglob("*") if path.is_file()]
            for path in sorted(paths, key=lambda path: path.name == "info.json"):
                if path.name == "info.json":
                    self._compare(mark, is_complete=True)
                self.move(path)
            self._folder.remove(MARK + mark)
        shutil.rmtree(self.work)

    def move(self, path: Path) -> None:
        """Upload a finished file under `work/new`, unless an earlier call has uploaded equal bytes,
        and remove it.
        """
        name = path.relative_to(self.work / "new").as_posix()
        record = self.work / "uploaded" / name
        if record.exists() and not path.exists():
            return  # a kill came before the end of its part
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not record.exists() or json.loads(record.read_bytes())[1] != digest:
            record.parent.mkdir(parents=True, exist_ok=True)
            version = self._folder.upload(name, str(path))
            write_text(record, json.dumps([version, digest]))
        path.unlink()

    def _compare(self, mark: str, is_complete: bool = False) -> None:
        """Compare the bucket with the record of uploads."""
        folder = self.work / "uploaded"
        files = self.check(mark)
        files.pop(MARK + mark, None)
        records = [path for path in folder.rglob("[!.]*") if path.is_file()]  # and no draft
        uploaded = {
            path.relative_to(folder).as_posix(): json.loads(path.read_bytes())[0]
            for path in records
        }
        wrong = uploaded.items() - files.items()
        if is_complete:
            wrong = uploaded.items() ^ files.items()
        if wrong:
            problem = (
                "was changed, added or removed by another command while this one writes the dataset"
            )
            fix = (
                "remove this file, then run the command with a new --work folder, which uploads "
                "all files again"
            )
            raise DatasetError(problem, where=f"{self}/{min(wrong)[0]}", fix=fix)
