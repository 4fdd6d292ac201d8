"""Validation in a run over a mixture: it disturbs nothing, names the best checkpoint, is repeated
later to the bit.
"""

import shutil
import sys
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from understudy.config.train import ParallelConfig
from understudy.distributed import mesh as parallel
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.mixtures import mixed, tiny_sources
from understudy.testing.runs import final_tensors, series
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.checkpoint import Saver
from understudy.train.checkpoint.export import find_checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track import metrics_file
from understudy.train.validation.metrics import PLAIN, best_metrics
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import TASKS, edit_json
from understudy_kit import SourceConfig, dump_yaml, override


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[SourceConfig, ...]:
    return tiny_sources(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def done(sources: tuple[SourceConfig, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Validated at steps 2, 4, ... 8 of 8; the training is made so rough that the last is not the
    best.
    """
    out = tmp_path_factory.mktemp("done") / "r"
    base = mixed(
        sources,
        out,
        steps=8,
        val={"every": 2, "open_loop_every": 3},
        checkpoint={"every": 8, "keep_last": 1},
    )
    run.train(
        override(base, checkpoint={"keep_best": "source:two"}, optim=replace(base.optim, lr=0.3))
    )
    return out


@pytest.mark.long
def test_keep_best_by_a_named_figure(done: Path) -> None:
    records = {record["step"]: record for record in series(done, "val")}
    assert sorted(records) == [2, 4, 6, 8]
    of_source = {step: record["sources"]["two"]["loss"] for step, record in records.items()}
    best = min(of_source, key=lambda step: of_source[step])
    assert best != 8, "the test is empty: the last checkpoint is kept anyway"
    assert checkpoint.list_steps(done / "checkpoints") == [8]
    assert checkpoint.list_best(done / "checkpoints") == [best]
    state = checkpoint.read_state(done / f"checkpoints/best-{best:08d}")
    assert state["judged"] == best_metrics(records[best])
    assert {
        "loss",
        "macro",
        "weighted",
        "head:arm::joint",
        "source:two",
        "task:task 0",
        "open_loop",
    } <= set(state["judged"])


def test_best_checkpoint_uses_the_named_figure(tmp_path: Path) -> None:
    for step, loss, hard in ((1, 1.0, 3.0), (2, 2.0, 1.0), (3, 3.0, 2.0)):
        judged = {"loss": loss, "task:hard": hard}
        checkpoint.save(tmp_path, step, {"weights/a": torch.ones(1)}, {"judged": judged})
    found = {
        metric: find_checkpoint(tmp_path, "best", metric).name
        for metric in ("none", "loss", "task:hard")
    }
    assert found == {"none": "step-00000001", "loss": "step-00000001", "task:hard": "step-00000002"}


@pytest.mark.short("sizes0-2")
@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ({"batch_size": 2}, 2),
        ({"batch_size": 6, "micro_batch_size": 3}, 3),
        ({"max_samples": 1}, 1),
    ],
)
def test_forward_passes_of_a_validation_are_no_larger_than_those_of_the_training(
    sources: tuple[SourceConfig, ...],
    tmp_path: Path,
    sizes: dict[str, int],
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []
    losses = FlowPolicy.losses

    def noted(self: FlowPolicy, batch: Any, *others: Any, **options: Any) -> Any:
        seen.append((self.training, len(batch["task"])))
        return losses(self, batch, *others, **options)

    monkeypatch.setattr(FlowPolicy, "losses", noted)
    run.train(mixed(sources, tmp_path / "r", steps=1, val={"every": 1}, **sizes))
    for training in (True, False):
        assert max(size for trains, size in seen if trains == training) == most
    (record,) = series(tmp_path / "r", "val")
    # in the same chunks, on any number of processes
    again = run.evaluate_checkpoint(tmp_path / "r")
    assert again == {key: value for key, value in record.items() if key != "kind"}


@pytest.mark.parametrize("which", ["latest", "best", 8])
def test_evaluate_checkpoint_equals_the_run(done: Path, which: int | str) -> None:
    again = run.evaluate_checkpoint(done, which, per_dim=True)
    dims = [entry.pop("dims") for entry in again["sources"].values()]
    assert [len(each) for each in dims] == [4, 2, 4]
    recorded = {record["step"]: record for record in series(done, "val")}[again["step"]]
    assert again == {key: value for key, value in recorded.items() if key != "kind"}
    assert (again["step"] == 8) == (which != "best")


def test_evaluate_checkpoint_uses_its_own_settings(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "r")
    shutil.copytree(Path(RunDir(done).settings().data.sources[0].root).parent, tmp_path / "moved")
    now = RunDir(tmp_path / "r").settings()
    sources = tuple(
        replace(s, root=str(tmp_path / "moved" / Path(s.root).name)) for s in now.data.sources
    )
    other = override(now, val={"open_loop_every": 7}, data=replace(now.data, sources=sources))
    (tmp_path / "r/config.yaml").write_text(dump_yaml(replace(other, loader={"num_threads": 3})))
    recorded = series(done, "val")[-1]
    assert run.evaluate_checkpoint(tmp_path / "r") == {
        key: value for key, value in recorded.items() if key != "kind"
    }
    edit_json(tmp_path / "moved/wide/meta/info.json", lambda info: info.update(fps=info["fps"] + 1))
    with refused(tmp_path / "r", "fps", kind=ConfigError):
        run.evaluate_checkpoint(tmp_path / "r")


def test_evaluate_checkpoint_on_any_processes(done: Path) -> None:
    """The numbers of processes in its training settings do not matter then."""
    now = RunDir(done).settings()
    then = replace(
        now, micro_batch_size=now.batch_size, parallel=ParallelConfig(dp_shard=3, dp_replicate=2)
    )
    assert parallel.mesh_shape(run._move_settings(then, now).mesh, 2) == (2, 1)


def test_evaluate_checkpoint_refuses_a_missing_one(done: Path) -> None:
    with refused("checkpoint", 3, kind=ConfigError):
        run.evaluate_checkpoint(done, 3)


@pytest.mark.parametrize(
    "changes",
    [
        {"val": {"every": 1, "open_loop_every": 1}},
        pytest.param({"val": {"every": 0}}, marks=pytest.mark.long),
    ],
)
def test_validation_does_not_affect_training_of_a_mixture(
    sources: tuple[SourceConfig, ...], done: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = override(
        RunDir(done).settings(), output_dir=str(tmp_path / "r"), checkpoint={"keep_best": "none"}
    )
    run.train(override(config, **changes))
    assert series(tmp_path / "r") == series(done)
    one = final_tensors(done)
    two = final_tensors(tmp_path / "r")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    then, now = ({r["step"]: r for r in series(root, "val")} for root in (done, tmp_path / "r"))
    for step in then.keys() & now.keys():
        assert now[step]["sources"] == then[step]["sources"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("mode", "terms"),
    [
        ("joint", ["flow", "dynamics"]),
        ("forward_dynamics", ["dynamics"]),
        ({"inverse_dynamics": 2, "forward_dynamics": 1}, ["flow"]),
    ],
)
def test_validation_uses_a_trained_mode(
    sources: tuple[SourceConfig, ...], tmp_path: Path, mode: Any, terms: list[str]
) -> None:
    run.train(mixed(sources, tmp_path / "r", steps=1, val={"every": 1}, mode=mode))
    (record,) = series(tmp_path / "r", "val")
    assert list(record["terms"]) == list(record["sources"]["two"]["terms"]) == terms
    assert record["loss"] == pytest.approx(sum(term["loss"] for term in record["terms"].values()))
    assert sum(
        part["loss"] for part in record["time"]
    ) / FlowPolicy.validation_draws == pytest.approx(record["loss"])
    assert ("open_loop" in record) == ("flow" in terms)
    assert run.evaluate_checkpoint(tmp_path / "r") == {
        key: value for key, value in record.items() if key != "kind"
    }


def test_losses_that_are_not_finite_are_recorded_as_null(tmp_path: Path) -> None:
    log = metrics_file.MetricsFile(tmp_path / "metrics.jsonl")
    log.write(
        [
            {
                "kind": "val",
                "step": 1,
                "loss": nan,
                "groups": [{"loss": inf}],
                "tasks": {"x": {"loss": nan}},
            }
        ]
    )
    log.close()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    (record,) = metrics_file.read(tmp_path / "metrics.jsonl")
    assert record["groups"] == [{"loss": None}]
    assert best_metrics(record) == {}


def test_saver_improves_only_on_a_lower_figure(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep_last=1, best_by="task:lift")
    assert not saver.improves({"task:lift": nan, "loss": 0.0})
    assert not saver.improves({"loss": 0.0})
    assert not saver.improves({"task:lift": inf})
    for step, value, better in (
        (1, 3.0, True),
        (2, 3.0, False),
        (3, nan, False),
        (4, 2.0, True),
        (5, 9.0, False),
    ):
        assert saver.improves({"task:lift": value}) == better
        saver.save(step, {"weights/a": torch.ones(1)}, {"judged": {"task:lift": value}})
    assert checkpoint.list_steps(tmp_path) == [4, 5]
    with_the_same = Saver(tmp_path, keep_last=1, best_by="task:lift")  # after a resume
    assert not with_the_same.improves({"task:lift": 2.0})
    assert with_the_same.improves({"task:lift": 1.9})


@pytest.mark.parametrize(
    ("name", "changes", "named"),
    [
        ("macr", {}, ["'macro'"]),
        ("source:tow", {}, ["'two'", "small, two, wide"]),
        ("head:arm", {}, ["arm::joint, hand::joint"]),
        (f"task:{TASKS[0]}s", {}, [repr(TASKS[0])]),
        ("robot:arm", {}, ["none", *PLAIN, "head:NAME", "source:NAME", "task:NAME"]),
        ("open_loop", {"val": {"open_loop_every": 0}}, ["val.open_loop_every"]),
        ("open_loop", {"mode": "forward_dynamics"}, ["mode"]),
    ],
)
def test_train_refuses_an_unknown_keep_best(
    sources: tuple[SourceConfig, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    changes: dict[str, Any],
    named: list[str],
) -> None:
    monkeypatch.setattr(
        run,
        "new_run_record",
        lambda *args: pytest.fail("minutes of statistics, and then a misspelt name"),
    )
    with refused(f"checkpoint.keep_best: {name}", *named, kind=ConfigError):
        run.train(mixed(sources, tmp_path / "r", checkpoint={"keep_best": name}, **changes))
    assert not (tmp_path / "r/config.yaml").exists()


@pytest.mark.parametrize(
    "change", [{"checkpoint": {"keep_best": "head:unknown"}}, {"log": {"trackers": ("wandb",)}}]
)
def test_refused_setting_is_not_stored(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    shutil.copytree(done, tmp_path / "r")
    own = replace(RunDir(tmp_path / "r").settings(), output_dir=str(tmp_path / "r"))
    (tmp_path / "r/config.yaml").write_text(dump_yaml(own))
    before = (tmp_path / "r/config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=r"keep_best|trackers"):
        run.resume(override(own, steps=9, **change))
    assert (tmp_path / "r/config.yaml").read_bytes() == before
