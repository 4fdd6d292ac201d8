"""report.html: complete and self-contained at any moment of a run, with the figures of its
files.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from understudy.report.run.page import advise, summarize, write_report
from understudy.report.run.validation import decimals, render_losses, task_chart
from understudy.report.step_profile import render_sources, render_step
from understudy.testing.pages import charts_of, html_of
from understudy.testing.runs import series, trained_run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data import run_data
from understudy.train.data.run_data import RunData, open_data
from understudy.train.profiling.profile import PHASES, Profile, RankProfile, combine, step_settings
from understudy.train.track import metrics_file
from understudy.train.track.metrics_file import Verdict, read_verdict
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import Block
from understudy_kit.report.curves import smoothed


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("report") / "run")


def test_throughput_of_each_source_is_its_share_of_the_order() -> None:
    names = ("a", "b<", "c")
    frames = (300, 100, 50)
    order: dict[str, Any] = {"sources": [{"name": n, "frames": f} for n, f in zip(names, frames)]}
    order["schedule"] = [{"position": 0, "slots": [1, 1, 1]}, {"position": 64, "slots": [3, 1]}]
    speed = [{"samples_per_s": rate} for rate in (10.0, 40.0, 80.0)]
    rows = re.findall(r"<tr><td[^>]*>(.*?)</td></tr>", html_of(render_sources(order, speed)))
    cells = [re.split(r"</td><td[^>]*>", row) for row in rows]
    assert cells == [
        ["a", "75.00%", "30.0", "300", "0:00:10"],
        ["b&lt;", "25.00%", "10.0", "100", "0:00:10"],
        ["c", "0.00%", "0.0", "50", "never"],
    ]
    assert render_sources(order, []) is None
    single = {"sources": order["sources"][:1], "schedule": [{"position": 0, "slots": [1]}]}
    assert render_sources(single, speed) is None


def report_of(root: Path) -> str:
    path = write_report(root, worst_episodes=0)
    assert path == root / "report.html"
    return path.read_text(encoding="utf-8")


def test_report_of_a_complete_run(done: Path) -> None:
    html = report_of(done)
    assert "step 12 of 12, complete" in html
    last = series(done, "val")[-1]
    assert f"{last['loss']:.3f}" in html
    for task in last["tasks"]:
        assert task in html
    assert len(charts_of(html)) >= 5 + 1 + 4  # charts, tasks, action chunks
    assert html.split(">The first batch<")[-1].count("<img") == 4  # the whole batch
    config = RunDir(done).settings()
    assert "{}x{}".format(*config.policy.image_size) in html.split(">The first batch<")[-1]
    assert "keep_last:" in html
    changed = re.findall(
        r"<tr><td[^>]*>([a-z._]+)</td><td", html.split("differ from the defaults")[1]
    )
    assert {"data.root", "steps", "batch_size", "optim.lr", "policy.width"} <= set(changed)
    assert not {"checkpoint.keep_best", "schedule.decay_steps", "policy.type", "device"} & set(
        changed
    )
    assert "torch" in html
    for outside in ('src="http', 'href="http', "url(http", "@import"):
        assert outside not in html


def test_report_opens_the_data_once(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = list[int]()

    def open_once(*arguments: Any, **options: Any) -> RunData:
        opened.append(len(opened))
        return open_data(*arguments, **options)

    monkeypatch.setattr(run_data, "open_data", open_once)
    shutil.copytree(done, tmp_path / "r")
    write_report(tmp_path / "r", predict=False)
    assert opened == [0]
    html = (tmp_path / "r/report.html").read_text()
    assert "cannot be opened" not in html


def test_report_begins_with_the_verdict(done: Path) -> None:
    """Result first: the gap of the losses, the lowest validation, then loss and validation; speed
    is below.
    """
    html = report_of(done)
    verdict = read_verdict(RunDir(done).metrics)
    assert verdict is not None
    assert verdict.ratio is not None
    first, *sections = html.split("<h2")
    assert all(
        f"<b>{tile}</b>" in first
        for tile in (f"{verdict.ratio:.3g} ×", f"step {verdict.lowest_step}")
    )
    assert verdict.trend in first
    assert "samples per second" not in first
    names = [re.sub("<[^>]*>", "", "<" + section.split("</h2>")[0]) for section in sections]
    assert names.index("Loss") < names.index("Validation") < names.index("The first batch")
    assert (
        names.index("The first batch")
        < names.index("Optimizer and speed")
        < names.index("Settings")
    )


def test_report_has_a_chart_of_each_term_and_a_table_of_each_group() -> None:
    def entry(**losses: float) -> dict[str, Any]:
        return {"terms": {name: {"loss": loss, "elements": 2} for name, loss in losses.items()}}

    both = entry(flow=1.0, text=3.0)
    sources = {"sources": {"<a>": both, "b": entry(flow=0.5)}}
    train = [{"kind": "train", "step": step, "loss": 4.0, **both, **sources} for step in (1, 2)]
    val = [{"kind": "val", "step": 2, "loss": 4.0, "se": None, **both, **sources}]
    html = html_of(*render_losses(train, val))
    for name in ("flow", "text"):
        assert html.split(f"<h3>{name}</h3>")[1].split("<h3>")[0].count("data-chart=") == 1
    assert [chart["unit"] for chart in charts_of(html)] == ["loss", "flow loss", "text loss"]
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in html.split("<tr>")]
    assert ["source", "&lt;a&gt;", "1", "3", "1", "3"] in rows
    assert ["source", "b", "0.5", "", "0.5", ""] in rows
    assert (
        html_of(*render_losses([{"step": 1, "loss": 1.0, **entry(flow=1.0)}], [])).count("<h3>")
        == 1
    )


def test_tables_align_formatted_numbers() -> None:
    rows = [["a", "0.9412", "± 0.05", "1/2"], ["b", "not finite", "", "1e-4 at step 5"]]
    text = html_of(Block.table(["name", "loss", "error", "words"], rows))
    assert re.findall(r'<th scope="col" class="(\w+)"', text) == [
        "short",
        "number",
        "number",
        "short",
    ]


@pytest.mark.parametrize(
    ("error", "digits"), [(None, 4), (0.0, 4), (float("inf"), 4), (0.05, 3), (1.79, 1), (25.0, 0)]
)
def test_losses_have_the_digits_that_their_error_allows(error: float | None, digits: int) -> None:
    assert decimals(error) == digits


@pytest.mark.parametrize(
    ("losses", "word"),
    [
        ([3.0, 2.0], "Not converged"),
        ([2.0, 3.0], "Overfitting"),
        ([2.0, 2.001], "Converged"),
        ([2.0], "One validation"),
    ],
)
def test_summary_names_the_fit_its_factor_and_the_best_step(losses: list[float], word: str) -> None:
    lowest = min(losses)
    step = 10 * (1 + losses.index(lowest))
    before = losses[-2] if len(losses) > 1 else None
    verdict = Verdict("", 1.0, 10, losses[-1], 10 * len(losses), before, lowest, step, len(losses))
    line = summarize(verdict)
    assert line.startswith(word)
    assert f"est step {step}, validation loss {lowest:.4g}" in line
    assert f"{losses[-1]:.3g} × the training loss" in line
    assert ("1.5 × the lowest" in line) == (word == "Overfitting")
    assert ("--steps 40" in advise(verdict, Path("run"), 20)) == (losses == [3.0, 2.0])


@pytest.mark.parametrize("lines", [0, 1, 7])
def test_report_of_an_active_run(done: Path, tmp_path: Path, lines: int) -> None:
    shutil.copytree(done, tmp_path / "r")
    records = (tmp_path / "r/metrics.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "r/metrics.jsonl").write_bytes(b"".join(records[:lines]) + b'{"kind": "tra')
    shutil.rmtree(tmp_path / "r/checkpoints")
    html = report_of(tmp_path / "r")
    assert "active or stopped" in html
    assert ("No step has been logged yet" in html) == (lines == 0)


def test_report_of_non_finite_losses(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "r")
    log = metrics_file.MetricsFile(tmp_path / "r/metrics.jsonl")
    nan = float("nan")
    log.write(
        [{"kind": "train", "step": 13, "loss": nan, "lr": 0.1, "grad_norm": nan, "skipped": 1}]
    )
    log.write(
        [
            {
                "kind": "val",
                "step": 13,
                "loss": nan,
                "macro": nan,
                "tasks": {"<b>x": {"loss": nan, "samples": 1}},
            }
        ]
    )
    log.close()
    html = report_of(tmp_path / "r")
    assert "not finite" in html
    assert "steps skipped" in html
    assert "<b>x" not in html


def test_report_with_a_damaged_checkpoint(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "r")
    (tmp_path / "r/checkpoints/step-00000012/state.json").write_text("{")
    assert "step 12 of 12" in report_of(tmp_path / "r")


def test_report_without_its_dataset(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "r")
    config = (tmp_path / "r/config.yaml").read_text()
    root = RunDir(done).settings().data.root
    (tmp_path / "r/config.yaml").write_text(config.replace(root, str(tmp_path / "gone")))
    assert "cannot be opened: " in report_of(tmp_path / "r")


def test_report_of_rollouts(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "r")
    folder = tmp_path / "r/rollouts"
    folder.mkdir()
    rate = {"successes": 3, "episodes": 4, "low": 0.301, "high": 0.954}
    result = {
        "world": "tabletop",
        "seed": 0,
        "swap_text": False,
        "success": rate,
        "took_scene": rate,
        "tasks": {"pick up <i>": rate},
        "episodes": [{"episode": 0, "told": "pick up <i>", "steps": 9, "success": True}],
        "pictures": {"0": "strip.png", "1": "not-there.png"},
    }
    Image.fromarray(np.zeros((8, 64, 3), np.uint8)).save(folder / "strip.png")
    (folder / "a.json").write_text(json.dumps(result | {"swap_text": True}))
    (folder / "b.json").write_text(json.dumps(result))
    (folder / "broken.json").write_text("{")
    (folder / "other.json").write_text("[]")
    html = report_of(tmp_path / "r")
    assert "3/4" in html
    assert "30 to 95 %" in html
    assert "<i>" not in html.split("Rollouts")[1].split("The first batch")[0].replace(
        '<i style="left', ""
    )
    assert html.index("tabletop, seed 0</h3>") < html.index("another object named")
    # the strip is cut into its eight images, twice
    assert html.split(">Rollouts<")[-1].count("<img") == 4 + 2 * 8


def test_report_without_a_run_raises(tmp_path: Path) -> None:
    with refused(tmp_path, "config.yaml", kind=ConfigError):
        write_report(tmp_path)


def test_smoothed_is_a_moving_mean() -> None:
    values = np.arange(500, dtype=float)
    smooth = smoothed(values)
    assert smooth[250] == 250
    assert smooth[0] == values[:6].mean()
    assert smooth[-1] == values[-6:].mean()
    assert smoothed(np.array([3.0])) == [3.0]


def measured(root: Path, **changes: Any) -> Profile:
    """A measurement of the run in `root`, with chosen figures."""
    memory = {"parameters": 1 << 20, "gradients": 2 << 20, "optimizer state": 3 << 20, "average": 0}
    memory |= {"activations": 4 << 20, "peak": 50 << 20}
    phases = {name: 0.001 * (number + 1) for number, name in enumerate(PHASES)}
    rank = RankProfile(0.1, 0.025, 0.2, phases, 0, 0.0, memory, flops=10**9, inputs={})
    conditions = {
        "policy": "flow",
        "parameters": 1234,
        "ranks": 1,
        "batch": 4,
        "micro_batches": 1,
        "compile": False,
    }
    conditions |= {
        "activation_checkpoint": "none",
        "precision": "fp32",
        "device": "a<b>",
        "steps": 3,
        "warmup": 1,
    }
    settings = step_settings(RunDir(root).settings()) | changes
    predicted = memory | {"peak": 45 << 20}
    return replace(combine([rank], 4, None, conditions), settings=settings, predicted=predicted)


def test_step_section_has_recorded_times_and_a_profile(done: Path, tmp_path: Path) -> None:
    """With a profile in the folder also phases and memory, predicted beside measured."""
    config = RunDir(done).settings()
    speed = series(done, "speed")
    step = f"{np.median([1e3 * 4 / record['samples_per_s'] for record in speed]):,.2f} ms"
    plain = html_of(*render_step(config, speed, tmp_path))
    assert step in plain
    assert f"understudy profile {tmp_path / 'config.yaml'} --output-dir {tmp_path}" in plain
    assert report_of(done).count(step) == 1
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(measured(done).plain()))
    shown = html_of(*render_step(config, speed, tmp_path))
    for number, name in enumerate(PHASES):
        assert f">{name}<" in shown
        assert f">{number + 1}.00 ms<" in shown
    assert all(
        f">{cell}<" in shown for cell in ("predicted", "measured", "50.00", "45.00", "-10.0%")
    )
    assert step in shown
    assert ("a&lt;b&gt;" in shown, "a<b>" in shown) == (True, False)
    assert 'class="bad"' not in shown
    path.write_text(json.dumps(measured(done, precision="bf16", batch_size=8).plain()))
    (warning,) = re.findall(
        '<p class="bad">(.*?)</p>', html_of(*render_step(config, speed, tmp_path))
    )
    assert "batch_size, precision" in warning
    for text in ("{", "[]", '{"conditions": {}, "phases": {}}', "\x00"):
        path.write_text(text)
        assert "profile.json" in html_of(*render_step(config, speed, tmp_path))
    assert render_step(config, [], tmp_path / "none") == []


def test_report_of_rollouts_during_training(done: Path, tmp_path: Path) -> None:
    from understudy_robot.background_rollouts import summarize

    shutil.copytree(done, tmp_path / "r")

    def line(step: int, successes: int) -> dict[str, object]:
        rate = {"successes": successes, "episodes": 20}
        entry = summarize(
            {
                "world": "tabletop",
                "protocol": {"sensor": "a<b>"},
                "success": rate,
                "tasks": {"<i>lift": rate, "push": rate},
            }
        )
        return {"kind": "rollout", "step": step, "at": 12, **entry}

    log = metrics_file.MetricsFile(tmp_path / "r/metrics.jsonl")
    log.write([line(12, 19), line(6, 20)])  # a later step's may be there first
    log.close()
    html = report_of(tmp_path / "r")
    assert len(charts_of(html)) == len(charts_of(report_of(done))) + 1
    assert "Success over the steps" in html
    assert "success of the weights of step 12" in html
    assert "tabletop, the weights of step 12" in html
    for text in ("19/20", "20/20", "76 to 99 %", "&lt;i&gt;lift"):
        assert text in html
    assert "<i>lift" not in html


@pytest.mark.parametrize(
    "task",
    ["</script><script>alert(1)", "$5 and _{ $6", "<b> & 瓶", "on two\nlines", "long " * 99, ""],
)
def test_charts_take_any_name_as_text(task: str) -> None:
    page = html_of(
        task_chart([{"step": step, "tasks": {task: {"loss": 1.0 / step}}} for step in (1, 2)])
    )
    [chart] = charts_of(page)
    [line] = chart["lines"]
    expected = (
        "long " * 15 + "long…" if task.startswith("long") else " ".join(task.split()) or "(no text)"
    )
    assert line["name"] == expected
    assert page.count("</script>") == 3
    assert "alert" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)
