"""Pictures of episodes by (table row, frame): which file, which picture in it, and a bounded memory of open files.

Frame i of an episode is the i-th picture after the episode's first one in its file, in integers. A file whose number
of pictures disagrees with the rows is named, and refused where the pairing would be a guess.
"""

import os
import threading
import warnings
from collections import OrderedDict

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import Videos
from understudy.errors import DatasetError, MissingFile, SourceFailed
from understudy.storage.files import renamed
from understudy.video.open import open_video
from understudy.video.reader import VideoReader

_CODECS = {"libx264": "h264", "avc1": "h264", "libx265": "hevc", "h265": "hevc", "hvc1": "hevc"}
_CODECS |= {"libsvtav1": "av1", "libaom-av1": "av1", "av01": "av1", "hev1": "hevc", "avc3": "h264"}
_CODECS |= {"mp4v": "mpeg4", "libxvid": "mpeg4", "vp09": "vp9", "libvpx-vp9": "vp9"}
_OPEN_FILES = 32  # a live decoder costs 2 to 5 MB


class _Open:
    """An open file, for one thread at a time."""

    def __init__(self, reader: VideoReader) -> None:
        self.reader, self.lock = reader, threading.Lock()

    def close(self) -> None:
        with self.lock:
            self.reader.close()  # whoever still holds it reopens it by reading


