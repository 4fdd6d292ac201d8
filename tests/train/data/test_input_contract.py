"""The contract of a run: images that cannot be read, and outages, which are no fault of an image."""

from collections.abc import Callable
from pathlib import Path

import pytest

from support.datasets import Spec, write_dataset
from support.refusals import refused
from support.runs import tiny_config
from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError, SourceError
from understudy.train.data.input_contract import make_contract
from understudy.train.data.run_data import open_data

WHERE = "episode 0"


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[DatasetError], dict]:
    """Make the contract of a run whose images raise an error."""
    write_dataset(tmp_path / "d", Spec(lengths=(8, 9, 7), gop=3))
    config = tiny_config(tmp_path / "d", tmp_path / "r")
    data = open_data(config)

    def made(error: DatasetError) -> dict:
        def fail(*_: object) -> None:
            raise error

        monkeypatch.setattr(EpisodeDataset, "batch", fail)
        return make_contract(config, data)

    return made


def test_an_unreadable_image_leaves_the_appearance_unknown(measure: Callable[[DatasetError], dict]) -> None:
    robots = measure(DatasetError("damaged", where=WHERE, fix="record it again"))["robots"]
    looks = [camera["look"] for facts in robots.values() for camera in facts["cameras"].values()]
    assert looks == [None]


def test_an_outage_ends_the_start(measure: Callable[[DatasetError], dict]) -> None:
    with refused(where=WHERE, fix="later", kind=SourceError):
        measure(SourceError("no answer", where=WHERE, fix="try later", transient=True))
