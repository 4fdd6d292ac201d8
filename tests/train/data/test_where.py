"""`data.where`: only episodes whose metadata meets a condition are used, in training and validation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.datasets import Spec, write_dataset
from support.edited import edit
from support.runs import tiny_config
from understudy.errors import DatasetError
from understudy.train.data.run_data import RunData, open_data


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten episodes; `quality` is the id modulo 4, and 6 is missing."""
    root = tmp_path_factory.mktemp("where")
    write_dataset(root / "source", Spec("v3.0", lengths=(6,) * 10, cameras=(), gop=2))
    lines = [f"{episode},{'' if episode == 6 else episode % 4}" for episode in range(10)]
    (root / "meta.csv").write_text("\n".join(["episode_index,quality", *lines]) + "\n")
    edit(root / "source", root / "rated", metadata=str(root / "meta.csv"))
    return root / "rated"


def opened(root: Path, **settings: Any) -> RunData:
    config = tiny_config(root, root)
    return open_data(replace(config, data=replace(config.data, cameras=("none",), **settings)))


def ids(data: RunData) -> set[int]:
    parts = (*data.training, *(part for part in data.validation if part is not None))
    return {int(episode) for part in parts for episode in part.segments[:, 0]}


def test_where_selects_the_episodes_of_a_run(rated: Path) -> None:
    assert ids(opened(rated, where="quality >= 2")) == {2, 3, 7}
    assert ids(opened(rated, where="quality >= 2", episodes=(0, 1, 2, 3))) == {2, 3}
    data = opened(rated, where="quality < 2", val_episodes=(4,))
    assert ids(data) == {0, 1, 4, 5, 8, 9}
    assert any("6 of 10" in note for own in data.notes for note in own)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"where": "quality >= 2", "val_episodes": (4,)}, "episode 4"),
        ({"where": "quality >= 2", "episodes": (0, 1)}, "quality >= 2"),
        ({"where": "qualty >= 2"}, "qualty"),
        ({"where": "quality > 9"}, "none of 10"),
    ],
)
def test_where_refuses_conditions_that_select_nothing(settings: dict[str, Any], named: str, rated: Path) -> None:
    with pytest.raises(DatasetError) as refused:
        opened(rated, **settings)
    assert named in refused.value.what
    assert refused.value.where == str(rated)
