"""Conditions on the metadata of episodes: a small language, interpreted and never executed."""

from typing import Any

import pytest

from understudy.data.selection.where import Where
from understudy.errors import DatasetError

EPISODE: dict[str, Any] = {
    "success": True,
    "quality": 3,
    "speed": 0.5,
    "operator": "ann",
    "robot.arm": "left",
    "a b": 2,
}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("success and quality >= 3", True),
        ("success and quality > 3", False),
        ("not success or speed < 1", True),
        ("2 < quality <= 3", True),
        ('operator in ["ann", "bo"]', True),
        ('"nn" in operator and operator != "bo"', True),
        ('robot.arm == "left"', True),
        ('meta["a b"] == 2', True),
        ("success == true", True),
        ("success is True", True),
        ("mistakes > 0", False),  # a missing value satisfies no comparison
        ("not mistakes > 0", True),
        ("mistakes <= 0 or mistakes != 1", False),
        ("mistakes == none", True),
        ("mistakes", False),
        ("quality not in [1, 2]", True),
        ("speed > -1", True),
    ],
)
def test_where_holds(text: str, holds: bool) -> None:
    assert Where(text).holds(EPISODE, "episode 0") is holds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "success and",
        "__import__('os').system('true')",
        "open('x')",
        "quality + 1 > 2",
        "[x for x in tasks]",
        "lambda: 1",
        "success if quality else speed",
        "b'x' == operator",
        "(" * 300 + "1" + ")" * 300,
        "quality > 3 " * 1000,
        "operator[0] == 'a'",
        "(x := 3)",
        "f'{operator}'",
        "a" + ".a" * 900,
        "not " * 300 + "success",
    ],
)
def test_where_refuses_all_other_syntax(text: str) -> None:
    with pytest.raises(DatasetError):
        Where(text)


@pytest.mark.parametrize("text", ["operator", "operator > 3", "3 in quality", "not operator"])
def test_where_refuses_values_without_order_or_truth(text: str) -> None:
    with pytest.raises(DatasetError) as refused:
        Where(text).holds(EPISODE, "episode 4")
    assert refused.value.where == "episode 4"
