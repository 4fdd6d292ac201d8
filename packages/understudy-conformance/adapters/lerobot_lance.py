"""lerobot-lancedb 0.3.1: `LanceDBDataset` over a converted copy, with sampler and resume of
LeRobot's trainer.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import lerobot_061
from lerobot_lancedb import LanceDBDataset

Windows = Mapping[str, Sequence[float]]


@cache
def convert(root: Path) -> Path:
    out = Path(tempfile.mkdtemp()) / "lance"
    command = [
        sys.executable,
        "-m",
        "lerobot_lancedb.convert",
        "--root",
        str(root),
        "--out",
        str(out),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return out


def reader(
    root: Path, episodes: Sequence[int] | None = None, delta_timestamps: Windows | None = None
) -> Any:
    return LanceDBDataset(root=convert(root), episodes=episodes, delta_timestamps=delta_timestamps)


class TrainerLoader(lerobot_061.TrainerLoader):
    def open(self, root: Path, delta_timestamps: Windows | None) -> Any:
        return reader(root, None, delta_timestamps)
