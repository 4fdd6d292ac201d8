"""A check of many datasets: one page with counts by rule, the datasets with errors first."""

import json
from pathlib import Path

import pytest

from understudy_base import SourceError
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_kit.cli import main
from understudy_tools.check.examine import check_dataset
from understudy_tools.cli import check_several


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Five datasets: one without a data file, one with metadata that cannot be read."""
    for number in range(5):
        write_dataset(tmp_path / f"data/s{number}", Spec(lengths=(6, 9), cameras=(), foreign=False))
    next((tmp_path / "data/s3/data").rglob("*.parquet")).unlink()
    edit_json(tmp_path / "data/s1/meta/info.json", lambda info: info.update(features=3))
    return tmp_path / "data"


def test_the_summary_counts_rules_and_names_datasets(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["check", f"{data}/*/", "--depth", "metadata"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 30
    assert "5 datasets" in lines[0]
    kinds = [
        line.split()[0] for line in lines[1:] if line.split()[0] in ("error", "warning", "note")
    ]
    assert kinds == sorted(kinds, key=["error", "warning", "note"].index)
    assert [line.split()[1] for line in lines if line.startswith("error")] == [
        "files.missing",
        "metadata.unreadable",
    ]
    named = [line.split(":")[0].strip() for line in lines if line.startswith(f"  {data}")]
    assert named == [f"{data}/s1", f"{data}/s3"]
    assert lines[-1].split()[:3] == ["3", "of", "5"]
    assert main.main(["check", f"{data}/*/", "--depth", "metadata", "--limit", "1"]) == 1
    assert f"{data}/s3:" not in capsys.readouterr().out


def test_a_list_file_names_the_keys(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "list.csv").write_text(
        "path,weight,action\ndata/s0,1,\ndata/s2,2,nothing\ndata/s4,1,action\n"
    )
    assert main.main(["check", str(tmp_path / "list.csv"), "--depth", "rows", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["datasets"], found["sound"], found["frames"]) == (3, False, 30)
    (wrong,) = found["with_errors"]
    assert wrong["root"] == str(tmp_path / "data/s2")
    assert "nothing" in wrong["failed"]


def test_settings_of_one_dataset_are_refused(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["check", f"{data}/*/", "--page", "page.html"]) == 2
    assert "page" in capsys.readouterr().err
    assert main.main(["check", f"{data}/x*/"]) == 2
    assert "x*" in capsys.readouterr().err


def test_what_is_no_dataset_is_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data / "other").mkdir()
    assert main.main(["check", f"{data}/[so]*[04r]/", "--depth", "metadata"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "3 datasets" in lines[0]
    assert [line.split(":")[0].strip() for line in lines if line.startswith("  ")] == [
        f"{data}/other"
    ]
    (tmp_path / "list.csv").write_text("path\ndata/s0\ndata/gone\nnowhere://host/x\n")
    assert main.main(["check", str(tmp_path / "list.csv"), "--depth", "metadata", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["datasets"], found["episodes"]) == (3, 2)
    assert [wrong["root"] for wrong in found["with_errors"]] == [
        str(tmp_path / "data/gone"),
        "nowhere://host/x",
    ]


def test_a_source_without_an_answer_is_one_line(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def examine(root: str, *_: object, **__: object) -> object:
        if root.startswith("http"):
            raise SourceError("no answer", where=root, transient=True)
        return check_dataset(root, "metadata")

    monkeypatch.setattr(check_several, "check_dataset", examine)
    report = check_several.check_several(
        [{"root": "http://host/x"}, {"root": f"{data}/s0"}], "metadata"
    )
    assert [(one.root, one.episodes) for one in report.datasets] == [
        ("http://host/x", 0),
        (f"{data}/s0", 2),
    ]
    assert "no answer" in report.datasets[0].failed


def test_messages_are_those_of_check(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", f"{data}/x*/"]) == 2
    assert "data.sources" not in capsys.readouterr().err
    assert main.main(["check", *(f"{data}/s{number}" for number in range(4))]) == 2
    error = capsys.readouterr().err
    assert "glob" in error
    assert error.count(f"{data}/s") == 1
