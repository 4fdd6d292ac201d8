"""Validation in a run over a mixture: it disturbs nothing, names the best checkpoint, is repeated later to the bit."""

import shutil
import sys
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch

from support.datasets import edit_json
from support.mixtures import mixed, tiny_sources
from support.runs import final_tensors, series
from understudy.config.data import SourceConfig
from understudy.config.schema import dump_yaml
from understudy.config.train import ParallelConfig
from understudy.distributed import mesh as parallel
from understudy.errors import ConfigError
from understudy.load.eval.validation_data import HeldOut
from understudy.policies.flow.model import FlowPolicy
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.export import find_checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.checkpoint.saver import Saver
from understudy.train.data.data import open_data
from understudy.train.eval.metrics import figures
from understudy.train.eval.validate import evaluate
from understudy.train.track import metrics_file


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> tuple[SourceConfig, ...]:
    return tiny_sources(tmp_path_factory.mktemp("mixture"))


@pytest.fixture(scope="module")
def done(sources: tuple[SourceConfig, ...], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Validated at steps 2, 4, ... 8 of 8; the training is made so rough that the last is not the best."""
    out = tmp_path_factory.mktemp("done") / "r"
    base = mixed(sources, out, steps=8, val_every=2, checkpoint_every=8, keep=1, val_open_loop=3)
    run.train(replace(base, keep_best="source:two", optim=replace(base.optim, lr=0.3)))
    return out


def test_the_best_by_a_named_figure_is_kept_and_handed_out(done: Path) -> None:
    records = {record["step"]: record for record in series(done, "val")}
    assert sorted(records) == [2, 4, 6, 8]
    of_source = {step: record["sources"]["two"]["loss"] for step, record in records.items()}
    best = min(of_source, key=lambda step: of_source[step])
    assert best != 8, "the test is empty: the last checkpoint is kept anyway"
    assert checkpoint.steps(done / "checkpoints") == [best, 8]
    state = checkpoint.read_state(done / f"checkpoints/step-{best:08d}")
    assert state["judged"] == figures(records[best])
    assert {"loss", "macro", "weighted", "head:arm::joint", "source:two", "task:task 0", "open_loop"} <= set(
        state["judged"]
    )


def test_the_best_checkpoint_is_that_by_the_named_figure(tmp_path: Path) -> None:
    for step, loss, hard in ((1, 1.0, 3.0), (2, 2.0, 1.0), (3, 3.0, 2.0)):
        judged = {"loss": loss, "task:hard": hard}
        checkpoint.save(tmp_path, step, {"weights/a": torch.ones(1)}, {"judged": judged})
    found = {metric: find_checkpoint(tmp_path, "best", metric).name for metric in ("none", "loss", "task:hard")}
    assert found == {"none": "step-00000001", "loss": "step-00000001", "task:hard": "step-00000002"}


@pytest.mark.parametrize("which", ["latest", "best", 8])
def test_judging_a_checkpoint_later_gives_what_the_run_found(done: Path, which: int | str) -> None:
    again = run.judge(done, which, per_dim=True)
    dims = [entry.pop("dims") for entry in again["sources"].values()]
    assert [len(each) for each in dims] == [4, 2, 4]
    recorded = {record["step"]: record for record in series(done, "val")}[again["step"]]
    assert again == {key: value for key, value in recorded.items() if key != "kind"}
    assert (again["step"] == 8) == (which != "best")


def test_a_checkpoint_is_judged_by_its_own_settings_wherever_the_data_lies_now(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "r")
    shutil.copytree(Path(RunDir(done).settings().data.sources[0].root).parent, tmp_path / "moved")
    now = RunDir(tmp_path / "r").settings()
    sources = tuple(replace(s, root=str(tmp_path / "moved" / Path(s.root).name)) for s in now.data.sources)
    other = replace(now, val_open_loop=7, val_weights="live", data=replace(now.data, sources=sources))
    (tmp_path / "r/config.yaml").write_text(dump_yaml(replace(other, loader_threads=3)))
    recorded = series(done, "val")[-1]
    assert run.judge(tmp_path / "r") == {key: value for key, value in recorded.items() if key != "kind"}
    edit_json(tmp_path / "moved/wide/meta/stats.json", lambda stats: stats["action"].update(mean=[9.0] * 4))
    with pytest.raises(ConfigError, match="recorded statistics"):
        run.judge(tmp_path / "r")


def test_a_checkpoint_is_judged_by_however_many_processes(done: Path) -> None:
    """What its training asks of their number does not matter then."""
    now = RunDir(done).settings()
    then = replace(now, micro_batch=now.batch, parallel=ParallelConfig(dp_shard=3, dp_replicate=2))
    assert parallel.mesh_shape(run._as_then(then, now), 2) == (2, 1)


def test_a_checkpoint_that_is_not_there_is_told(done: Path) -> None:
    with pytest.raises(ConfigError, match="there is no 3 one"):
        run.judge(done, 3)


@pytest.mark.parametrize("changes", [{"val_every": 1, "val_open_loop": 1}, {"val_every": 0}, {"val_weights": "live"}])
def test_the_training_of_a_mixture_does_not_notice(
    sources: tuple[SourceConfig, ...], done: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    config = replace(RunDir(done).settings(), out=str(tmp_path / "r"), keep_best="none")
    run.train(replace(config, **changes))
    assert series(tmp_path / "r") == series(done)
    one, two = final_tensors(done), final_tensors(tmp_path / "r")
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    then, now = ({r["step"]: r for r in series(root, "val")} for root in (done, tmp_path / "r"))
    if changes.get("val_weights") != "live":
        for step in then.keys() & now.keys():
            assert now[step]["sources"] == then[step]["sources"]
        return
    assert all(now[step]["loss"] != then[step]["loss"] for step in then)  # the average is another policy
    policy = FlowPolicy.load(done / "policy")
    policy.load_state_dict({k.removeprefix("weights/"): t for k, t in one.items() if k.startswith("weights/")})
    held = HeldOut.of(open_data(config), mixed=True)
    assert held is not None
    with parallel.join_mesh(config) as mesh:
        live = evaluate(policy, held, config.seed, mesh, {"flow": 1.0}, open_loop=config.val_open_loop)
    assert now[8] == {"kind": "val", "step": 8, **live}


@pytest.mark.parametrize(
    ("mode", "terms"),
    [
        ("joint", ["flow", "dynamics"]),
        ("forward_dynamics", ["dynamics"]),
        ({"inverse_dynamics": 2, "forward_dynamics": 1}, ["flow"]),
    ],
)
def test_a_policy_that_foresees_is_judged_in_a_mode_that_it_learns(
    sources: tuple[SourceConfig, ...], tmp_path: Path, mode: Any, terms: list[str]
) -> None:
    run.train(mixed(sources, tmp_path / "r", steps=1, val_every=1, mode=mode))
    (record,) = series(tmp_path / "r", "val")
    assert list(record["terms"]) == list(record["sources"]["two"]["terms"]) == terms
    assert record["loss"] == pytest.approx(sum(term["loss"] for term in record["terms"].values()))
    assert sum(part["loss"] for part in record["time"]) / FlowPolicy.validation_draws == pytest.approx(record["loss"])
    assert ("open_loop" in record) == ("flow" in terms)
    assert run.judge(tmp_path / "r") == {key: value for key, value in record.items() if key != "kind"}


def test_losses_that_are_not_finite_are_recorded_as_none_wherever_they_stand(tmp_path: Path) -> None:
    log = metrics_file.MetricsFile(tmp_path / "metrics.jsonl")
    log.write([{"kind": "val", "step": 1, "loss": nan, "groups": [{"loss": inf}], "tasks": {"x": {"loss": nan}}}])
    log.close()
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    (record,) = metrics_file.read(tmp_path / "metrics.jsonl")
    assert record["groups"] == [{"loss": None}]
    assert figures(record) == {}


def test_only_a_lower_figure_is_better(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1, best_by="task:lift")
    assert not saver.improves({"task:lift": nan, "loss": 0.0})
    assert not saver.improves({"loss": 0.0})
    assert not saver.improves({"task:lift": inf})
    for step, value, better in ((1, 3.0, True), (2, 3.0, False), (3, nan, False), (4, 2.0, True), (5, 9.0, False)):
        assert saver.improves({"task:lift": value}) == better
        saver.save(step, {"weights/a": torch.ones(1)}, {"judged": {"task:lift": value}})
    assert checkpoint.steps(tmp_path) == [4, 5]
    with_the_same = Saver(tmp_path, keep=1, best_by="task:lift")  # after a resume
    assert not with_the_same.improves({"task:lift": 2.0})
    assert with_the_same.improves({"task:lift": 1.9})


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("macr", {}, "did you mean 'macro'"),
        ("source:tow", {}, "no source of this name is held out; did you mean 'two'? there are: small, two, wide"),
        ("head:arm", {}, "there are: arm::joint, hand::joint"),
        ("task:lift the read block", {}, "did you mean 'lift the red block'"),
        ("robot:arm", {}, "it is one of none, loss, macro, weighted, open_loop, head:NAME, source:NAME, task:NAME"),
        ("open_loop", {"val_open_loop": 0}, "set val_open_loop"),
        ("open_loop", {"mode": "forward_dynamics"}, "no actions are learnt"),
    ],
)
def test_a_figure_that_there_is_not_is_told_before_anything_is_trained(
    sources: tuple[SourceConfig, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    changes: dict[str, Any],
    told: str,
) -> None:
    monkeypatch.setattr(run, "decided", lambda *args: pytest.fail("minutes of statistics, and then a misspelt name"))
    with pytest.raises(ConfigError) as caught:
        run.train(mixed(sources, tmp_path / "r", keep_best=name, **changes))
    assert f"keep_best: {name}" in str(caught.value)
    assert told in str(caught.value)
    assert not (tmp_path / "r/config.yaml").exists()


@pytest.mark.parametrize("change", [{"keep_best": "head:nobody"}, {"trackers": ("wandb",)}])
def test_a_setting_that_is_refused_does_not_stay_with_the_run(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # not installed
    shutil.copytree(done, tmp_path / "r")
    own = replace(RunDir(tmp_path / "r").settings(), out=str(tmp_path / "r"))
    (tmp_path / "r/config.yaml").write_text(dump_yaml(own))
    before = (tmp_path / "r/config.yaml").read_bytes()
    with pytest.raises(ConfigError, match=next(iter(change))):
        run.resume(replace(own, steps=9, **change))
    assert (tmp_path / "r/config.yaml").read_bytes() == before
