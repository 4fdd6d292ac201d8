"""understudy without /proc, /sys and the calls that only Linux has, as on macOS
(`support/macos`).
"""

import json
import os
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

import understudy as us
from understudy.testing.runs import tiny_dataset
from understudy_base import available_cores
from understudy_data.storage import mapped_tables

HIDDEN = Path(__file__).parent / "support" / "macos"


def test_available_cores_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert available_cores() == len(os.sched_getaffinity(0))
    monkeypatch.delattr(os, "sched_getaffinity")
    assert available_cores() == os.cpu_count()
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert available_cores() == 1


def test_tables_are_private_where_the_file_system_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mapped file on a network file system could kill the process."""
    monkeypatch.setattr(mapped_tables, "MIN_ROWS", 10)
    monkeypatch.setattr(mapped_tables, "_LARGE", 0)
    arrays = {"row": np.arange(20)}

    def is_mapped() -> bool:
        return mapped_tables.share_arrays(arrays, str(tmp_path))["row"] is not arrays["row"]

    assert is_mapped()
    read_text = Path.read_text

    def hidden(self: Path, *arguments: str, **options: str) -> str:
        if str(self) == "/proc/mounts":
            raise FileNotFoundError(2, "No such file or directory")
        return read_text(self, *arguments, **options)

    monkeypatch.setattr(Path, "read_text", hidden)
    assert not is_mapped()


_PROGRAM = """
import json, os, sys
from understudy_kit.cli.main import main
from understudy_data.video.native.loops import loops_status
from test_other_systems import batch_sums

for command in json.loads(sys.argv[2]):
    assert not main(command), command
compiled, _, fix = loops_status()
found = sys.platform, os.path.exists("/proc/self"), compiled is None, fix, batch_sums(sys.argv[1])
print(json.dumps(found))
"""


def batch_sums(data: str) -> list[int]:
    """Checksums of the arrays of four batches."""
    with us.Loader(data, batch_size=8, seed=3) as loader:
        batches = [next(loader) for _ in range(4)]
    keys = [key for key in batches[0] if key.startswith("observation.images")] + [
        "action",
        "position",
    ]
    return [zlib.crc32(np.ascontiguousarray(batch[key])) for batch in batches for key in keys]


@pytest.mark.long
def test_commands_and_batches_on_other_systems(tmp_path: Path) -> None:
    """Locks, memory and threads are asked in other ways there, and no remedy is proposed for the
    missing loops.
    """
    data = str(tiny_dataset(tmp_path / "data"))
    commands = [
        ["train", "--data.root", data, "--output-dir", "run", "--steps", "2", "--batch-size", "4"],
        ["check", data],
        ["edit", data, "edited", "--episodes", "0-3"],
    ]
    path = os.pathsep.join([str(HIDDEN), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", _PROGRAM, data, json.dumps(commands)]
    environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == ["darwin", False, True, "", batch_sums(data)]
    assert (tmp_path / "run/policy").is_dir()
    assert (tmp_path / "edited/meta/info.json").is_file()
