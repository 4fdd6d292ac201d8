"""`understudy bench` and `benchmarks/loader.py`: all figures are measured and reported."""

import importlib.util
import inspect
import json
import mmap
import re
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from support.datasets import Spec, write_dataset
from support.loader_process import resident_bytes
from support.refusals import refused
from support.videos import rgb
from understudy.cli import main
from understudy.cli.bench import decode_limit as bench_limit
from understudy.cli.bench import machine_load
from understudy.cli.bench import measure as bench_measure
from understudy.cli.bench.bench import BenchConfig, bench, format_figures, measure
from understudy.cli.bench.decode_limit import limits
from understudy.cli.bench.machine_load import doubt
from understudy.cli.bench.measure import (
    OtherLoader,
    Round,
    Setting,
    Trial,
    default_seconds,
    lerobot,
    median_round,
    other_figures,
)
from understudy.cli.bench.ranks import format_ranks
from understudy.errors import ConfigError

TOP, WRIST = "observation.images.top", "observation.images.wrist"
FAST = {"seconds": 0.05, "rounds": 1, "batch_size": 8, "chunk_size": 4}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "dataset"
    write_dataset(path, Spec(lengths=(80, 61, 52, 94, 60, 75), cameras=(TOP, WRIST), gop=4))
    return path


@pytest.mark.long
def test_ranks_are_measured_together_and_each(root: Path) -> None:
    words = ["--launch", "2", "--batch-size", "8", "--seconds", "0.1", "--rounds", "2", "--json"]
    command = [sys.executable, "-m", "understudy", "bench", str(root), *words]
    found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert (found["world_size"], len(found["ranks"])) == (2, 2)
    each = [rank["samples_per_s"] for rank in found["ranks"]]
    assert max(each) < found["samples_per_s"] == pytest.approx(sum(each), rel=0.01)  # of two rounds, median and mean
    assert found["frames_per_s"] == pytest.approx(2 * found["samples_per_s"])  # two cameras
    text = format_ranks(found)
    assert all(name in text for name in ("all 2 ranks", "rank 0", "rank 1"))


