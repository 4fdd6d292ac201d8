"""Where the time of a step goes: the one step is handed a timer and names its phases, `with timer("forward"): ...`.

Training hands in `NULL`, which does nothing; `profile` hands in a `PhaseTimer`. So what is profiled is what is trained:
there is no copy of the step that could drift from it.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol

PHASES: Final = (
    "data wait",
    "host to device",
    "forward",
    "backward",
    "communication",
    "clip",
    "optimizer",
    "logging",
)
"""The phases of a step, in the sequence in which they happen. Communication: collectives that the step itself asks
for; those that a sharded module makes inside forward and backward are measured apart, since they overlap with work."""


class Timer(Protocol):
    """What a step calls: `with timer("backward"): ...`."""

    def __call__(self, phase: str) -> AbstractContextManager[object]: ...


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        return None


class NullTimer:
    """Measures nothing, waits for nothing and makes no object."""

    _nothing = _Nothing()

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        return self._nothing


NULL: Final = NullTimer()


class PhaseTimer:
    """Wall seconds per phase, without those of phases inside it, so that phases add up to no more than the whole.

    Both ends of a phase wait for the device, or its work would be booked on whichever phase happens to wait next. That
    takes away every overlap between host and device: a step under this timer is slower than one without.

    Args:
        wait: waits until the device has done what it was given (`torch.cuda.synchronize`); on a CPU there is nothing
            to wait for.
        clock: seconds, monotonic; another one for tests.
    Raises:
        ValueError: a phase that is not one of `PHASES`: a misspelt one would be missing from the table.
    """

    def __init__(
        self, wait: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._wait, self._clock = wait, clock
        self._seconds: dict[str, float] = {}
        self._open: list[_Phase] = []

    def __call__(self, phase: str) -> "_Phase":
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r}: there are {', '.join(PHASES)}")
        return _Phase(self, phase)

    def taken(self) -> dict[str, float]:
        """Seconds per phase since the last call, phases that did not happen left out; starts anew."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class _Phase:
    def __init__(self, timer: PhaseTimer, name: str) -> None:
        self._timer, self._name = timer, name
        self._inside = 0.0

    def __enter__(self) -> None:
        self._timer._wait()
        self._timer._open.append(self)
        self._began = self._timer._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = self._timer
        timer._wait()
        took = timer._clock() - self._began
        timer._open.pop()
        if timer._open:
            timer._open[-1]._inside += took
        timer._seconds[self._name] = timer._seconds.get(self._name, 0.0) + took - self._inside
