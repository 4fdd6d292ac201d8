"""Images of an episode as sheets: consecutive frames side by side in one image file.

A sheet has the same frames whatever the codec, so a page that draws parts of sheets shows exactly
the frame it names. It also works where the browser cannot play the codec, for images stored in
rows, and in a page without a server.
"""

import io
import math
import threading
from dataclasses import dataclass

import numpy as np
from PIL import Image

from understudy_base import LRUCache
from understudy_data import Catalog, RecordedImages
from understudy_kit import as_rgb

WIDEST = 640
"""Pixels of the longer side of a frame; larger ones are reduced."""
LOSSLESS = 128
"""Widest frame, in pixels, that is stored without loss."""
PIXELS = 1 << 22
MOST = 64
"""Pixels and frames of a sheet."""
_QUALITY = 90
_SHEET_BYTES = 256 << 20  # of encoded sheets
_KINDS = {"png": "image/png", "jpg": "image/jpeg"}


@dataclass(frozen=True)
class Layout:
    """Layout of the sheets of one camera in one episode: frame f is in sheet f // (columns * rows),
    row by row.
    """

    width: int
    """Pixels of a frame in a sheet."""
    height: int
    columns: int
    rows: int
    extension: str
    """png or jpg."""
    recorded_width: int
    """Pixels of a recorded frame."""
    recorded_height: int

    @property
    def frames(self) -> int:
        """Frames of a sheet."""
        return self.columns * self.rows

    def count(self, length: int) -> int:
        """Return the number of sheets of `length` frames."""
        return -(-length // self.frames)

    @classmethod
    def of_frames(cls, height: int, width: int) -> "Layout":
        """Choose the layout for recorded frames of `height` x `width` pixels."""
        scale = min(1.0, WIDEST / max(height, width))
        wide = max(1, round(width * scale))
        high = max(1, round(height * scale))
        most = max(1, min(MOST, PIXELS // (wide * high)))
        columns = math.isqrt(most)
        form = "png" if wide <= LOSSLESS else "jpg"
        return cls(wide, high, columns, most // columns, form, width, height)


class Sheets:
    """Sheets of a dataset. Safe in threads.

    Args:
        catalog: The dataset.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._images = RecordedImages(catalog)
        self._layouts: dict[tuple[str, int], Layout] = {}
        self._cache: LRUCache[tuple[str, int, int], bytes] = LRUCache(_SHEET_BYTES, len)
        self._lock = threading.Lock()

    @property
    def notes(self) -> list[str]:
        """Irregularities of the videos read so far."""
        return self._images.notes

    def layout(self, camera: str, row: int) -> Layout:
        """Return the layout of one camera in the episode of a table row. Opens its file.

        Raises:
            DatasetError: the images cannot be read.
        """
        key = camera, row
        if key not in self._layouts:
            height, width = self._images.size(camera, row)
            self._layouts[key] = Layout.of_frames(height, width)
        return self._layouts[key]

    def read(self, camera: str, row: int, number: int) -> tuple[bytes, str]:
        """Return sheet `number` of one camera in the episode of a table row, and its media type.

        Raises:
            IndexError: the episode has no such sheet.
            DatasetError: an image cannot be read.
        """
        layout = self.layout(camera, row)
        length = int(self._catalog.episodes.lengths[row])
        if not 0 <= number < layout.count(length):
            raise IndexError(f"sheet {number} of {layout.count(length)}")
        with self._lock:
            data = self._cache.get((camera, row, number))
        if data is None:
            frames = np.arange(number * layout.frames, min((number + 1) * layout.frames, length))
            data = _encode(self.frames(camera, row, frames), layout)
            with self._lock:
                self._cache.put((camera, row, number), data)
        return data, _KINDS[layout.extension]

    def frames(self, camera: str, row: int, frames: np.ndarray) -> np.ndarray:
        """Return recorded frames, uint8 (n, H, W, 3), of int64 (n,) frame numbers inside the
        episode.

        Raises:
            DatasetError: an image cannot be read.
        """
        return as_rgb(self._images.read(camera, row, frames))


def _encode(images: np.ndarray, layout: Layout) -> bytes:
    used = -(-len(images) // layout.columns)
    sheet = Image.new("RGB", (layout.columns * layout.width, used * layout.height))
    for number, pixels in enumerate(images):
        image = Image.fromarray(pixels)
        if image.size != (layout.width, layout.height):
            image = image.resize(
                (layout.width, layout.height), Image.Resampling.BILINEAR, reducing_gap=2.0
            )
        row, column = divmod(number, layout.columns)
        sheet.paste(image, (column * layout.width, row * layout.height))
    buffer = io.BytesIO()
    if layout.extension == "png":
        sheet.save(buffer, "PNG", compress_level=3)
    else:
        sheet.save(buffer, "JPEG", quality=_QUALITY, subsampling=0)
    return buffer.getvalue()
