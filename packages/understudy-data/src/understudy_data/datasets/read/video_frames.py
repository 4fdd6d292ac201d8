"""Video frames of episodes by (table row, frame), with bounded caches of open files and decoded
frames.

Frame i of an episode is i frames after the episode's first one in its file, in integers. Recorded
timestamps start a frame late, drift, or lose precision, so they decide nothing. A file whose frame
count disagrees with the rows is reported. It is refused where the pairing would be a guess.
"""

import os
import threading
from contextlib import ExitStack
from functools import partial
from typing import TypeAlias

import numpy as np

from understudy_base import DatasetError, LRUCache, MissingFileError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import Videos
from understudy_data.datasets.read.rows import ProcessLocal
from understudy_data.storage.dataset_root import with_location
from understudy_data.video.reader import VideoFacts, VideoReader, open_video

OPEN_FILES = 32
"""Most open videos, unless `keep_open` allows more; a live decoder costs 2 to 5 MB."""
# weight of a video with a file or a decoder of its own: no more than `OPEN_FILES` stay
_UNBOUNDED = 1 << 60


_Facts: TypeAlias = VideoFacts | VideoReader


class _Open:
    """An open file, used by one thread at a time."""

    def __init__(self, reader: VideoReader) -> None:
        self.reader = reader
        self.lock = threading.Lock()

    def park(self) -> None:
        with self.lock:
            self.reader.park()

    def close(self) -> None:
        with self.lock:
            self.reader.close()  # a thread that still uses it reopens it by reading


