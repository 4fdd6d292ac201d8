"""Facts about video files, from their indexes: frames, size, rate and codec. No image is decoded."""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from understudy.data.check_files import rows_without_files
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import spread_evenly
from understudy.errors import DatasetError, SourceError
from understudy.video.reader import open_video

SAMPLED_FILES = 500
"""Most video files per camera to open for a sample."""
PROBED = 8
"""Files per camera whose pixel format is read."""


@dataclass(frozen=True)
class VideoFile:
    """An opened video.

    Attributes:
        file: number of the file in the camera's table.
        path: path under the root.
        count: frames in the file.
        width, height: size of a frame, in pixels.
        fps: frames per second.
        codec: FFmpeg's name of the codec.
        gop: usual distance of key frames.
        bytes: size of a local file; None elsewhere.
        pixels: FFmpeg's name of the pixel format; known of a camera's first `PROBED` local files.
        b_frames: whether there are B-frames; known of the same files.
    """

    file: int
    path: str
    count: int
    width: int
    height: int
    fps: float
    codec: str
    gop: int
    bytes: int | None = None
    pixels: str | None = None
    b_frames: bool | None = None


@dataclass
class VideoFacts:
    """Facts about the videos of a dataset.

    Attributes:
        files: camera -> its opened videos.
        unreadable: (camera, file number, path, error).
    """

    files: dict[str, list[VideoFile]] = field(default_factory=dict)
    unreadable: list[tuple[str, int, str, DatasetError]] = field(default_factory=list)

    def sound_files(self, catalog: Catalog, camera: str) -> np.ndarray:
        """Find the files that were opened and hold as many frames as their episodes have rows: bool (files,)."""
        expected = catalog.videos(camera).expected
        sound = np.zeros(len(expected), bool)
        for video in self.files.get(camera, []):
            sound[video.file] = video.count == expected[video.file]
        return sound


def read_videos(
    catalog: Catalog, limit: int | None, progress: Callable[[int], None] = lambda files: None
) -> VideoFacts:
    """Open the videos of all cameras, at most `limit` per camera, spread evenly."""
    facts = VideoFacts()
    absent = rows_without_files(catalog)
    for camera in catalog.episodes.videos:
        facts.files[camera] = []
        for file in files_to_open(catalog, camera, absent[camera], limit):
            path = catalog.videos(camera).files.find(catalog.files, file)
            try:
                reader = open_video(catalog.files.source(path))
            except SourceError:
                raise
            except DatasetError as error:
                facts.unreadable.append((camera, file, path, error))
            else:
                size = reader.count, reader.width, reader.height
                index = (file, path, *size, float(reader.fps), reader.codec, int(reader.gop))
                details = _probe(catalog.files.where(path), len(facts.files[camera])) if catalog.files.is_local else {}
                facts.files[camera].append(VideoFile(*index, **details))
                reader.close()
            progress(1)
    return facts


def _probe(path: str, number: int) -> dict[str, Any]:
    """Return the size of a file, and of the first ones the pixel format and whether there are B-frames."""
    import av

    details: dict[str, Any] = {"bytes": os.path.getsize(path)}
    if number < PROBED:
        with suppress(OSError, ValueError, IndexError), av.open(path) as container:
            context = container.streams.video[0].codec_context
            # PyAV 17.1 crashes on the pixel format of a file that does not declare it; such a file has no width either.
            details |= {"pixels": str(context.pix_fmt) if context.width else None}
            details |= {"b_frames": bool(context.has_b_frames)}
    return details


def frame_times(catalog: Catalog, camera: str, file: int) -> np.ndarray | None:
    """Read the times of a local video's frames, in seconds from its first: float64 (frames,); None where unknown."""
    import av

    path = catalog.files.where(catalog.videos(camera).files.find(catalog.files, file))
    if not catalog.files.is_local:
        return None
    try:
        with av.open(path) as container:
            stream = container.streams.video[0]
            unit = float(stream.time_base or 0)
            times = [packet.pts * unit for packet in container.demux(stream) if packet.pts is not None and packet.size]
    except (OSError, ValueError, IndexError):
        return None  # an unreadable video is a finding of its own
    return np.sort(np.array(times)) - min(times, default=0.0)


def files_to_open(catalog: Catalog, camera: str, absent: np.ndarray, limit: int | None) -> list[int]:
    """Numbers of the camera's files with frames that are not absent, at most `limit`."""
    videos = catalog.videos(camera)
    used = np.unique(videos.file[(catalog.episodes.lengths > 0) & (videos.file >= 0) & ~absent])
    return [int(used[place]) for place in spread_evenly(len(used), limit)]
