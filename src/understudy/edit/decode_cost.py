"""Cost of decoding a camera before and after an edit, measured in turns in the same run.

Both are read by `video.open.open_video`, one decoder and one thread, into RGB. Two figures count, in CPU milliseconds
per image: `stretch`, images of consecutive frames (a clip of the training order), and `single`, one image at a random
place (validation, or a list of frames), which decodes from the key frame before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from time import thread_time

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.edit.plan import Piece
from understudy.video.open import open_video
from understudy.video.reader import VideoReader

_STRETCH, _SINGLES = 64, 16  # images per round


@dataclass(frozen=True)
class DecodeCost:
    """CPU milliseconds per image, medians over rounds."""

    stretch: float
    single: float

    @property
    def sum(self) -> float:
        """Sum of both figures."""
        return self.stretch + self.single


def measure_cost(
    before: Sequence[Catalog], pieces: Sequence[Piece], after: Catalog, camera: str, rounds: int = 7
) -> tuple[DecodeCost, DecodeCost]:
    """Measure a camera's cost in the sources and in the output, on the same frames.

    Args:
        before: the sources.
        pieces: the output's episodes, by their place in the sources.
        after: the output.
        camera: its key.
        rounds: rounds of each; every round takes another episode.
    """
    random = np.random.default_rng(0)
    times: dict[str, list[float]] = {"before stretch": [], "before single": [], "after stretch": [], "after single": []}
    for number in random.integers(0, len(pieces), rounds).tolist():
        piece = pieces[number]
        first = int(random.integers(0, max(1, piece.length - _STRETCH)))
        stretch = np.arange(first, min(first + _STRETCH, piece.length))
        singles = random.integers(0, piece.length, _SINGLES)
        for name, catalog, row, start in (
            ("before", before[piece.source], piece.row, piece.start),
            ("after", after, number, 0),
        ):
            videos = catalog.videos(camera)
            base = int(videos.first[row]) + start
            reader = open_video(catalog.files.source(catalog.video_path(camera, row)))
            try:
                cost = time_reader(reader, stretch + base, singles + base)
                times[f"{name} stretch"].append(cost.stretch)
                times[f"{name} single"].append(cost.single)
            finally:
                reader.close()
    found = {name: median(own) for name, own in times.items()}
    return (
        DecodeCost(found["before stretch"], found["before single"]),
        DecodeCost(found["after stretch"], found["after single"]),
    )


def time_reader(reader: VideoReader, stretch: np.ndarray, singles: np.ndarray) -> DecodeCost:
    """Measure one round: frames `stretch` in one read, then each of `singles` in a read of its own."""
    reader.read(stretch[:1])  # opens the decoder
    return DecodeCost(_time(reader, [stretch]), _time(reader, [one[None] for one in singles]))


def _time(reader: VideoReader, reads: Sequence[np.ndarray]) -> float:
    """CPU milliseconds of this thread per image; the decoder runs in it."""
    begin = thread_time()
    for positions in reads:
        reader.read(positions)
    return 1e3 * (thread_time() - begin) / sum(map(len, reads))
