"""`understudy edit` and `understudy segment` at the command line: summary, exit codes, and one line
for wrong input.
"""

import json
from pathlib import Path

import pytest

from understudy_data.testing.datasets import Spec, write_dataset
from understudy_kit.cli import main

CAMERA = "observation.images.top"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("edit") / "v30"
    write_dataset(root, Spec("v3.0", lengths=(12, 8), late_timestamps=True))
    return root


def run(*arguments: object) -> int:
    return main.main([str(argument) for argument in arguments])


def test_edit_prints_quality_bytes_and_decode_cost(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("edit", source, tmp_path / "out", "--size", "32", "--gop", "2", "--json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["episodes"], facts["frames"], facts["timestamps_rewritten"]) == (2, 20, 2)
    camera = facts["cameras"][CAMERA]
    assert (camera["copied"], camera["encoded"], camera["images_compared"]) == (0, 2, 16)
    assert camera["psnr_db"] > 30
    assert 0.9 < camera["ssim"] <= 1
    assert camera["bytes_before"] > 0
    assert all(
        camera[name][way] > 0
        for name in ("decode_ms_before", "decode_ms")
        for way in ("stretch", "single")
    )
    assert run("edit", source, tmp_path / "parts", "--split", "a=0.5", "b=0.5", "--seed", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines if not line.startswith(" ")] == [
        str(tmp_path / "parts" / n) for n in "ab"
    ]


def test_segment_prints_a_summary(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("segment", source, tmp_path / "out", "--by", "task") == 0
    assert "3 episodes, 20 frames" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["edit"], "paths"),
        (["edit", "nowhere", "out"], "nowhere"),
        (["edit", "SOURCE", "SOURCE", "out", "--episodes", "0"], "episodes"),
        (["edit", "SOURCE", "out", "--rename", "action"], "rename"),
        (["edit", "SOURCE", "out", "--where", "quality > 3"], "quality"),
        (["edit", "SOURCE", "SOURCE"], "exists"),
        (["segment", "SOURCE", "out"], "by"),
        (["segment", "SOURCE", "out", "--by", "action"], "action"),
    ],
)
def test_edit_names_wrong_input_in_one_line(
    words: list[str],
    named: str,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*(source if word == "SOURCE" else word for word in words)) == main.WRONG_INPUT
    message = capsys.readouterr().err
    assert named in message
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []
