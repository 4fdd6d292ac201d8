"""Frame weights in a run: the loss and the validation means by hand, resume after a kill, and the
refusal of others.
"""

import os
import signal
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy import EpisodeDataset, Loader
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh
from understudy.policies.draws import make_draws
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.mixtures import mixed, tiny_sources
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy.testing.runs import same_run, series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import compute_normalization
from understudy.train.micro_batches import even_spans, take_parts
from understudy.train.optimizer_step import optimizer_step
from understudy.train.precision import make_optimizer
from understudy.train.startup_summary import startup_summary
from understudy.train.validation.metrics import TermSums, group_losses
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.load.validation_data import ValidationData
from understudy_data.order import Order
from understudy_data.testing.weights import count_frames, write_weights
from understudy_kit import override

VALUES = (0.0, 1.0, 2.7, 0.5, 2.0)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset, and w.parquet beside it."""
    path = tmp_path_factory.mktemp("weighted")
    frames = sorted(count_frames(EpisodeDataset(tiny_dataset(path / "set")).segments))
    write_weights(
        path / "w.parquet", {frame: VALUES[i % len(VALUES)] for i, frame in enumerate(frames)}
    )
    return path


def configured(root: Path, out: Path, use: str = "both", **changes: Any) -> TrainConfig:
    config = tiny_config(root / "set", out, device="cpu", batch_size=8, **changes)
    return override(
        config, data={"frame_weights": str(root / "w.parquet"), "frame_weights_in": use}
    )


@pytest.mark.parametrize("parts", [1, 3])
def test_the_loss_is_the_weighted_mean_over_the_batch(root: Path, mesh: Mesh, parts: int) -> None:
    config = configured(root, root / "r", "loss")
    data = open_data(config)
    torch.manual_seed(0)
    policy = FlowPolicy(data.policy_config(config), compute_normalization(data, "mean_std"))
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    with Loader(data.training, order=data.order(config), num_threads=1) as loader:
        batch = next(loader)
    weight = batch["loss_weight"].double()
    assert len(weight.unique()) > 2
    assert batch["action_is_pad"].any()  # samples differ in their numbers of elements
    draws = make_draws(policy.random_spec("train"), 7, batch["position"])
    loss = policy.losses(batch, draws)["flow"]
    mean = (weight * loss.sum).sum() / (weight * loss.count).sum()
    expected = torch.autograd.grad(mean, list(policy.parameters()), allow_unused=True)
    expected = [
        torch.zeros_like(p) if g is None else g for g, p in zip(expected, policy.parameters())
    ]
    norm = torch.stack([g.square().sum() for g in expected]).sum().sqrt()
    optimizer = make_optimizer(policy, config.optim, {}, accumulates=config.batching.accumulates())
    found = optimizer_step(
        policy,
        optimizer,
        take_parts(batch, draws, even_spans(len(weight), parts)),
        mesh,
        lr=0.0,
        clip=1e9,
        weights={"flow": 1.0},
    )
    assert float(found.loss) == pytest.approx(float(mean.detach()), rel=1e-6)
    assert float(found.grad_norm) == pytest.approx(float(norm.detach()), rel=1e-5)
    for parameter, gradient in zip(policy.parameters(), expected):
        if parameter.grad is not None:
            torch.testing.assert_close(parameter.grad, gradient.float(), rtol=1e-4, atol=1e-6)


def test_validation_means_are_weighted_by_frame(tmp_path: Path) -> None:
    """Two sources; the weights of one are given."""
    sources = tiny_sources(tmp_path, small_pictures=False)[:2]
    frames = sorted(count_frames(EpisodeDataset(sources[0].root).segments))
    weights = {frame: VALUES[i % len(VALUES)] for i, frame in enumerate(frames)}
    given = replace(sources[0], frame_weights=str(write_weights(tmp_path / "w.parquet", weights)))
    held = ValidationData.from_sources(
        open_data(mixed((given, sources[1]), tmp_path / "r")), mixed=True
    )
    assert held is not None
    rng = np.random.default_rng(0)
    sums = rng.random(len(held))
    counts = rng.integers(1, 9, len(held)).astype(np.float64)
    result = group_losses(
        {"flow": TermSums(sums, counts, sums[None])}, {"flow": 1.0}, held, ["x"] * len(held)
    )
    totals: dict[str, list[Fraction]] = {}
    for s, e, f, own, count in zip(held.source, held.episode, held.frame, sums, counts):
        name = held.names[s]
        weight = Fraction(weights[int(e), int(f)] if name == "wide" else 1.0)
        assert weight > 0
        for total in (
            totals.setdefault(name, [Fraction(0)] * 4),
            totals.setdefault("all", [Fraction(0)] * 4),
        ):
            total[:] = [
                a + b
                for a, b in zip(
                    total, (weight * Fraction(own), weight * int(count), Fraction(own), int(count))
                )
            ]
    for name, (a, b, c, d) in totals.items():
        entry = result if name == "all" else result["sources"][name]
        assert entry["loss"] == pytest.approx(float(a / b), rel=1e-12)
        assert entry["equal_frames"] == pytest.approx(float(c / d), rel=1e-12)
        assert entry["elements"] == d
    assert result["loss"] != pytest.approx(result["equal_frames"], rel=1e-3)
    plain = ValidationData.from_sources(open_data(mixed(sources, tmp_path / "r")), mixed=True)
    assert plain is not None
    assert plain.weight is None
    found = {"flow": TermSums(*(np.ones(len(plain)),) * 2, np.ones((1, len(plain))))}
    assert "equal_frames" not in group_losses(found, {"flow": 1.0}, plain, ["x"] * len(plain))


def train_until(config: TrainConfig, step: int) -> None:
    """Train, and die by SIGKILL just before the checkpoint of `step` gets its name."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event == "os.rename" and str(args[1]).endswith(f"step-{step:08d}"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    run.train(config)


