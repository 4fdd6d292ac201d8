"""Non-idle ranges: equal to a slow reference and to openpi's numbers on a worked example."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from understudy_tools.motion import IdleRule, idle_ranges, non_idle_ranges


def slowly(values: np.ndarray, rule: IdleRule) -> list[tuple[int, int]]:
    """The same rule, one frame at a time, in words."""
    length = len(values)
    idle = []
    for t in range(length):
        if rule.difference and t == 0:
            idle.append(False)
            continue
        now = [float(x) for x in values[t].reshape(-1)]
        before = (
            [float(x) for x in values[t - 1].reshape(-1)] if rule.difference else [0.0] * len(now)
        )
        idle.append(all(abs(a - b) < rule.threshold for a, b in zip(now, before)))
    keep = []
    for t in range(length):
        first = last = t
        while idle[t] and first > 0 and idle[first - 1]:
            first -= 1
        while idle[t] and last < length - 1 and idle[last + 1]:
            last += 1
        pause = idle[t] and last - first + 1 >= rule.min_idle
        if rule.settled and pause:
            pause = t - first >= rule.min_idle and not (
                rule.difference and drifts(values, first - 1, last, rule)
            )
        keep.append(not pause)
    found = []
    t = 0
    while t < length:
        begin = t
        while t < length and keep[t]:
            t += 1
        if t > begin and t - begin >= rule.min_moving and t - rule.cut_last > begin:
            found.append((begin, t - rule.cut_last))
        t += 1
    return found


def drifts(values: np.ndarray, first: int, last: int, rule: IdleRule) -> bool:
    columns = values.reshape(len(values), -1).T.tolist()
    return any(
        max(c[first : last + 1]) - min(c[first : last + 1]) >= rule.threshold for c in columns
    )


@given(
    runs=st.lists(st.tuples(st.integers(1, 12), st.booleans(), st.integers(0, 2)), max_size=8),
    wide=st.integers(1, 3),
    rule=st.builds(
        IdleRule,
        threshold=st.sampled_from([0.1, 0.5, 1.0]),
        difference=st.booleans(),
        min_idle=st.integers(1, 8),
        min_moving=st.integers(1, 12),
        cut_last=st.integers(0, 6),
        settled=st.booleans(),
    ),
    odd=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from([np.nan, np.inf, -np.inf])), max_size=3
    ),
)
def test_idle_ranges_are_those_of_a_slow_walk(
    runs: list[tuple[int, bool, int]], wide: int, rule: IdleRule, odd: list[tuple[int, float]]
) -> None:
    rows = []
    at = 0.0
    for length, moves, dim in runs:
        for step in range(length):
            at += 0.5 if moves else 0.0
            rows.append([at if d == dim % wide else 0.04 * (step % 2) for d in range(wide)])
    values = np.asarray(rows, np.float64).reshape(len(rows), wide)
    for place, value in odd:
        if place < len(values):
            values[place, 0] = value
    with np.errstate(invalid="ignore"):
        found = non_idle_ranges(values, rule)
        assert found == slowly(values, rule)
    kept = np.zeros(len(values), bool)
    for start, stop in found:
        assert not kept[max(0, start - 1) : stop].any()  # apart, in sequence
        kept[start:stop] = True
    for start, stop in idle_ranges(values, rule):
        assert not kept[start:stop].any()


def test_idle_openpis_numbers() -> None:
    """Frames 20 to 26 do not move: seven idle frames, so that both sides lose their last ten. A
    pause of six stays.
    """
    rule = IdleRule.droid()
    values = np.arange(60, dtype=np.float32)
    values[20:27] = values[19]
    values[40:46] = values[39]
    assert non_idle_ranges(values, rule) == [(0, 10), (27, 50)]
    values[19:27] = values[18]
    assert non_idle_ranges(values, rule) == [(0, 9), (27, 50)]
    # 16 frames are the fewest; 6 of them are left
    assert non_idle_ranges(values[:43], rule) == [(0, 9), (27, 33)]
    assert non_idle_ranges(values[:42], rule) == [(0, 9)]


def test_idle_default_keeps_every_moving_frame() -> None:
    moving = np.arange(60, dtype=np.float32)
    assert non_idle_ranges(moving, IdleRule()) == [(0, 60)]
    assert non_idle_ranges(moving[:3], IdleRule()) == [(0, 3)]
    # idle from frame 20 to frame 39
    pause = np.concatenate([np.arange(20), np.full(20, 19.0), np.arange(20, 25)])
    assert non_idle_ranges(pause, IdleRule(min_idle=7)) == [(0, 27), (40, 45)]
    assert non_idle_ranges(pause, IdleRule(min_idle=20)) == [(0, 45)]
    # each step is below the threshold
    slow = np.concatenate([np.arange(20), 19 + 9e-4 * np.arange(1, 30)])
    assert non_idle_ranges(slow, IdleRule()) == [(0, 49)]
    noise = np.concatenate([np.arange(20), 19 + 4e-4 * (np.arange(30) % 2)])
    assert non_idle_ranges(noise, IdleRule()) == [(0, 27)]


def test_idle_small_steps_of_unsigned_and_whole_numbers_do_not_wrap() -> None:
    values = np.asarray([[5], [4], [3]] * 6, np.uint8)
    assert non_idle_ranges(values, IdleRule(threshold=1.5, settled=False)) == [(0, 18)]
    assert idle_ranges(values, IdleRule(threshold=2.5, settled=False))[0] == (1, 18)
