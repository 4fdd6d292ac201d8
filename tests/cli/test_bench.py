"""`understudy bench`: all figures are measured and reported."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from support.datasets import Spec, episode_pictures, write_dataset
from support.refusals import refused
from understudy.cli import main
from understudy.cli.bench import decode_limit as bench_limit
from understudy.cli.bench import machine_load
from understudy.cli.bench import measure as bench_measure
from understudy.cli.bench.bench import BenchConfig, bench, format_figures, measure
from understudy.cli.bench.decode_limit import limits
from understudy.cli.bench.machine_load import doubt
from understudy.cli.bench.measure import Round, Setting, Trial, default_seconds, median_round
from understudy.cli.bench.ranks import format_ranks
from understudy.cores import available_cores
from understudy.errors import ConfigError, page

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


def test_a_batch_that_processes_cannot_share_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("batch_size", kind=ConfigError):
        bench(BenchConfig(path=str(root), batch_size=7))


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
    assert found["batch_mb"] * 1e6 > 8 * 2 * 64 * 64 * 3  # two images in each of 8 samples, and the numbers
    assert sum(found["work"].values()) == pytest.approx(1)
    assert found["work"]["decode"] > 0
    assert 0 <= found["waited_share"] <= 1
    assert found["conditions"]["cores"] >= 1
    assert found["conditions"]["others"] is None or found["conditions"]["others"] >= 0
    found |= {"doubt": ""}  # the machine of the tests may be busy
    text = format_figures(found)
    assert "understudy" in text
    assert "decode limit" in text
    assert "strictest (bare codec)" in text
    assert found["plan"].splitlines()[0] in text
    assert "Nothing was decoded" not in text
    assert "Nothing was decoded" in format_figures(found | {"work": found["work"] | {"decode": 0.0}})
    assert "order         uniform over frames" in format_figures(found | {"order": found["order"] | {"clip": 1}})


@pytest.mark.long
def test_bench_prints_a_table(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["bench", str(root), "--seconds", "0.05", "--rounds", "1", "--batch-size", "8", "--cameras", TOP]
    assert main.main(arguments) == 0
    assert "decode limit" in capsys.readouterr().out
    assert main.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["limit"]["samples_per_s"] > 0
    assert list(tmp_path.iterdir()) == []


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
    for limit in limits(data):
        limit.measure(0.01)
        assert limit.figures() is None
        assert limit.share(5.0) is None
    nothing = {over + key: None for over in ("", "over_") for key in ("limit", "codec_limit")}
    assert "limit (" not in format_figures(found | nothing)


def test_limits_decode_the_stream_that_the_loader_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first stream of the file is another one, of smaller and of fewer images."""
    spec = Spec(lengths=(12,), foreign=False)
    write_dataset(tmp_path / "set", spec)
    (path,) = (tmp_path / "set/videos").rglob("*.mp4")
    images = episode_pictures(spec, 0, 0)
    with av.open(str(path), "w") as out:
        sides = (32, images[0].shape[0])
        streams = [out.add_stream("libx264", rate=10, width=side, height=side, pix_fmt="yuv420p") for side in sides]
        for stream, shown in zip(streams, ([image[:32, :32] for image in images[:5]], images)):
            for image in shown:
                out.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
            out.mux(stream.encode(None))
    widths = []

    def note(converter: Any, frame: av.VideoFrame, kind: str) -> av.VideoFrame:
        widths.append(frame.width)
        return frame

    monkeypatch.setattr(bench_limit, "reformat", note)
    (stretch,) = bench_limit.stretches(Setting(str(tmp_path / "set")).data(), 1)
    assert len(stretch.packets) == len(images)
    for way in (bench_limit.bare, bench_limit.pyav):
        frames = way(stretch)
        assert sum(next(frames) for _ in range(30)) == 30  # twice from the beginning
        assert set(widths) == {sides[1]}
        widths.clear()


def test_limits_of_remote_videos_are_those_of_the_codec(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library would read them at the speed of the network."""
    found = bench_limit.stretches(Setting(str(root)).data(), 2)
    monkeypatch.setattr(bench_limit, "stretches", lambda data, count: [replace(one, local=False) for one in found])
    library, codec = limits(Setting(str(root)).data())
    for limit in (library, codec):
        limit.measure(0.05)
    assert library.figures() is None
    assert codec.share(1.0) is not None


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

    limit = limits(data)[1]
    limit.ways = {name: counting(name) for name in counted}
    limit.measure(0.1)
    first = dict(counted)
    for _ in range(2):
        limit.measure(0.1)
    assert all(counted[name] > first[name] > 0 for name in counted)  # each has its turn in every round
    rounds = limit.rounds = {"a": [Round(9, 1, 1)] + 2 * [Round(2, 1, 1)], "b": 3 * [Round(4, 1, 2)]}
    found = limit.figures()
    assert found is not None
    assert (found["by"], found["samples_per_s"]) == ("b", 4 / limit.cameras)  # one lucky round makes no limit
    assert found["cpu_ms_per_sample"] == 500 * limit.cameras
    one_camera = limits(Setting(str(root), cameras=(TOP,)).data())[1]
    one_camera.rounds = rounds
    halved = one_camera.figures()
    assert halved is not None
    assert halved["samples_per_s"] == pytest.approx(2 * found["samples_per_s"])  # a sample of two cameras is two


def test_limit_raises_an_error_of_the_decoder(root: Path) -> None:
    def broken(stretch: bench_limit.Stretch) -> Iterator[int]:
        yield 1
        raise OSError(5, "Input/output error")

    limit = limits(Setting(str(root)).data())[1]
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
    found |= {"limit": side(100, 10), "codec_limit": None, "doubt": ""}
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
    work = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(available_cores())]
    try:
        with others.watched():
            time.sleep(1.0)
    finally:
        for process in work:
            process.kill()
            process.wait()
    assert others.figures()["others"] > machine_load.MOST * available_cores()


@pytest.mark.parametrize(("frames", "seconds"), [(1, 1.0), (236, 1.0), (4_000, 2.0), (10_000, 5.0), (10**7, 5.0)])
def test_tiny_datasets_are_measured_for_less_time(frames: int, seconds: float) -> None:
    assert default_seconds(frames) == seconds


@pytest.mark.long
def test_glossary_explains_the_terms_of_the_output(root: Path) -> None:
    glossary = (Path(__file__).parents[2] / "docs/glossary.md").read_text()
    printed = format_figures(measure(BenchConfig(path=str(root), **FAST)))
    assert page("glossary.md") in printed
    names = re.findall(r"(?<=  )(?:of \w+|[a-zA-Z]+ ?/?[a-z]*/[a-z]+)", printed.splitlines()[0])
    names += re.findall(r"^(decode limit|strictest|delivered|work|plan)\b", printed, flags=re.MULTILINE)
    assert len(names) > 7
    assert [name for name in names if name not in glossary] == []


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
        batch = next(trial.loader)
        assert batch["action"].shape[:2] == (4, 5)
        assert WRIST in batch
        assert TOP not in batch
    finally:
        trial.close()
