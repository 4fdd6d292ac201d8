"""Measured recommendation of video settings for a policy that reads small images.

Some stretches of each camera are encoded with each candidate at the policy's size, and decoded. Candidates whose SSIM
is more than 0.02 below the best are out. Recommended is the one with the least CPU time, the sum of an image in a row
and one at a random place; of those within a tenth of it, the one with the fewest bytes.

The cost of decoding before and after is measured in turns in the same run, with one decoder and one thread, into RGB.
Two figures count, in CPU milliseconds per image: `stretch`, images of consecutive frames (a clip of the training
order), and `single`, one image at a random place (validation, or a list of frames), which decodes from the key frame
before it.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from time import thread_time

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.edit.features import common_features, fit_size
from understudy.edit.plan import Encoding, Piece, Plan
from understudy.edit.videos import Original, Originals, Quality, encode_frames
from understudy.errors import DatasetError
from understudy.temporary import temporary_folder
from understudy.video.encode import default_crf
from understudy.video.reader import VideoReader, open_video

_STRETCH, _SINGLE_READS, _COST_ROUNDS = 64, 16, 7  # images per round, and rounds


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
    before: Sequence[Catalog], pieces: Sequence[Piece], after: Catalog, camera: str
) -> tuple[DecodeCost, DecodeCost]:
    """Measure a camera's cost in the sources and in the output, on the same frames; every round takes another episode.

    Args:
        before: the sources.
        pieces: the output's episodes, by their place in the sources.
        after: the output.
        camera: its key.
    """
    random, sources, outputs = np.random.default_rng(0), list[DecodeCost](), list[DecodeCost]()
    for number in random.integers(0, len(pieces), _COST_ROUNDS).tolist():
        piece = pieces[number]
        first = int(random.integers(0, max(1, piece.length - _STRETCH)))
        stretch = np.arange(first, min(first + _STRETCH, piece.length))
        singles = random.integers(0, piece.length, _SINGLE_READS)
        source = sources, before[piece.source], piece.row, piece.start
        for costs, catalog, row, start in (source, (outputs, after, number, 0)):
            base = int(catalog.videos(camera).first[row]) + start
            with closing(open_video(catalog.files.source(catalog.video_path(camera, row)))) as reader:
                costs.append(time_reader(reader, stretch + base, singles + base))
    return _median(sources), _median(outputs)


def _median(costs: Sequence[DecodeCost]) -> DecodeCost:
    return DecodeCost(median(cost.stretch for cost in costs), median(cost.single for cost in costs))


def time_reader(reader: VideoReader, stretch: np.ndarray, singles: np.ndarray) -> DecodeCost:
    """Measure one round: frames `stretch` in one read, then each of `singles` in its own read."""
    reader.read(stretch[:1])  # opens the decoder
    return DecodeCost(_time(reader, [stretch]), _time(reader, [position[None] for position in singles]))


def _time(reader: VideoReader, reads: Sequence[np.ndarray]) -> float:
    """CPU milliseconds of this thread per image; the decoder runs in it."""
    begin = thread_time()
    for positions in reads:
        reader.read(positions)
    return 1e3 * (thread_time() - begin) / sum(map(len, reads))


CANDIDATES = (("libx264", 1), ("libx264", 2), ("libx264", 8), ("libx264", 30), ("libsvtav1", 2))
"""Encoder and GOP of each candidate, at the encoder's default quality."""
_FRAMES, _STRETCHES, _ROUNDS, _SINGLES = 64, 3, 3, 16
_LOSS = 0.02  # SSIM
_NEAR = 1.1  # factor within which costs count as equal


@dataclass(frozen=True)
class Choice:
    """Settings and figures of one way to store a camera.

    Attributes:
        camera: its key.
        codec: encoder, or the codec as stored.
        gop: frames from key frame to key frame.
        size: (height, width).
        bytes: per image.
        cost: CPU milliseconds per image.
        quality: against the images at that size; of no image for the dataset as it is.
        is_recommended: whether this is the recommended one.
    """

    camera: str
    codec: str
    gop: int
    size: tuple[int, int]
    bytes: float
    cost: DecodeCost
    quality: Quality = field(default_factory=Quality)
    is_recommended: bool = False


