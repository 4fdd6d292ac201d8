"""Recorded images of single episodes, to look at and to compare: of video files and of data files
alike.
"""

from collections.abc import Iterator
from contextlib import closing

import numpy as np

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read.image_column import ImageColumns
from understudy_data.datasets.read.rows import Rows
from understudy_data.datasets.read.video_frames import VideoFrames
from understudy_data.video.packets import open_packets


class RecordedImages:
    """Images of a dataset by camera, episode and frame. Safe in threads.

    Args:
        catalog: the dataset.
        row_bytes: memory of the rows of its data files, without images.
        image_bytes: memory of the images in data files, as stored.
    """

    def __init__(
        self, catalog: Catalog, row_bytes: int = 256 << 20, image_bytes: int = 256 << 20
    ) -> None:
        self._catalog = catalog
        stored = [key for key in catalog.camera_keys if not catalog.features[key].is_video]
        self._videos = VideoFrames(catalog, 0, "pyav")
        self._stored = ImageColumns(catalog, stored, image_bytes)
        self._rows = Rows(catalog, (), row_bytes)

    @property
    def notes(self) -> list[str]:
        """Irregularities of the videos read so far."""
        return self._videos.notes

    def close(self) -> None:
        """Close the open videos; a later read opens them again."""
        self._videos.close()

    def size(self, camera: str, row: int) -> tuple[int, int]:
        """Return height and width of the images in the episode of a table row. Opens its file.

        Raises:
            DatasetError: the images cannot be read.
        """
        if self._catalog.features[camera].is_video:
            reader = self._videos.reader(camera, row)
            return reader.height, reader.width
        height, width = self.read(camera, row, np.zeros(1, np.int64)).shape[2:]
        return height, width

    def read(self, camera: str, row: int, frames: np.ndarray) -> np.ndarray:
        """Return images (n, C, H, W): uint8, of depth uint16 or float32 with C = 1.

        Args:
            camera: its key.
            row: table row of the episode.
            frames: int64 (n,), frame numbers inside the episode.

        Raises:
            DatasetError: an image cannot be read.
        """
        rows = np.full(1, row)
        if self._catalog.features[camera].is_video:
            return self._videos.take(camera, rows, frames[None])[0]
        images: np.ndarray = self._stored.take(
            camera, rows, self._rows.file_rows(rows, frames[None])
        )[0]
        return images

    def encoded(self, camera: str, row: int, frames: np.ndarray) -> list[bytes]:
        """Return encoded images of a camera in data files, at ascending frames int64 (n,) of an
        episode.

        Raises:
            DatasetError: a row holds no image bytes, or names a file outside the dataset.
        """
        places = self._rows.file_rows(np.full(len(frames), row), frames)
        return self._stored.encoded(camera, row, places)

    def decode(self, camera: str, row: int, data: bytes) -> np.ndarray:
        """Decode one of `encoded`, uint8 (C, H, W).

        Raises:
            DatasetError: it is no image, or another one than info.json declares.
        """
        return self._stored.decode(camera, row, data)

    def stored(self, camera: str, row: int, length: int) -> Iterator[bytes]:
        """Yield what the first `length` images of an episode are decoded from: the settings of the
        video and its packets from a key frame on, encoded images, or pixels.

        Args:
            camera: its key.
            row: table row of the episode.
            length: number of images, at least 1 and at most those of the episode.

        Raises:
            DatasetError: a file cannot be read, or a video has fewer frames than its episodes rows.
        """
        catalog = self._catalog
        feature = catalog.features[camera]
        if feature.is_video:
            yield from self._packets(camera, row, length)
            return
        if not feature.is_array:
            for frame in range(length):
                yield from self.encoded(camera, row, np.full(1, frame))
            return
        for place in self._rows.file_rows(np.full(1, row), np.arange(length)[None])[0]:
            yield self._stored.take(camera, np.full(1, row), place[None]).tobytes()

    def _packets(self, camera: str, row: int, length: int) -> Iterator[bytes]:
        catalog = self._catalog
        videos = catalog.videos(camera)
        path = catalog.video_path(camera, row)
        self._videos.reader(camera, row)  # its number of frames is checked
        first = int(self._videos.first_frame(camera, np.full(1, row))[0])
        frames = int(videos.expected[videos.file[row]])
        most = catalog.features[camera].max_pixels
        with closing(open_packets(catalog.files.source(path), frames, most)) as packets:
            index = packets.index
            start, _ = index.gops.packet_range(first, first + length - 1)
            stop = int(index.decode_position[first : first + length].max()) + 1
            yield repr((index.codec, index.extradata, index.image_size, index.shown)).encode()
            yield (index.display[start:stop] - first).tobytes()
            for number in range(start, stop):
                yield bytes(packets.packet(number, stop - 1))
