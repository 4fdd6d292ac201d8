"""Past observations by step and by time: the windows of recordings, their padding, and misuse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy.policies.observation_history import TOLERANCE_S, ObservationHistory
from understudy_base.testing.refusals import refused
from understudy_data.datasets import time_windows

KEY = "observation.images.front"


def image(step: int) -> np.ndarray:
    return np.full((3, 2, 2), step, np.uint8)


def seen(history: ObservationHistory) -> tuple[list[int], list[bool]]:
    found = history.windows()
    assert found[KEY].shape == (len(found[KEY]), 3, 2, 2)
    return found[KEY][:, 0, 0, 0].tolist(), found[f"{KEY}_is_pad"].tolist()


@given(
    st.sets(st.integers(1, 40), max_size=5),
    st.integers(1, 60),
    st.sampled_from([5, 10, 30]),
    st.booleans(),
)
def test_windows_are_those_of_recordings(
    steps: set[int], length: int, fps: int, by_time: bool
) -> None:
    """Replay of an episode, by the step and by the clock of the recording."""
    times = [-step / fps for step in sorted(steps, reverse=True)] + [0.0]
    offsets = time_windows.frame_offsets({KEY: times}, fps, [KEY])[KEY]
    history = ObservationHistory({KEY: times}, None if by_time else fps)
    for start in (0.0, 1e6):  # an episode, and one after it of one clock
        history.reset()
        for frame in range(length):
            history.add({KEY: image(frame), "other": 1}, start + frame / fps if by_time else None)
            numbers, is_pad = time_windows.window(
                np.array([frame]), offsets, np.zeros(1, np.int64), np.array([length], np.int64)
            )
            assert seen(history) == (numbers[0].tolist(), is_pad[0].tolist())


def test_tolerance_is_that_of_recordings() -> None:
    assert TOLERANCE_S == time_windows.TOLERANCE_S


def test_irregular_clocks_give_the_nearest_observation() -> None:
    history = ObservationHistory({KEY: (-1.0, -0.5, 0.0)})
    clock = [0.0, 0.21, 0.4, 0.58, 0.83, 1.0, 1.19]
    for step, time in enumerate(clock):
        history.add({KEY: image(step)}, time)
        wanted = [
            min(range(step + 1), key=lambda i, at=time - age: abs(clock[i] - at))
            for age in (1.0, 0.5, 0.0)
        ]  # type: ignore[misc]
        assert seen(history) == (wanted, [time < 1.0, time < 0.5, False])


def test_memory_reaches_as_far_as_the_window() -> None:
    history = ObservationHistory({KEY: (-0.5, 0.0)}, fps=10)
    timed = ObservationHistory({KEY: (-0.5, 0.0)})
    for step in range(50):
        history.add({KEY: image(step)})
        timed.add({KEY: image(step)}, step / 10)
    assert len(history) == len(timed) == 6


def test_a_copy_of_a_history_leaves_it_as_it_is() -> None:
    history = ObservationHistory({KEY: (-0.1, 0.0)}, fps=10)
    history.add({KEY: image(1)})
    other = history.copy()
    other.add({KEY: image(2)})
    assert seen(history)[0] == [1, 1]
    assert seen(other)[0] == [1, 2]


def test_observations_are_copied() -> None:
    history = ObservationHistory({KEY: (-0.1, 0.0)}, fps=10)
    buffer = image(1)
    history.add({KEY: buffer})
    buffer[:] = 2
    history.add({KEY: buffer})
    assert seen(history)[0] == [1, 2]


def test_misuse_is_an_error() -> None:
    with pytest.raises(ValueError, match="1/fps"):
        ObservationHistory({KEY: (-0.25, 0.0)}, fps=10)
    history = ObservationHistory({KEY: (-0.2, 0.0)}, fps=10)
    with refused("add", kind=ValueError):
        history.windows()
    with pytest.raises(ValueError, match=KEY):
        history.add({})
    history.add({KEY: image(0)}, 1.0)
    for time in (1.0, 0.5, float("nan"), None):
        with refused("time", time, kind=ValueError):
            history.add({KEY: image(1)}, time)
    for other in (np.zeros((3, 2, 3), np.uint8), image(1).astype(np.float32)):
        with pytest.raises(ValueError, match=KEY):
            history.add({KEY: other}, 1.1)
    history.reset()
    history.add({KEY: image(0)}, 0.5)  # an episode of its own clock
    history.add({KEY: image(1)}, 1.4)
    with refused(-0.2, kind=ValueError):
        history.windows()  # nothing within 0.1 s of 0.2 s ago
    with refused("time", None, kind=ValueError):
        ObservationHistory({KEY: (-0.2, 0.0)}).add({KEY: image(0)})
