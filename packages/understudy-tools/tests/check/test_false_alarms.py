"""Sound datasets that look unusual raise no alarm: short ones, rotations, unused arms, shocks."""

import json
from pathlib import Path

import numpy as np
import pytest

from understudy_tools.testing.robot_rows import ACTION, STATE, Change, Rows, alarms, write_rows

FORCE = "observation.force"


@pytest.mark.parametrize("lengths", [(1,), (1, 1, 1, 1), (1, 2, 3) * 4], ids=str)
def test_short_episodes_raise_no_alarm(tmp_path: Path, lengths: tuple[int, ...]) -> None:
    assert alarms(write_rows(tmp_path / "set", lengths)) == []


def wrap(number: int, rows: Rows) -> None:
    """An angle at the turn: in some episodes noise carries it over, in few it moves there."""
    rng = np.random.default_rng([5, number])
    for values in rows.values():
        angle = (
            np.pi + rng.normal(0, 0.02, len(values))
            if number % 4
            else np.pi - 0.3 + 0.05 * values[:, 3]
        )
        values[:, 3] = (angle + np.pi) % (2 * np.pi) - np.pi


def flip(number: int, rows: Rows) -> None:
    for values in rows.values():
        values[:, 2:6] = np.array([1, 0.2, 0.1, 0.05]) + 0.3 * values[:, 2:6]
        values[:, 2:6] /= np.linalg.norm(values[:, 2:6], axis=1, keepdims=True)
        if number in (2, 9):
            values[60:, 2:6] *= -1


def rest(number: int, rows: Rows) -> None:
    """Three joints of a second arm rest in few episodes, with the noise of their sensors."""
    if number % 6 == 0:
        rows[ACTION][:, 3:] = 0
        rows[STATE][:, 3:] = np.random.default_rng(number).normal(0, 0.001, (len(rows[STATE]), 3))


def move_once(number: int, rows: Rows) -> None:
    if number != 4:
        rows[ACTION][:, 3:] = 0
        rows[STATE][:, 3:] = np.random.default_rng(number).normal(0, 1e-8, (len(rows[STATE]), 3))


def touch(number: int, rows: Rows) -> None:
    """A sensor of forces that peaks at contacts in few episodes."""
    rng = np.random.default_rng([7, number])
    rows[FORCE] = rng.normal(0, 0.3, (len(rows[ACTION]), 3)).astype(np.float32)
    if number % 6 == 0:
        rows[FORCE][40:44] += rng.normal(0, 25, (4, 3)).astype(np.float32)


def scale(number: int, rows: Rows) -> None:
    """Half of the episodes are of a task with small motion."""
    if number % 2:
        for values in rows.values():
            values *= 0.08


def start_elsewhere(number: int, rows: Rows) -> None:
    """One episode begins and ends at another place; in a second one the robot is heavier, and
    follows less.
    """
    if number == 5:
        for values in rows.values():
            values[:, :2] += 0.25
    if number == 7:
        rows[STATE][:, 1] += 0.01


def flicker(number: int, rows: Rows) -> None:
    """Two joints rest at a value of the episode, and return to it exactly by ticks; they move in
    few episodes.
    """
    rng = np.random.default_rng([9, number])
    for values in rows.values():
        values[:, 4:] = np.float32(0.1 * (number % 7)) + 0.001 * (
            rng.random((len(values), 2)) < 0.3
        )
    if number % 8 == 0:
        for values in rows.values():
            values[20:28, 4] += 0.11 * np.arange(8, dtype=np.float32)
            values[28:36, 4] += 0.11 * np.arange(8, 0, -1, dtype=np.float32)


def posture(number: int, rows: Rows) -> None:
    """Two fingers rest near each other's usual places in three pieces of one recording, and nearest
    in the first.
    """
    index, thumb = {10: (0.59, 0.75), 11: (0.55, 0.76), 12: (0.53, 0.78)}.get(number, (0.75, 0.6))
    rng = np.random.default_rng([11, number])
    for values in rows.values():
        values[:, 4] = index + rng.normal(0, 0.006) + 0.01 * values[:, 1]
        values[:, 5] = thumb + rng.normal(0, 0.006) + 0.01 * values[:, 2]


def coarse_piece(number: int, rows: Rows) -> None:
    """A sensor with ticks that changes rarely: few changes need not hold its least one."""
    tick, wait, top = (0.004, 8, 10) if number % 12 == 4 else (0.001, 2, 40)
    count = np.arange(len(rows[STATE])) // wait
    rows[STATE][:, 5] = tick * np.abs((count + top) % (2 * top) - top)


