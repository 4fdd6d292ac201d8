"""`lab/benchmarks/loader.py`: all figures are measured and reported."""

import importlib.util
import json
import mmap
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import decode_limit as bench_limit
import loader as benchmark
from common import OtherLoader
from loader import MemoryTrial, rival_figures
from loader_rivals import Rival
from loader_trial import Setting
from understudy_base.testing.refusals import refused
from understudy_data.testing import peak_memory
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.peak_memory import resident_bytes
from understudy_data.testing.videos import rgb

TOP = "observation.images.top"
WRIST = "observation.images.wrist"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "dataset"
    write_dataset(path, Spec(lengths=(80, 61, 52, 94, 60, 75), cameras=(TOP, WRIST), gop=4))
    return path


def test_shuffled_writes_every_frame_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ring has the frames of sequential reading in order, delayed by the number held."""
    held = 40
    ring = np.zeros((24, 3, 64, 64), np.uint8)
    fed = 0
    (stretch,) = bench_limit.stretches(Setting(str(root), cameras=(TOP,)).data(), 1)
    context = bench_limit.create_context(stretch)
    decoded = [
        frame for data in stretch.packets for frame in context.decode(bench_limit.make_packet(data))
    ]
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
    for pictures in benchmark.shuffled(stretch, held, ring):
        assert pictures == benchmark.FRAMES_TOGETHER
        # beyond the end of the stretch it starts over, as plain reading
        for number in range(made, made + pictures):
            assert np.array_equal(ring[number % len(ring)], plain[number % len(plain)])
        made += pictures
        assert fed - made >= held
        if made > 2 * len(plain):
            break
    assert fed - made < held + 2 * benchmark.FRAMES_TOGETHER


@pytest.mark.long
def test_trial_peak_is_its_own(root: Path) -> None:
    """Memory used before it and between its rounds is not counted; memory used within a batch
    is.
    """
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
        assert 0 <= trial.facts()["peak_mb"] < 100
        take = trial.take

        def much() -> None:
            take()
            # not from malloc, which may have as much to spare
            with mmap.mmap(-1, 150 * megabyte) as for_a_moment:
                for _ in range(150):
                    for_a_moment.write(b"x" * megabyte)

        trial.take = much  # type: ignore[method-assign]
        trial.measure(0.05)
        assert 140 < trial.facts()["peak_mb"] < 260
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
    print(json.dumps({"samples": 64, "seconds": 2.0, "cpu_seconds": 0.32}), flush=True)
"""


def test_other_loader_measures_in_its_own_process(tmp_path: Path) -> None:
    script = tmp_path / "rival.py"
    script.write_text(ANSWERS)
    with OtherLoader([sys.executable, str(script)]) as rival:
        answers = [rival.measure(seconds=1), rival.measure(seconds=2)]
        assert rival.version == "7"
        assert rival_figures(answers) == {"samples_per_s": 32.0, "cpu_ms_per_sample": 5.0}
        answers.append(rival.measure(seconds=9))  # it dies
        assert rival_figures(answers) == {"missing": "it ended with exit code 3"}
        assert rival.measure(seconds=1) == {"missing": "it ended with exit code 3"}
        with refused(3, kind=SystemExit):
            rival.require(seconds=1)


def test_lerobot_reports_a_missing_package(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    # an interpreter without any package
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(0o755)
    with Rival("lerobot-torchcodec", str(bare)) as rival:
        assert "No module named" in rival.missing
        assert rival_figures([rival.ask(root="nowhere")]) == {"missing": rival.missing}


def test_lerobot_measures_the_same_files(tmp_path: Path) -> None:
    if importlib.util.find_spec("lerobot") is None:
        pytest.skip("LeRobot is not installed")
    # Without foreign files: it takes every parquet file below data/ and meta/episodes/ for its own.
    write_dataset(
        tmp_path, Spec(lengths=(80, 61, 52, 94, 60, 75), cameras=(TOP, WRIST), gop=4, foreign=False)
    )
    with Rival("lerobot-torchcodec", sys.executable) as rival:
        answer = rival.ask(root=str(tmp_path), batch=8, chunk=4, workers=2, seconds=0.2)
    assert answer["samples"] >= 32
    assert answer["cpu_seconds"] > 0


LIMITS = ("limit", "codec_limit", "shuffled_limit")


@pytest.mark.long
def test_loader_benchmark_has_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without LeRobot. A later run with the same file measures the missing rows only."""
    out = tmp_path / "found.json"
    words = [
        "--json",
        "--quick",
        "--real",
        "",
        "--cache",
        str(tmp_path),
        "--lerobot",
        "false",
        "--out",
        str(out),
    ]

    def run(only: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["loader.py", *words, "--only", only])
        benchmark.main()
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert json.loads(out.read_text()) == found
        return found

    assert run("svtav1-g2-64")["rows"][0]["name"] == "svtav1-g2-64"
    found = run("")
    names = [(row["name"], row["cameras"]) for row in found["rows"]]
    assert ("rows-only", 0) in names
    assert len(set(names)) == len(names) == 5
    for row in found["rows"]:
        assert row["lerobot_cpu_ms_per_sample"] is None
        assert (
            min(
                row[key]
                for key in ("samples_per_s", "cpu_ms_per_sample", "planned_mb", "first_batch_s")
            )
            > 0
        )
        for name in LIMITS:
            figures = [
                row[key] for key in (f"{name}_per_s", f"over_{name}", f"{name}_cpu_ms_per_sample")
            ]
            assert (
                all(figure > 0 for figure in figures) if row["cameras"] else figures == [None] * 3
            )
        assert row["deff1"] > 0.9 * row["deff1_uniform"]
    assert all(name in benchmark.render(found) for name, _ in names)
    written = out.read_text()
    assert run("") == found  # nothing is missing: nothing is measured
    assert out.read_text() == written
    out.write_text(json.dumps(found | {"conditions": found["conditions"] | {"cores": 999}}))
    with refused("cores", 999, kind=SystemExit):
        run("")