def recommend(catalog: Catalog, pixels: int, count: Callable[[int], None] = lambda encodings: None) -> list[Choice]:
    """Measure the candidates for each camera; the first choice of a camera is the dataset as it is.

    Args:
        catalog: the dataset.
        pixels: longer side of the policy's images.
        count: called with 1 for each camera and candidate that is done.

    Raises:
        DatasetError: the dataset has no video, or one cannot be read.
    """
    lengths = catalog.episodes.lengths
    rows = np.flatnonzero(lengths > 1)
    cameras = [key for key, feature in catalog.features.items() if feature.is_video]
    if not cameras or not len(rows):
        raise DatasetError("holds no video", where=catalog.root, fix="images in rows are not encoded again")
    chosen = rows[np.unique(np.linspace(0, len(rows) - 1, _STRETCHES).round().astype(int))]
    pieces = [Piece(0, int(row), 0, min(_FRAMES, int(lengths[row]))) for row in chosen]
    plan = Plan((catalog,), tuple(pieces), common_features([catalog]), catalog.fps, None)
    return [choice for camera in cameras for choice in _compare(plan, camera, pixels, count)]


def _compare(plan: Plan, camera: str, pixels: int, count: Callable[[int], None]) -> list[Choice]:
    frames_of = Originals(plan, camera)
    originals = [frames_of[number] for number in range(len(plan.pieces))]
    index = originals[0].index
    size = index.image_size
    stored = [original.open() for original in originals]
    cost = _cost([(reader, original.first, original.stop) for reader, original in zip(stored, originals)])
    frames = sum(original.stop - original.first for original in originals)
    now = Choice(camera, index.codec, index.gops.median_length, size, sum(o.bytes for o in originals) / frames, cost)
    choices = []
    with temporary_folder() as folder:
        for codec, gop in CANDIDATES:
            settings = Encoding(fit_size(size, (pixels, None)), codec, gop, default_crf(codec))
            choices.append(_try(originals, settings, plan, camera, folder))
            count(1)
    most = max(choice.quality.ssim for choice in choices)
    good = [choice for choice in choices if choice.quality.ssim >= most - _LOSS]
    least = min(choice.cost.sum for choice in good)
    best = min((choice for choice in good if choice.cost.sum <= _NEAR * least), key=lambda choice: choice.bytes)
    return [now, *(replace(choice, is_recommended=choice is best) for choice in choices)]


def _try(originals: list[Original], settings: Encoding, plan: Plan, camera: str, folder: Path) -> Choice:
    """Encode the stretches with one candidate, and measure them."""
    quality, size, readers = Quality(), 0, list[tuple[VideoReader, int, int]]()
    for number, original in enumerate(originals):
        path = folder / f"{settings.codec}-{settings.gop}-{number}.mp4"
        quality = quality.add(encode_frames(original, settings, plan.fps, path))
        size += path.stat().st_size
        reader = open_video(path)
        readers.append((reader, 0, reader.count))
    frames = sum(stop for _, _, stop in readers)
    assert settings.size is not None
    codec, gop = settings.codec or "", settings.gop or 1
    return Choice(camera, codec, gop, settings.size, size / frames, _cost(readers), quality)


def _cost(runs: list[tuple[VideoReader, int, int]]) -> DecodeCost:
    """Medians over all stretches and rounds; closes the readers."""
    random, costs = np.random.default_rng(0), list[DecodeCost]()
    for _ in range(_ROUNDS):
        for reader, first, stop in runs:
            costs.append(time_reader(reader, np.arange(first, stop), random.integers(first, stop, _SINGLES)))
    for reader, _, _ in runs:
        reader.close()
    return _median(costs)
