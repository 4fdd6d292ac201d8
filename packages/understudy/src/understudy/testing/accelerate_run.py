"""Run a sampler under Accelerate, in this process or in two others, and report the indices of each
step.

As a script it is one rank: `python accelerate_run.py OUT JOBS` with RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT set, where JOBS is JSON, a list of the keyword arguments of `train`. Each rank
writes its indices to OUT.<rank>.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Sampler

from understudy import EpisodeSampler
from understudy.testing.ranks import reserved
from understudy_data.testing.index_dataset import Indices

DATA = Indices(13, 8, 21, 30)


class StepSampler(Sampler[int]):
    """Negative control: a restatement of the best-known sampler of the field.

    It stores (epoch, start), derives them from the step alone, and trusts `set_epoch` after a
    restore.
    """

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.epoch = 0
        self.start = 0

    def resume(self, step: int, batch: int, world: int) -> None:
        steps_per_epoch = -(-self.frames // (batch * world))
        self.epoch, step = divmod(step, steps_per_epoch)
        self.start = step * batch * world

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return self.frames - self.start

    def __iter__(self):
        generator = torch.Generator().manual_seed(1000 + self.epoch)
        order = torch.randperm(self.frames, generator=generator).tolist()
        start = self.start
        self.start = 0
        self.epoch += 1
        yield from order[start:]


def train(kind: str, steps: int, batch: int, position: int = 0, step: int = 0) -> list[list[int]]:
    """This rank's batches, of `batch` indices, in `steps` steps from `position` (ours) or from
    `step` (the control).
    """
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    if kind == "ours":
        whole = {"rank": 0, "world_size": 1}  # Accelerate divides it
        sampler: Any = EpisodeSampler(DATA, batch_size=batch * accelerator.num_processes, **whole)
        if position:
            sampler.load_state_dict(sampler.state_dict(consumed=position))
    else:
        sampler = StepSampler(len(DATA))
        sampler.resume(step, batch, accelerator.num_processes)
    loader = accelerator.prepare(DataLoader(DATA, batch_size=batch, sampler=sampler))
    seen: list[list[int]] = []
    while len(seen) < steps:
        for indices in loader:
            seen.append(indices.tolist())
            if len(seen) == steps:
                break
    return seen


def train_on_two_ranks(folder: Path, jobs: list[dict[str, Any]]) -> list[list[list[int]]]:
    """Per job, per step: the global batch, rank 0's share and then rank 1's. Two gloo processes run
    all jobs.
    """
    for _ in range(3):
        codes, errors = _run(folder, jobs)
        # a foreign connection to gloo's port, taken for a rank
        if "connectFullMesh failed" not in errors:
            break
    assert codes == [0, 0], errors
    seen = [json.loads((folder / f"seen.{rank}").read_text()) for rank in range(2)]
    batches = []
    for first, second in zip(*seen):
        batches.append([a + b for a, b in zip(first, second)])
    return batches


def _run(folder: Path, jobs: list[dict[str, Any]]) -> tuple[list[int], str]:
    """Exit codes and error output of both ranks."""
    held = socket.socket()
    port = str(reserved(held))
    shared = {
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": "1",
    }
    # -P: or datasets.py in this folder would replace Hugging Face's
    command = [sys.executable, "-P", __file__, str(folder / "seen"), json.dumps(jobs)]
    with open(folder / "stderr", "w+") as errors:
        ranks = [
            subprocess.Popen(
                command,
                env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=errors,
            )
            for rank in range(2)
        ]
        try:
            codes = [rank.wait(timeout=240) for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
            held.close()
        errors.seek(0)
        return codes, errors.read()


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = [train(**job) for job in json.loads(sys.argv[2])]
    Path(f"{sys.argv[1]}.{os.environ['RANK']}").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
