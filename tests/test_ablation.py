"""`benchmarks/ablation.py` in a tiny size: its precisions, its output, and that finished runs are kept."""

import json
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from support import pi05_policy
from support.refusals import refused
from support.sentences import write_model
from understudy.config.train import EmaConfig, OptimConfig, ScheduleConfig, TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.policies.common.towers import attention, gemma
from understudy.policies.pi05 import network
from understudy.rollout.result import Episode, RolloutResult

pytestmark = pytest.mark.long

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def arms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("ablation_arms")


def weights_after(arms: ModuleType, arm: str, tokenizer: Path, decay: float, steps: int = 2) -> tuple[Any, Any, Any]:
    """The state of a run of some steps, and its matrices before and after."""
    base = pi05_policy.policy(tokenizer)
    config = TrainConfig(
        batch_size=4,
        device="cpu",
        optim=OptimConfig(lr=2.5e-5, weight_decay=1e-10, ema=EmaConfig(decay=decay)),
        schedule=ScheduleConfig(warmup_steps=0),
    )
    with join_mesh(config) as mesh:
        state = arms.start(arm, base, config, mesh)
        first = arms.matrices(state)
        with arms.positions_of(arm):
            for step in range(steps):
                state.train_step({**pi05_policy.batch(), "position": torch.arange(4) + 4 * step})
        return state, first, arms.matrices(state)


def test_bf16_weights_are_stored_and_updated_in_bfloat16(arms: ModuleType, tmp_path: Path) -> None:
    """Weights and moments are bfloat16 but for openpi's exceptions, and most updates are lost."""
    tokenizer = write_model(tmp_path)
    state, first, last = weights_after(arms, "bf16-weights", tokenizer, 0.99)
    for name, parameter in state.policy.named_parameters():
        kept = torch.float32 if arms.is_kept(name) else torch.bfloat16
        assert parameter.dtype == kept, name
        moments = [state.optimizer.state[parameter].get(kind) for kind in ("exp_avg", "exp_avg_sq")]
        assert {moment.dtype for moment in moments if moment is not None} <= {kept}, name
    names = {name for name, _ in state.policy.named_parameters()}
    assert {"vision.patch.weight", "layers.0.expert.input_layernorm.dense.weight", "time_mlp_in.bias"} <= names - set(
        first
    )
    assert {"embedding.weight", "vision.layers.0.layer_norm1.weight", "layers.0.vlm.mlp.up_proj.weight"} <= set(first)
    lost = arms.changed(first, last, arms.trained(state))
    assert all(average.dtype == torch.float32 for average in state.average.parameters())
    state, first, last = weights_after(arms, "fp32-truth", tokenizer, 0.99)
    assert lost < 0.3 < 0.99 < arms.changed(first, last, arms.trained(state))
    assert 0 < arms.distance(first, last, arms.trained(state)) < 1e-3


@pytest.mark.parametrize("arm", ["bf16-weights", "fp32-truth"])
def test_moving_average_does_not_influence_the_weights(arms: ModuleType, tmp_path: Path, arm: str) -> None:
    tokenizer = write_model(tmp_path)
    with_average, _, one = weights_after(arms, arm, tokenizer, 0.99)
    _, _, two = weights_after(arms, arm, tokenizer, 0.0)
    assert all(torch.equal(one[name], two[name]) for name in two)
    average = dict(with_average.average.named_parameters())
    assert any(not torch.equal(average[name], one[name]) for name in one)


def test_bf16_rope_changes_positions_and_times_inside_its_block_only(arms: ModuleType) -> None:
    before = attention.rotary, network.time_features, gemma.rotate
    positions, x = torch.tensor([[0, 60]]), torch.randn(1, 1, 2, 24, generator=torch.Generator().manual_seed(0))
    times = torch.tensor([0.3, 0.9])
    exact = gemma.rotate(x, attention.rotary(positions, 24)), network.time_features(times, 48)
    for arm, same in (("fp32-truth", True), ("bf16-rope", False)):
        with arms.positions_of(arm):
            found = gemma.rotate(x, attention.rotary(positions, 24)), network.time_features(times, 48)
        assert [torch.equal(a, b) for a, b in zip(exact, found)] == [same, same]
    rotated = found[0]
    assert rotated.dtype == torch.float32
    assert torch.allclose(rotated[:, :, 0], x[:, :, 0], rtol=1e-2)  # position 0 is not rotated
    assert (rotated - exact[0]).norm() < 0.2 * exact[0].norm()  # rounded, not another formula
    assert (attention.rotary, network.time_features, gemma.rotate) == before


