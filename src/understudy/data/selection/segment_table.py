"""Segments of a selection, searched by sample number and by frame. Large ones are memory-mapped."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy.errors import DatasetError
from understudy.storage.mapped_tables import dumps, loads, share_arrays

EPISODE_STRIDE = np.int64(1) << 32
"""Packs (episode, frame) into one integer: both are below 2**31."""


class SegmentTable:
    """Segments of a selection; `len` is the number of its samples.

    Args:
        segments: int64 (K, 3), rows [episode id, start, stop), ascending.
        stops: int64 (K,), end of the windows of a segment.
        root: address of the dataset, for messages.
        cache: folder of the host's cache, or "" for its default.
    """

    def __init__(self, segments: np.ndarray, stops: np.ndarray, root: str, cache: str) -> None:
        begins = segments[:, 0] * EPISODE_STRIDE + segments[:, 1]
        tables = {"segments": segments, "stops": stops, "begins": begins}
        self._set(share_arrays(tables | {"ends": np.cumsum(segments[:, 2] - segments[:, 1])}, cache))
        self._root = root

    def _set(self, tables: Any) -> None:
        self.segments, self.stops = tables["segments"], tables["stops"]
        self._begins, self._ends = tables["begins"], tables["ends"]

    def __getstate__(self) -> dict[str, Any]:
        tables = {"segments": self.segments, "stops": self.stops, "begins": self._begins, "ends": self._ends}
        return {"root": self._root, "tables": dumps(tables)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._root = state["root"]
        self._set(loads(state["tables"]))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def locate(self, indices: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return (episode ids, frames), int64 (B,) each, of sample numbers; negative numbers count from the end.

        Raises:
            IndexError: there is no such sample.
        """
        asked = as_integers(indices, "sample numbers")
        at = np.where(asked < 0, asked + len(self), asked)
        wrong = (at < 0) | (at >= len(self))
        if wrong.any():
            raise IndexError(f"sample {int(asked[wrong][0])} of {len(self)}")
        segment = np.searchsorted(self._ends, at, side="right")
        return self.segments[segment, 0], self.segments[segment, 2] - (self._ends[segment] - at)

    def find(self, episodes: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """Return the number of the segment of each frame, int64 (B,).

        Raises:
            DatasetError: a frame is not selected, or the arguments differ in length.
        """
        if episodes.ndim != 1 or episodes.shape != frames.shape or len(episodes) == 0:
            raise DatasetError(
                f"episodes {episodes.shape} and frames {frames.shape}", fix="give one row of each, same length"
            )
        asked = episodes * EPISODE_STRIDE + np.clip(frames, -1, EPISODE_STRIDE - 1)
        found = np.searchsorted(self._begins, asked, side="right") - 1
        held = self.segments[np.maximum(found, 0)]
        good = (found >= 0) & (held[:, 0] == episodes) & (frames >= held[:, 1]) & (frames < held[:, 2])
        if not good.all():
            bad = int(np.flatnonzero(~good)[0])
            own = self.segments[self.segments[:, 0] == episodes[bad]]
            selected = ", ".join(f"[{a}, {b})" for _, a, b in own[:4].tolist()) or "none"
            what = f"frame {int(frames[bad])} of episode {int(episodes[bad])} is not selected"
            raise DatasetError(what, where=self._root, fix=f"selected of that episode: {selected}")
        return found


def as_integers(numbers: Sequence[int] | np.ndarray, name: str) -> np.ndarray:
    """Convert integers to int64. Refuses floats, which numpy would truncate.

    Raises:
        TypeError: other numbers; names `name`.
    """
    array = np.asarray(numbers)
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} are integers, not {array.reshape(-1)[0]!r}")
    return array.astype(np.int64)
