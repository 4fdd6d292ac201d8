"""`check` on metadata of other writers: no rows, other keys, dictionary columns, seconds off their frame."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from check.test_false_alarms import episode
from support.datasets import Spec, edit_json, write_dataset
from understudy.check.examine import check_dataset
from understudy.check.findings import Finding
from understudy.data.format.catalog import Catalog
from understudy.data.write.writer import EpisodeWriter
from understudy.errors import DatasetError


def test_metadata_without_rows_is_checked(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(version="v2.1", lengths=(6, 9), cameras=(), foreign=False))
    width = Catalog.open(tmp_path / "set").features["action"].shape[0]
    names = [f"joint_{number}.vel" for number in range(width)]
    edit_json(tmp_path / "set/meta/info.json", lambda info: info["features"]["action"].update(names=names))
    shutil.rmtree(tmp_path / "set/data")
    report = check_dataset(tmp_path / "set", "rows")
    [missing] = [finding for finding in report.findings if finding.rule == "files.missing"]
    assert missing.place.episodes == (0, 1)
    assert "skip" not in missing.fix  # no episode would be left
    paths = [path for path in Catalog.open(tmp_path / "set").report() if "episode_000001" in path]
    assert paths  # beyond the first missing file


def write_rows(root: Path, names: dict[str, str], change: Any = None, cameras: bool = False) -> Path:
    """Write 12 episodes; `names` maps action and state to their keys, `change(number, rows)` alters them in place."""
    features = {key: {"dtype": "float32", "shape": (3,)} for key in names.values()}
    with EpisodeWriter(root, fps=20, features=features) as writer:
        for number in range(12):
            rows = episode(number, 80, 3)
            if change is not None:
                change(number, rows)
            for values in zip(*rows.values(), strict=True):
                writer.add_frame({names[key]: value for key, value in zip(rows, values)}, "move")
            writer.save_episode()
    return root


def alarms(root: Path, **keys: str) -> list[Finding]:
    return [one for one in check_dataset(root, "rows", **keys).findings if one.severity in ("warning", "error")]


@pytest.mark.parametrize("keys", [("actions", "state"), ("command", "joints")])
def test_value_rules_know_other_names_of_action_and_state(tmp_path: Path, keys: tuple[str, str]) -> None:
    def degrees(number: int, rows: dict[str, np.ndarray]) -> None:
        if number == 5:
            rows["observation.state"][:, 1] *= 57.29578

    names = {"action": keys[0], "observation.state": keys[1]}
    root = write_rows(tmp_path / "set", names, degrees)
    given = {} if keys[1] == "state" else {"action": keys[0], "state": keys[1]}
    [unit] = [one for one in alarms(root, **given) if one.rule == "values.unit"]
    assert (unit.place.column, unit.place.episodes) == (keys[1], (5,))


def test_a_key_that_is_absent_is_refused(tmp_path: Path) -> None:
    root = write_rows(tmp_path / "set", {"action": "action", "observation.state": "state"})
    with pytest.raises(DatasetError) as error:
        check_dataset(root, "rows", state="stat")
    assert "stat" in str(error.value)


def test_a_dictionary_encoded_task_column_is_read(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(6, 9), cameras=()))
    before = Catalog.open(tmp_path / "set").tasks
    path = tmp_path / "set/meta/tasks.parquet"
    table = pq.read_table(path)
    name = next(name for name in table.column_names if name != "task_index")
    encoded = pc.dictionary_encode(table.column(name))
    pq.write_table(table.set_column(table.column_names.index(name), name, encoded), path)
    assert Catalog.open(tmp_path / "set").tasks == before


def test_a_start_half_a_frame_late_is_named(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(6, 9, 4, 7), ids=(), per_video_file=4, gop=3, foreign=False))
    catalog = Catalog.open(tmp_path / "set")
    name = f"videos/{catalog.camera_keys[0]}/from_timestamp"
    for path in (tmp_path / "set/meta/episodes").rglob("*.parquet"):
        table = pq.read_table(path)
        late = np.array(table["episode_index"].to_pylist()) == 2
        times = table[name].to_numpy() + 0.5 / catalog.fps * late
        pq.write_table(table.set_column(table.column_names.index(name), name, [times]), path)
    for images, severity in (("sample", "warning"), ("rows", "note")):
        found = [one for one in check_dataset(tmp_path / "set", images).findings if one.rule == "videos.start"]
        assert [(one.severity, one.place.episodes) for one in found] == [(severity, (2,))]


def test_timestamps_of_one_file_in_milliseconds_have_a_finding_of_their_own(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(version="v2.1", lengths=(12, 9, 14, 11, 10), cameras=(), foreign=False))
    fps = json.loads((tmp_path / "set/meta/info.json").read_text())["fps"]
    for number in range(5):
        path = next((tmp_path / "set/data").rglob(f"episode_{number:06d}.parquet"))
        table = pq.read_table(path)
        times = table.column("timestamp").to_numpy() * (1000 if number == 3 else 1.1)
        times = times.astype(table.schema.field("timestamp").type.to_pandas_dtype())
        pq.write_table(table.set_column(table.column_names.index("timestamp"), "timestamp", [times]), path)
    found = [one for one in check_dataset(tmp_path / "set", "rows").findings if one.rule == "clock.fps"]
    assert {one.place.episodes: pytest.approx(one.measured, rel=0.01) for one in found} == {
        (3,): fps / 1000,
        (0, 1, 2, 4): fps / 1.1,
    }
