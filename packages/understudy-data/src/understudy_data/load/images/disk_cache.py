"""Decoded images in files of a local disk, shared by the processes of a host, within a budget.

    <folder>/decoded/<boot id>/lock                     held while a set is chosen or removed
                               <set>-<bytes>/lock       shared lock of each process that uses the
                                                        set
                                             <c>-<row>  images of camera c in one episode (table
                                                        row)

A set has the images of one dataset, its selected episodes and one size. Its name holds the bytes of
all its images, so the names give the space that is taken. Sets without a lock are removed where
space is needed, the oldest first.

A file is sparse: all images, then 32 bytes that identify them, then a byte per frame that is 1 once
its image is there. An image is written before its byte, so after a kill at any instant each image
with its byte is complete. The identity comes from the version of the video, the place of the
episode in it, the form of the images and the versions of the code. Each read opens the file and
checks identity and byte before and after, so a file that was removed, replaced, cut or belongs to
another video counts as not decoded. Bytes and images may reach the disk in another sequence than
they were written in, so after a restart of the host nothing is trusted: sets of another boot are
removed.

Files are read by `preadv` into the batch. A mapped page of a file that is cut would end the
process.
"""

import contextlib
import errno
import hashlib
import os
import pickle
import re
import secrets
import shutil
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np

from understudy_base import DatasetError, SourceError, __version__
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.storage import locks
from understudy_data.storage.byte_source import CHANGED, RESTART
from understudy_data.storage.mapped_tables import is_network
from understudy_data.video.color import ImageSize

