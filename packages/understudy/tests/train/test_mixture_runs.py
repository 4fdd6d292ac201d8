"""Training over a mixture: killed and carried on, on other numbers of processes, with other weights
from a step on.

The sources differ in widths, frame rates, cameras, sizes of images and names of keys
(`testing/mixtures.py`).
"""

import json
import shutil
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.config.train import TrainConfig
from understudy.policies.flow.model import FlowPolicy
from understudy.testing import resumed
from understudy.testing.mixtures import NAMES, WEIGHTS, mixed, tiny_sources
from understudy.testing.policies import editable
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy.testing.runs import final_tensors, same_run, series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.export import ExportConfig, export
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import open_data
from understudy.train.run_record import current_order
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.order import Order
from understudy_kit import SourceConfig


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtures")


@pytest.fixture(scope="module")
def sources(root: Path) -> tuple[SourceConfig, ...]:
    return tiny_sources(root)


def settings(sources: tuple[SourceConfig, ...], out: Path, **changes: Any) -> TrainConfig:
    return mixed(
        sources, out, **{"batch_size": 8, "micro_batch_size": 2, "device": "cpu", **changes}
    )


@pytest.fixture(scope="module")
def whole(root: Path, sources: tuple[SourceConfig, ...]) -> Path:
    """Never stopped, in one process."""
    with resumed.watched(root / "whole"):
        assert run.train(settings(sources, root / "whole")) == run.DONE
    return root / "whole"


def killed(config: TrainConfig, step: int) -> None:
    """A run whose every process is killed while it computes a step."""
    with resumed.watched(Path(config.output_dir), {step: resumed.send(signal.SIGKILL)}):
        run.train(config)


def goes_on(out: Path) -> int:
    with resumed.watched(out, session=1):
        return run.resume(RunDir(out).settings())


# -- the same run ----------------------------------------------------------------------------------


