"""Episodes of HDF5 and Zarr files: arrays with a row for each time. A block of rows is in memory at
a time.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from understudy_tools.imports.bounds import require_size
from understudy_tools.imports.limits import MAX_CHUNK, MAX_ROW, MAX_ROWS
from understudy_tools.imports.recording import (
    NANO,
    Recording,
    RecordingError,
    Sample,
    Times,
    even_times,
    reading,
)
from understudy_tools.imports.settings import ImportMapping

_BLOCK = 16 << 20  # bytes of a block of rows


@dataclass
class Opened:
    """An opened file.

    Attributes:
        file: what to close.
        arrays: key -> array.
        barred: key -> fault of an array that must not be read.
        check: raises a RecordingError for an array whose bytes would be more than it declares;
            called before its use.
    """

    file: Any
    arrays: Mapping[str, Any]
    barred: Mapping[str, RecordingError] = field(default_factory=dict)
    check: Callable[[Any], None] = lambda array: None


class Rows(Recording):
    """An episode: rows of arrays.

    Args:
        where: the file and the episode's group.
        size: bytes of its rows.
        open_arrays: opens the file.
        mapping: its key of times and its rate.
        span: first row and end of the rows; None: all.
        rate: rows per second that the file states, or None.
        task: task text, or "".
        explain: remedy for an error of the library, or "".
    """

    def __init__(
        self,
        where: str,
        size: int,
        open_arrays: Callable[[], Opened],
        mapping: ImportMapping,
        span: tuple[int, int] | None = None,
        rate: float | None = None,
        task: str = "",
        explain: Callable[[Exception], str] = lambda error: "",
    ) -> None:
        super().__init__(where, size, mapping.source_fps or rate, task, bool(mapping.time))
        self._open = open_arrays
        self._span = span
        self._time = mapping.time
        self._explain = explain
        self._checked = set[str]()

    def open(self) -> None:
        """Open the file, and list its arrays."""
        with reading(fix=self._explain):
            self._opened = self._open()
        self._checked.clear()
        arrays = self._opened.arrays
        self.kinds = {key: f"{array.dtype} {array.shape[1:]}" for key, array in arrays.items()}
        self.kinds |= {key: fault.kind for key, fault in self._opened.barred.items()}

    def close(self) -> None:
        """Close the file."""
        self._opened.file.close()

    def require(self, stream: str) -> None:
        """Check that an array is there, lies in the file, and declares sizes within the limits."""
        super().require(stream)
        if stream in self._checked:
            return
        if (fault := self._opened.barred.get(stream)) is not None:
            raise fault.replaced(stream=stream)
        array = self._opened.arrays[stream]
        try:
            start, stop = self._rows(stream)
            if stop - start > MAX_ROWS:
                problem = f"declares {stop - start:,} rows of an episode, the limit is {MAX_ROWS:,}"
                raise RecordingError("size", problem, fix="write an episode for each demonstration")
            require_size(_bytes(array, array.shape[1:]), MAX_ROW, "a row")
            if array.chunks:
                of_row = int(
                    np.prod(
                        [
                            -(-size // max(1, part))
                            for size, part in zip(array.shape[1:], array.chunks[1:])
                        ]
                    )
                )
                require_size(_bytes(array, array.chunks) * of_row, MAX_CHUNK, "the chunks of a row")
            with reading(fix=self._explain):
                self._opened.check(array)
        except RecordingError as error:
            raise error.replaced(stream=stream) from error
        self._checked.add(stream)

    def _rows(self, key: str) -> tuple[int, int]:
        return self._span or (0, self._opened.arrays[key].shape[0])

    def scan(self, streams: Collection[str]) -> dict[str, Times]:
        """Return the times of the rows: the array `time`, or row / rate."""
        keys = [*streams]
        if self._time:
            keys.append(self._time)
        if self._time and self._time not in self.kinds:
            raise RecordingError("missing", "is not there", self._time, fix="`time` in the mapping")
        for key in keys:
            self.require(key)
        counts = dict[str, int]()
        for key in keys:
            start, stop = self._rows(key)
            counts[key] = stop - start
        if len(set(counts.values())) > 1:
            listed = ", ".join(f"{key} {count}" for key, count in counts.items())
            raise RecordingError(
                "shape",
                f"arrays differ in length: {listed}",
                min(counts, key=lambda key: counts[key]),
            )
        times = even_times(min(counts.values()), self.rate or 1)
        if self._time:
            with reading(self._time, self._explain):
                rows = self._opened.arrays[self._time][slice(*self._rows(self._time))]
                seconds = np.asarray(rows, np.float64).reshape(-1)
            if not np.isfinite(seconds).all():
                raise RecordingError("value", "has a time that is not finite", self._time)
            if len(seconds) and np.abs(seconds).max() > 4e9:
                odd = seconds[np.argmax(np.abs(seconds))]
                fix = "`time` names an array of seconds; divide milliseconds or nanoseconds"
                raise RecordingError(
                    "value", f"has the time {odd:g} s, later than any clock", self._time, fix=fix
                )
            times = np.rint(seconds * NANO).astype(np.int64)
        return dict.fromkeys(streams, Times(times))

    def samples(self, streams: Collection[str]) -> Iterator[Sample]:
        """Yield the rows of arrays, row by row."""
        for key in streams:
            self.require(key)
        arrays = {key: self._opened.arrays[key] for key in streams}
        widest = max(_bytes(array, array.shape[1:]) for array in arrays.values())
        step = int(np.clip(_BLOCK // max(1, widest), 1, 1024))
        first, stop = self._rows(next(iter(arrays)))
        for begin in range(first, stop, step):
            blocks = {}
            for key, array in arrays.items():
                with reading(key, self._explain):
                    blocks[key] = array[begin : min(begin + step, stop)]
            for row in range(min(step, stop - begin)):
                for key, block in blocks.items():
                    yield key, begin - first + row, partial(_row, block, row)


def _bytes(array: Any, shape: tuple[int, ...]) -> int:
    """Return the bytes of a part of an array as its shape declares them."""
    size = int(array.dtype.itemsize)
    for length in shape:
        size *= int(length)
    return size


def _row(block: Any, row: int) -> Any:
    value = block[row]
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:  # an encoded image in a text
        return np.frombuffer(value, np.uint8)
