"""`check` in several processes: the facts of one process, poisoned files, kills, and a source
behind a server.
"""

import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.parts import Workers
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit.cli import main
from understudy_tools.check import column_facts, image_facts, row_facts
from understudy_tools.check.examine import Facts, check_dataset, examine
from understudy_tools.testing.part_work import DeadlyImages, DeadlyRows, DeadlyVideos


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("check")
    cameras = ("observation.images.top", "observation.images.wrist")
    for version in ("v2.1", "v3.0"):
        lengths = (6, 9, 4, 7, 30, 5, 8)
        write_dataset(
            root / version,
            Spec(version, lengths=lengths, cameras=cameras, images=("observation.still",)),
        )
    broken = next((root / "v2.1/data").rglob("episode_000003.parquet"))
    broken.write_bytes(b"not parquet")
    video = next((root / "v2.1/videos").rglob("episode_000001.mp4"))
    video.write_bytes(video.read_bytes()[:200])
    return {version: root / version for version in ("v2.1", "v3.0")}


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one file or episode each, as in a dataset that is thousands of times as large."""
    monkeypatch.setattr(row_facts, "PART_ROWS", 1)
    monkeypatch.setattr(row_facts, "KNOWN", 1)
    monkeypatch.setattr(image_facts, "PART_FILES", 1)
    monkeypatch.setattr(image_facts, "PART_IMAGES", 1)


def plain(value: Any) -> Any:
    """A value as nested tuples of bytes and text, to compare facts to the bit."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, dict):
        return tuple((plain(key), plain(item)) for key, item in value.items())
    if isinstance(value, (list, tuple, set)):
        return tuple(plain(item) for item in value)
    if is_dataclass(value):  # what its properties remember is no part of it
        return plain(
            {
                one.name: getattr(value, one.name)
                for one in fields(value)
                if one.name not in ("catalog", "_catalog")
            }
        )
    if hasattr(value, "__dict__") and not isinstance(value, (Catalog, Exception)):
        return plain(
            {
                name: item
                for name, item in vars(value).items()
                if name not in ("catalog", "_catalog", "_stride")
            }
        )
    return value if isinstance(value, (bytes, int, float, type(None))) else str(value)


def facts_of(root: Path, **options: Any) -> Any:
    with Workers(**options) as workers:
        facts: Facts = examine(Catalog.open(root), "all", workers=workers)
    assert facts.rows is not None
    for column in facts.rows.columns.values():
        assert column.sample.size
    return plain({name: item for name, item in vars(facts).items() if name != "catalog"})


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_facts_are_equal_for_any_number_of_processes(
    sets: dict[str, Path], version: str, small_parts: None, tmp_path: Path
) -> None:
    one = facts_of(sets[version])
    assert facts_of(sets[version], count=3) == one
    assert facts_of(sets[version], count=2, folder=tmp_path) == one
    assert facts_of(sets[version], folder=tmp_path) == one  # from the results of the call before


def test_facts_do_not_depend_on_the_cut(
    sets: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_facts, "KNOWN", 1)
    monkeypatch.setattr(column_facts, "SAMPLE", 10)
    whole = facts_of(sets["v3.0"])
    monkeypatch.setattr(row_facts, "PART_ROWS", 1)
    monkeypatch.setattr(image_facts, "PART_FILES", 1)
    monkeypatch.setattr(image_facts, "PART_IMAGES", 1)
    assert facts_of(sets["v3.0"]) == whole


def test_command_prints_the_same_for_any_number_of_processes(
    sets: dict[str, Path], small_parts: None, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    printed = []
    for flags in ([], ["--workers", "2", "--work", str(tmp_path / "work")]):
        assert main.main(["check", str(sets["v2.1"]), "--depth", "all", "--json", *flags]) == 1
        report = json.loads(capsys.readouterr().out)
        del report["seconds"]
        printed.append(report)
    assert printed[0] == printed[1]
    assert printed[0]["bad_episodes"] == [1, 3]
    assert list((tmp_path / "work").glob("*.part"))


def test_poisoned_episodes_are_named_and_the_others_checked(
    sets: dict[str, Path], small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_facts, "ReadRows", DeadlyRows)
    monkeypatch.setattr(image_facts, "ReadVideos", DeadlyVideos)
    monkeypatch.setattr(image_facts, "ReadImages", DeadlyImages)
    with Workers(2) as workers:
        report = check_dataset(sets["v2.1"], "all", workers=workers)
    assert report.bad_episodes == (0, 1, 2, 3, 5)  # 0: its images, 2: its rows, 5: its video
    assert report.read["rows"] == 6 + 9 + 30 + 5 + 8
