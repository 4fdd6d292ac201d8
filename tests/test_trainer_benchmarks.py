"""Benchmarks of precision, order, mixtures, validation, words and futures, in a tiny size: output, not figures."""

import functools
import importlib.util
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from understudy.cli.main import main as understudy

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_precision_reports_bytes_times_losses_and_moved_weights(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = benchmark("precision")
    monkeypatch.setitem(module.SIZES, "cpu", module.Size(64, 2, 4))
    monkeypatch.setattr(module, "word_mismatches", lambda device: 0)  # 2^26 words: seconds
    monkeypatch.setattr(module, "master_mismatches", functools.partial(module.master_mismatches, steps=30))
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit):
        module.main(["--device", "cuda"])
    assert "no CUDA device" in capsys.readouterr().err
    module.main(["--json", "--seeds", "1", "--steps", "30", "--rounds", "3", "--no-compile"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["variants"]) == {"fp32", "autocast", "split", "masters", "bf16"}
    for variant in found["variants"].values():
        assert {"bytes_per_param", "step_ms", "val_loss", "weights_moved"} <= set(variant)
    stored = {name: round(variant["bytes_per_param"], 1) for name, variant in found["variants"].items()}
    assert stored == {"fp32": 16.0, "autocast": 16.0, "split": 14.0, "masters": 16.0, "bf16": 8.0}
    assert found["variants"]["bf16"]["weights_moved"] < 0.5 < 0.99 < found["variants"]["split"]["weights_moved"]
    assert found["master_mismatches"] == 0


def test_collapse_trains_all_four_and_keeps_finished_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    module = benchmark("collapse")
    sizes = {"episodes": 12, "steps": 8, "base-steps": 8, "tune-steps": 6, "rollouts": 1, "seeds": 0}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    arguments += ["--json", "--out", str(tmp_path / "runs"), "--figures", str(tmp_path / "figures")]
    module.main(arguments)
    found = json.loads(capsys.readouterr().out)
    assert set(found["order"]) == {"sequential", "shuffled"}
    for row in found["order"].values():
        assert {"distinct_episodes_per_batch", "grad_norm_median_last", "val_loss", "success"} <= set(row)
    sequential, shuffled = (found["order"][name]["distinct_episodes_per_batch"] for name in found["order"])
    assert sequential < shuffled
    assert set(found["precision"]) == {"bf16", "fp32_truth"}
    for row in found["precision"].values():
        assert {"weights_moved", "val_loss", "success"} <= set(row)
    assert found["precision"]["bf16"]["weights_moved"] < 0.5 < 0.99 < found["precision"]["fp32_truth"]["weights_moved"]
    assert {path.name for path in (tmp_path / "figures").iterdir()} == {
        "collapse-order.png",
        "collapse-precision.png",
    }
    monkeypatch.setattr(module, "train", lambda config: pytest.fail("a finished run is not run again"))
    module.main(arguments)
    assert json.loads(capsys.readouterr().out) == found


def test_collapse_pure_adamw_steps_in_bfloat16() -> None:
    """Weights and moments are bfloat16, and a step can be skipped, as with the trainer's optimizer."""
    module = benchmark("collapse")
    p = nn.Parameter(torch.ones(8, dtype=torch.bfloat16))
    optimizer = module.PureAdamW([p], lr=1e-2, fused=True)
    p.grad = torch.ones_like(p)
    optimizer.step(scale=torch.tensor(0.5), skip=torch.ones(()))
    assert torch.equal(p.detach(), torch.ones(8, dtype=torch.bfloat16))
    optimizer.step(scale=torch.tensor(0.5), skip=torch.zeros(()))
    assert not torch.equal(p.detach(), torch.ones(8, dtype=torch.bfloat16))
    assert {optimizer.state[p][kind].dtype for kind in ("exp_avg", "exp_avg_sq")} == {torch.bfloat16}


def test_mt10_reports_loss_and_success_of_each_task_and_keeps_finished_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("metaworld", reason="the extra `sim` is not installed")
    module = benchmark("mt10")
    tasks = ("reach-v3", "drawer-close-v3")
    small = {"batch": 4, "data": {"chunk": 4}, "policy": {"width": 16, "layers": 1}}
    monkeypatch.setitem(module.POLICIES, "state", {**module.POLICIES["state"], "tasks": tasks, "train": small})
    sizes = {"episodes": 3, "steps": 2, "rollouts": 1, "seeds": 5, "inputs": "state", "out": tmp_path}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    module.main([*arguments, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert list(found["state"]["tasks"]) == list(tasks)
    for task, row in found["state"]["tasks"].items():
        assert row["weight"] == module.WEIGHTS[task]
        assert (row["episodes"], len(row["successes_per_seed"])) == (1, 1)
        assert row["loss"] > 0
        assert row["se"] is None  # of one validation episode
        assert row["low"] <= row["success"] <= row["high"]
    assert found["conditions"]["seeds"] == [5]
    order = json.loads((tmp_path / "state/seed5/run/order.json").read_text())
    assert [source["head"] for source in order["sources"]] == ["metaworld::ee_delta"] * 2
    assert order["policy"]["state_dim"] == 39  # the key that each source maps; the rollout finds it, too
    monkeypatch.setattr(module, "understudy", lambda command: 1)
    module.main(arguments)
    assert "| reach | 1 | " in capsys.readouterr().out


def test_validation_compares_many_sources_with_a_loader_each(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark("validation").main(["--json", "--sources", "3", "--rounds", "1", "--no-workers"])
    found = json.loads(capsys.readouterr().out)
    assert set(found["seconds"]) == {"one", "many", "loader_each"}
    assert found["seconds"]["many"]["loss"] == pytest.approx(found["seconds"]["loader_each"]["loss"], rel=1e-5)
    assert {"wall_met", "cpu_met", "limit"} == set(found["bar"])
    assert found["conditions"]["held_out_frames"] > 3


def in_this_process(log: Path, *arguments: str) -> dict[str, float]:
    """Run a command as the benchmarks do, without a process of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as file, redirect_stdout(file), redirect_stderr(file):
        assert understudy(arguments) == 0
    return {"wall_s": 1.0, "cpu_s": 1.0, "peak_bytes": 1}


@pytest.mark.long
def test_pi05_tabletop_trains_fine_tunes_and_keeps_finished_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    module = benchmark("pi05_tabletop")

    monkeypatch.setattr(module, "command", in_this_process)
    monkeypatch.setattr(module, "STAGES", module.STAGES[1:3])  # the prompt changes between these two
    sizes = {"episodes": 6, "share": 0.0005, "rollouts": 1, "seeds": 5, "tune-episodes": 4, "tune-steps": 2, "rank": 2}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    arguments += ["--json", "--lora", "--out", str(tmp_path)]
    module.main(arguments)
    found = json.loads(capsys.readouterr().out)
    full, lora = found["lora"]["full"], found["lora"]["lora"]
    assert full["trained_parameters"] == full["parameters"] == found["words"]["parameters"]
    assert lora["parameters"] == full["parameters"] + lora["trained_parameters"]
    assert 8 * lora["trained_parameters"] <= lora["optimizer_bytes"] < full["optimizer_bytes"] / 4
    assert {kind: found["words"][kind]["episodes"] for kind in ("plain", "swapped")} == {"plain": 1, "swapped": 1}
    loss = found["words"]["loss"]
    assert loss["own"] != loss["swapped"]
    assert loss["own"] == pytest.approx(loss["swapped"], rel=0.1)  # a few steps have learned no word
    monkeypatch.setattr(module, "command", lambda *arguments: pytest.fail("a finished part is not run again"))
    module.main(arguments)
    assert json.loads(capsys.readouterr().out) == found
    here, moved = (make().reset(7, "pick up the red block") for make in (module.TabletopEnv, module.MovedCamera))
    assert np.array_equal(here["observation.state"], moved["observation.state"])
    assert (here["observation.images.front"] != moved["observation.images.front"]).mean() > 0.05


@pytest.mark.long
def test_memory_compares_both_arms_and_keeps_finished_parts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    module = benchmark("memory")

    monkeypatch.setattr(module, "command", in_this_process)
    rows = [{"history": n, "decode_ratio": 1 + n / 10, "samples_per_s": 100 / n} for n in (1, 6)]
    (tmp_path / "loader.json").write_text(json.dumps(rows))
    sizes = {"episodes": 8, "steps": 2, "rollouts": 4, "seeds": 3}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    arguments += ["--json", "--out", str(tmp_path)]
    module.main(arguments)
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert "parts left" in printed.err
    assert found["decode_ratio_history6"] == 1.6
    losses = []
    for arm in ("with_memory", "without"):
        successes, episodes = found[arm]
        taken = json.loads((tmp_path / f"{arm}-3.rollout.json").read_text())["taken"]
        assert (successes, episodes) == (taken.count("move to the pad that was lit"), 4)
        losses.append(found["arms"][arm]["runs"][0]["train_loss"])
    assert losses[0] != losses[1]  # the same weights and samples, and other frames
    assert losses[0] == pytest.approx(losses[1], rel=0.2)
    monkeypatch.setattr(module, "command", lambda *arguments: pytest.fail("a finished part is not run again"))
    module.main(arguments)
    assert json.loads(capsys.readouterr().out) == found


@pytest.mark.long
def test_world_action_compares_both_arms_and_keeps_finished_parts(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    monkeypatch.syspath_prepend(BENCHMARKS)  # its neighbours `memory` and `world_action_futures`
    module = benchmark("world_action")

    monkeypatch.setattr(module, "command", in_this_process)
    sizes = {"episodes": 4, "steps": 2, "batch-size": 4, "seeds": 5}
    sizes |= {"rollouts": 1, "frames": 2, "chunks": 1, "scenes": 0}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    arguments += ["--json", "--out", str(tmp_path)]
    module.main(arguments)
    found = json.loads(capsys.readouterr().out)
    assert set(found["success"]) == {"policy", "joint"}
    for arm, (successes, episodes) in found["success"].items():
        rollouts = json.loads((tmp_path / f"{arm}-5/rollouts/tabletop-seed5.json").read_text())["success"]
        assert (successes, episodes) == (rollouts["successes"], 1)
    futures = json.loads((tmp_path / "joint-5.imagine.json").read_text())
    for name in ("psnr_model", "psnr_copy", "inverse_mse", "policy_mse"):
        assert found[name] == futures[name] > 0
    assert found["inverse_mse"] != found["policy_mse"]  # the future is given to one of them alone
    assert found["psnr_model"] != found["psnr_copy"]
    monkeypatch.setattr(module, "command", lambda *arguments: pytest.fail("a finished part is not run again"))
    module.main(arguments)
    assert json.loads(capsys.readouterr().out) == found