@pytest.mark.long
def test_killed_mixture_run_is_identical(
    whole: Path, sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    """Killed at step 7 of 12, behind the checkpoint of step 4: carried on by one process, and by
    two.
    """
    (kind, code), *_ = outcomes_in_ranks(1, killed, settings(sources, tmp_path / "r"), 7)
    assert (kind, code) == ("died", -signal.SIGKILL)
    assert checkpoint.list_steps(tmp_path / "r/checkpoints") == [4]
    shutil.copytree(tmp_path / "r", tmp_path / "two")
    shutil.copytree(tmp_path / "r.positions", tmp_path / "two.positions")
    assert goes_on(tmp_path / "r") == run.DONE
    assert in_ranks(2, goes_on, tmp_path / "two") == [run.DONE, run.DONE]
    for out in (tmp_path / "r", tmp_path / "two"):
        same_run(whole, out)
        assert resumed.consumed(out) == Counter(range(12 * 8))
    frozen = [
        json.loads((out / "order.json").read_text())["order"] for out in (whole, tmp_path / "two")
    ]
    assert frozen[0] == frozen[1]


def test_mixture_shares_are_exact(whole: Path) -> None:
    """Within one sample of weight x positions in each prefix; and the run consumed just these."""
    config = RunDir(whole).settings()
    data = open_data(config)
    frozen = RunDir(whole).read_record()
    order = current_order(frozen, None, config, config, data, "order.json")
    source, _, _ = order.locate(np.arange(6000))
    so_far = np.cumsum(np.eye(3, dtype=int)[source], axis=0)
    wanted = np.outer(np.arange(1, 6001), np.array(WEIGHTS) / 6)
    assert abs(so_far - wanted).max() <= 1
    assert so_far[5999].tolist() == [3000, 2000, 1000]
    assert resumed.consumed(whole) == Counter(range(12 * 8))


# -- inputs of the policy --------------------------------------------------------------------------


def test_samples_are_normalized_by_the_head_of_their_source(
    sources: tuple[SourceConfig, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    plain = FlowPolicy.losses

    def losses(self: FlowPolicy, batch: Any, *rest: Any, **more: Any) -> Any:
        if self.training:
            seen.append((batch["source"], batch["head"], batch["real_action_dim"], self.norm_heads))
        return plain(self, batch, *rest, **more)

    monkeypatch.setattr(FlowPolicy, "losses", losses)
    run.train(settings(sources, tmp_path / "r", steps=2, val={"every": 0}))
    frozen = RunDir(tmp_path / "r").read_record()
    assert [(one["name"], one["head"], len(one["cameras"])) for one in frozen["sources"]] == [
        ("wide", "arm::joint", 1),
        ("two", "hand::joint", 2),
        ("small", "arm::joint", 1),
    ]
    source, head, width = (torch.cat([each[i] for each in seen]) for i in range(3))
    assert seen[0][3] == ("arm::joint", "hand::joint") == tuple(frozen["normalisation"]["heads"])
    assert set(source.tolist()) == {0, 1, 2}
    assert torch.equal(head, torch.tensor([0, 1, 0])[source])
    assert torch.equal(width, torch.tensor([4, 2, 4])[source])


def test_single_dataset_equals_a_mixture_of_one(tmp_path: Path) -> None:
    """Flat settings and a list of one source: the same bits, and no word of heads in the batch."""
    data = tiny_dataset(tmp_path / "dataset")
    flat = tiny_config(data, tmp_path / "flat", steps=4, val={"every": 0})
    run.train(flat)
    listed = replace(flat, output_dir=str(tmp_path / "listed"))
    run.train(replace(listed, data=replace(flat.data, root="", sources=(SourceConfig(str(data)),))))
    assert series(tmp_path / "flat") == series(tmp_path / "listed")
    one, other = (final_tensors(tmp_path / name) for name in ("flat", "listed"))
    assert all(torch.equal(one[name], other[name]) for name in one)


# -- carrying on with other settings ---------------------------------------------------------------


@pytest.fixture(scope="module")
def half(root: Path, sources: tuple[SourceConfig, ...]) -> Path:
    """Stopped at step 6 of 12, in one process."""
    with resumed.watched(root / "half", {6: resumed.send(signal.SIGTERM)}):
        assert run.train(settings(sources, root / "half")) == run.STOPPED
    return root / "half"


def reweighted(out: Path, *weights: float) -> TrainConfig:
    config = RunDir(out).settings()
    changed = tuple(
        replace(source, weight=weight) for source, weight in zip(config.data.sources, weights)
    )
    return replace(config, data=replace(config.data, sources=changed))


def test_resume_with_new_weights_logs_and_keeps_them(
    half: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Positions before the change keep their samples; from there on shares are the new ones, each
    source continues where it was; a kill, or another resume, finds the same order.
    """
    out = tmp_path / "r"
    shutil.copytree(half, out)
    shutil.copytree(half.with_name("half.positions"), tmp_path / "r.positions")
    with resumed.watched(out, {9: resumed.send(signal.SIGTERM)}, session=1):
        assert run.resume(reweighted(out, 1, 1, 6)) == run.STOPPED
    said = capsys.readouterr().err
    assert "data.sources.2.weight: 1.0 -> 6" in said
    assert "shares: those of the weights from position 48 on" in said
    assert "75.000%" in next(line for line in said.splitlines() if line.startswith("small "))
    state = checkpoint.read_state(checkpoint.find_latest(out / "checkpoints"))
    assert [entry["position"] for entry in state["schedule"]] == [0, 48]
    with resumed.watched(out, session=2):
        assert run.resume(RunDir(out).settings()) == run.DONE
    assert "data.sources" not in capsys.readouterr().err.split("resume: from")[0]
    assert resumed.consumed(out) == Counter(range(12 * 8))
    assert series(out)[:6] == series(half)

    data = open_data(RunDir(out).settings())
    frozen = RunDir(out).read_record()
    plain = Order.from_json(frozen["order"], data.training)
    config = RunDir(out).settings()
    order = current_order(frozen, state, config, config, data, "")
    before = np.arange(48)
    after = np.arange(48, 48 + 800)
    assert all(np.array_equal(a, b) for a, b in zip(order.locate(before), plain.locate(before)))
    assert np.bincount(order.locate(after)[0]).tolist() == [100, 100, 600]
    # each source's own stream continues: every frame once per epoch
    for number, part in enumerate(data.training):
        where = np.concatenate([before, after])
        source, episode, frame = order.locate(where)
        own = list(zip(episode[source == number].tolist(), frame[source == number].tolist()))
        assert len(set(own[: len(part)])) == len(part)


def test_resume_refuses_new_weights_without_a_checkpoint_and_new_sources(
    half: Path, sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    shutil.copytree(half, tmp_path / "r")
    config = reweighted(tmp_path / "r", 1, 1, 6)
    shutil.rmtree(tmp_path / "r/checkpoints")
    with pytest.raises(ConfigError, match=r"data\.sources\.0\.weight: "):
        run.resume(config)
    shutil.rmtree(tmp_path / "r")
    shutil.copytree(half, tmp_path / "r")
    config = RunDir(tmp_path / "r").settings()
    fewer = replace(config, data=replace(config.data, sources=config.data.sources[:2]))
    with refused("data.sources", 3, 2, kind=ConfigError):
        run.resume(fewer)
    first = replace(config.data.sources[0], drop_n_first_frames=1, name="w")
    other = replace(config, data=replace(config.data, sources=(first, *config.data.sources[1:])))
    with pytest.raises(ConfigError) as caught:
        run.resume(other)
    assert "data.sources.0.drop_n_first_frames: 0 -> 1: " in str(caught.value)
    assert "data.sources.0.name: wide -> w: " in str(caught.value)


def test_resume_accepts_moved_datasets_and_names_a_changed_one(half: Path, tmp_path: Path) -> None:
    shutil.copytree(half, tmp_path / "r")
    config = RunDir(tmp_path / "r").settings()
    # recorded when the run began
    assert tuple(source.name for source in config.data.sources) == NAMES
    moved = []
    for source in config.data.sources:
        shutil.copytree(source.root, tmp_path / f"moved-{source.name}")
        moved.append(replace(source, root=str(tmp_path / f"moved-{source.name}")))
    there = replace(config, steps=7, data=replace(config.data, sources=tuple(moved)))
    assert run.resume(there) == run.DONE
    info = tmp_path / "moved-two/meta/info.json"
    info.write_text(info.read_text().replace('"fps": 20', '"fps": 10'))
    with refused("two: fps", 20, 10, kind=ConfigError):
        run.resume(RunDir(tmp_path / "r").settings())


# -- out of a run, and into the next ---------------------------------------------------------------


def test_export_of_several_heads_starts_a_run(
    whole: Path, sources: tuple[SourceConfig, ...], tmp_path: Path
) -> None:
    export(ExportConfig(run=str(whole), output_dir=str(tmp_path / "policy")))
    assert FlowPolicy.load(tmp_path / "policy").norm_heads == ("arm::joint", "hand::joint")
    begins = settings(sources, tmp_path / "on", steps=2, init_from=str(tmp_path / "policy"))
    assert run.train(begins) == run.DONE
    other = tuple(replace(source, control_mode="velocity") for source in sources)
    with refused(
        "init_from", "arm::joint, hand::joint", "arm::velocity, hand::velocity", kind=ConfigError
    ):
        run.train(replace(settings(other, tmp_path / "other"), init_from=str(tmp_path / "policy")))
    unknown = tuple(replace(source, control_mode="") for source in sources)
    with refused("init_from", "arm::joint, hand::joint", "small, two, wide", kind=ConfigError):
        run.train(
            replace(settings(unknown, tmp_path / "unknown"), init_from=str(tmp_path / "policy"))
        )
    # As wide as the widest, but the other head's own dimensions are others: some would never be
    # learnt.
    folder = editable(tmp_path / "policy") / "normalisation.json"
    units = json.loads(folder.read_text())
    folder.write_text(json.dumps(units | {"dims": units["dims"] | {"action": [4, 1]}}))
    with refused("init_from", [4, 1], "'action'", [4, 2], kind=ConfigError):
        run.train(replace(begins, output_dir=str(tmp_path / "narrow")))
    folder.write_text(json.dumps(units))
    delta = tuple(
        replace(source, delta_action_dims=(1,)) if source.robot_type == "arm" else source
        for source in sources
    )
    with refused("init_from", [[], []], "delta_action_dims", kind=ConfigError):
        run.train(replace(settings(delta, tmp_path / "delta"), init_from=str(tmp_path / "policy")))


@pytest.mark.long
def test_startup_summary_of_a_mixture_run(
    sources: tuple[SourceConfig, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranges = {"0": [[0, 6]], "1": [[2, 7]], "2": [[0, 9]], "3": [[1, 7]]}
    (tmp_path / "keep.json").write_text(json.dumps(ranges))
    kept = (replace(sources[0], keep_ranges=str(tmp_path / "keep.json")), *sources[1:])
    run.train(settings(kept, tmp_path / "r", steps=1, val={"every": 0}))
    said = capsys.readouterr().err
    table = {
        line.split()[0]: " ".join(line.split()) for line in said.splitlines() if "::joint" in line
    }
    assert table == {
        "wide": "wide arm::joint 14 frames of 3 episodes 4 frames of 1 episode 50.000% 50.000% 3.5 "
        "steps 3",
        "two": "two hand::joint 30 frames of 4 episodes 10 frames of 1 episode 33.333% 33.333% "
        "11.25 steps 2",
        "small": "small arm::joint 17 frames of 2 episodes 7 frames of 1 episode 16.667% 16.667% "
        "12.75 steps 3",
    }
    assert (
        f"wide: {tmp_path}/keep.json: 4 of 4 keys match an episode of this dataset, 4 of its 6"
        in said
    )
    assert "2 episodes have no key and are left out" in said
    assert "images are loaded at 16 x 16" in said
