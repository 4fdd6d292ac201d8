"""The start of a run from the tables of its host: equal to a start without them, whatever changed
before.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.config.train import TrainConfig
from understudy.testing.runs import tiny_config
from understudy.train.data.run_data import dataset_fingerprint, open_data
from understudy.train.validation.validation_loss import read_validation_data
from understudy_data.load.images.source_facts import read_facts
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.storage import mapped_tables
from understudy_data.testing.caches import own_cache
from understudy_data.testing.datasets import Spec, edit_json, write_dataset

LENGTHS = (6, 9, 4, 7, 5, 8)


@pytest.fixture(autouse=True)
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files; any table of two rows has one."""
    return own_cache(tmp_path, monkeypatch) / "tables"


@pytest.fixture
def config(tmp_path: Path) -> TrainConfig:
    write_dataset(tmp_path / "set", Spec(lengths=LENGTHS, cameras=()))
    config = tiny_config(tmp_path / "set", tmp_path / "run")
    return replace(config, data=replace(config.data, cameras=("none",), val_fraction=0.4))


def start(config: TrainConfig) -> dict[str, Any]:
    """Everything that the start of a run finds out about its data."""
    data = open_data(config)
    validation = read_validation_data(config, data)
    order = data.order(config)
    assert validation is not None
    with (
        warnings.catch_warnings(),
        Loader(data.training, order=order, num_threads=1, rank=0, world_size=1) as loader,
    ):
        warnings.simplefilter("ignore")
        batch = next(loader)
    part = data.training[0]
    facts = read_facts(data.training[0])
    return {
        "segments": part.segments.tolist(),
        "stops": part.window_stops.tolist(),
        "episodes": part.episodes.tolist(),
        "validation": [
            (e, f) for e, f in zip(validation.episode.tolist(), validation.frame.tolist())
        ],
        "fingerprint": dataset_fingerprint(data),
        "order": order.to_json(),
        "samples": [numbers.tolist() for numbers in order.locate(np.arange(2 * len(part)))],
        "again": Order.from_json(order.to_json(), data.training).locate([3])[1].tolist(),
        "batch": {key: batch[key].tolist() for key in ("episode_index", "frame_index", "action")},
        "located": [numbers.tolist() for numbers in part.locate(range(len(part)))],
        "found": part._table.find(*part.locate(range(len(part)))).tolist(),
        "memory": facts,
    }


def private(config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    with monkeypatch.context() as plain:
        plain.setattr(mapped_tables, "MIN_ROWS", 1000)
        return start(config)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix == ""}


def test_second_start_makes_no_table(
    config: TrainConfig, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = private(config, monkeypatch)
    assert not tables.exists()
    assert start(config) == expected
    there = files(tables)
    assert len(there) > 10
    monkeypatch.setattr(mapped_tables, "_store", lambda *_: pytest.fail("it was made again"))
    assert start(config) == expected
    assert files(tables) == there


def rewrite(root: Path, lengths: tuple[int, ...]) -> None:
    """Put other episodes in the place of a dataset, with the times of its files."""
    write_dataset(root.parent / "other", Spec(lengths=lengths, cameras=()))
    for path in (root.parent / "other").rglob("*"):
        place = root / path.relative_to(root.parent / "other")
        if path.is_file():
            times = (place.stat().st_atime_ns, place.stat().st_mtime_ns) if place.exists() else None
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(path.read_bytes())
            if times:
                os.utime(place, ns=times)


DATA: dict[str, Callable[[Path], None]] = {
    "rewritten": lambda root: rewrite(root, (6, 9, 7, 4, 5, 8)),
    "appended to": lambda root: rewrite(root, (*LENGTHS, 3, 11)),
    "another rate": lambda root: edit_json(
        root / "meta/info.json", lambda info: info.update(fps=20)
    ),
}
SETTINGS: dict[str, dict[str, Any]] = {
    "another split": {"val_fraction": 0.6},
    "named validation episodes": {"val_episodes": (1, 4)},
    "chosen": {"episodes": (0, 2, 3, 5)},
    "excluded": {"exclude_episodes": (2,)},
    "first frames dropped": {"drop_n_first_frames": 1},
    "last frames dropped": {"drop_n_last_frames": 2},
}


@pytest.mark.parametrize("change", DATA)
def test_changed_dataset(change: str, config: TrainConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = start(config)
    DATA[change](Path(config.data.root))
    after = private(config, monkeypatch)
    assert after != before
    assert start(config) == after


@pytest.mark.parametrize("change", SETTINGS)
def test_changed_settings(
    change: str, config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = start(config)
    changed = replace(config, data=replace(config.data, **SETTINGS[change]))
    after = private(changed, monkeypatch)
    assert after != before
    assert start(changed) == after
    assert start(config) == before


def test_another_version_makes_its_own_tables(
    config: TrainConfig, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(config)
    there = files(tables)
    monkeypatch.setattr(mapped_tables, "__version__", "another")
    start(config)
    assert len(files(tables)) == 2 * len(there)


def test_a_key_without_its_inputs_is_noticed(
    config: TrainConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above would fail if a table did not depend on its inputs."""
    monkeypatch.setattr(mapped_tables, "_mark", lambda part: ("the same",))
    before = start(config)
    changed = replace(config, data=replace(config.data, **SETTINGS["excluded"]))
    assert start(changed)["segments"] == before["segments"]
    assert private(changed, monkeypatch)["segments"] != before["segments"]
