"""Windows: seconds become frames or an error; frames outside repeat the boundary and are
flagged.
"""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.datasets.time_windows import TOLERANCE_S, frame_offsets, reach, window

KEYS = ("action", "observation.state")


@given(
    st.lists(st.integers(-5000, 5000), min_size=1, max_size=9),
    st.sampled_from([1, 3, 7, 10, 29.97, 30, 50, 60, 1000]),
)
def test_windows_multiples_of_a_frame(frames: list[int], fps: float) -> None:
    got = frame_offsets({"action": [f / fps for f in frames]}, fps, KEYS)["action"]
    assert got.dtype == np.int64
    assert got.tolist() == frames


@given(st.integers(-90, 90), st.floats(-1, 1), st.sampled_from([10, 30, 50]))
def test_windows_refuses_no_multiple(frame: int, off: float, fps: int) -> None:
    """Within the tolerance the nearest frame is meant; beyond it the value is named."""
    seconds = frame / fps + off * 3e-4
    distance = abs(Fraction(seconds) - Fraction(round(Fraction(seconds) * fps), fps))
    if abs(float(distance) - TOLERANCE_S) < 1e-9:
        return
    if distance < TOLERANCE_S:
        assert frame_offsets({"action": [seconds]}, fps, KEYS)["action"].tolist() == [frame]
    else:
        with refused("delta_timestamps['action']", "1/fps"):
            frame_offsets({"action": [0.0, seconds]}, fps, KEYS)


def test_windows_the_error_names_value_and_remedy() -> None:
    with refused("0.05 s", "1/fps = 0.0333333 s", fix="0.0666667 s"):
        frame_offsets({"action": [0, 0.05]}, 30, KEYS)


def test_windows_take_a_tolerance_below_half_a_frame() -> None:
    near = {"action": [0, 0.033, 0.066]}
    assert frame_offsets(near, 30, KEYS, tolerance_s=1e-3)["action"].tolist() == [0, 1, 2]
    with refused("0.033 s", fix="tolerance_s"):
        frame_offsets(near, 30, KEYS)
    for tolerance in (-1e-3, 0.5 / 30, 1.0, float("nan")):
        with refused("tolerance_s"):
            frame_offsets(near, 30, KEYS, tolerance_s=tolerance)


@pytest.mark.parametrize(
    "deltas", [[], ["0"], [float("nan")], [float("inf")], [None], [1e301], 0.5, "ab"]
)
def test_windows_refuses_bad_deltas(deltas: list[float]) -> None:
    with refused("delta_timestamps['action']"):
        frame_offsets({"action": deltas}, 30, KEYS)


def test_windows_come_by_key() -> None:
    with refused("delta_timestamps", [0, 0.1], fix="seconds"):
        frame_offsets([0, 0.1], 30, KEYS)  # type: ignore[arg-type]


def test_windows_unknown_key_shows_the_known() -> None:
    with refused("delta_timestamps", "'actions'", fix="action, observation.state"):
        frame_offsets({"actions": [0]}, 30, KEYS)
    assert frame_offsets(None, 30, KEYS) == {}


@given(st.data())
def test_windows_window_frame_by_frame(data: st.DataObject) -> None:
    """Every value against one worked out alone: inside as it is, outside the nearest inside and
    flagged.
    """
    batch = data.draw(st.integers(1, 5))
    offsets = data.draw(st.lists(st.integers(-30, 30), min_size=1, max_size=5))
    bounds = [data.draw(st.tuples(st.integers(0, 5), st.integers(6, 20))) for _ in range(batch)]
    frames = [data.draw(st.integers(a, b - 1)) for a, b in bounds]
    start, stop = np.asarray(bounds).T
    got, pad = window(np.asarray(frames), np.asarray(offsets), start, stop)
    assert got.shape == pad.shape == (batch, len(offsets))
    for i, (frame, (first, end)) in enumerate(zip(frames, bounds)):
        for j, offset in enumerate(offsets):
            wanted = frame + offset
            inside = first <= wanted < end
            assert pad[i, j] == (not inside)
            assert got[i, j] == (wanted if inside else first if wanted < first else end - 1)


def test_windows_reach() -> None:
    assert reach([]) == (0, 0)
    assert reach([np.asarray([2, 5])]) == (0, 5)
    assert reach([np.asarray([-3, -1]), np.asarray([0, 2])]) == (3, 2)
