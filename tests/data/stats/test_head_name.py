"""Norm heads: a robot under one control mode, or else the dataset alone."""

import pytest

from understudy.data.stats.head_name import head_name


@pytest.mark.parametrize(
    ("robot", "control", "head"),
    [
        ("g1", "joint", "g1::joint"),
        (" g1 ", "joint", "g1::joint"),
        ("", "joint", "my_data"),
        ("g1", "", "my_data"),
        ("g1", "  ", "my_data"),
        (None, "joint", "my_data"),
        ("g1", None, "my_data"),
        ("Unknown", "joint", "my_data"),
        ("g1", "UNKNOWN", "my_data"),
        ("unknown_arm", "joint", "unknown_arm::joint"),
    ],
)
def test_head_name_names(robot: str | None, control: str | None, head: str) -> None:
    assert head_name(robot, control, "my_data") == head
