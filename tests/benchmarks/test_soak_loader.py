"""The short form of `make soak` for the loader, and negative controls of it."""

import mmap
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import soak_loader
from loader_trial import Setting
from understudy_data.load.loader import Loader
from understudy_data.testing.datasets import Spec, write_dataset

SCRIPT = Path(__file__).parents[2] / "lab/benchmarks" / "soak_loader.py"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("soak") / "dataset"
    write_dataset(path, Spec(lengths=(61, 57, 79, 83, 64, 90, 75, 81), gop=4))
    return path


def test_killed_again_and_again_the_stream_is_the_uninterrupted_one(root: Path) -> None:
    options = {
        "--data": root,
        "--kills": 1,
        "--minutes": 0,
        "--memory": "5MB",
        "--seed": os.getpid(),
    }
    command = [
        sys.executable,
        str(SCRIPT),
        *(str(word) for pair in options.items() for word in pair),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(
        r"(\d+) × SIGKILL and restart \| ([\d,]+) batches.*every batch as in", done.stdout
    )
    assert found, done.stdout
    assert int(found[1]) >= 1
    assert int(found[2].replace(",", "")) > 0


def test_a_stream_that_is_not_the_same_is_noticed() -> None:
    whole = [f"{32 * n} {n:08x}" for n in range(6)]
    assert soak_loader.differs_at(whole[:4], whole) is None
    assert soak_loader.differs_at([*whole[:3], *whole[2:5]], whole) == 3  # one came twice
    assert soak_loader.differs_at([*whole[:3], *whole[4:]], whole) == 3  # one was left out
    assert soak_loader.differs_at([*whole[:3], "96 ffffffff"], whole) == 3  # other content
    assert soak_loader.differs_at([*whole, "more"], whole) == 6
    assert soak_loader.differs_at([], whole) == 0  # nothing ever came


def test_the_hash_sees_every_part_of_a_batch(root: Path) -> None:
    setting = Setting(str(root))
    data = setting.data()
    with Loader([data], order=setting.order(data)) as loader:
        batch = next(loader)
    right = soak_loader.fingerprint(batch)
    assert right == soak_loader.fingerprint({key: batch[key] for key in reversed(batch)})
    for key, value in batch.items():
        if isinstance(value, list):
            other = [*value[:-1], "something else"]
        else:
            other = value.clone()
            other.numpy().reshape(-1).view(np.uint8)[-1] ^= 1  # one bit
        assert soak_loader.fingerprint(batch | {key: other}) != right, key


@pytest.mark.long
def test_memory_that_grows_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(str(root), memory="5MB", threads=1)
    assert (
        soak_loader.steady(setting, seconds=0.5, every=0.005).spread < 0.2
    )  # in half a second a process settles, no more
    plain = Loader.__next__
    held = []
    began = time.monotonic()

    def leaking(self: Loader) -> dict:
        """400 MB a second, however few batches a busy machine makes in one."""
        lost = min(400_000_000, int(4e8 * (time.monotonic() - began)))
        if (more := lost - sum(map(len, held))) > 0:
            held.append(mmap.mmap(-1, more))  # not from malloc, which may have as much to spare
            held[-1].write(b"x" * more)
        return plain(self)

    monkeypatch.setattr(Loader, "__next__", leaking)
    assert soak_loader.steady(setting, seconds=0.5, every=0.005).spread > 0.02