_FORMAT = 1
_IDENTITY = 32  # bytes
_DECODED = 1
_ATTEMPTS = 10  # to write into a file that other processes replace
_SET = re.compile(r"[0-9a-f]{64}-([0-9]+)")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class DiskCache:
    """A folder for decoded images.

    Attributes:
        folder: folder on a local disk.
        max_bytes: most bytes of all images in it.
    """

    folder: str
    max_bytes: int

    def open(
        self, dataset: EpisodeArrays, image_size: tuple[int, int] | None = None
    ) -> "ImageFiles":
        """Reserve the space of a dataset's images, and open their files for as long as the result
        lives.

        Args:
            image_size: (height, width) of the images.

        Raises:
            ValueError: the folder is not on a local disk of a Linux host, or the images do not fit:
                beside those that other processes use, or on the disk.
            DatasetError: the folder cannot be written.
        """
        needed = bytes_on_disk(dataset, image_size)
        root = self._root()
        name = _name_set(dataset, image_size, needed)
        with self._errors(root), locks.hold(str(root / "lock")) as held:
            if held is None:
                raise DatasetError(
                    "another process holds its lock", where=root, fix="end that process"
                )
            self._make_room(root, name, needed, dataset.name)
            (root / name).mkdir(exist_ok=True)
            os.utime(root / name)
            lock = locks.acquire(str(root / name / "lock"), shared=True, create=True)
        if lock is None:
            raise DatasetError("another process removes it", where=root / name, fix="start again")
        return ImageFiles(str(root / name), image_size, lock)

    def _root(self) -> Path:
        """The folder of this boot. Unused sets of other boots are removed."""
        try:
            boot = _BOOT_ID.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            raise ValueError(f"decoded_cache: this host has no {_BOOT_ID}; leave it out") from None
        if is_network(self.folder):
            problem = (
                f"decoded_cache {self.folder}: is on a network file system, which other "
                "hosts change"
            )
            raise ValueError(f"{problem}; name a folder on a local disk")
        root = Path(self.folder).absolute() / "decoded" / boot
        with self._errors(root):
            root.mkdir(parents=True, exist_ok=True)
            for entry in root.parent.glob("*/*-*"):
                if entry.parent != root and _SET.fullmatch(entry.name):
                    _remove(entry)
        return root

    @contextlib.contextmanager
    def _errors(self, root: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = f"the folder of decoded_cache cannot be used: {error.strerror}"
            raise DatasetError(
                problem, where=root, fix="name another one on a local disk"
            ) from error

    def _make_room(self, root: Path, name: str, needed: int, dataset: str) -> None:
        """Remove unused sets, the oldest first, until `needed` more bytes fit."""
        matches = [
            (entry, _SET.fullmatch(entry.name)) for entry in root.iterdir() if entry.name != name
        ]
        sizes = {entry: int(match[1]) for entry, match in matches if match}
        for entry in sorted(sizes, key=lambda entry: entry.stat().st_mtime_ns):
            if sum(sizes.values()) + needed <= self.max_bytes:
                break
            if _remove(entry):
                del sizes[entry]
        taken = sum(sizes.values())
        asked = f"decoded_cache {self.folder}: the decoded images of {dataset} take {needed} bytes"
        if taken + needed > self.max_bytes:
            beside = f", {taken} of them in use for other images" if taken else ""
            fix = (
                "allow more (decoded_cache=(FOLDER, SIZE), data.cache_size), give a smaller "
                "image_size, or leave it out"
            )
            raise ValueError(f"{asked}, and {self.max_bytes} are allowed{beside}; {fix}")
        written = sum(file.stat().st_blocks for file in root.glob(f"{name}/*")) * 512
        free = shutil.disk_usage(root).free
        if needed - written > free:
            raise ValueError(
                f"{asked}, and the disk has {free} free; name a folder on another disk, or leave "
                "it out"
            )


def _remove(entry: Path) -> bool:
    """Remove a set; returns False where a process uses it."""
    lock = locks.acquire(str(entry / "lock"), create=True)
    if lock is None:
        return not entry.exists()
    shutil.rmtree(entry, ignore_errors=True)
    locks.release(lock)
    return not entry.exists()


def bytes_on_disk(dataset: EpisodeArrays, image_size: tuple[int, int] | None = None) -> int:
    """Bytes of the files with all images of the episodes that a dataset selects, as they are
    delivered.

    Raises:
        DatasetError: a video cannot be opened.
    """
    rows = _selected_rows(dataset)
    frames = int(dataset.catalog.episodes.lengths[rows].sum())
    total = 0
    for camera in dataset.video_keys:
        facts = dataset.video_frames.facts(camera, int(rows[0]))
        height, width = image_size or (facts.height, facts.width)
        total += frames * (dataset.pixels(camera).nbytes(height, width) + 1) + len(rows) * _IDENTITY
    return total


class ImageFiles:
    """The files of one set. They are not removed while it lives.

    Args:
        folder: of the set.
        image_size: (height, width) of the images.
        lock: descriptor of its lock.
    """

    def __init__(self, folder: str, image_size: tuple[int, int] | None, lock: int) -> None:
        self.folder = folder
        self._image_size = image_size
        self._versions: dict[str, str] = {}  # by path of the video
        self.is_writable = True
        """False once writing has failed."""
        self._failing = threading.Lock()
        weakref.finalize(self, _release, lock, os.getpid())

    def pin(self, dataset: EpisodeArrays, camera: str, row: int) -> str:
        """The version of an episode's video when this was first called; call it before the video is
        opened.

        Raises:
            DatasetError: the video is missing or cannot be accessed.
        """
        files = dataset.catalog.files
        path = dataset.catalog.video_path(camera, row)
        version = self._versions.get(path)
        return self._versions.setdefault(path, files.version(path)) if version is None else version

    def images(
        self, dataset: EpisodeArrays, camera: str, row: int, first: int, size: tuple[int, int]
    ) -> "StoredImages":
        """The images of one camera in one episode.

        Args:
            row: table row of the episode.
            first: number of its first frame in the video.
            size: (height, width) of an image.
        """
        catalog = dataset.catalog
        pixels = dataset.pixels(camera)
        files = catalog.files
        path = catalog.video_path(camera, row)
        version = self.pin(dataset, camera, row)
        shape = int(catalog.episodes.lengths[row]), pixels.channels, *size
        code = [_FORMAT, __version__, av.__version__, sorted(av.library_versions.items())]
        identity = [
            *code,
            dataset.video_frames.backend,
            files.root,
            path,
            version,
            first,
            shape,
            repr(pixels),
        ]

        def check() -> None:
            if files.version(path) != version:
                raise SourceError(
                    CHANGED, where=dataset.video_frames.where(camera, row), fix=RESTART
                )

        name = os.path.join(self.folder, f"{dataset.video_keys.index(camera)}-{row}")
        return StoredImages(
            name, _digest(*identity, _name_size(self._image_size)), shape, pixels.dtype, check
        )

    def store(self, images: "StoredImages", frame: int, image: np.ndarray) -> None:
        """Write an image, contiguous (C, H, W), as far as the disk allows; where it fails, warn
        once.

        Raises:
            SourceError: the video has changed since the loader was made.
        """
        if not self.is_writable:
            return
        images.check()
        try:
            images.write(frame, image)
        except OSError as error:
            with self._failing:
                first = self.is_writable
                self.is_writable = False
            if not first:
                return
            problem = f"{self.folder}: decoded images cannot be written: {error.strerror}"
            warnings.warn(
                f"{problem}; images that are not there are decoded again for each sample",
                stacklevel=2,
            )


class StoredImages:
    """Images of one camera in one episode, in a file.

    Args:
        path: of the file; it may be missing.
        identity: digest of everything that the images depend on.
        shape: (frames, C, H, W).
        dtype: of a pixel.
        check: raises an error if the video has changed.
    """

    def __init__(
        self,
        path: str,
        identity: bytes,
        shape: tuple[int, ...],
        dtype: str,
        check: Callable[[], None],
    ) -> None:
        self._path = path
        self._identity = identity
        self.check = check
        self.count = shape[0]
        self.shape = shape[1:]
        self.dtype = np.dtype(dtype)
        self._bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self._tail = self.count * self._bytes  # where the identity begins
        self._size = self._tail + _IDENTITY + self.count

    def decoded(self) -> np.ndarray:
        """Whether the image of each frame is there, bool (frames,)."""
        try:
            with _open(self._path, os.O_RDONLY) as file:
                return np.frombuffer(self._marks(file, self.count), np.uint8) == _DECODED
        except OSError:
            return np.zeros(self.count, bool)

    def read(self, frame: int, out: np.ndarray) -> bool:
        """Read an image into `out`, contiguous (C, H, W); returns False where it is not there."""
        try:
            with _open(self._path, os.O_RDONLY) as file:  # the mark and the image of the same file
                if self._marks(file, frame + 1)[frame] != _DECODED:
                    return False
                size = os.preadv(file, [out.data.cast("B")], frame * self._bytes)
                # again: a file that was cut or written anew in the meantime has lost its identity
                return size == self._bytes and self._marks(file, frame + 1)[frame] == _DECODED
        except OSError:
            return False

    def write(self, frame: int, image: np.ndarray) -> None:
        """Write an image, contiguous (C, H, W).

        Raises:
            OSError: the disk is full, say. The image is then not there.
        """
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(FileNotFoundError), _open(self._path, os.O_RDWR) as file:
                if os.fstat(file).st_size == self._size and self._is_right(file):
                    self._write(file, frame, image)
                    return
                os.unlink(self._path)
            self._create()
        raise OSError(errno.EBUSY, "other processes replace it", self._path)

    def _write(self, file: int, frame: int, image: np.ndarray) -> None:
        view = image.data.cast("B")
        offset = frame * self._bytes
        while view:
            count = os.pwrite(file, view, offset)
            view = view[count:]
            offset = offset + count
        os.pwrite(file, bytes([_DECODED]), self._tail + _IDENTITY + frame)

    def _marks(self, file: int, count: int) -> bytes:
        """The bytes of the first `count` frames; zeros where the file is not the right one."""
        tail = os.pread(file, _IDENTITY + count, self._tail)
        right = len(tail) == _IDENTITY + count and tail.startswith(self._identity)
        return tail[_IDENTITY:] if right else bytes(count)

    def _is_right(self, file: int) -> bool:
        return os.pread(file, _IDENTITY, self._tail) == self._identity

    def _create(self) -> None:
        """Make the file without images, unless another process has made one."""
        draft = f"{self._path}.{secrets.token_hex(4)}"
        try:
            with _open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL) as file:
                os.truncate(file, self._size)
                os.pwrite(file, self._identity, self._tail)
            with contextlib.suppress(FileExistsError):
                os.link(draft, self._path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft)


