"""Episodes of several datasets as clips of their video files."""

from collections.abc import Sequence

import numpy as np

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.storage.byte_source import ByteSource
from understudy_data.video.clips import VideoClip, read_index
from understudy_data.video.index import VideoIndex

_OPENED = 16  # files


class EpisodeClips:
    """Clips of one camera of several datasets. A few files are open at a time.

    Args:
        catalogs: the datasets.
        camera: key of the camera, which all of them have.
    """

    def __init__(self, catalogs: Sequence[Catalog], camera: str) -> None:
        self._catalogs = catalogs
        self._camera = camera
        self._frames = [VideoFrames(catalog, 0, "pyav") for catalog in catalogs]
        self._opened: dict[tuple[int, int], tuple[ByteSource, VideoIndex]] = {}

    def clip(self, dataset: int, row: int, start: int, stop: int) -> VideoClip:
        """Return frames [start, stop) of an episode.

        Args:
            dataset: number of the dataset.
            row: table row of the episode.
            start: first frame in the episode.
            stop: frame after the last one.

        Raises:
            DatasetError: the file is missing or broken, or its frames do not match the rows.
        """
        source, index = self._open(dataset, row)
        rows = np.array([row])
        first = int(self._frames[dataset].first_frame(self._camera, rows)[0])
        name = f"episode {int(self._catalogs[dataset].episodes.ids[row])}"
        return VideoClip(source, index, first + start, first + stop, name)

    def video(self, dataset: int, row: int) -> VideoClip:
        """Return all frames of the file of an episode. Raises as `clip` does."""
        source, index = self._open(dataset, row)
        return VideoClip(source, index, 0, index.count)

    def _open(self, dataset: int, row: int) -> tuple[ByteSource, VideoIndex]:
        catalog = self._catalogs[dataset]
        frames = self._frames[dataset]
        place = dataset, int(catalog.videos(self._camera).file[row])
        if place not in self._opened:
            count = frames.reader(self._camera, row).count  # checks size and number of frames
            frames.close()
            file = catalog.files.source(catalog.video_path(self._camera, row))
            if len(self._opened) == _OPENED:
                self._opened.pop(next(iter(self._opened)))[0].close()
            self._opened[place] = file, read_index(file, count)
        return self._opened[place]
