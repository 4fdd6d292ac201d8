"""`understudy report A B`: figures by hand, at any moment of a run, and nothing written into the
runs.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy.report.run.overlay import compare
from understudy.report.run.page import read_run, write_report
from understudy.testing.pages import charts_of
from understudy.train.checkpoint import checksums
from understudy.train.checkpoint.run_dir import RunDir, RunInUseError
from understudy.train.track import metrics_file
from understudy.train.validation.episode_sums import EpisodeSums
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import main
from understudy_kit.cli.main import read_settings

Change = Callable[..., Path]


@pytest.fixture
def copy(compared: Path, tmp_path: Path) -> Change:
    """Copies the run under a name, with other texts in config.yaml and another order.json."""

    def make(
        name: str, texts: dict[str, str] | None = None, record: dict[str, Any] | None = None
    ) -> Path:
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


def compare_runs(roots: Sequence[Path]) -> dict[str, Any]:
    return compare([read_run(root, letter) for root, letter in zip(roots, "ABCD")])


def shift(root: Path, *amounts: float) -> None:
    """Add to the losses of the validation episodes of the last step, and log the new mean."""
    run = RunDir(root)
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "val"][-1]
    sums = EpisodeSums.read(run.episode_losses(last["step"]))
    assert sums is not None
    added = np.resize(amounts, len(sums.episode)) * sums.counts["flow"]
    changed = replace(sums, sums={"flow": sums.sums["flow"] + added})
    changed.write(run.episode_losses(last["step"]))
    last["loss"] = changed.loss()
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_settings_that_differ_are_listed_and_no_others(copy: Change) -> None:
    one = copy("one")
    two = copy("two", {"batch_size: 4": "batch_size: 8", "lr: 0.003": "lr: 0.5"})
    assert compare_runs([one, two])["settings"] == {"batch_size": [4, 8], "optim.lr": [0.003, 0.5]}
    assert compare_runs([one, copy("three")])["settings"] == {}


def test_sentence_names_the_better_run_or_that_none_is_decided(copy: Change) -> None:
    one, less, more, noisy = (copy(name) for name in ("one", "less", "more", "noisy"))
    shift(less, -0.25)
    shift(more, 0.5)
    shift(noisy, -9, 9)
    found = compare_runs([one, less, more, noisy])
    rows = {row["runs"]: row for row in found["groups"]}
    assert list(rows) == ["B − A", "C − A", "D − A"]
    assert rows["B − A"]["interval"] == pytest.approx([-0.25, -0.25])
    assert rows["C − A"]["difference"] == pytest.approx(0.5)
    assert [row["better"] for row in rows.values()] == ["B", "A", ""]
    assert rows["D − A"]["interval"][0] < 0 < rows["D − A"]["interval"][1]
    clauses = found["sentence"].split("; ")
    assert "B is better" in clauses[0]
    assert "-0.2500" in clauses[0]
    assert "A is better" in clauses[1]
    assert "cannot be decided" in clauses[2]


def test_damaged_or_stale_sums_of_episodes_decide_nothing(copy: Change) -> None:
    """The validation before the last one has sums that are of it."""
    one, damaged, stale, none = (copy(name) for name in ("one", "damaged", "stale", "none"))
    last = metrics_file.read(RunDir(one).metrics, "val")[-1]["step"]
    RunDir(damaged).episode_losses(last).write_bytes(b"PK")
    lines = [json.loads(line) for line in (stale / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["kind"] == "val" and line["step"] == last:
            line["loss"] += 1.0
    (stale / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(none / "validation")
    rows = compare_runs([one, damaged, stale, none])["groups"]
    assert [f"step {step}" in row["other"] for row, step in zip(rows, (2, 2))] == [True, True]
    assert rows[2]["interval"] is None
    assert "D" in rows[2]["reason"]


def test_other_samples_and_meanings_decide_nothing_and_are_named(
    copy: Change, compared: Path
) -> None:
    units = RunDir(compared).read_record()["normalisation"]
    scaled = {**units, "action": {**units["action"], "spread": [[9.0, 9.0]]}}
    one = copy("one")
    two = copy("two", {"chunk_size: 3": "chunk_size: 2"}, {"normalisation": scaled})
    three = copy("three")
    sums = EpisodeSums.read(RunDir(three).episode_losses(4))
    assert sums is not None
    replace(sums, digest="another").write(RunDir(three).episode_losses(4))
    meaning, samples = compare_runs([one, two, three])["groups"]
    assert (meaning["difference"], meaning["interval"], meaning["better"]) == (None, None, "")
    assert "--data.chunk-size" in meaning["reason"]
    assert "normalization of actions" in meaning["reason"]
    assert (samples["difference"], samples["interval"]) == (None, None)
    assert "validation samples" in samples["reason"]


def result(seed: int, successes: int, episodes: int, **protocol: str) -> dict[str, Any]:
    rate = {"successes": successes, "episodes": episodes}
    found = {
        "world": "tabletop",
        "seed": seed,
        "swap_text": False,
        "success": rate,
        "tasks": {"lift": rate},
    }
    return found | {"protocol": protocol}


def test_success_of_seeds_is_pooled_and_compared_under_equal_conditions(copy: Change) -> None:
    one = copy("one")
    two = copy("two")
    other = copy("other")
    for root, results in {
        one: [result(0, 20, 30, mujoco="3.3.0"), result(1, 36, 40, mujoco="3.3.0")],
        two: [result(0, 48, 80, mujoco="3.3.0")],
        other: [result(0, 80, 80, mujoco="3.8.1")],
    }.items():
        (root / "rollouts").mkdir()
        for entry in results:
            (root / f"rollouts/seed{entry['seed']}.json").write_text(json.dumps(entry))
    rows = [
        row
        for row in compare_runs([one, two, other])["groups"]
        if row["group"].startswith("success")
    ]
    [row] = rows
    assert (row["runs"], row["first"], row["other"]) == ("B − A", "56/70", "48/80")
    assert row["interval"] == pytest.approx((-0.3339, -0.0524), abs=5e-5)
    assert row["better"] == "A"


def test_runs_at_any_moment_are_compared(
    copy: Change, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No metrics, a torn line, no checkpoint, a damaged checkpoint."""
    whole, empty, torn, damaged = (copy(name) for name in ("whole", "empty", "torn", "damaged"))
    (empty / "metrics.jsonl").unlink()
    shutil.rmtree(empty / "checkpoints")
    lines = (torn / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (torn / "metrics.jsonl").write_bytes(b"".join(lines[:3]) + b'{"kind": "tra')
    for state in damaged.glob("checkpoints/*/state.json"):
        state.write_text("{")
    out = tmp_path / "page.html"
    for first, others in ((empty, (whole, torn, damaged)), (whole, (empty, torn, damaged))):
        words = [str(root) for root in (first, *others)]
        assert (
            main(["report", *words, "--output", str(out), "--overwrite", "--worst-episodes", "0"])
            == 0
        )
        printed = capsys.readouterr().out
        assert "no losses of validation episodes in" in printed
        assert f"A: {first}" in printed
        assert str(first) in out.read_text()


def test_curves_of_all_runs_are_in_the_charts_of_the_first(copy: Change, tmp_path: Path) -> None:
    one = copy("one")
    two = copy("two")
    empty = copy("empty")
    (empty / "metrics.jsonl").unlink()
    others = [read_run(two, "B"), read_run(empty, "C")]
    page = write_report(one, tmp_path / "page.html", worst_episodes=0, others=others).read_text()
    drawn = {
        chart["label"]: chart["lines"] for chart in charts_of(page) if chart["axes"] == ["step"]
    }
    names = [line["name"] for line in drawn["loss"]]
    kinds = [(letter, kind) for letter in "AB" for kind in ("training", "validation,")]
    assert [tuple(name.split()[:2]) for name in names] == kinds
    assert len({line["color"] for line in drawn["loss"]}) == 2
    assert {line["name"].split()[0] for lines in drawn.values() for line in lines} == {"A", "B"}
    alone = charts_of(write_report(one, tmp_path / "alone.html", worst_episodes=0).read_text())
    assert {chart["label"] for chart in alone if chart["axes"] == ["step"]} == set(drawn)


def test_an_active_run_keeps_its_lock(copy: Change) -> None:
    root = copy("active")
    lock = RunDir(root).lock()
    assert len(read_run(root).logs["val"]) == 2
    with refused(root, kind=RunInUseError):
        RunDir(root).lock()
    lock.close()


def test_names_of_runs_are_text(copy: Change, tmp_path: Path) -> None:
    """A path has slashes, so two folders spell the end of a script."""
    hostile = copy("x<", None).rename(tmp_path / "moved")
    (tmp_path / "x<").mkdir()
    hostile = hostile.rename(tmp_path / "x<" / "script><img src=y onerror=alert(1)>")
    out = tmp_path / "page.html"
    assert main(["report", str(copy("one")), str(hostile), "--output", str(out)]) == 0
    page = out.read_text()
    assert "<img src=y" not in page
    assert page.count("</script>") == page.count("<script")
    assert "x&lt;/script&gt;&lt;img src=y" in page


def test_runs_are_named_once(copy: Change, tmp_path: Path) -> None:
    one = copy("one")
    two = copy("two")
    (tmp_path / "link").symlink_to(one)
    with refused("runs", kind=ConfigError):
        read_settings("report", [str(one), str(two), str(tmp_path / "link")])
    with refused("runs", 9, kind=ConfigError):
        read_settings("report", [str(tmp_path / str(number)) for number in range(9)])


def snapshot(root: Path) -> dict[str, Any]:
    return {
        str(p): (p.stat().st_mtime_ns, p.read_bytes() if p.is_file() else b"")
        for p in root.rglob("*")
    }


def test_report_of_several_runs_changes_none_of_them(
    copy: Change,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one = copy("one")
    two = copy("two")
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
    assert main(["report", "../one", "--json"]) == 2
    monkeypatch.chdir(one)
    assert main(["report", ".", "../two"]) == 2
    assert "--output" in capsys.readouterr().err
    assert (snapshot(one), snapshot(two)) == before


@pytest.mark.parametrize("name", ["notes.html", "two/report.html", "one"])
def test_report_replaces_only_its_own_page(
    copy: Change, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = copy("one")
    two = copy("two")
    (two / "report.html").write_text(
        '<html><head><meta name="generator" content="understudy page">'
    )
    (tmp_path / "notes.html").write_text("mine")
    before = snapshot(tmp_path)
    for flags in ([], ["--overwrite"]):
        assert main(["report", str(one), str(two), "--output", str(tmp_path / name), *flags]) == 2
    assert name in capsys.readouterr().err
    assert snapshot(tmp_path) == before


def test_report_of_one_run_replaces_an_output_only_with_overwrite(
    copy: Change, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = copy("one")
    page = tmp_path / "page.html"
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