@pytest.mark.parametrize("setting", [{"batch_size": 7}, {"against": "lerobot"}, {"figure": "bench.png"}])
def test_settings_of_one_process_are_refused_in_several(
    setting: dict[str, Any], root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused(next(iter(setting)), kind=ConfigError):
        bench(BenchConfig(path=str(root), **setting))


@pytest.mark.long
def test_measure_returns_all_figures(root: Path) -> None:
    setting = FAST | {"seconds": 0.3}  # long enough for something to be decoded on a busy machine
    found = json.loads(json.dumps(measure(BenchConfig(path=str(root), memory="4MB", **setting))))
    assert found["samples_per_s"] > 0
    assert found["cpu_ms_per_sample"] > 0
    assert found["limit"]["samples_per_s"] > 0
    assert found["over_limit"] == pytest.approx(found["samples_per_s"] / found["limit"]["samples_per_s"])
    assert found["over_codec_limit"] == pytest.approx(found["samples_per_s"] / found["codec_limit"]["samples_per_s"])
    assert found["limit"]["by"] in bench_limit.LIBRARIES
    assert found["codec_limit"]["by"] == "bare codec"
    shuffled = found["shuffled_limit"]["samples_per_s"]
    assert found["over_shuffled_limit"] == pytest.approx(found["samples_per_s"] / shuffled)
    assert found["batch_mb"] * 1e6 > 8 * 2 * 64 * 64 * 3  # two images in each of 8 samples, and the numbers
    assert sum(found["work"].values()) == pytest.approx(1)
    assert found["work"]["decode"] > 0
    assert 0 <= found["waited_share"] <= 1
    assert found["order"]["deff"][0] >= 1
    assert 1 <= found["order"]["distinct_episodes"] <= 6
    assert found["lerobot"] is None
    assert found["conditions"]["cores"] >= 1
    assert found["conditions"]["others"] is None or found["conditions"]["others"] >= 0
    found |= {"doubt": ""}  # the machine of the tests may be busy
    text = format_figures(found)
    assert "understudy" in text
    assert "decode limit" in text
    assert "shuffled (bare codec)" in text
    assert found["plan"].splitlines()[0] in text
    rival = {"version": "9", "samples_per_s": 10.0, "cpu_ms_per_sample": 5.0, "distinct_episodes": 3.0}
    assert "LeRobot 9, 2 workers" in format_figures(found | {"lerobot": rival})
    assert "Nothing was decoded" not in text
    assert "Nothing was decoded" in format_figures(found | {"work": found["work"] | {"decode": 0.0}})
    assert "order         uniform over frames;" in format_figures(found | {"order": found["order"] | {"clip": 1}})
    assert "not measured: no such thing" in format_figures(found | {"lerobot": {"missing": "no such thing"}})


@pytest.mark.long
def test_bench_prints_a_table_and_draws_a_figure(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", str(root), "--seconds", "0.05", "--rounds", "1", "--batch-size", "8", "--cameras", TOP]
    assert main.main(arguments) == 0
    assert "figure: dataset-bench.png" in capsys.readouterr().out
    assert (tmp_path / "dataset-bench.png").stat().st_size > 5000
    assert main.main([*arguments, "--json", "--figure", "b.svg"]) == 0
    assert json.loads(capsys.readouterr().out)["limit"]["samples_per_s"] > 0
    drawn = (tmp_path / "b.svg").read_text()
    assert "CPU ms per sample" in drawn
    assert str(root) in drawn


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "path: required"),
        (("nowhere",), "nowhere"),
        (("{root}", "--cameras", "none"), "unknown camera 'none'"),
        (("{root}", "--memory", "lots"), "memory"),
        (("{root}", "--memory", "1KB"), "one batch of 32 samples"),
        (("{root}", "--seconds", "0"), "seconds"),
        (("{root}", "--figure", "x.gif"), "must end in"),
        (("{root}", "--figure", "no/folder/x.png"), "is not a folder"),
        (("s3://bucket/data", "--against", "lerobot"), "local folders only"),
    ],
)
def test_bench_refuses_wrong_settings_in_one_line(
    root: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["bench", *(word.format(root=root) for word in arguments)]) == main.WRONG_INPUT
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.long
def test_limits_without_video_are_none(root: Path) -> None:
    found = measure(BenchConfig(path=str(root), **FAST))
    assert found["limit"] is not None
    data = Setting(str(root), cameras=()).data()
    for limit in limits(data, 8):
        limit.measure(0.01)
        assert limit.found() is None
        assert limit.share(5.0) is None
    nothing = {over + key: None for over in ("", "over_") for key in ("limit", "codec_limit", "shuffled_limit")}
    assert "limit (" not in format_figures(found | nothing)


