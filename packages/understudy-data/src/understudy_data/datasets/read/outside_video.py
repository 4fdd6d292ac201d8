"""Video files that were recorded apart from a dataset, read at times.

Times are seconds since the start of the file, as a player counts them, after its edit list.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np

from understudy_base import DatasetError
from understudy_data.datasets.read.clips import VideoClip
from understudy_data.storage.byte_source import LocalSource
from understudy_data.video.index import VideoIndex
from understudy_data.video.packets import ContainerPackets, open_packets

_TIE = 1e-6  # seconds by which a later frame must be nearer


@dataclass(frozen=True, eq=False)
class OutsideVideo:
    """A video file of this machine and the times of its frames.

    Attributes:
        path: the file.
        index: packets and display positions.
        times: float64 (n,), seconds at which each frame is first shown, ascending.
        stop: seconds at which the last frame ends.
    """

    path: str
    index: VideoIndex
    times: np.ndarray
    stop: float

    @classmethod
    def read(cls, path: str) -> OutsideVideo:
        """Read the tables and times of a file. Raises DatasetError."""
        source = LocalSource(path)
        with closing(open_packets(source)) as packets:
            index = packets.index
        with closing(ContainerPackets(source, index.count)) as walked:
            times, stop = walked.shown_times()
        if len(times) != index.count:
            problem = f"has times of {len(times)} frames, and shows {index.count}"
            raise DatasetError(problem, where=path, fix="remux it: ffmpeg -i FILE -c copy NEW.mp4")
        return cls(path, index, times, stop)

    @property
    def image_size(self) -> tuple[int, int]:
        """(height, width) of the images."""
        return self.index.image_size

    def covers(self, wanted: np.ndarray, fps: float) -> bool:
        """Return whether images of these times lie in the video, up to half a frame.

        Args:
            wanted: float64 (m,), seconds, ascending; at least one.
            fps: images per second.
        """
        half = 0.5 / fps
        stop = max(self.stop - _TIE, self.times[-1] + half)
        return bool(self.times[0] - half <= wanted[0] and wanted[-1] <= stop)

    def clip(self, wanted: np.ndarray) -> VideoClip:
        """Return the frame shown nearest to each time, of two equally near ones the earlier.

        Args:
            wanted: float64 (m,), seconds.
        """
        later = np.searchsorted(self.times, wanted).clip(max=len(self.times) - 1)
        earlier = (later - 1).clip(min=0)
        is_later = self.times[later] - wanted < wanted - self.times[earlier] - _TIE
        positions = np.where(is_later, later, earlier)
        return VideoClip(LocalSource(self.path), self.index, positions)
