"""Training runs small enough for tests: a second or less, every part of the real one."""

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch

from understudy.config.train import (
    AugmentConfig,
    CheckpointConfig,
    DataConfig,
    EmaConfig,
    LoaderConfig,
    LogConfig,
    OptimConfig,
    ScheduleConfig,
    TrainConfig,
    ValConfig,
)
from understudy.policies.flow.config import FlowSettings
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.track import metrics_file
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit import override


def tiny_dataset(root: Path) -> Path:
    """Ten episodes of three tasks, one camera."""
    write_dataset(root, Spec(lengths=(9, 7, 11, 8, 6, 10, 9, 7, 8, 12), gop=4, per_video_file=4))
    return root


def tiny_config(data: Path, out: Path, **changes: Any) -> TrainConfig:
    """Twelve steps with everything on: shifts, text dropout, average, validation, checkpoints."""
    config = TrainConfig(
        output_dir=str(out),
        steps=12,
        batch_size=4,
        seed=7,
        data=DataConfig(root=str(data), chunk_size=3, val_fraction=0.3),
        policy=FlowSettings(
            image_size=(16, 16),
            text_bytes=16,
            channels=8,
            blocks=1,
            keypoints=4,
            width=16,
            layers=1,
            noise_samples=2,
        ),
        augment=AugmentConfig(shift=2, text_dropout=0.3),
        optim=OptimConfig(lr=3e-3, ema=EmaConfig(0.9)),
        schedule=ScheduleConfig(warmup_steps=3),
        checkpoint=CheckpointConfig(every=4),
        val=ValConfig(every=5),
        log=LogConfig(every=3),
        loader=LoaderConfig(num_threads=1),
    )
    return override(config, **changes)


SHORT: dict[str, Any] = {"steps": 4, "checkpoint": {"every": 2}, "val": {"every": 4}}
"""Settings of a run that `trained_run` shares between tests to which its training does not matter.
"""


def trained_run(out: Path, **changes: Any) -> Path:
    """A copy in `out` of a finished run with these settings, which one process trains for all tests
    of a session.

    Its dataset is that of all such runs, so a test changes only the copy of the run.
    """
    shared = Path(os.environ["SHARED_RUNS"])
    done = shared / hashlib.sha256(repr(sorted(changes.items())).encode()).hexdigest()[:16]
    with open(shared / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (shared / "dataset").exists():
            tiny_dataset(shared / "dataset")
        if not RunDir(done).policy.exists():
            assert run.train(tiny_config(shared / "dataset", done, **changes)) == run.DONE
    shutil.copytree(done, out)
    return out


def series(root: Path, kind: str = "train") -> list[dict[str, Any]]:
    """Those records of a run that depend on settings and data only."""
    return metrics_file.read(RunDir(root).metrics, kind)


def final_tensors(root: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the latest checkpoint, by name."""
    path = checkpoint.find_latest(RunDir(root).checkpoints)
    assert path is not None
    return checkpoint.read_tensors(path)


def same_run(one: Path, two: Path) -> None:
    """Assert that two runs trained the same: every record and every tensor, bit for bit."""
    for kind in ("train", "val"):
        assert series(one, kind) == series(two, kind)
    first = final_tensors(one)
    second = final_tensors(two)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    imagined = [RunDir(root).imagined for root in (one, two)]
    assert imagined[0].exists() == imagined[1].exists()
    assert not imagined[0].exists() or imagined[0].read_bytes() == imagined[1].read_bytes()
    for file in ("config.json", "normalisation.json"):
        assert json.loads((one / "policy" / file).read_text()) == json.loads(
            (two / "policy" / file).read_text()
        )
    weights = [(root / "policy" / "model.safetensors").read_bytes() for root in (one, two)]
    assert weights[0] == weights[1]
