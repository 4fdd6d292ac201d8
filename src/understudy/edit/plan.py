"""Description of the dataset to write: its episodes as pieces of source episodes, its features, tasks and videos."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import Feature


@dataclass(frozen=True)
class Piece:
    """One episode of the output: frames [start, stop) of one episode of a source.

    Attributes:
        source: number of the source.
        row: table row of its episode.
        start: first frame.
        stop: frame after the last one.
    """

    source: int
    row: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of frames."""
        return self.stop - self.start

    @property
    def frames(self) -> np.ndarray:
        """Frame numbers in the source's episode, int64 (length,)."""
        return np.arange(self.start, self.stop)


@dataclass(frozen=True)
class Encoding:
    """Settings of the videos to encode; see `video.encode.VideoEncoder`.

    Attributes:
        size: (height, width) of the images; None keeps theirs.
        codec: encoder; None takes the one of the source's codec.
        gop: frames from key frame to key frame; None keeps the source's.
        crf: quality on the encoder's own scale; None is 6 steps better than the encoder's default where frames of the
            same size and codec are encoded again, and that default otherwise.
    """

    size: tuple[int, int] | None = None
    codec: str | None = None
    gop: int | None = None
    crf: int | None = None


TextColumn = Callable[[Piece], Sequence[str]]
"""Texts of a new column for each frame of a piece."""


@dataclass(frozen=True)
class Plan:
    """A dataset to write.

    Attributes:
        sources: catalogs, under the output's keys and dtypes (`features.py`).
        pieces: the episodes of the output, in order.
        features: the output's features, without the five default columns.
        fps: frames per second.
        robot_type: as info.json holds it.
        task_of: (piece, task text of a frame) -> text in the output.
        texts: new text columns by key.
        metadata: values of the pieces by name, None where a piece has none.
        encode: cameras to encode completely.
    """

    sources: tuple[Catalog, ...]
    pieces: tuple[Piece, ...]
    features: Mapping[str, Feature]
    fps: float
    robot_type: str | None
    task_of: Callable[[Piece, str], str] = lambda piece, text: text
    texts: Mapping[str, TextColumn] = field(default_factory=dict)
    metadata: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    encode: Mapping[str, Encoding] = field(default_factory=dict)

    @property
    def cameras(self) -> list[str]:
        """Keys of the cameras stored as video."""
        return [key for key, feature in self.features.items() if feature.is_video]

    @property
    def frames(self) -> int:
        """Frames of all pieces."""
        return sum(piece.length for piece in self.pieces)

    @property
    def work(self) -> int:
        """Steps that `write_set` counts: each frame once for its rows and once per camera."""
        return self.frames * (1 + len(self.cameras))