@pytest.mark.long
def test_killed_run_with_weights_continues_on_any_ranks(root: Path, tmp_path: Path) -> None:
    """12 steps of 8 are more than an epoch. The run continues on two ranks in the middle of one."""
    options = {"steps": 12, "checkpoint": {"every": 4}, "val": {"every": 12}, "micro_batch_size": 4}
    config = configured(root, tmp_path / "r", **options)
    assert outcomes_in_ranks(1, train_until, config, 8)[0] == ("died", -signal.SIGKILL)
    epoch = open_data(config).training[0].frame_weights.facts.epoch
    assert 4 * 8 < epoch < 12 * 8
    assert in_ranks(2, run.resume, RunDir(tmp_path / "r").settings()) == [run.DONE] * 2
    assert run.train(configured(root, tmp_path / "whole", **options)) == run.DONE
    same_run(tmp_path / "whole", tmp_path / "r")
    assert all("equal_frames" in record for record in series(tmp_path / "r", "val"))
    saved = RunDir(tmp_path / "r").read_record()["order"]
    order = Order.from_json(saved, open_data(config).training)
    _, episode, frame = order.locate(np.arange(epoch))
    counts = count_frames(np.stack([episode, frame, frame + 1], axis=1))
    weights = open_data(config).training[0].frame_weights
    frames = np.array(sorted(counts))
    factor = weights.loss_factors(*frames.T)
    assert [counts[e, f] for e, f in frames.tolist()] * factor == pytest.approx(
        weights.weights(*frames.T)
    )


def test_resume_refuses_other_weights(root: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.parquet"
    own.write_bytes((root / "w.parquet").read_bytes())
    config = configured(root, tmp_path / "r", steps=2, val={"every": 0}, checkpoint={"every": 1})
    config = override(config, data={"frame_weights": str(own)})
    run.train(config)
    more = override(config, steps=3)
    recorded = open_data(config).training[0].frame_weights.digest
    with refused("data.frame_weights_in", kind=ConfigError):
        run.resume(override(more, data={"frame_weights_in": "order"}))
    frames = sorted(count_frames(EpisodeDataset(root / "set").segments))
    weights = {frame: VALUES[i % len(VALUES)] for i, frame in enumerate(frames)}
    write_weights(own, weights | {next(f for f in frames if weights[f] == 2.7): 2.6})
    for changed in (more, override(more, data={"frame_weights": ""})):
        with refused(recorded, kind=ConfigError):
            run.resume(changed)
    # the same content
    assert run.resume(override(more, data={"frame_weights": str(root / "w.parquet")})) == run.DONE


def test_summary_has_the_figures_of_the_weights(root: Path, tmp_path: Path) -> None:
    config = configured(root, tmp_path / "r")
    data = open_data(config)
    facts = data.training[0].frame_weights.facts
    lines = startup_summary(config, data, data.order(config))
    (line,) = [line for line in lines if "frame weights" in line]
    shown = [
        f"{facts.frames} ",
        f"{facts.zero / facts.frames:.1%}",
        f"{facts.epoch} ",
        f"{facts.effective:.0f} ",
        "2.7",
    ]
    assert [each for each in shown if each not in line] == []
    assert f"{facts.epoch / 8:.4g} steps" in lines[1]
