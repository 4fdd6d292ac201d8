"""Facts about video files, from their indexes: frames, size, rate and codec. No image is decoded."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from understudy.data.check_files import rows_without_files
from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import spread_evenly
from understudy.errors import DatasetError, SourceError
from understudy.video.reader import open_video

SAMPLED_FILES = 500
"""Most video files per camera to open for a sample."""


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
    """

    file: int
    path: str
    count: int
    width: int
    height: int
    fps: float
    codec: str
    gop: int


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
        for one in self.files.get(camera, []):
            sound[one.file] = one.count == expected[one.file]
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
                facts.files[camera].append(VideoFile(file, path, *size, float(reader.fps), reader.codec, reader.gop))
                reader.close()
            progress(1)
    return facts


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
