"""Edits by several processes: the bytes of one process, kills of processes and of the command,
poisoned episodes.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.stats.running import RunningStatistics, compute_moments, sample_stride
from understudy_data.datasets.write import statistics
from understudy_data.parts import Workers
from understudy_data.storage.remote_options import RemoteOptions
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.check.examine import check_dataset
from understudy_tools.cli.edit import EditConfig, make_plans
from understudy_tools.edit import videos, write_set
from understudy_tools.edit.write_set import write_outputs
from understudy_tools.testing.edited import content, edit, episode
from understudy_tools.testing.part_work import DeadlyEncoding
from understudy_tools.testing.processes import processes_of
from understudy_tools.testing.s3 import SECRET, s3_bucket

ENCODED: dict[str, Any] = {"codec": "libx264", "gop": 3, "cameras": ("observation.images.top",)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("workers") / "source"
    cameras = ("observation.images.top", "observation.images.wrist")
    lengths = (30, 41, 22, 50, 9)
    write_dataset(
        root, Spec("v3.0", lengths=lengths, cameras=cameras, gop=4, images=("observation.still",))
    )
    return root


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of one episode and files of two, as in a dataset that is thousands of times as
    large.
    """
    monkeypatch.setattr(videos, "PART_IMAGES", 1)
    monkeypatch.setattr(write_set, "PART_ROWS", 1)
    monkeypatch.setattr(write_set, "DATA_MB", 0.05)
    monkeypatch.setattr(write_set, "VIDEO_MB", 0.02)


@pytest.mark.short("settings0")
@pytest.mark.parametrize("settings", [ENCODED, {"drop_n_first_frames": 1, "task": "go"}, {}])
def test_output_is_equal_for_any_number_of_processes(
    source: Path, tmp_path: Path, small_parts: None, settings: dict[str, Any]
) -> None:
    edit(source, source, tmp_path / "one", **settings)
    one = content(tmp_path / "one")
    assert sum(name.startswith("data/") for name in one) > 2
    with Workers(3) as workers:
        edit(source, source, tmp_path / "three", workers=workers, **settings)
    assert content(tmp_path / "three") == one