class VideoFrames(ProcessLocal):
    """Decoded frames of a dataset's video cameras.

    Thread-safe; threads decode different files at the same time. Forks and pickles carry no open
    file.

    Args:
        catalog: the dataset.
        cache_bytes: memory for decoded frames, so that overlapping windows decode each frame once.
        backend: see `open_video`.

    Attributes:
        readers: open videos by camera and file.
        index_bytes: memory for the indexes of more than `OPEN_FILES` of them.
    """

    _local = ("readers", "index_bytes")
    index_bytes = 0

    def __init__(self, catalog: Catalog, cache_bytes: int, backend: str) -> None:
        self.catalog = catalog
        self.cache_bytes = cache_bytes
        self.backend = backend
        self.notes: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self.readers: LRUCache[tuple[str, int], _Open] = LRUCache(
            self.index_bytes,
            lambda opened: opened.reader.index_bytes or _UNBOUNDED,
            keep=OPEN_FILES,
        )
        self._live: LRUCache[_Open, _Open] = LRUCache(OPEN_FILES, lambda _: 1)  # may have a decoder
        self._cache: LRUCache[tuple[str, int, int], np.ndarray] = LRUCache(
            self.cache_bytes, lambda image: image.nbytes
        )
        # file -> whether recorded times give the episodes' starts
        self._by_time: dict[tuple[str, int], bool] = {}
        # of videos that need not be opened for them
        self._facts: dict[tuple[str, int], VideoFacts] = {}
        self._lock = threading.Lock()  # guards the tables; decoding happens outside it
        # of files that are being opened: one thread does it
        self._opening: dict[tuple[str, int], threading.Lock] = {}
        self._pid = os.getpid()

    def share_open_files(self, other: "VideoFrames") -> None:
        """Use the open files of another reader of the same videos: opening one costs as much as
        decoding a clip.
        """
        other._check_process()
        self.notes = other.notes
        self.readers = other.readers
        self._live = other._live
        self._by_time = other._by_time
        self._facts = other._facts
        self._lock = other._lock
        self._opening = other._opening

    def take(self, camera: str, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return frames of one camera.

        Args:
            camera: its key.
            rows: int64 (B,), table rows.
            frames: int64 (B,) or (B, T), frame numbers inside the episodes.

        Returns:
            uint8 (B, 3, H, W) or (B, T, 3, H, W); for depth (B, 1, H, W) or (B, T, 1, H, W), uint16
            or float32.

        Raises:
            DatasetError: a file is missing or broken, its frame count does not match the rows, or
                sizes differ.
        """
        self._check_process()
        videos = self.catalog.videos(camera)
        flat = frames.reshape(len(rows), -1)
        number = self.first_frame(camera, rows)[:, None] + flat
        out: np.ndarray | None = None
        for file in np.unique(videos.file[rows]):
            members = np.flatnonzero(videos.file[rows] == file)
            numbers, place = np.unique(number[members], return_inverse=True)
            images = self._read(camera, int(file), rows[members], numbers)
            if out is None:
                out = self.catalog.features[camera].pixels.empty(*flat.shape, *images[0].shape[:2])
            if images[0].shape[:2] != out.shape[3:]:
                height, width = images[0].shape[:2]
                sizes = f"{out.shape[4]}x{out.shape[3]} and {width}x{height}"
                where = self.where(camera, int(rows[members[0]]))
                raise DatasetError(
                    f"frames of {sizes} in one batch",
                    where=where,
                    fix="select episodes of one size",
                )
            for i, row in zip(members.tolist(), place.reshape(len(members), -1).tolist()):
                for t, p in enumerate(row):
                    out[i, t] = images[p].transpose(2, 0, 1)
        assert out is not None
        return out if frames.ndim == 2 else out[:, 0]

    def first_frame(self, camera: str, rows: np.ndarray) -> np.ndarray:
        """Return the number of each episode's first frame in its file: int64 (B,) for table rows
        (B,).

        By default this is the number of frames of the episodes before it. A file may hold episodes
        that the tables do not list: it has more frames than its episodes have rows, and recorded
        times that are whole frames with gaps between the episodes. There the times give the starts.
        Opens such files to count their frames.
        """
        videos = self.catalog.videos(camera)
        first = videos.first[rows]
        if videos.first_by_time is None:
            return first
        first = first.copy()
        file = videos.file[rows]
        for shared_file in np.unique(file[videos.first_by_time[rows] >= 0]).tolist():
            members = np.flatnonzero(file == shared_file)
            if (camera, shared_file) not in self._by_time:
                self._open(camera, shared_file, rows[members])
            if self._by_time[camera, shared_file]:
                first[members] = np.maximum(videos.first_by_time[rows[members]], 0)
        return first

    def keep_open(self, index_bytes: int) -> None:
        """Keep videos open whose indexes take up to `index_bytes`, for readers that have decoders
        of their own.

        The index of a packed file takes milliseconds to read, as long as decoding a clip.
        """
        self.index_bytes = self.readers.capacity = max(self.index_bytes, index_bytes)

    def reader(self, camera: str, row: int) -> VideoReader:
        """Return the open video of an episode, with its frame count checked."""
        self._check_process()
        return self._open(
            camera, int(self.catalog.videos(camera).file[row]), np.asarray([row])
        ).reader

    def facts(self, camera: str, row: int) -> VideoFacts:
        """Return facts about the video of an episode, with its frame count checked; opens it unless
        they are kept (`keep_facts`).
        """
        self._check_process()
        kept = self._facts.get((camera, int(self.catalog.videos(camera).file[row])))
        return self.reader(camera, row).facts if kept is None else kept

    def keep_facts(self, camera: str, row: int, facts: VideoFacts) -> None:
        """Keep facts about the video of an episode, after the checks of its opening.

        Raises:
            DatasetError: as the opening.
        """
        self._check_process()
        catalog = self.catalog
        file = int(catalog.videos(camera).file[row])
        catalog.files.confirm(catalog.video_path(camera, row))
        self._check(camera, file, facts, self.where(camera, row))
        self._facts[camera, file] = facts

    def open_ahead(self, camera: str, rows: np.ndarray) -> None:
        """Start to open the videos of episodes (table rows) of a remote dataset. Returns at
        once.
        """
        files = self.catalog.files
        if files.is_local:
            return
        self._check_process()
        files.remote_files.fetcher.submit(
            partial(self._open_row, camera, row) for row in rows.tolist()
        )

    def _open_row(self, camera: str, row: int, stop: threading.Event) -> None:
        self.reader(camera, row)

    def prefetch(self, camera: str, row: int, first: int, last: int, most: int) -> None:
        """Start to fetch frames `first` to `last` of an episode (table row) of a remote dataset,
        and up to `most`.

        See `VideoReader.prefetch`. Returns at once. A video is opened beside others, since that
        waits for the server more than once.
        """
        files = self.catalog.files
        if files.is_local:
            return

        def request(_: object = None) -> None:
            start = int(self.first_frame(camera, np.asarray([row]))[0])
            self.reader(camera, row).prefetch(start + first, start + last, start + most)

        self._check_process()
        with self._lock:
            is_open = (camera, int(self.catalog.videos(camera).file[row])) in self.readers
        if is_open:
            request()
        else:
            files.remote_files.fetcher.submit([request])

    def _read(
        self, camera: str, file: int, rows: np.ndarray, positions: np.ndarray
    ) -> np.ndarray | list[np.ndarray]:
        """Frames by ascending number (n,), each (H, W, C) of the camera's dtype."""
        opened = self._open(camera, file, rows)
        if not self.cache_bytes:
            return self._decode(camera, opened, rows, positions)
        numbers = positions.tolist()
        with self._lock:
            images: dict[int, np.ndarray] = {}
            for n in numbers:
                image = self._cache.get((camera, file, n))
                if image is not None:
                    images[n] = image
        missing = [n for n in numbers if n not in images]
        if missing:
            decoded = self._decode(camera, opened, rows, np.array(missing))
            # a view would hold its whole batch
            images |= {n: image.copy("K") for n, image in zip(missing, decoded)}
            with self._lock:
                for n in missing:
                    self._cache.put((camera, file, n), images[n])
        return [images[n] for n in numbers]

    def _decode(
        self, camera: str, opened: _Open, rows: np.ndarray, positions: np.ndarray
    ) -> np.ndarray:
        alone = bool((rows == rows[0]).all())  # else an error names the file only
        where = self.where(camera, int(rows[0])) if alone else opened.reader.path
        with with_location(where), opened.lock:
            images = opened.reader.read(positions)
        with self._lock:
            spare = self._live.put(opened, opened)
        for unused in spare:
            unused.park()
        return images

    def _open(self, camera: str, file: int, rows: np.ndarray) -> _Open:
        with self._lock:
            opened = self.readers.get((camera, file))
        if opened is None:
            with self._lock:
                opening = self._opening.setdefault((camera, file), threading.Lock())
            with opening:
                with self._lock:
                    # another thread has opened it meanwhile
                    opened = self.readers.get((camera, file))
                try:
                    opened = opened or self._open_again(camera, file, int(rows[0]))
                finally:
                    with self._lock:
                        self._opening.pop((camera, file), None)
        return opened

    def _open_again(self, camera: str, file: int, row: int) -> _Open:
        files = self.catalog.files
        path = self.catalog.video_path(camera, row)
        where = self.where(camera, row)
        feature = self.catalog.features[camera]
        expected = int(self.catalog.videos(camera).expected[file])
        with with_location(where), ExitStack() as stack:
            try:
                source = stack.enter_context(files.opening(path))
            except MissingFileError as error:
                explained = self.catalog.explain_missing(error, row, camera)
                fix = explained.fix
                if explained is error:
                    fix = f"restore it, or leave the key {camera!r} out"
                raise DatasetError(explained.what, where=where, fix=fix) from error
            try:
                reader = open_video(
                    source, self.backend, feature.pixels, expected, feature.max_pixels
                )
            except DatasetError:
                files.check_not_pointer(path)
                raise
            source.note_index()
        self._check(camera, file, reader, where)
        with self._lock:
            opened = _Open(reader)
            spare = self.readers.put((camera, file), opened)
        for unused in spare:
            unused.close()
        return opened

    def close(self) -> None:
        """Close the open files; a later read opens them again."""
        with self._lock:
            spare = self.readers.clear()
            self._live.clear()  # else it would hold their indexes
        for unused in spare:
            unused.close()

    def _check(self, camera: str, file: int, facts: _Facts, where: str) -> None:
        self._check_size(camera, facts, where)
        self._check_count(camera, file, facts, where)
        self._note_differences(camera, facts, where)

    def _check_size(self, camera: str, facts: _Facts, where: str) -> None:
        """Refuse frames far larger than declared, before memory is allocated."""
        feature = self.catalog.features[camera]
        if facts.height * facts.width > feature.max_pixels:
            limit = f"{feature.max_pixels} pixels are the limit"
            limit = f"info.json declares {feature.shape}" if feature.size else limit
            problem = f"{camera!r} has frames of {facts.width}x{facts.height}, {limit}"
            raise DatasetError(
                problem, where=where, fix="correct the shape in info.json, or restore the video"
            )

    def _check_count(self, camera: str, file: int, facts: _Facts, where: str) -> None:
        videos = self.catalog.videos(camera)
        ids = self.catalog.episodes.ids
        expected = int(videos.expected[file])
        drift = float(videos.drift[file])
        is_partly_listed = (
            facts.count > expected
            and videos.first_by_time is not None
            and self._is_partly_listed(videos, file, facts.count)
        )
        if not is_partly_listed and videos.doubtful is not None and videos.doubtful[file]:
            problem = (
                "from_timestamp puts its episodes into another order than their rows have, "
                "and is off by up to "
            )
            problem += (
                f"{drift:.1f} frames: images of one episode may be paired with rows of another"
            )
            fix = "correct from_timestamp in meta/episodes, or leave these episodes out"
            raise DatasetError(problem, where=where, fix=fix)
        if facts.count == expected:
            self._by_time[camera, file] = False
            return
        sharing = ids[videos.file == file]
        if len(sharing) == 1:
            whose = f"episode {int(sharing[0])} has"
        else:
            whose = f"its {len(sharing)} episodes have"
        problem = f"the video holds {facts.count} frames, {whose} {expected} rows"
        if facts.count < expected:
            fix = "restore the video, or leave these episodes out: the missing frames are unknown"
            raise DatasetError(problem, where=where, fix=fix)
        if is_partly_listed:
            self._by_time[camera, file] = True
            self.note(f"{where}: {problem}; from_timestamp gives their starts, exact to the frame")
            return
        if drift > 0.5:
            if np.isinf(drift):
                problem += ", and no start times are recorded"
            else:
                problem += (
                    f", and recorded start times differ from the order by up to {drift:.1f} frames"
                )
            fix = (
                "the file seems to hold frames of other episodes: restore meta/episodes, or "
                "leave these episodes out"
            )
            raise DatasetError(problem, where=where, fix=fix)
        self._by_time[camera, file] = False
        self.note(f"{where}: {problem}; the first {expected} are used")

    def _is_partly_listed(self, videos: Videos, file: int, count: int) -> bool:
        """Whether the recorded times of all episodes of a file are within its frames."""
        rows = np.flatnonzero((videos.file == file) & (self.catalog.episodes.lengths > 0))
        assert videos.first_by_time is not None
        first = videos.first_by_time[rows]
        return bool(
            (first >= 0).all() and (first + self.catalog.episodes.lengths[rows] <= count).all()
        )

    def _note_differences(self, camera: str, facts: _Facts, where: str) -> None:
        """Note where info.json differs from the file; the file decides."""
        feature = self.catalog.features[camera]
        if feature.codec and feature.codec != facts.codec:
            declared = feature.info["video.codec"]
            self._note_first(
                f"{camera}: info.json declares codec {declared}, the files are {facts.codec}, "
                f"first {where}"
            )
        if len(feature.shape) == 3 and not {facts.height, facts.width} <= set(feature.shape):
            size = f"{facts.width}x{facts.height}"
            self._note_first(
                f"{camera}: info.json declares shape {feature.shape}, the frames are {size} in "
                f"{where}"
            )
        for words in facts.unmet:
            self._note_first(
                f"{camera}: by its container the video {words}, which is not done here, in {where}"
            )
        if facts.streams > 1:
            used = (
                f"used is that of {facts.count} frames, {facts.codec} of "
                f"{facts.width}x{facts.height}"
            )
            self._note_first(
                f"{camera}: a file holds {facts.streams} video streams, {used}, in {where}"
            )
        if abs(facts.fps - self.catalog.fps) > 0.01 * self.catalog.fps:
            rates = f"{facts.fps:.3g} frames per second, the rows {self.catalog.fps:.3g}"
            self._note_first(f"{camera}: the video plays {rates}, in {where}")

    def _note_first(self, text: str) -> None:
        """Add the first note of each kind without a warning; mostly it applies to all files."""
        start = text.split(",")[0]
        if not any(note.startswith(start) for note in self.notes):
            self.notes.append(text)

    def where(self, camera: str, row: int) -> str:
        """Name a video file and its episode for messages."""
        catalog = self.catalog
        return (
            f"{catalog.files.where(catalog.video_path(camera, row))} (episode "
            f"{int(catalog.episodes.ids[row])})"
        )
