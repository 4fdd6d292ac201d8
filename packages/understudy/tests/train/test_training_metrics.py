"""Figures of a training step in metrics.jsonl: each loss term, per source and per task mode."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy.config.train import TrainConfig
from understudy.policies.common.settings import TaskMode
from understudy.testing.killed import world_action_settings
from understudy.testing.mixtures import NAMES, mixed, tiny_sources
from understudy.testing.runs import final_tensors, series, tiny_config, tiny_dataset
from understudy.train import run
from understudy.train.state import TrainState
from understudy.train.track.trackers import flatten
from understudy_base import Progress
from understudy_kit import override

WEIGHTS = {"flow": 2.0, "dynamics": 0.5, "images": 1.0}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics")


@pytest.fixture(scope="module")
def sources(root: Path) -> tuple[Any, ...]:
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    from understudy.testing.sentences import write_model

    made = tiny_sources(root)
    write_model(Path(made[0].root).parent)
    return made


def settings(sources: tuple[Any, ...], out: Path, **changes: Any) -> TrainConfig:
    usual = {
        "batch_size": 16,
        "micro_batch_size": 4,
        "steps": 4,
        "device": "cpu",
        "mode": "joint",
        "val": {"every": 0},
    }
    policy = world_action_settings(Path(sources[0].root).parent / "tokenizer.model")
    config = replace(mixed(sources, out, **(usual | changes)), policy=policy)
    return override(config, optim={"loss_weights": WEIGHTS})


@pytest.fixture(scope="module")
def whole(root: Path, sources: tuple[Any, ...]) -> Path:
    assert run.train(settings(sources, root / "whole")) == run.DONE
    return root / "whole"


def test_loss_of_a_step_is_the_weighted_sum_of_its_terms(whole: Path) -> None:
    for record in series(whole):
        assert set(record["terms"]) == set(WEIGHTS)
        total = sum(WEIGHTS[term] * entry["loss"] for term, entry in record["terms"].items())
        assert record["loss"] == pytest.approx(total, rel=1e-6)


@pytest.mark.parametrize("kind", ["sources", "modes"])
def test_groups_of_a_step_add_up_to_its_terms(whole: Path, kind: str) -> None:
    for record in series(whole):
        groups = [entry["terms"] for entry in record[kind].values()]
        for term, entry in record["terms"].items():
            own = [terms[term] for terms in groups if term in terms]
            assert sum(each["elements"] for each in own) == entry["elements"]
            assert math.fsum(each["loss"] * each["elements"] for each in own) == pytest.approx(
                entry["loss"] * entry["elements"], rel=1e-6
            )
    assert set().union(*(record[kind] for record in series(whole))) == set(
        NAMES if kind == "sources" else TaskMode.ALL
    )


def test_a_mode_has_the_terms_that_it_trains(whole: Path) -> None:
    """And the policy's, which every sample of a run with mode `policy` trains."""
    for record in series(whole):
        for mode, entry in record["modes"].items():
            assert set(entry["terms"]) == {"flow", *TaskMode.TRAINS[mode]} & set(WEIGHTS)


def test_metrics_change_no_bit_of_a_training(
    whole: Path, sources: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrainState, "groups", {})
    assert run.train(settings(sources, tmp_path / "r")) == run.DONE
    plain = [
        {k: v for k, v in record.items() if k not in ("sources", "modes")}
        for record in series(whole)
    ]
    assert series(tmp_path / "r") == plain
    first = final_tensors(whole)
    second = final_tensors(tmp_path / "r")
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def test_progress_line_has_each_term(
    sources: tuple[Any, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Progress, "set_note", lambda _, note: notes.append(note))
    assert run.train(settings(sources, tmp_path / "r", steps=1)) == run.DONE
    (record,) = series(tmp_path / "r")
    assert [
        f"{term} {entry['loss']:.4f}" in notes[-1] for term, entry in record["terms"].items()
    ] == [True] * 3


def test_progress_line_has_the_mean_episodes_of_its_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Progress, "set_note", lambda _, note: notes.append(note))
    rare = {"log": {"every": 3}, "val": {"every": 0}, "checkpoint": {"every": 6}}
    assert (
        run.train(tiny_config(tiny_dataset(tmp_path / "data"), tmp_path / "r", steps=6, **rare))
        == run.DONE
    )
    counted = [record["episodes"] for record in series(tmp_path / "r")]
    shown = [float(re.findall(r", ([\d.]+) episodes in a batch$", note)[0]) for note in notes]
    assert shown == pytest.approx([np.mean(counted[:3]), np.mean(counted[3:])], rel=1e-3)


def test_trackers_get_each_term_of_each_group(whole: Path) -> None:
    values = flatten(series(whole)[-1])
    assert {"train/loss", "train/terms/flow/loss", "train/terms/dynamics/elements"} <= set(values)
    assert "train/modes/policy/terms/flow/loss" in values
    assert any(f"train/sources/{name}/terms/flow/loss" in values for name in NAMES)


def test_mixture_of_image_sizes_validates_a_policy_that_predicts_images(
    sources: tuple[Any, ...], tmp_path: Path
) -> None:
    assert run.train(settings(sources, tmp_path / "r", steps=1, val={"every": 1})) == run.DONE
    (record,) = series(tmp_path / "r", "val")
    assert "images" in record["terms"]
    values = flatten(record)
    for group in record["groups"]:
        names = "/".join(group[kind] for kind in ("head", "source", "task"))
        assert values[f"val/groups/{names}/loss"] == group["loss"]
    for interval in record["time"]:
        limits = f"{interval['from']:.4g}-{interval['to']:.4g}"
        assert values[f"val/time/{'+'.join(interval['terms'])}/{limits}/loss"] == interval["loss"]