class Pictures:
    """Decoded pictures of a dataset's video cameras.

    Safe to use from several threads, which decode at the same time where their files differ, and after a fork or a
    pickle, which carry no open file.

    Args:
        cache_bytes: budget for decoded pictures that are kept, so that overlapping windows decode each picture once.
        backend: see `open_video`.
    """

    def __init__(self, catalog: Catalog, cache_bytes: int, backend: str) -> None:
        self.catalog, self.cache_bytes, self.backend = catalog, cache_bytes, backend
        self.notes: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self._readers: OrderedDict[tuple[str, int], _Open] = OrderedDict()
        self._kept: OrderedDict[tuple[str, int, int], np.ndarray] = OrderedDict()
        self._held = 0
        self._by_time: dict[tuple[str, int], bool] = {}  # file -> whether recorded times say where episodes start
        self._lock = threading.Lock()  # of the two tables; decoding happens outside it
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, object]:
        return {k: v for k, v in self.__dict__.items() if not k.startswith("_")}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._forget()

    def take(self, camera: str, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Pictures of one camera.

        Args:
            rows: int64 (B,), table rows; frames: int64 (B,) or (B, T), frame numbers inside the episode.

        Returns:
            uint8 (B, 3, H, W) or (B, T, 3, H, W).

        Raises:
            DatasetError: a file is not there or broken, its pictures do not match the rows, or sizes differ.
        """
        if self._pid != os.getpid():  # forked: the parent's files and locks are the parent's
            self._forget()
        videos = self.catalog.videos(camera)
        flat = frames.reshape(len(rows), -1)
        number = self.first(camera, rows)[:, None] + flat
        out: np.ndarray | None = None
        for file in np.unique(videos.file[rows]):
            at = np.flatnonzero(videos.file[rows] == file)
            wanted, place = np.unique(number[at], return_inverse=True)
            pictures = self._read(camera, int(file), rows[at], wanted)
            if out is None:
                height, width = pictures.shape[1:3]
                out = np.empty((len(rows), flat.shape[1], 3, height, width), np.uint8)
            if pictures.shape[1:3] != out.shape[3:]:
                sizes = f"{out.shape[4]}x{out.shape[3]} and {pictures.shape[2]}x{pictures.shape[1]}"
                where = self.where(camera, int(rows[at[0]]))
                raise DatasetError(f"pictures of {sizes} in one batch", where=where, fix="select episodes of one size")
            for i, row in zip(at.tolist(), place.reshape(len(at), -1).tolist()):
                for t, p in enumerate(row):
                    out[i, t] = pictures[p].transpose(2, 0, 1)
        assert out is not None
        return out if frames.ndim == 2 else out[:, 0]

    def first(self, camera: str, rows: np.ndarray) -> np.ndarray:
        """Which picture of its file is the first of each episode: int64 (B,) of table rows (B,).

        It is the one after the pictures of the episodes before it. A file that holds more pictures than its episodes
        have rows, and whose recorded times are whole pictures with gaps between the episodes, holds episodes that the
        tables do not list: the times then say where the listed ones start. Opens such files, to count their pictures.
        """
        videos = self.catalog.videos(camera)
        first = videos.first[rows]
        if videos.timed is None:
            return first
        first, file = first.copy(), videos.file[rows]
        for each in np.unique(file[videos.timed[rows] >= 0]).tolist():
            at = np.flatnonzero(file == each)
            if (camera, each) not in self._by_time:
                self._open(camera, each, rows[at])
            if self._by_time[camera, each]:
                first[at] = np.maximum(videos.timed[rows[at]], 0)
        return first

    def reader(self, camera: str, row: int) -> VideoReader:
        """The open video of an episode, its number of pictures checked."""
        if self._pid != os.getpid():
            self._forget()
        return self._open(camera, int(self.catalog.videos(camera).file[row]), np.asarray([row])).reader

    def prefetch(self, camera: str, row: int, first: int, last: int) -> None:
        """Say that the pictures of frames `first` to `last` of an episode (table row) will be read soon. Returns at
        once where the video is open; nothing to do for a local dataset. Raises what opening the video raises."""
        if self.catalog.files.is_local:
            return
        start = int(self.first(camera, np.asarray([row]))[0])
        self.reader(camera, row).prefetch(start + first, start + last)

    def _read(self, camera: str, file: int, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """uint8 (n, H, W, 3) of picture numbers (n,), increasing."""
        opened = self._open(camera, file, rows)
        numbers = wanted.tolist()
        with self._lock:
            kept = {n: self._kept[camera, file, n] for n in numbers if (camera, file, n) in self._kept}
        missing = np.asarray([n not in kept for n in numbers])
        if missing.all():
            pictures = self._decode(camera, opened, rows, wanted)
        else:
            size = opened.reader.height, opened.reader.width
            pictures = np.empty((len(wanted), 3, *size), np.uint8).transpose(0, 2, 3, 1)  # by planes, as readers do
            for i, n in enumerate(numbers):
                if n in kept:
                    pictures[i] = kept[n]
            if missing.any():
                pictures[missing] = self._decode(camera, opened, rows, wanted[missing])
        if self.cache_bytes:
            copies = {(camera, file, n): kept.get(n, pictures[i]) for i, n in enumerate(numbers)}
            self._keep({key: one if one.base is None else one.copy("K") for key, one in copies.items()})
        return pictures

    def _keep(self, pictures: dict[tuple[str, int, int], np.ndarray]) -> None:
        """Keep pictures that own their memory (a view would hold its whole batch), dropping the longest unused."""
        with self._lock:
            for key, picture in pictures.items():
                if key not in self._kept:
                    self._held += picture.nbytes
                    self._kept[key] = picture
                self._kept.move_to_end(key)
            while self._held > self.cache_bytes:
                self._held -= self._kept.popitem(last=False)[1].nbytes

    def _decode(self, camera: str, opened: _Open, rows: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        alone = bool((rows == rows[0]).all())  # else: which of the file's episodes it was, a number does not say
        with renamed(self.where(camera, int(rows[0])) if alone else opened.reader.path), opened.lock:
            return opened.reader.read(wanted)

    def _open(self, camera: str, file: int, rows: np.ndarray) -> _Open:
        with self._lock:
            found = self._readers.get((camera, file))
            if found is not None:
                self._readers.move_to_end((camera, file))
                return found
        row = int(rows[0])
        files = self.catalog.files
        path = self.catalog.video_path(camera, row)
        where = self.where(camera, row)
        try:
            source = files.source(path)
        except MissingFile as error:
            fix = f"restore it, or leave the key {camera!r} out"
            raise DatasetError("this video is not there", where=where, fix=fix) from error
        except DatasetError as error:
            raise type(error)(error.what, where=where, fix=error.fix) from error
        with renamed(where):
            try:
                reader = open_video(source, self.backend)
            except SourceFailed:
                raise
            except DatasetError:
                files.refuse_pointer(path)
                raise
        self._check_size(camera, reader, where)
        self._check_count(camera, file, reader, where)
        self._compare(camera, reader, where)
        with self._lock:
            opened = self._readers.setdefault((camera, file), _Open(reader))  # another thread may have been faster
            spare = [self._readers.popitem(last=False)[1] for _ in range(len(self._readers) - _OPEN_FILES)]
        for one in spare:
            one.close()
        return opened

    def close(self) -> None:
        """Close the open files; they are opened again when needed."""
        with self._lock:
            spare = list(self._readers.values())
            self._readers.clear()
        for one in spare:
            one.close()

    def _check_size(self, camera: str, reader: VideoReader, where: str) -> None:
        """Refuse what is far larger than declared, before there is memory for a picture of it."""
        feature = self.catalog.features[camera]
        if reader.height * reader.width > feature.most_pixels:
            said = (
                f"info.json says {feature.shape}" if feature.size else f"at most {feature.most_pixels} pixels are read"
            )
            what = f"{camera!r} has pictures of {reader.width}x{reader.height}, {said}"
            raise DatasetError(what, where=where, fix="correct the shape in info.json, or restore the video")

    def _check_count(self, camera: str, file: int, reader: VideoReader, where: str) -> None:
        videos, ids = self.catalog.videos(camera), self.catalog.episodes.ids
        expected, drift = int(videos.expected[file]), float(videos.drift[file])
        if reader.count == expected:
            self._by_time[camera, file] = False
            return
        sharing = ids[videos.file == file]
        whose = f"episode {int(sharing[0])} has" if len(sharing) == 1 else f"its {len(sharing)} episodes have"
        what = f"the video holds {reader.count} pictures, {whose} {expected} rows"
        if reader.count < expected:
            fix = "restore the video, or leave these episodes out: which frames have no picture cannot be known"
            raise DatasetError(what, where=where, fix=fix)
        if videos.timed is not None and self._listed_in_part(videos, file, reader.count):
            self._by_time[camera, file] = True
            self.note(f"{where}: {what}; from_timestamp says, exact to the picture, where they start among the others")
            return
        if drift > 0.5:
            times = "no start times are recorded" if np.isinf(drift) else "recorded start times differ from the order"
            what += f", and {times}" + ("" if np.isinf(drift) else f" by up to {drift:.1f} pictures")
            fix = "pictures of other episodes seem to lie between: restore meta/episodes, or leave these episodes out"
            raise DatasetError(what, where=where, fix=fix)
        self._by_time[camera, file] = False
        self.note(f"{where}: {what}; the first {expected} are used")

    def _listed_in_part(self, videos: Videos, file: int, count: int) -> bool:
        """Whether the recorded times of a file's episodes are places among its pictures."""
        rows = np.flatnonzero((videos.file == file) & (self.catalog.episodes.lengths > 0))
        assert videos.timed is not None
        timed = videos.timed[rows]
        return bool((timed >= 0).all() and (timed + self.catalog.episodes.lengths[rows] <= count).all())

    def _compare(self, camera: str, reader: VideoReader, where: str) -> None:
        """Note what info.json says otherwise; what the file holds is given."""
        feature = self.catalog.features[camera]
        said = feature.info.get("video.codec")
        if isinstance(said, str) and _CODECS.get(said, said) != reader.codec:
            self._note_quietly(f"{camera}: info.json says codec {said}, the files are {reader.codec}, first {where}")
        if len(feature.shape) == 3 and not {reader.height, reader.width} <= set(feature.shape):
            size = f"{reader.width}x{reader.height}"
            self._note_quietly(f"{camera}: info.json says shape {feature.shape}, the pictures are {size} in {where}")
        if abs(reader.fps - self.catalog.fps) > 0.01 * self.catalog.fps:
            rates = f"{reader.fps:.3g} pictures per second, the rows {self.catalog.fps:.3g}"
            self._note_quietly(f"{camera}: the video plays {rates}, in {where}")

    def _note_quietly(self, text: str) -> None:
        """Keep the first note of each kind: what is true of one file is mostly true of all."""
        start = text.split(",")[0]
        if not any(note.startswith(start) for note in self.notes):
            self.notes.append(text)

    def where(self, camera: str, row: int) -> str:
        """A video file by its full name, with the episode, as messages give it."""
        catalog = self.catalog
        return f"{catalog.files.where(catalog.video_path(camera, row))} (episode {int(catalog.episodes.ids[row])})"

    def note(self, text: str) -> None:
        """Keep something worth saying, and say it once as a warning."""
        if text not in self.notes:
            self.notes.append(text)
            warnings.warn(text, stacklevel=2)
