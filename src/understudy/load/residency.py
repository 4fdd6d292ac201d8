"""Residency: small data stays decoded. Each episode's pictures are decoded once, from its first to its last, and kept.

That is all there is for data that fits the memory given; data that does not is decoded when it is needed. Not here: a
plan of which pictures come next, eviction, anything remote.
"""

import copy
import threading

import numpy as np

from understudy.data.errors import DatasetError
from understudy.data.pictures import Pictures
from understudy.data.samples import EpisodeDataset


def resident(dataset: EpisodeDataset, budget: int) -> tuple[EpisodeDataset, int]:
    """The same samples with their videos decoded once and kept, and the bytes that takes once all have been met.

    Where they do not fit `budget` (bytes), or there is no video: the dataset as it is, and 0.

    Raises:
        DatasetError: a video cannot be opened.
    """
    cameras = [key for key in dataset.keys if key in dataset.catalog.episodes.videos]
    episodes = dataset.catalog.episodes
    rows = episodes.rows_of(np.unique(dataset.segments[:, 0]))
    needed = 0
    for camera in cameras:
        reader = dataset.pictures.reader(camera, int(rows[0]))
        needed += int(episodes.lengths[rows].sum()) * reader.height * reader.width * 3
    if not needed or needed > budget:
        return dataset, 0
    view = copy.copy(dataset)
    view.pictures = KeptPictures(dataset.pictures)
    return view, needed


class KeptPictures(Pictures):
    """`Pictures` that decodes an episode whole when it is first asked for, and never again."""

    def __init__(self, source: Pictures) -> None:
        super().__init__(source.catalog, 0, source.backend)

    def _forget(self) -> None:
        super()._forget()
        self._episodes: dict[tuple[str, int], np.ndarray] = {}  # (camera, table row) -> uint8 (n, 3, H, W)
        self._filling = threading.Lock()

    def take(self, camera: str, rows: np.ndarray, frames: np.ndarray) -> np.ndarray:
        out: np.ndarray | None = None
        for row in np.unique(rows).tolist():
            episode = self._episode(camera, row)
            if out is None:
                out = np.empty((*frames.shape, *episode.shape[1:]), np.uint8)
            if episode.shape[1:] != out.shape[-3:]:
                where = self.catalog.files.where(self.catalog.video_path(camera, row))
                sizes = " and ".join(f"{w}x{h}" for _, h, w in (out.shape[-3:], episode.shape[1:]))
                raise DatasetError(f"pictures of {sizes} in one batch", where=where, fix="select episodes of one size")
            at = rows == row
            out[at] = episode[frames[at]]
        assert out is not None
        return out

    def _episode(self, camera: str, row: int) -> np.ndarray:
        found = self._episodes.get((camera, row))
        if found is None:
            with self._filling:
                found = self._episodes.get((camera, row))
                if found is None:
                    frames = np.arange(int(self.catalog.episodes.lengths[row]))
                    found = super().take(camera, np.array([row]), frames[None])[0]
                    self._episodes[camera, row] = found
        return found
