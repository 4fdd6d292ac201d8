"""`check` on metadata of other writers: no rows, other keys, dictionary columns, seconds off their
frame.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, edit_column, edit_json, edit_times, write_dataset
from understudy_tools.check.examine import check_dataset
from understudy_tools.testing.robot_rows import alarms, write_rows


def test_metadata_without_rows_is_checked(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(version="v2.1", lengths=(6, 9), cameras=(), foreign=False))
    width = Catalog.open(tmp_path / "set").features["action"].shape[0]
    names = [f"joint_{number}.vel" for number in range(width)]
    edit_json(
        tmp_path / "set/meta/info.json", lambda info: info["features"]["action"].update(names=names)
    )
    shutil.rmtree(tmp_path / "set/data")
    report = check_dataset(tmp_path / "set", "rows")
    [missing] = [finding for finding in report.findings if finding.rule == "files.missing"]
    assert missing.place.episodes == (0, 1)
    assert "skip" not in missing.fix  # no episode would be left
    paths = [path for path in Catalog.open(tmp_path / "set").report() if "episode_000001" in path]
    assert paths  # beyond the first missing file


@pytest.mark.parametrize("keys", [("actions", "state"), ("command", "joints")])
def test_value_rules_know_other_names_of_action_and_state(
    tmp_path: Path, keys: tuple[str, str]
) -> None:
    def degrees(number: int, rows: dict[str, np.ndarray]) -> None:
        if number == 5:
            rows["observation.state"][:, 1] *= 57.29578

    names = {"action": keys[0], "observation.state": keys[1]}
    root = write_rows(tmp_path / "set", (80,) * 12, degrees, 3, names)
    given = {} if keys[1] == "state" else {"action": keys[0], "state": keys[1]}
    [unit] = [one for one in alarms(root, **given) if one.rule == "values.unit"]
    assert (unit.place.column, unit.place.episodes) == (keys[1], (5,))


def test_a_key_that_is_absent_is_refused(tmp_path: Path) -> None:
    root = write_rows(tmp_path / "set", (80,) * 12, width=3, names={"observation.state": "state"})
    with pytest.raises(DatasetError, match="stat"):
        check_dataset(root, "rows", state="stat")


def test_a_dictionary_encoded_task_column_is_read(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(6, 9), cameras=()))
    before = Catalog.open(tmp_path / "set").tasks
    path = tmp_path / "set/meta/tasks.parquet"
    name = next(name for name in pq.read_schema(path).names if name != "task_index")
    edit_column(path, name, lambda texts: texts, pa.dictionary(pa.int32(), pa.string()))
    assert Catalog.open(tmp_path / "set").tasks == before


def test_a_start_half_a_frame_late_is_named(tmp_path: Path) -> None:
    write_dataset(
        tmp_path / "set", Spec(lengths=(6, 9, 4, 7), ids=(), per_video_file=4, gop=3, foreign=False)
    )
    catalog = Catalog.open(tmp_path / "set")
    name = f"videos/{catalog.camera_keys[0]}/from_timestamp"
    for path in (tmp_path / "set/meta/episodes").rglob("*.parquet"):
        late = 0.5 / catalog.fps * (pq.read_table(path)["episode_index"].to_numpy() == 2)
        edit_column(path, name, lambda times, late=late: times + late)
    for images, severity in (("sample", "warning"), ("rows", "note")):
        found = [
            one
            for one in check_dataset(tmp_path / "set", images).findings
            if one.rule == "videos.start"
        ]
        assert [(one.severity, one.place.episodes) for one in found] == [(severity, (2,))]


def test_timestamps_of_one_file_in_milliseconds_have_a_finding_of_their_own(tmp_path: Path) -> None:
    write_dataset(
        tmp_path / "set",
        Spec(version="v2.1", lengths=(12, 9, 14, 11, 10), cameras=(), foreign=False),
    )
    fps = json.loads((tmp_path / "set/meta/info.json").read_text())["fps"]
    edit_times(tmp_path / "set", lambda number, times: times * (1000 if number == 3 else 1.1))
    found = [
        one for one in check_dataset(tmp_path / "set", "rows").findings if one.rule == "clock.fps"
    ]
    assert {one.place.episodes: pytest.approx(one.measured, rel=0.01) for one in found} == {
        (3,): fps / 1000,
        (0, 1, 2, 4): fps / 1.1,
    }
