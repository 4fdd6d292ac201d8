"""`benchmarks/loader.py` and `loader_measure.py`: all figures are measured and reported."""

import importlib.util
import json
import mmap
import subprocess
import sys
from argparse import Namespace
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import loader as benchmark
import loader_measure
from loader_measure import MemoryTrial, OtherLoader, lerobot, other_figures
from support import peak_memory
from support.datasets import Spec, write_dataset
from support.peak_memory import resident_bytes
from support.refusals import refused
from support.videos import rgb
from understudy.cli.bench import decode_limit as bench_limit
from understudy.cli.bench.measure import Setting

TOP, WRIST = "observation.images.top", "observation.images.wrist"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "dataset"
    write_dataset(path, Spec(lengths=(80, 61, 52, 94, 60, 75), cameras=(TOP, WRIST), gop=4))
    return path


def test_shuffled_writes_every_frame_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring has the frames of sequential reading in order, delayed by the number held."""
    held, ring, fed = 40, np.zeros((24, 3, 64, 64), np.uint8), 0
    (stretch,) = bench_limit.stretches(Setting(str(root), cameras=(TOP,)).data(), 1)
    context = bench_limit.create_context(stretch)
    decoded = [frame for data in stretch.packets for frame in context.decode(bench_limit.make_packet(data))]
    decoded += context.decode(None)
    assert len(decoded) == len(stretch.packets)
    plain = [rgb(frame).transpose(2, 0, 1) for frame in decoded]
    assert len({picture.tobytes() for picture in plain}) > held

    class Counting:
        def __init__(self) -> None:
            self.context = context_of(stretch)

        def decode(self, packet: Any) -> Any:
            nonlocal fed
            found = self.context.decode(packet)
            fed += len(found)
            return found

        def flush_buffers(self) -> None:
            self.context.flush_buffers()

    context_of = bench_limit.create_context
    monkeypatch.setattr(bench_limit, "create_context", lambda stretch: Counting())
    made = 0
    for pictures in loader_measure.shuffled(stretch, held, ring):
        assert pictures == loader_measure.FRAMES_TOGETHER
        for number in range(made, made + pictures):  # beyond the end of the stretch it starts over, as plain reading
            assert np.array_equal(ring[number % len(ring)], plain[number % len(plain)])
        made += pictures
        assert fed - made >= held
        if made > 2 * len(plain):
            break
    assert fed - made < held + 2 * loader_measure.FRAMES_TOGETHER


@pytest.mark.long
def test_trial_peak_is_its_own(root: Path) -> None:
    """Memory used before it and between its rounds is not counted; memory used within a batch is."""
    megabyte = 1 << 20
    if peak_memory.start_peak() != pytest.approx(resident_bytes(), abs=4 * megabyte):
        pytest.skip("this system has no peak that can be reset")
    before = np.ones(150 * megabyte, np.uint8)
    del before
    trial = MemoryTrial(Setting(str(root), batch=8, chunk=5, memory="4MB"))
    try:
        between = np.ones(150 * megabyte, np.uint8)
        del between
        trial.measure(0.05)
        assert 0 <= trial.peak_mb < 100
        take = trial.take

        def much() -> None:
            take()
            with mmap.mmap(-1, 150 * megabyte) as for_a_moment:  # not from malloc, which may have as much to spare
                for _ in range(150):
                    for_a_moment.write(b"x" * megabyte)

        trial.take = much  # type: ignore[method-assign]
        trial.measure(0.05)
        assert 140 < trial.peak_mb < 260
    finally:
        trial.close()


def test_peak_is_that_of_the_process_without_a_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> Any:
        raise OSError("no /proc here")

    monkeypatch.setattr(peak_memory, "open", refused, raising=False)
    most = peak_memory.start_peak()
    assert most == peak_memory.peak_bytes() > 1 << 24


ANSWERS = """
import json, sys
print(json.dumps({"version": "7"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["seconds"] > 5:
        sys.exit(3)
    print(json.dumps({"samples": 64, "seconds": 2.0, "cpu_seconds": 0.32, "episodes": 20}), flush=True)
"""


def test_other_loader_measures_in_its_own_process(tmp_path: Path) -> None:
    script = tmp_path / "rival.py"
    script.write_text(ANSWERS)
    with OtherLoader([sys.executable, str(script)]) as rival:
        answers = [rival.measure(seconds=1), rival.measure(seconds=2)]
        expected = {"version": "7", "samples_per_s": 32.0, "cpu_ms_per_sample": 5.0, "distinct_episodes": 20}
        assert other_figures(rival, answers) == expected
        answers.append(rival.measure(seconds=9))  # it dies
        assert other_figures(rival, answers) == {"missing": "it ended with exit code 3"}
        assert rival.measure(seconds=1) == {"missing": "it ended with exit code 3"}


def test_lerobot_reports_a_missing_package(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # an interpreter without any package
    bare.chmod(0o755)
    with lerobot(str(bare)) as rival:
        assert "No module named" in rival.missing
        assert other_figures(rival, []) == {"missing": rival.missing}


def test_lerobot_measures_the_same_files(tmp_path: Path) -> None:
    if importlib.util.find_spec("lerobot") is None:
        pytest.skip("LeRobot is not installed")
    # Without foreign files: it takes every parquet file below data/ and meta/episodes/ for its own.
    write_dataset(tmp_path, Spec(lengths=(80, 61, 52, 94, 60, 75), cameras=(TOP, WRIST), gop=4, foreign=False))
    with lerobot(sys.executable) as rival:
        answer = rival.measure(root=str(tmp_path), batch=8, chunk=4, workers=2, seconds=0.2)
    assert answer["samples"] >= 32
    assert answer["cpu_seconds"] > 0


ROW = {"codec", "gop", "height", "cameras", "samples_per_s", "limit_per_s", "over_limit", "cpu_ms_per_sample", "deff1"}
ROW |= {"peak_mb", "planned_mb", "lerobot_cpu_ms_per_sample"}
LIMITS = {"codec_limit_per_s", "over_codec_limit", "codec_limit_cpu_ms_per_sample", "limit_cpu_ms_per_sample"}
LIMITS |= {"shuffled_limit_per_s", "over_shuffled_limit", "shuffled_limit_cpu_ms_per_sample", "shuffled_limit_held"}
HELD = {"shuffled_limit_held"}  # none where memory is so small


@pytest.mark.long
def test_loader_benchmark_has_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without LeRobot and remote data. A later run with the same file measures the missing rows only."""
    monkeypatch.delenv("UNDERSTUDY_TEST_DATA", raising=False)
    out = tmp_path / "found.json"
    cache = {"quick": True, "cache": str(tmp_path), "only": "svtav1-g2-64", "lerobot": "false"}

    def run(parts: str) -> dict[str, Any]:
        found: dict[str, Any] = benchmark.measure(Namespace(**cache, out=str(out), parts=parts))
        assert json.loads(out.read_text()) == found
        assert benchmark.render(found)
        return found

    first = run("first")
    assert [batch["floor_s"] for batch in first["first_batches"]] == [None] * 3  # the limit is not known yet
    assert first["rows"] == []
    found = run("rows,first")
    assert "svtav1-g2-64: " in capsys.readouterr().err
    kinds = [(row["cameras"], row["colors"]) for row in found["rows"]]
    assert kinds == [(1, "rgb"), (1, "yuv"), (2, "rgb"), (3, "rgb")]
    for row in found["rows"]:
        assert row.keys() >= ROW | LIMITS
        assert row["lerobot_cpu_ms_per_sample"] is None
        assert all(row[key] > 0 for key in (ROW | LIMITS) - {"codec", "lerobot_cpu_ms_per_sample", "peak_mb"} - HELD)
    assert found["parquet_only_samples_per_s"] > 0
    assert found["first_batches"][1]["floor_s"] > 0
    written = out.read_text()
    assert run("rows,first") == found  # nothing is missing: nothing is measured
    assert out.read_text() == written
    with refused("--parts", "rows,last", kind=SystemExit):
        run("rows,last")
    out.write_text(json.dumps(found | {"conditions": found["conditions"] | {"cores": 999}}))
    with refused("cores", 999, kind=SystemExit):
        run("rows")


@pytest.mark.long
def test_loader_benchmark_measures_remote_data(tmp_path: Path) -> None:
    """One epoch with the codec left out asks for all bytes, and the timed part decodes the same from both places."""
    (row,) = benchmark.remote_rows(tmp_path, None, True, known=[2, 12])
    assert row["gop"] == 250
    assert row["server"] in ("nginx", "python")
    assert 0.95 < row["amplification"] < 1.5  # of a tiny file, much is in the answer with the index
    assert all(row[key] > 0 for key in ("first_batch_needs_fraction", "first_batch_fraction_of_file", "over_local"))


@pytest.mark.long
def test_loader_benchmark_measures_in_its_own_process(root: Path) -> None:
    setting = asdict(Setting(str(root), batch=8, chunk=4, memory="4MB"))
    asked = '{"seconds": 0.05}\n' * 2
    done = subprocess.run(benchmark.child("ours", **setting), input=asked, capture_output=True, text=True, check=True)
    first, *answers = map(json.loads, done.stdout.splitlines())
    assert first["version"]
    assert len(answers) == 2
    assert all(answer["samples"] > 0 and answer["planned_mb"] > 0 for answer in answers)
    first = benchmark.first_batch(str(root))
    assert first["seconds"] > 0
    assert 2 * 32 <= first["pictures"] <= 2 * 32 * 4  # two cameras, groups of 4