def test_limits_of_remote_videos_are_those_of_the_codec(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library would read them at the speed of the network."""
    found = bench_limit.stretches(Setting(str(root)).data(), 2)
    monkeypatch.setattr(bench_limit, "stretches", lambda data, count: [replace(one, local=False) for one in found])
    library, codec, shuffled = limits(Setting(str(root)).data(), 8)
    for limit in (library, codec, shuffled):
        limit.measure(0.05)
    assert library.found() is None
    assert codec.share(1.0) is not None
    assert shuffled.share(1.0) is not None


@pytest.mark.long
def test_limit_decodes_the_frames_of_the_dataset(root: Path) -> None:
    """Every way decodes the files in a loop; the limit is the way with the best median."""
    data = Setting(str(root)).data()
    stretches = bench_limit.stretches(data, 4)
    assert len({(one.path, one.packets[0]) for one in stretches}) == 4  # different cameras, files or places
    for way in (bench_limit.bare, bench_limit.pyav):
        pictures, seen = way(stretches[0]), 0
        while seen < 2 * len(stretches[0].packets):  # beyond the end it continues from the beginning
            seen += next(pictures)
    counted = {"bare codec": 0, "container": 0}

    def counting(name: str) -> Any:
        def way(stretch: bench_limit.Stretch) -> Iterator[int]:
            for pictures in bench_limit.bare(stretch):
                counted[name] += 1
                yield pictures

        return way

    limit = limits(data, 8)[1]
    limit.ways = {name: counting(name) for name in counted}
    limit.measure(0.1)
    first = dict(counted)
    for _ in range(2):
        limit.measure(0.1)
    assert all(counted[name] > first[name] > 0 for name in counted)  # each has its turn in every round
    rounds = limit.rounds = {"a": [Round(9, 1, 1)] + 2 * [Round(2, 1, 1)], "b": 3 * [Round(4, 1, 2)]}
    found = limit.found()
    assert found is not None
    assert (found["by"], found["samples_per_s"]) == ("b", 4 / limit.cameras)  # one lucky round makes no limit
    assert found["cpu_ms_per_sample"] == 500 * limit.cameras
    one_camera = limits(Setting(str(root), cameras=(TOP,)).data(), 8)[1]
    one_camera.rounds = rounds
    halved = one_camera.found()
    assert halved is not None
    assert halved["samples_per_s"] == pytest.approx(2 * found["samples_per_s"])  # a sample of two cameras is two


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
    for pictures in bench_limit.shuffled(stretch, held, ring):
        assert pictures == bench_limit.FRAMES_TOGETHER
        for number in range(made, made + pictures):  # beyond the end of the stretch it starts over, as plain reading
            assert np.array_equal(ring[number % len(ring)], plain[number % len(plain)])
        made += pictures
        assert fed - made >= held
        if made > 2 * len(plain):
            break
    assert fed - made < held + 2 * bench_limit.FRAMES_TOGETHER


def test_limit_raises_an_error_of_the_decoder(root: Path) -> None:
    def broken(stretch: bench_limit.Stretch) -> Iterator[int]:
        yield 1
        raise OSError(5, "Input/output error")

    limit = limits(Setting(str(root)).data(), 8)[1]
    limit.ways = {"bare codec": broken}
    with refused(5, kind=OSError):
        limit.measure(0.05)


def side(per_s: float, cpu_ms: float) -> dict[str, Any]:
    return {"by": "PyAV", "samples_per_s": per_s, "cpu_ms_per_sample": cpu_ms}


def measured(load: float | None, others: float | None, **changes: Any) -> dict[str, Any]:
    conditions = {"cores": 2, "load": load, "others": others}
    limits = {"limit": side(100, 10), "codec_limit": side(120, 8)}
    return {**side(90, 11), **limits, "work": {"decode": 0.5}, "conditions": conditions} | changes


def test_doubt_sees_a_busy_machine() -> None:
    assert doubt(measured(33.0, 0.1)) == ""  # the load was that of a moment ago
    assert "load 33.0 on 2 cores" in doubt(measured(33.0, 1.7))
    assert doubt(measured(0.0, 1.7)) != ""  # they came in the midst
    assert doubt(measured(None, None)) == doubt(measured(0.8, None)) == ""
    assert "load 3.0 on 2 cores" in doubt(measured(3.0, None))
    assert doubt(measured(0.0, 0.0, limit=None, codec_limit=None)) == ""


def test_doubt_sees_impossible_figures() -> None:
    assert doubt(measured(0.0, 0.0, **side(149, 11))) != ""
    assert doubt(measured(0.0, 0.0, **side(149, 7))) == ""
    assert doubt(measured(0.0, 0.0, **side(149, 11), work={"decode": 0.0})) == ""  # nothing was decoded


@pytest.mark.long
def test_format_figures_marks_doubtful_ratios(root: Path) -> None:
    found = measure(BenchConfig(path=str(root), **FAST)) | side(149, 20)
    found |= {"limit": side(100, 10), "codec_limit": None, "shuffled_limit": None, "doubt": ""}
    assert "149%" in format_figures(found)
    busy = format_figures(found | {"doubt": "the machine is busy"})
    assert "149%" not in busy
    assert "50%" in busy
    assert "Do not quote these ratios, which are of CPU time per sample: the machine is busy" in busy


@pytest.mark.long
def test_others_measures_other_processes() -> None:
    """One busy process per core."""
    if machine_load.busy_seconds() is None:
        pytest.skip("this system does not count CPU time")
    others = machine_load.Others()
    work = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(bench_measure.cores())]
    try:
        with others.watched():
            time.sleep(1.0)
    finally:
        for process in work:
            process.kill()
            process.wait()
    assert others.found()["others"] > machine_load.MOST * bench_measure.cores()


@pytest.mark.parametrize(("frames", "seconds"), [(1, 1.0), (236, 1.0), (4_000, 2.0), (10_000, 5.0), (10**7, 5.0)])
def test_tiny_datasets_are_measured_for_less_time(frames: int, seconds: float) -> None:
    assert default_seconds(frames) == seconds


def test_glossary_explains_the_terms_of_the_output(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "docs/glossary.md").read_text()
    printed = format_figures(measure(BenchConfig(path=str(root), **FAST)))
    assert "docs/glossary.md" in printed
    assert main.main(["order", "explain", "--episodes", "300", "--batch-size", "8", "--world-size", "2"]) == 0
    table = capsys.readouterr().out
    assert "docs/glossary.md" in table
    names = re.findall(r"^([a-z][a-z /]+?)(?:, mean)?  +[\d.]", table, flags=re.MULTILINE)
    names += re.findall(r"(?<=  )(?:of \w+|[a-zA-Z]+ ?/?[a-z]*/[a-z]+)", printed.splitlines()[0])
    names += re.findall(r"^(decode limit|strictest|shuffled|delivered|work|plan)\b", printed, flags=re.MULTILINE)
    assert len(names) > 15
    lost = [name for name in names if name not in page and not name.startswith("deff over")]
    assert lost == []


def test_median_round() -> None:
    rounds = [Round(100, 1.0, 0.5), Round(100, 2.0, 0.1), Round(100, 4.0, 0.3)]
    assert median_round(rounds) == {"samples_per_s": 50.0, "cpu_ms_per_sample": 3.0}


def test_trial_measures_its_setting(root: Path) -> None:
    with refused("none", where=str(root)):
        Setting(str(root), cameras=("none",)).data()
    trial = Trial(Setting(str(root), batch=4, chunk=5, cameras=(WRIST,), memory="4MB"))
    try:
        lanes, ahead = trial.order.spec.sources[0].lanes, trial.loader.plan.policies[0].run_length
        assert lanes * ahead > 4 * bench_measure.WARM_BATCHES
        for thrown_away in (-(-lanes * ahead // 4), bench_measure.WARM_BATCHES):  # before the first round a whole turn
            before = trial.loader.position
            found = trial.measure(0.05)
            made = trial.loader.position - before
            assert found.samples == made - 4 * thrown_away
        assert lanes < trial.held < trial.loader.plan.bytes / (64 * 64 * 1.5)
        batch = next(trial.loader)
        assert batch["action"].shape[:2] == (4, 5)
        assert WRIST in batch
        assert TOP not in batch
    finally:
        trial.close()


@pytest.mark.long
def test_trial_peak_is_its_own(root: Path) -> None:
    """Memory used before it and between its rounds is not counted; memory used within a batch is."""
    megabyte = 1 << 20
    if bench_measure.start_peak() != pytest.approx(resident_bytes(), abs=4 * megabyte):
        pytest.skip("this system has no peak that can be reset")
    before = np.ones(150 * megabyte, np.uint8)
    del before
    trial = Trial(Setting(str(root), batch=8, chunk=5, memory="4MB"))
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

    monkeypatch.setattr(bench_measure, "open", refused, raising=False)
    most = bench_measure.start_peak()
    assert most == bench_measure.peak_bytes() > 1 << 24


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


@pytest.fixture
def lerobot_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkout's script for LeRobot's loader, also where understudy is installed as a wheel."""
    script = Path(__file__).parents[2] / "benchmarks" / "rival_loaders.py"
    monkeypatch.setattr("understudy.cli.bench.measure.LEROBOT_SCRIPT", script)


def test_lerobot_needs_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy.cli.bench.measure.LEROBOT_SCRIPT", tmp_path / "rival_loaders.py")
    with pytest.raises(ConfigError):
        lerobot(sys.executable)


@pytest.mark.usefixtures("lerobot_script")
def test_lerobot_reports_a_missing_package(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # an interpreter without any package
    bare.chmod(0o755)
    with lerobot(str(bare)) as rival:
        assert "No module named" in rival.missing
        assert other_figures(rival, []) == {"missing": rival.missing}


@pytest.mark.usefixtures("lerobot_script")
def test_lerobot_measures_the_same_files(tmp_path: Path) -> None:
    if importlib.util.find_spec("lerobot") is None:
        pytest.skip("LeRobot is not installed")
    # Without foreign files: it takes every parquet file below data/ and meta/episodes/ for its own.
    write_dataset(tmp_path, Spec(lengths=(80, 61, 52, 94, 60, 75), cameras=(TOP, WRIST), gop=4, foreign=False))
    with lerobot(sys.executable) as rival:
        answer = rival.measure(root=str(tmp_path), batch=8, chunk=4, workers=2, seconds=0.2)
    assert answer["samples"] >= 32
    assert answer["cpu_seconds"] > 0


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    folder = Path(__file__).parents[2] / "benchmarks"
    sys.path.insert(0, str(folder))
    spec = importlib.util.spec_from_file_location("loader_benchmark", folder / "loader.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(folder))


ROW = {"codec", "gop", "height", "cameras", "samples_per_s", "limit_per_s", "over_limit", "cpu_ms_per_sample", "deff1"}
ROW |= {"peak_mb", "planned_mb", "lerobot_cpu_ms_per_sample"}
LIMITS = {"codec_limit_per_s", "over_codec_limit", "codec_limit_cpu_ms_per_sample", "limit_cpu_ms_per_sample"}
LIMITS |= {"shuffled_limit_per_s", "over_shuffled_limit", "shuffled_limit_cpu_ms_per_sample", "shuffled_limit_held"}
HELD = {"shuffled_limit_held"}  # none where memory is so small
WHOLE = {"rows", "parquet_only_samples_per_s", "first_batch_s", "remote", "conditions"}


@pytest.mark.long
def test_loader_benchmark_has_its_keys(
    benchmark: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without processes of its own, and without LeRobot. After an interruption it continues from its file."""

    class Here:
        version = missing = ""

        def __init__(self, command: list[str]) -> None:
            setting = json.loads(command[-1])
            self.trial = Trial(Setting(**setting))

        def measure(self, seconds: float) -> dict[str, Any]:
            return asdict(self.trial.measure(seconds)) | benchmark.facts(self.trial)

        def __enter__(self) -> "Here":
            return self

        def __exit__(self, *_: object) -> None:
            self.trial.close()

    class Nobody(Here):
        missing = "not installed"

        def __init__(self) -> None:
            self.trial = Namespace(close=lambda: None)

    def remote_rows(cache: Path, real: Path | None, quick: bool, known: list[int]) -> Iterator[dict[str, Any]]:
        for gop in (2, 12, 250):
            if gop == 250 and not known:
                raise KeyboardInterrupt
            if gop not in known:
                row = {"server": "nginx", "gop": gop, "amplification": 1.0, "over_local": 1.0}
                yield row | {"first_batch_fraction_of_file": 0.01}

    assert (
        inspect.signature(benchmark.remote_rows).parameters.keys() == inspect.signature(remote_rows).parameters.keys()
    )
    monkeypatch.delenv("UNDERSTUDY_TEST_DATA", raising=False)
    monkeypatch.setattr(bench_measure, "OtherLoader", Here)
    monkeypatch.setattr(bench_measure, "lerobot", lambda python: Nobody())
    monkeypatch.setattr(benchmark, "first_batch_elsewhere", lambda root: {"seconds": 0.25, "pictures": 48})
    monkeypatch.setattr(benchmark, "remote_rows", remote_rows)
    out, said = tmp_path / "found.json", capsys.readouterr
    cache = {"quick": True, "cache": str(tmp_path), "only": "svtav1-g2-64", "lerobot": "", "seconds": 1.0, "rounds": 1}

    def run(parts: str) -> dict[str, Any]:
        said()
        found: dict[str, Any] = benchmark.measure(Namespace(**cache, out=str(out), parts=parts))
        assert json.loads(out.read_text()) == found
        assert found.keys() >= WHOLE
        assert benchmark.render(found)
        return found

    first = run("first")
    assert [(each["pictures"], each["seconds"], each["floor_s"]) for each in first["first_batches"]] == [
        (48, 0.25, None)  # the limit is not known yet
    ] * 3
    assert first["rows"] == first["remote"] == []
    with pytest.raises(KeyboardInterrupt):
        run("remote")
    assert "remote, nginx, GOP 12" in said().err
    assert [row["gop"] for row in json.loads(out.read_text())["remote"]] == [2, 12]  # the parts done by then
    found = run(",".join(benchmark.PARTS))
    assert "svtav1-g2-64: " in said().err
    assert [row["gop"] for row in found["remote"]] == [2, 12, 250]
    kinds = [(row["cameras"], row["colors"]) for row in found["rows"]]
    assert kinds == [(1, "rgb"), (1, "yuv"), (2, "rgb"), (3, "rgb")]
    for row in found["rows"]:
        assert row.keys() >= ROW | LIMITS
        assert row["codec"] == "av1"
        assert row["lerobot_cpu_ms_per_sample"] is None
        assert all(row[key] > 0 for key in (ROW | LIMITS) - {"codec", "lerobot_cpu_ms_per_sample", "peak_mb"} - HELD)
    assert found["parquet_only_samples_per_s"] > 0
    assert found["first_batch_s"] == 0.25
    assert found["first_batches"][1]["floor_s"] == pytest.approx(48 / (2 * found["rows"][2]["limit_per_s"]))
    assert found["rows"][0]["name"] in benchmark.render(found)
    written = out.read_text()
    assert run("rows,first,remote") == found  # nothing is missing: nothing is measured
    assert out.read_text() == written
    again = benchmark.sets(tmp_path, None, True, "svtav1-g2-64")  # found again, not made again
    assert [one.cameras for one in again] == [1, 2, 3]
    with refused("--parts", "rows,last", kind=SystemExit):
        run("rows,last")
    out.write_text(json.dumps(found | {"conditions": found["conditions"] | {"cores": 999}}))
    with refused("cores", 999, kind=SystemExit):
        run("rows")


@pytest.mark.long
def test_loader_benchmark_measures_remote_data(benchmark: ModuleType, tmp_path: Path) -> None:
    """One epoch with the codec left out asks for all bytes, and the timed part decodes the same from both places."""
    (row,) = benchmark.remote_rows(tmp_path, None, True, known=[2, 12])
    assert row["gop"] == 250
    assert row["server"] in ("nginx", "python")
    assert 0.95 < row["amplification"] < 1.5  # of a tiny file, much is in the answer with the index
    assert all(row[key] > 0 for key in ("first_batch_needs_fraction", "first_batch_fraction_of_file", "over_local"))


@pytest.mark.long
def test_loader_benchmark_measures_in_its_own_process(benchmark: ModuleType, root: Path) -> None:
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
