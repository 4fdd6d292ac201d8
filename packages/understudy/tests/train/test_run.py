"""The run: the same settings give the same bits, whatever stops it, whatever else it does on the
way.
"""

import gc
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from understudy.distributed import mesh as parallel
from understudy.optim.lr_schedule import lr_factor
from understudy.policies.flow.model import FlowPolicy
from understudy.testing import resumed
from understudy.testing.runs import final_tensors, same_run, series, tiny_config, trained_run
from understudy.testing.validated import evaluate_all
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data import run_data
from understudy.train.data.run_data import open_data
from understudy.train.validation.validation_loss import read_validation_data
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.load.loader import Loader
from understudy_data.testing.datasets import edit_json
from understudy_kit import override


@pytest.fixture(scope="module")
def whole(data: Path) -> Path:
    """A run that was never stopped."""
    return trained_run(data.parent / "whole")


def test_train_that_cannot_start_leaves_no_run(data: Path, tmp_path: Path) -> None:
    config = tiny_config(data, tmp_path / "r", steps=2)
    with pytest.raises(ConfigError, match="nothing"):
        run.train(replace(config, optim=replace(config.optim, freeze=("nothing.*",))))
    assert run.train(config) == run.DONE
    # One that did begin stays one, whatever is asked.
    with refused(tmp_path / "r", "--output-dir", kind=ConfigError):
        run.train(config)
    with refused(tmp_path / "r", "--output-dir", kind=ConfigError):
        run.train(override(config, log={"trackers": ("wandb",)}))