@pytest.mark.parametrize(
    "change",
    [wrap, flip, rest, move_once, touch, scale, start_elsewhere, flicker, posture, coarse_piece],
)
def test_rotations_unused_arms_and_shocks_raise_no_alarm(tmp_path: Path, change: Change) -> None:
    assert alarms(write_rows(tmp_path / "set", (90, 120, 100) * 8, change)) == []


def test_a_joint_that_rests_in_a_short_piece_raises_no_alarm(tmp_path: Path) -> None:
    def hold(number: int, rows: Rows) -> None:
        if number == 2:
            rows[STATE][:, 3] = 0

    assert alarms(write_rows(tmp_path / "piece", (90, 120, 30, 100, 90, 100, 95, 110), hold)) == []
    whole = alarms(write_rows(tmp_path / "whole", (90, 120, 90, 100, 90, 100, 95, 110), hold))
    assert {one.place.episodes for one in whole if one.rule == "values.dead"} == {(2,)}


def encoder_counts(number: int, rows: Rows) -> None:
    if number in (3, 7):
        rows[STATE][:, 1] *= 4096 / 360


def jump_beside_quaternions(number: int, rows: Rows) -> None:
    flip(number, rows)
    if number == 5:
        rows[STATE][50:, 0] += 2.0


def late_by_six(number: int, rows: Rows) -> None:
    flip(number, rows)
    if number == 5:
        rows[ACTION][6:] = rows[ACTION][:-6].copy()


def encoder_offset(number: int, rows: Rows) -> None:
    flip(number, rows)
    if number == 5:
        rows[STATE][:, 1] += 0.8


def glitch_beside_motion(number: int, rows: Rows) -> None:
    """A joint that rests moves in few episodes; in one of them it jumps there and back."""
    for values in rows.values():
        values[:, 5] = 0.001 * np.sin(np.arange(len(values)))
    if number in (2, 5, 9):
        for values in rows.values():
            values[20:40, 5] += 0.04 * np.arange(20)
            values[40:60, 5] += 0.04 * np.arange(20, 0, -1)
    if number == 5:
        rows[ACTION][70, 5] = 1.5


def quaternion_of_another_norm(number: int, rows: Rows) -> None:
    flip(number, rows)
    if number == 5:
        for values in rows.values():
            values[:, 2:6] *= 1.3


@pytest.mark.parametrize(
    ("change", "rule", "episode"),
    [
        (encoder_offset, "values.offset", 5),
        (encoder_counts, "values.unit", 7),
        (jump_beside_quaternions, "values.jump", 5),
        (late_by_six, "values.lag", 5),
    ],
)
def test_faults_beside_them_are_named(
    tmp_path: Path, change: Change, rule: str, episode: int
) -> None:
    found = alarms(write_rows(tmp_path / "set", (90, 120, 100) * 6, change))
    assert [one.rule for one in found if episode in one.place.episodes] == [rule]


def test_motion_of_a_joint_that_rests_is_no_outlier_beside_a_glitch(tmp_path: Path) -> None:
    found = alarms(write_rows(tmp_path / "set", (90, 120, 100) * 6, glitch_beside_motion))
    assert {
        one.place.episodes for one in found if one.rule in ("values.outlier", "values.jump")
    } == {(5,)}


def test_a_quaternion_of_another_norm_is_named(tmp_path: Path) -> None:
    found = alarms(write_rows(tmp_path / "set", (90, 120, 100) * 6, quaternion_of_another_norm))
    assert {one.place.episodes for one in found if one.rule == "values.quaternion"} == {(5,)}


def test_rounding_of_a_constant_in_statistics_is_no_fault(tmp_path: Path) -> None:
    def hold(number: int, rows: Rows) -> None:
        for values in rows.values():
            values[:, 5] = 1.4142135

    write_rows(tmp_path / "set", (30, 40, 50, 35), hold)
    path = tmp_path / "set/meta/stats.json"
    stats = json.loads(path.read_text())
    for key in (STATE, ACTION):
        stats[key]["std"][5] = 0.0004883  # sqrt(E[x^2] - E[x]^2) in float32
    path.write_text(json.dumps(stats))
    assert alarms(tmp_path / "set") == []
    stats[ACTION]["std"][5] = 0.01
    path.write_text(json.dumps(stats))
    assert [finding.rule for finding in alarms(tmp_path / "set")] == ["statistics.values"]
