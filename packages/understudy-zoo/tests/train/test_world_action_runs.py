"""Runs of the world-action model: stopped and resumed, validated in each mode, imagined and
reported.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from understudy.config.train import TrainConfig
from understudy.policies.common.settings import TaskMode
from understudy.report.run.page import write_report
from understudy.report.run.tables import format_validation
from understudy.testing.docs import ROOT, run_python
from understudy.testing.killed import world_action_settings
from understudy.testing.runs import series, tiny_config
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.run_data import open_data
from understudy.train.validation.validation_loss import read_validation_data
from understudy_zoo.world_action.policy import WorldActionPolicy


def config_of(data: Path, out: Path, **changes: Any) -> TrainConfig:
    policy = world_action_settings(data.parent / "tokenizer.model")
    settings = {
        "mode": "joint",
        "batch_size": 8,
        "micro_batch_size": 2,
        "device": "cpu",
        "steps": 6,
    } | changes
    return replace(tiny_config(data, out, val={"every": 3}, **settings), policy=policy)


@pytest.fixture(scope="module")
def done(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    from understudy.testing.sentences import write_model

    write_model(data.parent)
    out = tmp_path_factory.mktemp("run") / "r"
    assert run.train(config_of(data, out)) == run.DONE
    return out


def test_a_validation_has_a_table_of_each_trained_mode(
    done: Path, data: Path, tmp_path: Path
) -> None:
    """The first one is that of the run. Control: a run in mode `policy` alone has none, and
    imagines nothing.
    """
    *_, last = series(done, "val")
    assert tuple(last["modes"]) == TaskMode.ALL
    for mode, figures in last["modes"].items():
        assert set(figures["terms"]) == set(TaskMode.TRAINS[mode])
        assert set(figures["tasks"]) == set(last["tasks"])
        assert ("open_loop" in figures) == ("flow" in TaskMode.TRAINS[mode])
    assert {name: last[name] for name in last["modes"]["policy"]} == last["modes"]["policy"]
    text = format_validation(last)
    assert all(text.count(f"  {mode} ") == 1 + len(last["tasks"]) for mode in TaskMode.ALL)
    run.train(config_of(data, tmp_path / "r", mode="policy", steps=1))
    (plain,) = series(tmp_path / "r", "val")
    assert {"modes", "imagined"} & set(plain) == set()
    assert not RunDir(tmp_path / "r").imagined.exists()


def errors_of_a_copy(root: Path) -> list[float]:
    """Mean squared change of the recorded states after each action, in normalized units, where they
    ever move.
    """
    settings = RunDir(root).settings()
    held = read_validation_data(settings, open_data(settings))
    assert held is not None
    batch = held.batch(slice(0, len(held)))
    policy = WorldActionPolicy.load(root / "policy")
    states = policy.normalizer.states(batch, batch["observation.state"])
    changes = (states[:, 1:] - states[:, :1]).square()
    moves = torch.tensor(policy.normalizer.arrays()["observation.state"]["spread"][0]) != 0
    there = ~batch["observation.state_is_pad"][:, 1:]
    return [
        float(changes[:, step][there[:, step]][:, moves].mean()) for step in range(changes.shape[1])
    ]


def test_imagined_futures_are_compared_with_recorded_ones(done: Path) -> None:
    """Fresh weights predict no change of the images: six steps are hardly better or worse than a
    copy.
    """
    *_, last = series(done, "val")
    found = last["imagined"]
    assert found["frames"] == last["samples"]
    assert len(found["states"]["model"]) == len(found["states"]["copy"]) == 3  # the chunk
    assert found["states"]["copy"] == pytest.approx(errors_of_a_copy(done))
    assert found["images"]["ahead"] == [1, 3]
    for kind in ("psnr", "psnr_moved"):
        assert found["images"][kind]["model"] == pytest.approx(found["images"][kind]["copy"], abs=3)
        assert found["images"][kind]["model"] != found["images"][kind]["copy"]
    with Image.open(RunDir(done).imagined) as image:
        content = json.loads(image.text["understudy"])  # type: ignore[attr-defined]
        pixels = np.asarray(image)
    assert pixels.shape == (16 * len(content["rows"]), 16 * len(content["columns"]), 3)
    assert len(content["columns"]) == 1 + 2 * 2
    page = write_report(done).read_text(encoding="utf-8")
    assert 'id="imagined-futures"' in page
    assert page.count(content["columns"][-1]) >= len(content["rows"])


def test_policies_page_imagines_futures(
    done: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/world").symlink_to(done)
    (tmp_path / "DATA").symlink_to(data)
    imagined = run_python(ROOT / "docs/other_policies.md", {}, slice(0, 1))["imagined"]
    assert imagined.images.shape == (4, 2, 1, 3, 16, 16)
    assert imagined.states.shape[:2] == (4, 3)
    assert torch.isfinite(imagined.states).all()
