"""`understudy demo`: its plan, the files it may delete, and its comparison. `make demo` runs all of
it.
"""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from understudy.optim.lr_schedule import lr_factor
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint.run_dir import RECORDED, RunDir
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import override
from understudy_robot.cli.demo import (
    DemoConfig,
    clear_folder,
    compare_runs,
    kill_at_step,
    shortened,
    training,
    write_settings,
)


@pytest.mark.parametrize("steps", [20, 25, 137, 2500])
def test_training_keeps_the_checkpoint_to_compare(steps: int) -> None:
    plan = training(DemoConfig(steps=steps))
    every = plan.checkpoint.every
    saved = [*range(every, steps + 1, every), *([steps] if steps % every else [])]
    assert 6 * every in saved[-plan.checkpoint.keep_last :]
    assert steps * 0.4 <= every * 26 // 5 < 6 * every
    assert plan.schedule.decay_steps in (None, steps)


def test_the_shorter_training_takes_the_same_steps(tmp_path: Path) -> None:
    plan = training(DemoConfig(output_dir=str(tmp_path), steps=200))
    short = shortened(plan, tmp_path / "never-stopped", 120)
    assert short.steps == 120
    for step in range(120):
        rates = [lr_factor(step, config.schedule, config.steps) for config in (plan, short)]
        assert rates[0] == rates[1], step
    assert short.optim == plan.optim


def test_clear_folder_removes_its_own_files_only(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    clear_folder(out)
    (out / "run").mkdir()
    (out / "run/x").write_text("old")
    (out / "mine.txt").write_text("mine")
    clear_folder(out)
    assert sorted(path.name for path in out.iterdir()) == [".understudy-demo", "mine.txt"]
    (tmp_path / "data/dataset").mkdir(parents=True)
    with refused(tmp_path / "data/dataset", "--output-dir", kind=ConfigError):
        clear_folder(tmp_path / "data")
    assert (tmp_path / "data/dataset").exists()


@pytest.mark.parametrize("name", ["dataset", "run.yaml", "never-stopped.log"])
def test_clear_folder_refuses_files_of_its_names(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match=name):
        clear_folder(tmp_path)
    assert (tmp_path / name).read_text() == "mine"


def test_clear_folder_refuses_a_run_that_was_trained_further(tmp_path: Path) -> None:
    clear_folder(tmp_path)
    plan = training(DemoConfig(output_dir=str(tmp_path)))
    write_settings(plan, tmp_path)
    decided = {name: {} for name in RECORDED - {"format"}}
    RunDir(tmp_path / "run").begin(plan, decided)
    clear_folder(tmp_path)
    assert not (tmp_path / "run").exists()
    RunDir(tmp_path / "run").begin(replace(plan, steps=100_000), decided)
    with pytest.raises(ConfigError, match="run"):
        clear_folder(tmp_path)
    assert (tmp_path / "run/config.yaml").is_file()


@pytest.mark.long
def test_compare_runs_finds_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tiny_config(tiny_dataset(tmp_path / "d"), tmp_path / "a", val={"every": 0})
    run.train(config)
    run.train(override(config, output_dir=str(tmp_path / "b"), log={"every": 1}))
    assert compare_runs(tmp_path / "a", tmp_path / "b", 6, 12)
    assert "of 12 steps 0 differ" in capsys.readouterr().out

    lines = (tmp_path / "b/metrics.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(tmp_path / "b", tmp_path / "shorter")
    (tmp_path / "shorter/metrics.jsonl").write_text("".join(lines[:-3]))
    assert not compare_runs(tmp_path / "a", tmp_path / "shorter", 6, 12)
    run.train(replace(config, output_dir=str(tmp_path / "c"), seed=8))
    assert not compare_runs(tmp_path / "a", tmp_path / "c", 6, 12)
    # the weights alone differ
    shutil.copytree(tmp_path / "a/checkpoints", tmp_path / "e/checkpoints")
    shutil.rmtree(tmp_path / "e/checkpoints/step-00000012")
    shutil.copytree(
        tmp_path / "c/checkpoints/step-00000012", tmp_path / "e/checkpoints/step-00000012"
    )
    shutil.copy(tmp_path / "a/metrics.jsonl", tmp_path / "e/metrics.jsonl")
    assert not compare_runs(tmp_path / "a", tmp_path / "e", 6, 12)


def test_kill_at_step_raises_if_the_training_ends_before(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with refused(3, kind=RuntimeError):
        kill_at_step(ended, tmp_path, 5, 6)