@contextlib.contextmanager
def _open(path: str, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        yield file
    finally:
        os.close(file)


def _selected_rows(dataset: EpisodeArrays) -> np.ndarray:
    return dataset.table_rows


def _name_set(dataset: EpisodeArrays, image_size: tuple[int, int] | None, needed: int) -> str:
    rows = hashlib.blake2b(
        np.ascontiguousarray(_selected_rows(dataset), np.int64).tobytes()
    ).hexdigest()
    pixels = [repr(dataset.pixels(camera)) for camera in dataset.video_keys]
    root = dataset.catalog.files.root
    return (
        f"{_digest(root, dataset.video_keys, rows, pixels, _name_size(image_size)).hex()}-{needed}"
    )


def _name_size(image_size: tuple[int, int] | None) -> str:
    """Text for a size and its way of resizing.

    Raises:
        ValueError: its function has no name by which another process finds it.
    """
    if not isinstance(image_size, ImageSize):
        return repr(image_size and tuple(image_size))
    module = sys.modules.get(getattr(image_size.resize, "__module__", ""))
    path = getattr(module, "__file__", None)
    code = hashlib.blake2b(Path(path).read_bytes()).hexdigest() if path else ""
    try:
        return f"{tuple(image_size)} {pickle.dumps(image_size.resize, 4).hex()} {code}"
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        problem = (
            f"image_size {tuple(image_size)}: decoded_cache cannot name its way of resizing "
            f"({error})"
        )
        raise ValueError(f"{problem}; leave decoded_cache out") from error


def _digest(*values: object) -> bytes:
    return hashlib.blake2b(repr(values).encode(), digest_size=_IDENTITY).digest()


def _release(lock: int, process: int) -> None:
    if process == os.getpid():  # a forked child has closed it
        locks.release(lock)