def test_output_does_not_depend_on_the_cut(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(source, tmp_path / "whole", **ENCODED)
    monkeypatch.setattr(videos, "PART_IMAGES", 1)
    monkeypatch.setattr(write_set, "PART_ROWS", 1)
    edit(source, tmp_path / "cut", **ENCODED)
    assert content(tmp_path / "cut") == content(tmp_path / "whole")


@pytest.mark.parametrize("count", [1, 63, 64, 65, 128, 1000])
def test_merged_statistics_are_those_of_added_rows(count: int) -> None:
    values = np.random.default_rng(count).normal(size=(count, 2))
    whole = RunningStatistics((2,), keep=64)
    merged = RunningStatistics((2,), keep=64)
    stride = sample_stride(count, 64)
    for first in range(0, count, 7):
        part = values[first : first + 7]
        whole.add(part)
        merged.merge(compute_moments(part), len(part), part[-first % stride :: stride])
    one = whole.result()
    other = merged.result()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_quantiles_of_large_outputs_are_those_of_added_rows(
    source: Path, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "sample_stride", lambda count: sample_stride(count, 64))
    edit(
        source,
        tmp_path / "out",
        drop_features=("observation.images.top", "observation.images.wrist"),
    )
    whole = RunningStatistics((2,), keep=64)
    for number in range(5):
        whole.add(episode(tmp_path / "out", number)["action"])
    written = json.loads((tmp_path / "out/meta/stats.json").read_text())["action"]
    assert written["q10"] == whole.result()["q10"].tolist()
    assert written["mean"] == whole.result()["mean"].tolist()


def test_poisoned_episode_is_named(
    source: Path, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(videos, "EncodePieces", DeadlyEncoding)
    with refused("3", where="source"), Workers(2) as workers:
        edit(source, tmp_path / "out", workers=workers, **ENCODED)
    assert list(tmp_path.iterdir()) == []


DRIVER = """
import sys
from pathlib import Path
from understudy_tools.testing.edited import edit, episode
from understudy_tools.edit import rows, videos, write_set
from understudy_data.parts import Workers
if __name__ == "__main__":
    videos.PART_IMAGES, write_set.PART_ROWS = 1, 1
    source, out, work, count = sys.argv[1:]
    with Workers(int(count), folder=work) as workers:
        edit(
            Path(source), Path(out), workers=workers, codec="libx264", gop=3,
            cameras=("observation.images.top",),
        )
"""


@pytest.mark.long
@pytest.mark.parametrize("kills", [3, pytest.param(60, marks=pytest.mark.long)])
def test_kills_of_processes_and_of_the_command_change_nothing(
    source: Path, tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the driver needs `support`
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    edit(source, tmp_path / "whole", **ENCODED)
    whole = content(tmp_path / "whole")
    script = tmp_path / "driver.py"
    draw = random.Random(kills)
    done = 0
    rounds = 0
    script.write_text(DRIVER)
    while done < kills:
        out = tmp_path / f"out-{rounds}"
        work = tmp_path / f"work-{rounds}"
        command = [
            sys.executable,
            str(script),
            str(source),
            str(out),
            str(work),
            str(draw.choice((1, 2, 3))),
        ]
        while not out.exists():
            driver = subprocess.Popen(command, stderr=subprocess.PIPE)
            parts = len(list(work.glob("*.part")))
            while driver.poll() is None and done < kills:
                wait = time.monotonic() + draw.uniform(0.05, 0.6)
                while driver.poll() is None and time.monotonic() < wait:
                    time.sleep(0.01)
                if len(list(work.glob("*.part"))) > parts and (victims := processes_of(script)):
                    victim = draw.choice(victims)
                    parts = len(list(work.glob("*.part")))
                    os.kill(victim, signal.SIGKILL)
                    done += 1
            assert driver.stderr is not None
            errors = driver.stderr.read().decode()
            driver.wait(120)
            # A part that three of the kills hit is named; the same command continues.
            assert driver.returncode in (0, -signal.SIGKILL) or "it ended 3 processes" in errors, (
                errors
            )
        assert content(out) == whole
        # a kill between the rename and its end leaves the finished parts
        assert driver.returncode or not work.exists()
        rounds += 1
    assert processes_of(script) == []


def test_edits_start_without_torch() -> None:
    """Its import costs a second, in the command and for its processes."""
    modules = [
        f"understudy_tools.edit.{path.stem}"
        for path in Path(write_set.__file__).parent.glob("[!_]*.py")
    ]
    code = (
        f"import sys, understudy_tools.cli.edit, {', '.join(modules)}; sys.exit('torch' in "
        "sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_work_folder_of_another_output_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/mine").touch()
    with refused("parts", where="work"), Workers(folder=tmp_path / "work") as workers:
        edit(source, tmp_path / "out", workers=workers)
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["mine"]
    plans = make_plans(EditConfig((str(source), "out")), [Catalog.open(source)], tmp_path / "out")
    assert write_outputs(plans, tmp_path / "out", ["edit"])[""].episodes == 5


@pytest.mark.long
def test_a_dataset_in_a_bucket_is_edited_and_checked_as_a_local_one(
    source: Path, tmp_path: Path, small_parts: None
) -> None:
    with s3_bucket("set") as options:
        import fsspec

        fsspec.filesystem("s3", **options.storage_options).put(
            f"{source}/", "set/source/", recursive=True
        )
        remote = Catalog.open(
            "s3://set/source", RemoteOptions(options.storage_options, str(tmp_path / "cache"))
        )
        out = tmp_path / "out"
        plans = make_plans(EditConfig(("s3://set/source", str(out)), **ENCODED), [remote], out)
        with Workers(2, folder=tmp_path / "work") as workers:
            write_outputs(plans, out, ["edit"], workers)
        with Workers(2, folder=tmp_path / "check") as workers:
            report = check_dataset(remote, "all", workers=workers)
        assert not [
            path for path in (tmp_path / "check").iterdir() if SECRET.encode() in path.read_bytes()
        ]
    edit(source, tmp_path / "local", **ENCODED)
    there = content(out)
    here = content(tmp_path / "local")
    assert {**there, "origin": b""} == {**here, "origin": b""}
    local = check_dataset(source, "all")
    assert (report.read, report.bad_episodes) == (local.read, local.bad_episodes)
