"""Conditions on the metadata of episodes: a small language, interpreted and never executed."""

from pathlib import Path
from typing import Any

import pytest

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.selection.where import Where
from understudy_data.testing.datasets import Spec, rate_episodes, write_dataset

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


def test_dataset_where_selects_together_with_episodes(tmp_path: Path) -> None:
    root = tmp_path / "rated"
    write_dataset(root, Spec(lengths=(3, 4, 2, 5), cameras=()))
    rate_episodes(root, success=[True, False, True, True], quality=[4, 5, None, 3])

    def ids(**settings: Any) -> list[int]:
        data = EpisodeDataset(root, **settings)
        assert len(data) == sum(
            (3, 4, 2, 5)[episode] for episode in set(data.segments[:, 0].tolist())
        )
        return data.segments[:, 0].tolist()

    assert ids(where="success and quality >= 3") == [0, 3]
    assert ids(where="success", episodes=[1, 2, 3]) == [2, 3]
    assert ids(where="success", exclude_episodes=[2]) == [0, 3]
    (note,) = EpisodeDataset(root, where="success").notes
    assert "3 of 4 episodes" in note
    with refused(9):  # also beside a condition
        EpisodeDataset(root, where="success", episodes=[0, 9])
    with refused("'quality>4'", where=str(root)):
        EpisodeDataset(root, where="quality>4", episodes=[0, 2])
    with refused("'succes'", where=str(root), fix="'success'"):
        EpisodeDataset(root, where="succes")
    with refused("where", fix="--where"):
        EpisodeDataset(root, where="")
