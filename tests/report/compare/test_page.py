"""`understudy report A B`: figures by hand, at any moment of a run, and nothing written into the runs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.refusals import refused
from understudy.cli.main import main
from understudy.errors import ConfigError, RunInUseError
from understudy.report.compare.page import compare_runs
from understudy.report.compare.runs import read_runs
from understudy.train.checkpoint import checksums
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import VALIDATION_EPISODES
from understudy.train.validation.episode_sums import EpisodeSums

Change = Callable[..., Path]


@pytest.fixture
def copy(compared: Path, tmp_path: Path) -> Change:
    """Copies the run under a name, with other texts in config.yaml and another order.json."""

    def make(name: str, texts: dict[str, str] | None = None, record: dict[str, Any] | None = None) -> Path:
        root = tmp_path / name
        shutil.copytree(compared, root)
        config = (root / "config.yaml").read_text()
        for old, new in (texts or {}).items():
            assert config.count(old) == 1, old
            config = config.replace(old, new)
        (root / "config.yaml").write_text(config)
        if record:
            before = json.loads((root / "order.json").read_text())
            del before["seal"]
            (root / "order.json").write_text(json.dumps(checksums.add_seal({**before, **record})))
        return root

    return make


def validations(root: Path, *records: tuple[int, float | None, float | None, int]) -> None:
    """Replace the validations of a run by (step, loss, standard error, episodes) of its dataset."""
    path = root / "metrics.jsonl"
    lines = [line for line in path.read_text().splitlines() if json.loads(line)["kind"] != "val"]
    for step, loss, se, episodes in records:
        entry = {"loss": loss, "se": se, "samples": 24, "episodes": episodes}
        record = {"kind": "val", "step": step, **entry, "held_out": 24, "sources": {"dataset": entry}}
        lines.append(json.dumps(record))
    path.write_text("\n".join(lines) + "\n")


def test_settings_that_differ_are_listed_and_no_others(copy: Change) -> None:
    one = copy("one")
    two = copy("two", {"batch_size: 4": "batch_size: 8", "lr: 0.003": "lr: 0.5"})
    found = compare_runs([one, two])
    assert found["settings"] == {"--batch-size": {"A": 4, "B": 8}, "--optim.lr": {"A": 0.003, "B": 0.5}}
    assert found["versions"] == found["datasets"] == {}
    assert found["runs"][1]["changed on resume"] == {"batch_size": [4, 8], "optim.lr": [0.003, 0.5]}
    assert compare_runs([one, copy("three")])["settings"] == {}


def test_last_and_lowest_loss_have_intervals_by_hand(copy: Change) -> None:
    one, two = copy("one"), copy("two")
    validations(one, (5, 1.0, 0.5, 3), (10, 2.0, 0.25, 3))
    validations(two, (5, 3.0, None, 1), (10, None, None, 3))
    (group,) = compare_runs([one, two])["validation"]
    assert (group["group"], group["head"]) == ("all", "dataset")
    last, lowest = group["losses"]["A"]["last"], group["losses"]["A"]["lowest"]
    assert (last["step"], last["loss"], lowest["step"], lowest["loss"]) == (10, 2.0, 5, 1.0)
    assert last["interval"] == pytest.approx([2 - 4.302653 * 0.25, 2 + 4.302653 * 0.25], abs=1e-6)
    assert group["losses"]["B"]["last"]["loss"] is None
    assert group["losses"]["B"]["lowest"] == {"step": 5, "loss": 3.0, "interval": None, "samples": 24, "episodes": 1}
    assert group["differences"]["B"]["lowest"]["difference"] == 1.0 - 3.0
    assert group["differences"]["B"]["last"]["difference"] is None


def test_worst_episodes_of_each_run_have_losses_of_all(copy: Change) -> None:
    one, two, none = copy("one"), copy("two"), copy("none")
    shutil.rmtree(none / "validation")
    sums = EpisodeSums.read(RunDir(one).episode_losses(4))
    assert sums is not None
    worst, best = sums.largest(9)[[0, -1]]
    changed = sums.sums["flow"].copy()
    changed[best] += 1000
    other = replace(sums, sums={"flow": changed})
    other.write(RunDir(two).episode_losses(4))
    validations(two, (4, other.loss(), None, 3))
    found = compare_runs([one, two, none], 1)["worst episodes"]
    assert [entry["episode"] for entry in found] == [sums.episode[best], sums.episode[worst]]
    for entry, index in zip(found, (best, worst)):
        assert entry["losses"] == {"A": sums.losses()[index], "B": other.losses()[index]}
        assert entry["steps"] == {"A": 4, "B": 4}


def test_other_validation_episodes_are_named_and_not_subtracted(copy: Change, compared: Path) -> None:
    dataset = RunDir(compared).read_record()["dataset"]
    one, same = copy("one"), copy("same")
    other = copy("other", record={"dataset": {**dataset, VALIDATION_EPISODES: "another"}})
    found = compare_runs([one, same, other])
    assert list(found["datasets"]) == [f"dataset: {VALIDATION_EPISODES}"]
    (reason,) = found["losses are not comparable"]
    assert (reason["runs"], reason["sources"], reason["property"]) == (["A", "C"], ["dataset"], "validation sets")
    assert VALIDATION_EPISODES in reason["why"]
    assert list(found["validation"][0]["differences"]) == ["B"]


def test_other_normalization_and_chunks_make_losses_incomparable(copy: Change, compared: Path) -> None:
    units = RunDir(compared).read_record()["normalisation"]
    scaled = {**units, "action": {**units["action"], "spread": [[9.0, 9.0]]}}
    one = copy("one")
    two = copy("two", {"chunk_size: 3": "chunk_size: 2"}, {"normalisation": scaled})
    found = {reason["property"]: reason for reason in compare_runs([one, two])["losses are not comparable"]}
    assert list(found) == ["--data.chunk-size", "normalization of actions"]
    assert "A: 3, B: 2" in found["--data.chunk-size"]["why"]


def test_runs_at_any_moment_are_compared(copy: Change, tmp_path: Path) -> None:
    """No metrics, a torn line, no checkpoint, a damaged checkpoint."""
    whole, empty, torn, damaged = (copy(name) for name in ("whole", "empty", "torn", "damaged"))
    (empty / "metrics.jsonl").unlink()
    shutil.rmtree(empty / "checkpoints")
    lines = (torn / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (torn / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + b'{"kind": "tra')
    for state in damaged.glob("checkpoints/*/state.json"):
        state.write_text("{")
    out = tmp_path / "page.html"
    assert main(["report", *map(str, (empty, whole, torn, damaged)), "--output", str(out)]) == 0
    page = out.read_text()
    assert "No validation yet: A, C." in page
    assert "rollouts" not in page
    found = compare_runs([empty, whole, torn])
    assert found["losses are not comparable"] == []
    states = {run["letter"]: (run["state"], run["step"]) for run in found["runs"]}
    assert states["B"] == ("complete", 4)
    assert states["A"][1] == 0
    assert states["A"][0].startswith("not complete")


def test_an_active_run_is_named_and_keeps_its_lock(copy: Change) -> None:
    root = copy("active")
    lock = RunDir(root).lock()
    assert read_runs([root])[0].state == "running"
    with refused(root, kind=RunInUseError):
        RunDir(root).lock()
    lock.close()
    assert read_runs([root])[0].state == "complete"


def test_names_of_runs_are_text(copy: Change, tmp_path: Path) -> None:
    """A path has slashes, so two folders spell the end of a script."""
    hostile = copy("x<", None).rename(tmp_path / "moved")
    (tmp_path / "x<").mkdir()
    hostile = hostile.rename(tmp_path / "x<" / "script><img src=y onerror=alert(1)>")
    out = tmp_path / "page.html"
    assert main(["report", str(copy("one")), str(hostile), "--output", str(out)]) == 0
    page = out.read_text()
    assert "<img src=y" not in page
    assert page.count("</script>") == 2
    assert "x&lt;/script&gt;&lt;img src=y" in page


def test_runs_of_the_same_name_get_longer_names(copy: Change, tmp_path: Path) -> None:
    for parent in ("p", "q"):
        (tmp_path / parent / "r").mkdir(parents=True)
    roots = [copy(parent + "0").rename(tmp_path / parent / "r" / "run") for parent in ("p", "q")]
    assert [run.name for run in read_runs(roots)] == ["p/r/run", "q/r/run"]
    with refused(roots[0], 2, kind=ConfigError):
        read_runs([roots[0], roots[1], roots[0] / "." / ""])


def snapshot(root: Path) -> dict[str, Any]:
    return {str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in root.rglob("*")}


def test_report_of_several_runs_changes_none_of_them(
    copy: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = copy("one"), copy("two")
    before = snapshot(one), snapshot(two)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert main(["report", "../one", "../two"]) == 0
    assert main(["report", "../one", "../two"]) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main(["report", "../one", "../two", "--overwrite"]) == 0  # its own page
    assert [path.name for path in Path().iterdir()] == ["comparison.html"]
    capsys.readouterr()
    assert main(["report", "../one", "../two", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == compare_runs([Path("../one"), Path("../two")])
    monkeypatch.chdir(one)
    assert main(["report", ".", "../two"]) == 2
    assert "--output" in capsys.readouterr().err
    assert (snapshot(one), snapshot(two)) == before


@pytest.mark.parametrize("name", ["notes.html", "one/report.html", "one"])
def test_report_replaces_only_its_own_page(
    copy: Change, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = copy("one"), copy("two")
    (one / "report.html").write_text('<html><head><meta name="generator" content="understudy page">')
    (tmp_path / "notes.html").write_text("mine")
    before = snapshot(tmp_path)
    for flags in ([], ["--overwrite"]):
        assert main(["report", str(one), str(two), "--output", str(tmp_path / name), *flags]) == 2
    assert name in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_report_of_one_run_replaces_an_output_only_with_overwrite(
    copy: Change, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, page = copy("one"), tmp_path / "page.html"
    words = ["report", str(one), "--worst-episodes", "0", "--output", str(page)]
    assert main(words) == 0
    page.write_text(page.read_text() + "<!-- a note -->")
    before = snapshot(tmp_path)
    assert main(words) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert snapshot(tmp_path) == before
    assert main([*words, "--overwrite"]) == 0
    page.write_text("mine")
    assert [main(words), main([*words, "--overwrite"])] == [2, 2]
    assert page.read_text() == "mine"


def test_report_refuses_a_folder_that_is_no_run(copy: Change, tmp_path: Path) -> None:
    with refused(tmp_path, "config.yaml", kind=ConfigError):
        compare_runs([copy("one"), tmp_path])
