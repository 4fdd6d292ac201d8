"""Loops of others, started by torchrun and `accelerate launch`: the ranks share an epoch without
being named.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from understudy_data.testing.datasets import Spec, write_dataset

LENGTHS = (40, 9, 31, 16)  # 96 frames, three batches
SCRIPT = Path(__file__).parents[4] / "packages/understudy/src/understudy/testing/launched_rank.py"
LAUNCHERS = {
    "torchrun": (["torch.distributed.run", "--nproc-per-node", "2", "--standalone"], []),
    "accelerate": (
        [
            "accelerate.commands.launch",
            "--multi_gpu",
            "--num_processes",
            "2",
            "--main_process_port",
            "0",
        ],
        ["group"],
    ),
}


def launch(launcher: str, *words: str | Path) -> str:
    """Run `words` in two processes; returns the error output."""
    module, _ = LAUNCHERS[launcher]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *module, *map(str, words)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.long
def test_accelerate_launch_starts_a_training(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    write_dataset(tmp_path / "dataset", Spec(lengths=LENGTHS, gop=4))
    small = [
        "--steps",
        "1",
        "--batch-size",
        "8",
        "--val.every",
        "0",
        "--log.no-report",
        "--device",
        "cpu",
    ]
    small += ["--data.root", str(tmp_path / "dataset"), "--output-dir", str(tmp_path / "run")]
    assert "2 processes on cpu" in launch("accelerate", "-m", "understudy", "train", *small)
    assert (tmp_path / "run" / "policy").is_dir()


@pytest.mark.long
@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("accelerate", marks=pytest.mark.long)]
)
def test_two_processes_read_each_frame_of_an_epoch_once(launcher: str, tmp_path: Path) -> None:
    if launcher == "accelerate":
        pytest.importorskip("accelerate")
    root = tmp_path / "dataset"
    write_dataset(root, Spec(lengths=LENGTHS, gop=4))
    launch(launcher, SCRIPT, root, tmp_path / "seen", *LAUNCHERS[launcher][1])
    ranks = [json.loads((tmp_path / f"seen.{rank}").read_text()) for rank in range(2)]
    for reader in ("readme", "stream"):
        assert [len(seen[reader]) for seen in ranks] == [48, 48]
        read = Counter(tuple(frame) for seen in ranks for frame in seen[reader])
        assert read == Counter(
            (episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length)
        )
