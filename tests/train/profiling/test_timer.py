"""The timer inside a step: phases add up, nested ones are not counted twice, nothing happens without one."""

import pytest

from understudy.train.optimizer_step import NULL
from understudy.train.profiling.profile import PHASES, PhaseTimer


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_phase_timer_excludes_inner_phases() -> None:
    clock = Clock()
    timer = PhaseTimer(clock=clock)
    for _ in range(2):
        with timer("forward"):
            clock.now += 1.0
            with timer("communication"):
                clock.now += 10.0
                with timer("logging"):
                    clock.now += 100.0
            clock.now += 2.0
        with timer("clip"):
            clock.now += 0.5
    assert timer.taken() == {"forward": 6.0, "communication": 20.0, "logging": 200.0, "clip": 1.0}
    assert timer.taken() == {}  # each call starts anew


def test_phase_timer_waits_at_both_ends() -> None:
    """A device that works on after it was called: without waiting its seconds would be booked on the next phase."""
    clock, queued = Clock(), [0.0]

    def wait() -> None:
        clock.now += queued[0]
        queued[0] = 0.0

    timed = PhaseTimer(wait, clock)
    negligent = PhaseTimer(lambda: None, clock)
    for timer in (timed, negligent):
        queued[0] = 3.0  # still busy with earlier work
        with timer("forward"):
            queued[0] += 5.0
        with timer("optimizer"):
            wait()
    assert timed.taken() == {"forward": 5.0, "optimizer": 0.0}
    assert negligent.taken() == {"forward": 0.0, "optimizer": 8.0}  # the negative control


def test_phase_timer_closes_a_failed_phase() -> None:
    clock = Clock()
    timer = PhaseTimer(clock=clock)

    def fails() -> None:
        with timer("backward"):
            clock.now += 1.0
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    with timer("forward"):
        clock.now += 1.0
    assert timer.taken() == {"backward": 1.0, "forward": 1.0}


def test_phase_timer_refuses_an_unknown_phase() -> None:
    with pytest.raises(ValueError, match="'fowards'"), PhaseTimer()("fowards"):
        pass


def test_null_timer_creates_nothing() -> None:
    assert NULL("forward") is NULL("backward")
    for phase in PHASES:
        with NULL(phase):
            pass
