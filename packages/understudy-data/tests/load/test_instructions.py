"""Several instructions in one task text: the parts, and the draw of a sample."""

from collections import Counter

import pytest

from understudy_data.load.instructions import Instructions

TEXT = "put the cup on the shelf | move the cup |  | cup to shelf"
PARTS = ["put the cup on the shelf", "move the cup", "cup to shelf"]


@pytest.mark.parametrize(
    ("text", "separator", "parts"),
    [
        (TEXT, " | ", PARTS),
        (TEXT, "|", PARTS),
        (TEXT, "", [TEXT]),
        ("", " | ", [""]),
        (" | ", "|", [" | "]),
    ],
)
def test_split_task(text: str, separator: str, parts: list[str]) -> None:
    assert Instructions(separator).split(text) == parts


def test_draws_are_a_function_of_seed_and_position() -> None:
    positions = range(3000)
    drawn = Instructions(" | ").draw([TEXT] * 3000, 0, positions)
    assert all(900 < count < 1100 for count in Counter(drawn).values())
    assert set(drawn) == set(PARTS)
    rows = [2999, 5, 1024]  # another batch, another rank
    assert Instructions(" | ").draw([TEXT] * 3, 0, rows) == [drawn[row] for row in rows]
    assert Instructions(" | ").draw([TEXT] * 3000, 1, positions) != drawn


def test_joined_texts_stay_without_a_separator() -> None:
    assert Instructions("").draw([TEXT, "stack"], 0, [0, 1]) == [TEXT, "stack"]
    assert Instructions(" | ").draw(["stack"], 0, [0]) == ["stack"]
