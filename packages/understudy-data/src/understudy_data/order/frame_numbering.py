"""Layout: the selected frames of one source as a line of numbers 0..N-1, and back to (episode,
frame).

`plain`: frames in storage order. A clip is S consecutive numbers and may run over the end of an
episode.

`keyframe`: the line is re-arranged so that clips begin at key frames. S is a multiple of the
key-frame distance. Every stretch [j*S, (j+1)*S) of an episode that is selected as a whole is one
clip; all these come first. The rests of each segment (before its first whole stretch, after its
last) follow in storage order, and are cut every S frames.

Both parts are prefix sums over segments. So the map is closed-form, its memory is a few integers
per segment, and as a re-arrangement of the frames it keeps exactly-once. A rest starts on a key
frame unless selection cut it. So frames are decoded in vain only before a cut: at most one
key-frame distance per composite clip.

Search for the row of a number in a table of running totals, at a few nanoseconds each.

`numpy.searchsorted` walks log2(K) steps through memory for every number: 100 ns at 76,000 rows, 550
ns at 3.3 million. A guide holds one int32 per stretch of 2^shift numbers: the row in which the
stretch begins. It leaves one or two steps: 7 and 30 ns. Where rows differ so much in length that a
stretch may hold many of them, the plain search is used.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from understudy_data.order.random import Words

Ints = np.ndarray[Any, np.dtype[np.int64]]

_MOST_STEPS = 16
_BUILD = 1 << 16


@dataclass(frozen=True)
class Finder:
    """Rows of running totals.

    `ends` int64 (K,) never falls: row k holds the numbers from ends[k - 1] (0 for the first) up to
    ends[k] - 1. `guide` int32 is the row of number b * 2^shift, for each b, or empty.
    """

    ends: Ints
    guide: "np.ndarray[Any, np.dtype[np.int32]]"
    shift: int

    def find(self, numbers: Ints) -> Ints:
        """Row of each number below `ends[-1]`: int64 (n,)."""
        if not len(self.guide):
            return np.searchsorted(self.ends, numbers, side="right")
        row = self.guide[numbers >> self.shift].astype(np.int64)
        behind = np.flatnonzero(self.ends[row] <= numbers)
        while len(behind):
            row[behind] += 1
            behind = behind[self.ends[row[behind]] <= numbers[behind]]
        return row

    @property
    def total(self) -> int:
        """Count of all numbers."""
        return int(self.ends[-1]) if len(self.ends) else 0


def make_finder(ends: Ints) -> Finder:
    """Make a finder for `ends` (not copied), with half to one guide entry per row."""
    plain = Finder(ends, np.empty(0, np.int32), 0)
    if not plain.total or len(ends) >= 1 << 31:
        return plain
    shift = (plain.total // len(ends)).bit_length()
    guide = np.empty(((plain.total - 1) >> shift) + 1, np.int32)
    # in pieces: temporaries of the whole would be larger than the guide
    for start in range(0, len(guide), _BUILD):
        begins = np.arange(start, min(start + _BUILD, len(guide)), dtype=np.int64) << shift
        guide[start : start + _BUILD] = np.searchsorted(ends, begins, side="right")
    if (
        int(np.diff(guide).max(initial=0)) > _MOST_STEPS
        or len(ends) - int(guide[-1]) > _MOST_STEPS + 1
    ):
        return plain
    return Finder(ends, guide, shift)


LARGEST = 1 << 62
"""Bound on the frames of a source, so that sums of two indices stay below 2^63."""


@dataclass(frozen=True)
class Layout:
    """Line of the frames of `segments`, int64 (K, 3) rows [episode, start, stop).

    `rows` finds the segment of a line number. With clips cut at key frames (`stretch` = S > 0),
    `rows` finds the segment of a whole stretch instead, and `rests` that of a frame in a rest.
    Otherwise `stretch` is 0 and `rests` is not used.
    """

    segments: Ints
    frames: int
    stretch: int
    rows: Finder
    rests: Finder

    def locate(self, v: Words) -> tuple[Ints, Ints]:
        """Episode and frame, int64 (n,) each, of line numbers uint64 (n,) below N."""
        line = v.view(np.int64)
        if not self.stretch:
            row = self.rows.find(line)
            return self.segments[row, 0], self.segments[row, 2] - (self.rows.ends[row] - line)
        whole = self.rows.total * self.stretch
        episode = np.empty_like(line)
        frame = np.empty_like(line)
        full = line < whole
        episode[full], frame[full] = self._in_stretch(line[full])
        episode[~full], frame[~full] = self._in_rest(line[~full] - whole)
        return episode, frame

    def line_number(self, row: int, frame: int) -> int:
        """Line number of `frame` in the episode of segment `row`, which holds it."""
        start = int(self.segments[row, 1])
        stop = int(self.segments[row, 2])
        if not self.stretch:
            return int(self.rows.ends[row]) - (stop - frame)
        first = -(-start // self.stretch)
        last = stop // self.stretch
        if first <= frame // self.stretch < last:
            return (int(self.rows.ends[row]) - last) * self.stretch + frame
        behind = stop - frame
        if frame < last * self.stretch:
            behind -= max(0, last - first) * self.stretch
        return self.rows.total * self.stretch + int(self.rests.ends[row]) - behind

    def _in_stretch(self, line: Ints) -> tuple[Ints, Ints]:
        number = line // self.stretch
        row = self.rows.find(number)
        in_episode = self.segments[row, 2] // self.stretch - (self.rows.ends[row] - number)
        return self.segments[row, 0], in_episode * self.stretch + (line - number * self.stretch)

    def _in_rest(self, line: Ints) -> tuple[Ints, Ints]:
        row = self.rests.find(line)
        episode, start, stop = self.segments[row].T
        first = -(-start // self.stretch)
        last = stop // self.stretch
        frame = stop - (self.rests.ends[row] - line)
        before = frame < last * self.stretch  # before the whole stretches, not behind them
        return episode, np.where(before, frame - (last - first) * self.stretch, frame)


Share = Callable[..., Any]
"""Returns `make()` for (make, *inputs), which it may keep for other processes."""


def at_once(make: Callable[[], Any], *_: Any) -> Any:
    """Return `make()`."""
    return make()


def make_layout(segments: Ints, stretch: int = 0, share: Share = at_once) -> Layout:
    """Layout of `segments` (checked by `check_segments`); `stretch` = S cuts clips at key frames, 0
    is plain.
    """
    frames, rows, rests = share(partial(_make_finders, segments, stretch), segments, stretch)
    return Layout(segments, frames, stretch, Finder(**rows), Finder(**rests))


def _make_finders(segments: Ints, stretch: int) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """Frames of the layout, and the fields of its finders."""
    starts = segments[:, 1]
    stops = segments[:, 2]
    ends = stops - starts
    np.cumsum(ends, out=ends)
    if not stretch:
        return int(ends[-1]), vars(make_finder(ends)), vars(make_finder(ends[:0]))
    frames = int(ends[-1])
    # In place, three columns at most: with millions of segments the temporaries would be most of
    # the memory.
    wholes = stops // stretch
    scratch = np.negative(starts)
    scratch //= stretch
    wholes += scratch  # stop rounded down minus start rounded up, both to whole stretches
    np.maximum(wholes, 0, out=wholes)
    np.cumsum(wholes, out=wholes)
    np.multiply(wholes, stretch, out=scratch)
    ends -= scratch
    del scratch
    return frames, vars(make_finder(wholes)), vars(make_finder(ends))


def check_segments(segments: object, name: str) -> tuple[Ints, int]:
    """`segments` as an int64 (K, 3) array (not copied if it is one already), and the number of
    frames.

    Raises:
        ValueError: another shape, a negative start, a stop before its start, no frames at all, or
            2^62 frames and more; names the source and the row.
    """
    array = np.asarray(segments)
    if array.ndim != 2 or array.shape[1:] != (3,):
        if array.size:
            raise ValueError(
                f"source {name!r}: segments of shape {array.shape}, need rows [episode, start, "
                "stop)"
            )
        array = np.empty((0, 3), np.int64)
    if array.dtype != np.int64:
        if not np.issubdtype(array.dtype, np.integer):
            raise ValueError(f"source {name!r}: segments are {array.dtype}, need int64")
        array = array.astype(np.int64)
    bad = np.flatnonzero((array[:, 1] < 0) | (array[:, 2] < array[:, 1]))
    if len(bad):
        row = int(bad[0])
        raise ValueError(
            f"source {name!r}: segment {row} [episode, start, stop) is {array[row].tolist()}, need "
            "0 <= start <= stop"
        )
    lengths = array[:, 2] - array[:, 1]
    longest = int(lengths.max(initial=0))
    if not longest:
        raise ValueError(
            f"source {name!r} has no frames: its selection is empty; widen it or leave the source "
            "out"
        )
    frames = int(lengths.sum()) if longest * len(lengths) < LARGEST else sum(lengths.tolist())
    if frames >= LARGEST:
        raise ValueError(
            f"source {name!r} has {frames} frames: positions would overflow beyond 2**62"
        )
    return array, frames


def fingerprint(segments: Ints) -> str:
    """32 hex digits that identify the segments and their sequence: BLAKE2b of the rows as
    little-endian int64.
    """
    rows = np.ascontiguousarray(segments, dtype="<i8")
    content = rows.data if rows.size else memoryview(b"")
    return hashlib.blake2b(content, digest_size=16).hexdigest()
