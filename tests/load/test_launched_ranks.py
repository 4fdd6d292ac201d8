"""Loops of others, started by torchrun and `accelerate launch`: the ranks share an epoch without being named."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from support.datasets import Spec, write_dataset

LENGTHS = (40, 9, 31, 16)  # 96 frames, three batches
SCRIPT = Path(__file__).parents[1] / "support" / "launched_rank.py"
LAUNCHERS = {
    "torchrun": (["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"], []),
    "accelerate": (["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"], ["group"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_read_each_frame_of_an_epoch_once(launcher: str, tmp_path: Path) -> None:
    if launcher == "accelerate":
        pytest.importorskip("accelerate")
    root = tmp_path / "dataset"
    write_dataset(root, Spec(lengths=LENGTHS, gop=4))
    module, words = LAUNCHERS[launcher]
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", *module, str(SCRIPT), str(root), str(tmp_path / "seen"), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads((tmp_path / f"seen.{rank}").read_text()) for rank in range(2)]
    for reader in ("readme", "stream"):
        assert [len(seen[reader]) for seen in ranks] == [48, 48]
        read = Counter(tuple(frame) for seen in ranks for frame in seen[reader])
        assert read == Counter((episode, frame) for episode, length in enumerate(LENGTHS) for frame in range(length))
