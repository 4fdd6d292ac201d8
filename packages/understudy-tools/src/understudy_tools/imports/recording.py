"""The base of all readers, and the error for a fault of a recording."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from understudy_base import DatasetError, UnderstudyError, summarize

NANO = 1_000_000_000
"""Nanoseconds of a second."""


class RecordingError(DatasetError):
    """A fault of a recording. It ends the import, or is a finding of one.

    Attributes:
        kind: unreadable, layout, link, size, missing, empty, reset, time, clocks, duplicates, gap,
            trimmed, rate, names, shape, image, value or task.
        stream: The stream at fault, or "".
        time: Seconds on the recording's clock, or None.
    """

    def __init__(
        self,
        kind: str,
        problem: str,
        stream: str = "",
        time: float | None = None,
        fix: str = "",
        where: object = None,
    ) -> None:
        super().__init__(problem, where=where, fix=fix)
        self.kind = kind
        self.stream = stream
        self.time = time
        place = stream
        if time is not None:
            place += f" at {time:.3f} s"
        if place:
            self.args = (str(self).replace(self.what, f"{place.strip()}: {self.what}", 1),)

    def fields(self) -> dict[str, object]:
        """Arguments that make this error again."""
        fields = {**super().fields(), "kind": self.kind, "stream": self.stream, "time": self.time}
        return {"problem": fields.pop("what"), **fields}

    def describe(self) -> dict[str, object]:
        """Return message and fields as plain values."""
        return {"message": str(self), **self.fields(), "where": str(self.where)}


@contextmanager
def reading(stream: str = "", fix: str | Callable[[Exception], str] = "") -> Iterator[None]:
    """Turn an error of a library into a RecordingError.

    Args:
        stream: the stream that is read.
        fix: the remedy, or the function that finds it for an error.
    """
    try:
        yield
    except RecordingError as error:
        if error.stream or not stream:
            raise
        raise error.replaced(stream=stream) from error
    except UnderstudyError:
        raise
    except Exception as error:
        remedy = fix(error) if callable(fix) else fix
        raise RecordingError(
            "unreadable", f"cannot be read: {summarize(error)}", stream, fix=remedy
        ) from error


@dataclass
class Times:
    """Clock of a stream in nanoseconds, one number for each sample in the sequence of
    `Recording.samples`.

    Attributes:
        log: time at which a sample was recorded, int64 (N,).
        header: stamp in its header; None without headers.
    """

    log: np.ndarray
    header: np.ndarray | None = None

    def used(self, clock: str) -> np.ndarray:
        """Return the times on the clock "log" or "header"."""
        return self.log if clock == "log" or self.header is None else self.header


def even_times(count: int, rate: float) -> np.ndarray:
    """Return the times 0, 1 / rate, 2 / rate, ..., rounded to nanoseconds, int64 (count,)."""
    whole = int(rate) if rate == int(rate) else rate  # integers are exact at any length
    return np.asarray((2 * NANO * np.arange(count) + whole) // (2 * whole)).astype(np.int64)


Sample = tuple[str, int, Callable[[], Any]]
"""Stream, number of the sample, and the function that returns its message, row or encoded bytes."""


class Recording:
    """One file, or one episode of it. A context manager opens it, and adds its name to a
    RecordingError.

    Args:
        where: path, and the episode's group.
        size: bytes, for the progress.
        rate: rows per second that the file states; None for bags and where it is unknown.
        task: task text that the file states, or "".
        has_clock: whether samples have times of their own.

    Attributes:
        kinds: stream -> type, once opened.
        findings: faults that do not end the import, once opened.
        task_fault: fault of the task text that the file states, or None.
    """

    def __init__(
        self,
        where: str,
        size: int,
        rate: float | None = None,
        task: str = "",
        has_clock: bool = True,
    ) -> None:
        self.where = where
        self.size = size
        self.rate = rate
        self.task = task
        self.has_clock = has_clock
        self.kinds: dict[str, str] = {}
        self.findings: list[RecordingError] = []
        self.task_fault: RecordingError | None = None

    def __enter__(self) -> Self:
        try:
            self.open()
        except RecordingError as error:
            raise error.replaced(where=self.where) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        self.close()
        if isinstance(error, RecordingError):
            raise error.replaced(where=self.where) from error

    def open(self) -> None:
        """Open the file, and fill `kinds`."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError

    def scan(self, streams: Collection[str]) -> dict[str, Times]:
        """Read the clocks of streams."""
        raise NotImplementedError

    def samples(self, streams: Collection[str]) -> Iterator[Sample]:
        """Yield samples in the sequence of recording."""
        raise NotImplementedError

    def rates(self) -> dict[str, float]:
        """Return stream -> samples per second, where the streams differ; 0 where they are too few
        to have a rate.
        """
        return {}

    def require(self, stream: str) -> None:
        """Check that a stream is there, and can be read.

        Raises:
            RecordingError: it is not.
        """
        if stream not in self.kinds:
            listed = ", ".join(sorted(self.kinds)) or "none"
            raise RecordingError("missing", "is not there", stream, fix=f"it has {listed}")

    def stated_task(self) -> str:
        """Return the task text that the file states, or "".

        Raises:
            RecordingError: it states something else.
        """
        if self.task_fault is not None:
            raise self.task_fault
        return self.task

    def firsts(self, streams: Collection[str]) -> dict[str, Any]:
        """Return the first value of each stream.

        Raises:
            RecordingError: a stream is missing or has no sample.
        """
        for stream in streams:
            self.require(stream)
        values: dict[str, Any] = {}
        for stream, _, load in self.samples(streams):
            if stream not in values:
                values[stream] = load()
                if len(values) == len(streams):
                    return values
        raise RecordingError(
            "missing", "has no sample", next(stream for stream in streams if stream not in values)
        )
