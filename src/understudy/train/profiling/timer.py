"""Time of the phases of a step: the step takes a timer and names its phases, `with timer("forward"): ...`.

Training passes `NULL`, which does nothing; `profile` passes a `PhaseTimer`. The profiled step is therefore the trained
one: there is no copy that could drift from it.
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
"""The phases of a step, in their sequence. Communication has the collectives of the step itself; those of sharded
modules inside forward and backward are measured separately, since they overlap with work."""


class Timer(Protocol):
    """Argument of a step: `with timer("backward"): ...`."""

    def __call__(self, phase: str) -> AbstractContextManager[object]:
        """Return the context of one of the `PHASES`."""
        ...


class _Nothing(AbstractContextManager[None]):
    def __exit__(self, *_: object) -> None:
        return None


class NullTimer:
    """Measures nothing, waits for nothing and creates no object."""

    _nothing = _Nothing()

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return self._nothing


NULL: Final = NullTimer()


class PhaseTimer:
    """Wall seconds per phase, excluding phases inside it, so that all phases together do not exceed the step.

    Both ends of a phase wait for the device. Otherwise its work would be counted in the phase that happens to wait
    next. This removes every overlap between host and device: a step under this timer is slower than one without.

    Args:
        wait: waits until the device is idle (`torch.cuda.synchronize`); on a CPU it does nothing.
        clock: monotonic clock in seconds; replaceable in tests.

    Raises:
        ValueError: a phase is not in `PHASES`; a misspelt one would be missing from the table.
    """

    def __init__(
        self, wait: Callable[[], object] = lambda: None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._wait, self._clock = wait, clock
        self._seconds: dict[str, float] = {}
        self._open: list[_Phase] = []

    def __call__(self, phase: str) -> "_Phase":
        """Return a context that adds its seconds to `phase`."""
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r}: must be one of {', '.join(PHASES)}")
        return _Phase(self, phase)

    def taken(self) -> dict[str, float]:
        """Return the seconds per phase since the last call, without phases that did not occur, and reset them."""
        seconds, self._seconds = self._seconds, {}
        return seconds


class _Phase:
    def __init__(self, timer: PhaseTimer, name: str) -> None:
        self._timer, self._name = timer, name
        self._inside = 0.0

    def __enter__(self) -> None:
        self._timer._wait()
        self._timer._open.append(self)
        self._start = self._timer._clock()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        timer = self._timer
        timer._wait()
        took = timer._clock() - self._start
        timer._open.pop()
        if timer._open:
            timer._open[-1]._inside += took
        timer._seconds[self._name] = timer._seconds.get(self._name, 0.0) + took - self._inside