def test_an_error_before_the_first_step_leaves_no_folder(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(data, tmp_path / "r", steps=2, val={"every": 0})
    monkeypatch.setattr(FlowPolicy, "blocks", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.train(config)
    assert not (tmp_path / "r").exists()
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "notes.txt").write_text("mine")
    with pytest.raises(ZeroDivisionError):
        run.train(config)
    assert (tmp_path / "r" / "notes.txt").read_text() == "mine"
    monkeypatch.undo()
    assert run.train(config) == run.DONE


def test_an_error_after_the_first_step_leaves_the_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(
        data, tmp_path / "r", steps=6, val={"every": 4}, log={"every": 1}, checkpoint={"every": 6}
    )
    monkeypatch.setattr(FlowPolicy, "act", lambda *_, **__: 1 / 0)  # the first validation acts
    with pytest.raises(ZeroDivisionError):
        run.train(config)
    assert len(series(tmp_path / "r")) >= 3
    monkeypatch.undo()
    assert run.resume(config) == run.DONE


def test_trackers_are_checked_before_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny_config(tmp_path / "no such dataset", tmp_path / "r", log={"trackers": ("wandb",)})
    monkeypatch.setitem(sys.modules, "wandb", None)
    with refused("log.trackers", "wandb", kind=ConfigError):
        run.train(config)
    assert not (tmp_path / "r").exists()


@pytest.mark.long
def test_wandb_without_a_login_is_refused_before_the_data(tmp_path: Path) -> None:
    flags = [
        "--data.root",
        str(tmp_path / "none"),
        "--output-dir",
        str(tmp_path / "r"),
        "--log.trackers",
        "wandb",
    ]
    found = subprocess.run(
        [sys.executable, "-m", "understudy", "train", *flags],
        env={**os.environ, "HOME": str(tmp_path), "WANDB_MODE": "online", "WANDB_API_KEY": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, "log.trackers: wandb" in found.stderr) == (2, True), found.stderr
    assert not (tmp_path / "r").exists()


def test_objects_that_the_program_froze_stay_frozen() -> None:
    gc.unfreeze()
    with run.RareCollection() as collection:
        collection.keep_data()
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with run.RareCollection() as collection:
        collection.keep_data()
    assert gc.get_freeze_count() > 0


def test_train_writes_all_files(whole: Path) -> None:
    assert [r["step"] for r in series(whole)] == list(range(1, 13))
    assert [r["step"] for r in series(whole, "val")] == [5, 10, 12]
    assert checkpoint.list_steps(whole / "checkpoints") == [8, 12]
    assert sorted(p.name for p in whole.iterdir() if not p.name.startswith(".")) == [
        "checkpoints",
        "config.yaml",
        "frames.parquet",
        "metrics.jsonl",
        "order.json",
        "policy",
        "validation",
    ]
    assert RunDir(whole).settings().schedule.warmup_steps == 3  # resolved
    # the end of the run, also of a longer one
    assert RunDir(whole).settings().schedule.decay_steps is None


@pytest.mark.parametrize(
    "changes",
    [
        {
            "loader": {"num_threads": 3},
            "log": {"every": 1},
            "checkpoint": {"every": 5, "keep_last": 1},
        },
        # As chosen where the images fit the memory.
        {
            "loader": {"memory": "1100KB"},
            "data": {"shuffle": "uniform"},
            "checkpoint": {"every": 12},
        },
        {"val": {"every": 1}, "checkpoint": {"every": 12}},
        {"val": {"every": 0}, "checkpoint": {"every": 12}},
    ],
)
def test_train_is_deterministic(
    whole: Path, data: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    run.train(override(tiny_config(data, tmp_path / "r"), **changes))
    assert torch.equal(torch.get_rng_state(), before), "a run leaves the global generator alone"
    assert series(tmp_path / "r") == series(whole)
    one = final_tensors(whole)
    two = final_tensors(tmp_path / "r")
    assert all(torch.equal(one[name], two[name]) for name in one)
    vals = {r["step"]: r for r in series(tmp_path / "r", "val")}
    assert all(vals[r["step"]] == r for r in series(whole, "val") if r["step"] in vals)


def test_train_validates_and_exports_the_average(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "r"
    config = tiny_config(data, out, steps=5, checkpoint={"every": 1, "keep_last": 5})
    run.train(config)
    assert [r["lr"] for r in series(out)] == pytest.approx(
        [3e-3 * f for f in (1 / 3, 2 / 3, 1, 1, 0.5)]
    )
    tensors = [
        checkpoint.read_tensors(out / f"checkpoints/step-{step:08d}") for step in range(1, 6)
    ]
    averaged = [name.removeprefix("average/") for name in tensors[0] if name.startswith("average/")]
    assert averaged
    for step, (before, now) in enumerate(pairwise(tensors), start=2):
        decay = min(0.9, (1 + step) / (10 + step))
        for name in averaged:
            expected = decay * before[f"average/{name}"] + (1 - decay) * now[f"weights/{name}"]
            torch.testing.assert_close(now[f"average/{name}"], expected)
    policy = FlowPolicy.load(out / "policy")
    assert all(
        torch.equal(tensor, tensors[-1][f"average/{name}"])
        for name, tensor in policy.state_dict().items()
    )
    held = read_validation_data(config, open_data(config))
    assert held is not None
    with parallel.join_mesh(config.mesh) as mesh:
        again = evaluate_all(policy, held, config.seed, mesh, every=config.val.open_loop_every)
    assert series(out, "val")[-1] == {"kind": "val", "step": 5, **again}


@pytest.mark.parametrize(
    ("step", "number"),
    [
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.long),
        pytest.param(4, signal.SIGINT, marks=pytest.mark.long),
        (7, signal.SIGUSR1),
    ],
)
def test_resume_continues_after_a_signal(
    whole: Path, data: Path, tmp_path: Path, step: int, number: signal.Signals
) -> None:
    config = tiny_config(data, tmp_path / "r")
    handler = signal.getsignal(number)
    with resumed.watched(tmp_path / "r", {step: resumed.send(number)}):
        assert run.train(config) == run.STOPPED
    assert signal.getsignal(number) is handler  # as it was before
    assert checkpoint.list_steps(tmp_path / "r/checkpoints")[-1] == step
    assert not (tmp_path / "r/policy").exists()
    assert run.resume(RunDir(tmp_path / "r").settings()) == run.DONE
    same_run(whole, tmp_path / "r")


def test_resume_of_a_finished_run_changes_nothing(whole: Path, data: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "copy")
    shutil.rmtree(tmp_path / "copy/policy")  # killed before it was written
    assert run.resume(RunDir(tmp_path / "copy").settings()) == run.DONE
    same_run(whole, tmp_path / "copy")


def test_resume_with_more_steps_keeps_a_decay_that_was_set(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = tiny_config(data, tmp_path / "a", schedule={"decay_steps": 6})
    run.train(replace(base, steps=6))
    run.resume(override(RunDir(tmp_path / "a").settings(), steps=12))
    assert "steps: 6 -> 12" in capsys.readouterr().err
    run.train(replace(base, output_dir=str(tmp_path / "b")))
    assert series(tmp_path / "a") == series(tmp_path / "b")
    assert RunDir(tmp_path / "a").settings().steps == 12


def rates(root: Path) -> list[float]:
    return [record["lr"] for record in series(root)]


@pytest.mark.long
def test_resume_with_more_steps_stretches_the_decay_after_a_warm_up(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = tiny_config(data, tmp_path / "a", val={"every": 0})
    run.train(ended)
    run.resume(override(RunDir(tmp_path / "a").settings(), steps=24))
    assert "more than tenfold: 3 steps of warm-up" in capsys.readouterr().err
    curve = [3e-3 * lr_factor(step, ended.schedule, 24) for step in range(24)]
    found = rates(tmp_path / "a")
    assert found[:12] == [3e-3 * lr_factor(step, ended.schedule, 12) for step in range(12)]
    assert found[12:15] == pytest.approx([curve[12] / 3, curve[13] * 2 / 3, curve[14]])
    assert found[15:] == pytest.approx(curve[15:])
    assert min(found[12:]) > 0
    # A resume without a change goes on to the bit, also behind the second warm-up.
    tensors = final_tensors(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    run.train(ended)
    with resumed.watched(tmp_path / "a", {14: resumed.send(signal.SIGTERM)}):
        assert run.resume(override(RunDir(tmp_path / "a").settings(), steps=24)) == run.STOPPED
    assert run.resume(RunDir(tmp_path / "a").settings()) == run.DONE
    assert rates(tmp_path / "a") == found
    again = final_tensors(tmp_path / "a")
    assert all(torch.equal(value, again[name]) for name, value in tensors.items())


def test_resume_with_a_few_more_steps_joins_the_stretched_decay_at_once(
    data: Path, tmp_path: Path
) -> None:
    base = tiny_config(data, tmp_path / "a", steps=20, checkpoint={"every": 8}, val={"every": 0})
    with resumed.watched(tmp_path / "a", {8: resumed.send(signal.SIGTERM)}):
        assert run.train(base) == run.STOPPED
    assert run.resume(override(RunDir(tmp_path / "a").settings(), steps=24)) == run.DONE
    longer = [3e-3 * lr_factor(step, base.schedule, 24) for step in range(24)]
    assert rates(tmp_path / "a")[8:] == longer[8:]
    assert RunDir(tmp_path / "a").settings().schedule.warmup_from == 0


@pytest.mark.parametrize("content", [None, "{", "[]", "{}"])
def test_resume_refuses_a_damaged_order(whole: Path, tmp_path: Path, content: str | None) -> None:
    shutil.copytree(whole, tmp_path / "r")
    path = tmp_path / "r/order.json"
    path.unlink() if content is None else path.write_text(content)
    for use in (
        lambda: run.resume(RunDir(tmp_path / "r").settings()),
        lambda: run.evaluate_checkpoint(tmp_path / "r"),
    ):
        with pytest.raises(ConfigError, match=r"order\.json"):
            use()


def test_resume_refuses_an_order_of_other_data(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole, tmp_path / "r")
    path = tmp_path / "r/order.json"
    edit_json(path, lambda frozen: frozen["order"]["sources"][0].update(data="another"))
    with pytest.raises(ConfigError, match=r"order\.json"):
        run.resume(RunDir(tmp_path / "r").settings())


def test_resume_accepts_a_moved_dataset_and_other_statistics_and_refuses_other_features(
    data: Path, whole: Path, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "r")
    shutil.copytree(data, tmp_path / "moved")
    config = RunDir(tmp_path / "r").settings()
    config = replace(config, data=replace(config.data, root=str(tmp_path / "moved")))
    assert run.resume(config) == run.DONE
    edit_json(
        tmp_path / "moved/meta/stats.json", lambda stats: stats["action"].update(mean=[9.0, 9.0])
    )
    assert run.resume(config) == run.DONE  # the run keeps its own
    edit_json(tmp_path / "moved/meta/info.json", lambda info: info.update(fps=info["fps"] + 1))
    with refused(tmp_path / "r", "fps", kind=ConfigError):
        run.resume(config)


def test_resume_refuses_a_missing_run(data: Path, tmp_path: Path) -> None:
    with refused(tmp_path / "none", "config.yaml", kind=ConfigError):
        run.resume(tiny_config(data, tmp_path / "none"))
    assert not (tmp_path / "none").exists()


def test_train_depends_on_order_and_augmentation(whole: Path, data: Path, tmp_path: Path) -> None:
    """The negative control of bit-equality: each of these reaches the training."""
    base = tiny_config(data, tmp_path / "x", steps=3, val={"every": 0}, log={"report": False})
    base = replace(base, schedule=replace(base.schedule, decay_steps=12))
    variants = {
        "seed": replace(base, seed=8),
        "order": replace(base, data=replace(base.data, shuffle="sequential")),
        "shift": replace(base, augment=replace(base.augment, shift=0)),
        "text": replace(base, augment=replace(base.augment, text_dropout=0.9)),
        "draws": replace(base, policy=replace(base.policy, noise_samples=1)),
        "normalize": replace(base, data=replace(base.data, normalize="min_max")),
    }
    for name, config in variants.items():
        run.train(replace(config, output_dir=str(tmp_path / name)))
        assert series(tmp_path / name) != series(whole)[:3], name
    run.train(replace(base, output_dir=str(tmp_path / "same")))
    assert series(tmp_path / "same") == series(whole)[:3]


def test_train_without_validation_episodes(data: Path, tmp_path: Path) -> None:
    base = tiny_config(data, tmp_path / "r", steps=2)
    run.train(replace(base, data=replace(base.data, val_fraction=0.0)))
    assert series(tmp_path / "r", "val") == []
    with refused("data.val_fraction", 0, kind=ConfigError):
        run.evaluate_checkpoint(tmp_path / "r")


def test_train_handles_bad_frames_as_configured(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[dict[str, Any]] = []

    def noted(*arguments: Any, **options: Any) -> Loader:
        made.append(options)
        return Loader(*arguments, **options)

    monkeypatch.setattr(run_data, "Loader", noted)
    monkeypatch.setattr(Loader, "substitutions", ("one", "another"))
    base = tiny_config(data, tmp_path / "r", steps=1, val={"every": 0})
    run.train(replace(base, data=replace(base.data, on_bad_frame="substitute")))
    assert made[0]["on_bad_frame"] == "substitute"
    assert made[0]["journal"] == tmp_path / "r/substitutions-0.jsonl"
    assert (
        f"2 samples could not be read and were substituted: {made[0]['journal']}"
        in capsys.readouterr().err
    )


def test_train_refuses_too_little_memory(data: Path, tmp_path: Path) -> None:
    with refused("memory", 20000, 4, kind=ConfigError):
        run.train(tiny_config(data, tmp_path / "r", loader={"memory": "20KB"}))
    assert not (tmp_path / "r/config.yaml").exists()
