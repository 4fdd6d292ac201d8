"""`understudy bench`: all figures are measured and reported."""

import json
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import understudy_data
from understudy.cli.bench import (
    BenchConfig,
    bench,
    format_report,
    measure,
    open_data,
    summarize,
)
from understudy_base import ConfigError, page
from understudy_base.testing.refusals import refused
from understudy_data.load import decode_rate
from understudy_data.load.decode_rate import decode_in_a_row
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit.cli import main

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
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
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(report["ranks"]) == 2
    for name in ("samples_per_s", "in_a_row_per_s"):
        each = [rank[name] for rank in report["ranks"]]
        assert min(each) > 0
        assert report[name] == pytest.approx(sum(each))
    costs = [rank["cpu_ms_per_sample"] for rank in report["ranks"]]
    assert min(costs) <= report["cpu_ms_per_sample"] <= max(costs)
    text = format_report(report)
    assert all(name in text for name in ("all 2 ranks", "rank 0", "rank 1"))


def test_a_batch_that_processes_cannot_share_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with refused("batch_size", kind=ConfigError):
        bench(BenchConfig(path=str(root), batch_size=7))


def test_the_ratio_is_that_to_decoding_in_a_row(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = iter([50.0, 10.0, 20.0])
    monkeypatch.setattr(understudy_data, "decode_in_a_row", lambda data, seconds: next(rows))
    figures = measure(BenchConfig(path=str(root), memory="4MB", **{**FAST, "rounds": 3}))
    assert figures["in_a_row_per_s"] == 20  # the median
    assert min(figures["samples_per_s"], figures["cpu_ms_per_sample"]) > 0
    report = summarize([figures])
    assert report["over_in_a_row"] == figures["samples_per_s"] / 20
    text = format_report(json.loads(json.dumps(report)))
    assert f"{report['over_in_a_row']:.0%}" in text
    assert figures["plan"].splitlines()[0] in text
    assert "in memory" not in text
    assert "in memory" in format_report(report | {"decoded_share": 0.4})


def test_images_that_stay_in_memory_are_not_decoded_again(root: Path) -> None:
    options = {**FAST, "seconds": 1.0}
    roomy, tight = (
        measure(BenchConfig(path=str(root), memory=memory, **options)) for memory in ("1GB", "4MB")
    )
    assert roomy["decoded_share"] < 0.9 < tight["decoded_share"]


def test_decoding_in_a_row_has_every_frame_of_each_camera(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are decoded from start to end, and again from the first; a sample has a frame of each
    camera.
    """
    times: list[int] = []

    def write(frame: Any, converter: object, image: object) -> None:
        times.append(frame.pts)

    monkeypatch.setattr(decode_rate, "write", write)
    monkeypatch.setattr(decode_rate, "available_cores", lambda: 1)
    data = open_data(BenchConfig(path=str(root), cameras=(TOP,)))
    begin = time.perf_counter()
    per_s = decode_in_a_row(data, 0.5)
    seconds = time.perf_counter() - begin
    assert len(times) == pytest.approx(per_s * seconds, rel=0.2)
    first = times.count(times[0])
    assert first > 2
    # a file is never left in the middle
    assert sum(late <= early for early, late in pairwise(times)) == first - 1
    both = open_data(BenchConfig(path=str(root)))
    times.clear()
    begin = time.perf_counter()
    per_s = decode_in_a_row(both, 0.5)
    assert len(times) == pytest.approx(2 * per_s * (time.perf_counter() - begin), rel=0.2)


def test_decoding_of_no_video_is_none(root: Path) -> None:
    data = open_data(BenchConfig(path=str(root)))
    data.keys = [key for key in data.keys if key not in (TOP, WRIST)]
    assert decode_in_a_row(data, 0.1) == 0
    report = summarize(
        [
            {
                "samples_per_s": 9.0,
                "cpu_ms_per_sample": 1.0,
                "in_a_row_per_s": 0.0,
                "decoded_share": 0.0,
            }
        ]
    )
    assert report["over_in_a_row"] is None
    text = format_report(
        report | {"plan": "", "cores": 2, "load_average": [1.0], "loops": "compiled"}
    )
    assert "in memory" not in text


def test_an_error_of_the_decoder_ends_the_decoding_at_once(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(decode_rate, "write", broken)
    begin = time.perf_counter()
    with refused(5, kind=OSError):
        decode_in_a_row(open_data(BenchConfig(path=str(root))), 600.0)
    assert time.perf_counter() - begin < 60


@pytest.mark.long
def test_bench_prints_a_table(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = [
        "bench",
        str(root),
        "--seconds",
        "0.05",
        "--rounds",
        "1",
        "--batch-size",
        "8",
        "--cameras",
        TOP,
    ]
    assert main.main(arguments) == 0
    assert "in a row" in capsys.readouterr().out
    assert main.main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["in_a_row_per_s"] > 0
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
def test_glossary_explains_the_terms_of_the_output(root: Path) -> None:
    glossary = (Path(__file__).parents[4] / "docs/glossary.md").read_text()
    printed = format_report(summarize([measure(BenchConfig(path=str(root), **FAST))]))
    assert page("glossary.md") in printed
    names = re.findall(
        r"(?<=  )(?:in a row/s|ratio|[a-zA-Z]+ ?/?[a-z]*/[a-z]+)", printed.splitlines()[0]
    )
    names += re.findall(r"^plan\b", printed, flags=re.MULTILINE)
    assert len(names) > 4
    assert [name for name in names if name not in glossary] == []
