"""Cost of decoding a camera before and after it was encoded again.

Both are measured in turns in the same run, with one decoder and one thread, into RGB. Two figures
count, in CPU milliseconds per image: `stretch`, images of consecutive frames (a clip of the
training order), and `single`, one image at a random place (validation, or a list of frames), which
decodes from the key frame before it.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass
from statistics import median
from time import thread_time

import numpy as np

from understudy_data import Catalog, EpisodeClips, VideoClip
from understudy_tools.edit.plan import Piece

_STRETCH = 64  # images of a round in a row
_SINGLES = 16  # images of a round at random places
_ROUNDS = 7


@dataclass(frozen=True)
class DecodeCost:
    """CPU milliseconds per image, medians over rounds."""

    stretch: float
    single: float


def measure_cost(
    sources: Sequence[Catalog], pieces: Sequence[Piece], output: Catalog, camera: str
) -> tuple[DecodeCost, DecodeCost]:
    """Measure a camera's cost in the sources and in the output, on the same frames.

    Every round takes another episode.

    Args:
        sources: the datasets that were read.
        pieces: the output's episodes, by their place in the sources.
        output: the dataset that was written.
        camera: its key.
    """
    random = np.random.default_rng(0)
    source_clips = EpisodeClips(sources, camera)
    output_clips = EpisodeClips([output], camera)
    source_costs: list[DecodeCost] = []
    output_costs: list[DecodeCost] = []
    for number in random.integers(0, len(pieces), _ROUNDS).tolist():
        piece = pieces[number]
        first = int(random.integers(0, max(1, piece.length - _STRETCH)))
        stretch = np.arange(first, min(first + _STRETCH, piece.length))
        singles = random.integers(0, piece.length, _SINGLES)
        with closing(source_clips.clip(*astuple(piece))) as clip:
            source_costs.append(_time_clip(clip, stretch, singles))
        with closing(output_clips.clip(0, number, 0, piece.length)) as clip:
            output_costs.append(_time_clip(clip, stretch, singles))
    return _median(source_costs), _median(output_costs)


def _median(costs: Sequence[DecodeCost]) -> DecodeCost:
    return DecodeCost(median(cost.stretch for cost in costs), median(cost.single for cost in costs))


def _time_clip(clip: VideoClip, stretch: np.ndarray, singles: np.ndarray) -> DecodeCost:
    """Measure one round: frames `stretch` in one read, then each of `singles` in its own read."""
    clip.read(stretch[:1])  # opens the decoder
    return DecodeCost(_time(clip, [stretch]), _time(clip, [position[None] for position in singles]))


def _time(clip: VideoClip, reads: Sequence[np.ndarray]) -> float:
    """CPU milliseconds of this thread per image; the decoder runs in it."""
    start = thread_time()
    for positions in reads:
        clip.read(positions)
    return 1e3 * (thread_time() - start) / sum(map(len, reads))
