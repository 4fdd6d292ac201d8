"""Facts of a source beside rows and videos: carried into the output, or named."""

import json
from pathlib import Path
from typing import Any

import pytest

from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_tools.cli.edit import describe, format_summary
from understudy_tools.testing.edited import edit

CAMERA = "observation.images.top"


def _source(root: Path, version: str = "v2.1", **further: Any) -> Path:
    write_dataset(root, Spec(version, lengths=(8, 8), gop=4, foreign=False))

    def change(info: dict[str, Any]) -> None:
        info |= {"license": "cc-by-4.0", "rig": {"table": 3}, **further}
        info["features"]["action"]["unit"] = "rad"
        info["features"][CAMERA]["intrinsics"] = [1, 2, 3]
        info["features"][CAMERA]["info"]["lens"] = "wide"

    edit_json(root / "meta/info.json", change)
    return root


def _info(root: Path) -> dict[str, Any]:
    return json.loads((root / "meta/info.json").read_text())


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("settings", [{}, {"gop": 2}, {"rename": ("action=action.joint",)}])
def test_further_fields_are_carried(tmp_path: Path, version: str, settings: dict[str, Any]) -> None:
    written = edit(_source(tmp_path / "source", version), tmp_path / "out", **settings)[""]
    info = _info(tmp_path / "out")
    assert (info["license"], info["rig"]) == ("cc-by-4.0", {"table": 3})
    assert info["features"]["action.joint" if "rename" in settings else "action"]["unit"] == "rad"
    assert info["features"][CAMERA]["intrinsics"] == [1, 2, 3]
    assert info["features"][CAMERA]["info"]["lens"] == "wide"
    assert written.left_out == []


def test_fields_that_do_not_stay_true_are_named(tmp_path: Path) -> None:
    source = _source(tmp_path / "source", total_hours=3, splits={"train": "0:1", "val": "1:2"})
    written = edit(source, tmp_path / "out", size="32x32")[""]
    info = _info(tmp_path / "out")
    assert "total_hours" not in info
    assert list(info["splits"]) == ["train"]
    assert not {"intrinsics"} & info["features"][CAMERA].keys()
    for name in ("total_hours", "splits val", "intrinsics", "info.lens"):
        assert sum(line.startswith(name) for line in written.left_out) == 1, name
    lines = format_summary(describe(written, str(tmp_path / "out")))
    assert all(f"  {line}" in lines for line in written.left_out)


@pytest.mark.parametrize(
    "name",
    [
        "discarded_episode_indices",
        "bad_episodes",
        "episodes",
        "num_frames",
        "duration_s",
        "valid_indices",
    ],
)
def test_fields_that_list_or_count_episodes_are_named(tmp_path: Path, name: str) -> None:
    """Episode 1 of the source is episode 0 of the output: a list of ids would name another one."""
    source = _source(tmp_path / "source", **{name: [1]})
    written = edit(source, tmp_path / "out", exclude_episodes=(0,))[""]
    assert name not in _info(tmp_path / "out")
    assert [line.split()[0] for line in written.left_out] == [name]


@pytest.mark.parametrize("value", [float("nan"), {"a": [1, float("nan")]}])
def test_a_field_with_nan_does_not_differ_from_itself(tmp_path: Path, value: Any) -> None:
    source = _source(tmp_path / "source", offset=value, frame_rate=10, discarded_episode_indices=[])
    written = edit(source, tmp_path / "out")[""]
    assert written.left_out == []
    info = _info(tmp_path / "out")
    assert json.dumps(info["offset"]) == json.dumps(value)
    assert (info["frame_rate"], info["discarded_episode_indices"]) == (10, [])


def test_fields_in_which_sources_differ_are_named(tmp_path: Path) -> None:
    first = _source(tmp_path / "a")
    second = _source(tmp_path / "b", license="mit", site="b")
    written = edit(first, second, tmp_path / "out")[""]
    info = _info(tmp_path / "out")
    assert ("license" in info, info["rig"], "site" in info) == (False, {"table": 3}, False)
    assert [line.split()[0] for line in written.left_out] == ["license", "site"]


def test_files_that_are_left_out_are_named(tmp_path: Path) -> None:
    source = _source(tmp_path / "source")
    for name in (
        "README.md",
        "meta/modality.json",
        "meta/views/red.yaml",
        "calibration/top.yaml",
        "meta/contract.json",
    ):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text("{}")
    (line,) = edit(source, tmp_path / "out")[""].left_out
    for name in (
        "README.md",
        "calibration/",
        "meta/modality.json",
        "meta/views/",
        "meta/contract.json",
    ):
        assert name in line
    assert "info.json" not in line
    assert not (tmp_path / "out/README.md").exists()