def test_bf16_rope_reaches_the_network(arms: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step calls each replaced function: none has moved to another module."""
    called = set()

    def noted(name: str, own: Any) -> Any:
        def call(*arguments: Any) -> Any:
            called.add(name)
            return own(*arguments)

        return call

    for name in ("rotary_bf16", "rotate_bf16", "time_features_bf16"):
        monkeypatch.setattr(arms, name, noted(name, getattr(arms, name)))
    weights_after(arms, "bf16-rope", write_model(tmp_path), 0.0, steps=1)
    assert called == {"rotary_bf16", "rotate_bf16", "time_features_bf16"}


def test_ablation_reports_every_cell_and_keeps_finished_runs(
    arms: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mujoco")
    module = import_module("ablation")
    sizes = {"episodes": 4, "new-episodes": 4, "base-steps": 2, "steps": 2, "batch-size": 4, "val-fraction": 0.25}
    arguments = [part for name, size in sizes.items() for part in (f"--{name}", str(size))]
    arguments += ["--rollouts", "0", "--seeds", "5", "--out", str(tmp_path), "--json"]
    monkeypatch.setattr(module, "WATCH", 2)
    module.main([*arguments, "--arms", "fp32-truth", "--orders", "clips"])
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 2  # last weights and average
    module.main(arguments)
    found = json.loads(capsys.readouterr().out)
    rows = {(row["arm"], row["order"], row["weights"]): row for row in found["rows"]}
    assert len(rows) == len(found["rows"]) == 3 * 2 * 2
    for row in found["rows"]:
        assert row["val_loss"]["mean"] > 0
        assert row["val_loss"]["half"] is None  # of one seed
        apart = [row[f"minus_{level}"]["mean"] != 0 for level in ("fp32-truth", "clips", "last")]
        assert apart == [row["arm"] != "fp32-truth", row["order"] != "clips", row["weights"] != "last"]
        assert (row["moved"] > 0.99) == (row["arm"] != "bf16-weights")
    assert rows["fp32-truth", "clips", "last"]["val_loss"] != rows["fp32-truth", "sequential", "last"]["val_loss"]
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len({(run["arm"], run["order"], run["seed"]) for run in lines}) == len(lines) == 6
    monkeypatch.setattr(module, "fine_tune", lambda *key: pytest.fail("a finished run is not run again"))
    module.main(arguments)
    assert json.loads(capsys.readouterr().out) == found
    with refused("--out", kind=SystemExit):
        module.main([*arguments, "--steps", "3"])


def test_intervals_are_students(arms: ModuleType) -> None:
    interval = import_module("ablation").interval
    assert interval([1.0, 2.0, 3.0]) == {"mean": 2.0, "half": pytest.approx(4.303 / 3**0.5)}
    assert interval([2.0]) == {"mean": 2.0, "half": None}


def test_success_is_that_of_the_asked_color(arms: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """All scenes ask for the color, and only episodes that lift it count."""
    pytest.importorskip("mujoco")
    module = import_module("ablation")
    asked: list[tuple[str, ...]] = []

    def played(policy: Any, worlds: Any, episodes: int, seed: int, steps: int) -> RolloutResult:
        asked.extend(world.tasks for world in worlds)
        blue, red = (f"pick up the {color} block" for color in ("blue", "red"))
        taken = [blue, red, None]
        done = tuple(Episode(number, number, blue, blue, taken[number], 9) for number in range(episodes))
        return RolloutResult("tabletop", seed, 4, steps, False, done)

    monkeypatch.setattr(module, "rollout", played)
    assert module.successes(object(), "blue", 3) == 1
    assert asked == [("pick up the blue block",)] * 3
