"""Every example runs unchanged, on its own recording and on a given one."""

import importlib.util
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from understudy import Catalog, EpisodeDataset

FOLDER = Path(__file__).parents[2] / "examples"
SHOWN = ("plain_loop", "torch_dataloader", "lerobot_act")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples") / "given"
    runpy.run_path(str(FOLDER / "tiny.py"))["record"](str(root), episodes=6, frames=30)
    assert len(Catalog.open(root).episodes) == 6
    return root


@pytest.fixture(scope="module")
def doubles(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same recording with its vectors in float64, as some datasets have them."""
    root = tmp_path_factory.mktemp("examples") / "doubles"
    shutil.copytree(recording, root)
    info = json.loads((root / "meta/info.json").read_text())
    for feature in info["features"].values():
        feature["dtype"] = feature["dtype"].replace("float32", "float64")
    (root / "meta/info.json").write_text(json.dumps(info))
    for path in root.glob("data/**/*.parquet"):
        table = pq.read_table(path)
        fields = [
            field.with_type(pa.list_(pa.float64(), 4))
            if pa.types.is_fixed_size_list(field.type)
            else field
            for field in table.schema
        ]
        pq.write_table(table.cast(pa.schema(fields)), path)
    assert EpisodeDataset(root)[0]["action"].dtype == torch.float64
    return root


@pytest.fixture(autouse=True)
def no_state_of_accelerate() -> Iterator[None]:
    """Reset Accelerate's state, which lives in the process, before and after."""
    if importlib.util.find_spec("accelerate") is None:
        yield
        return
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


def run(name: str, *arguments: object) -> None:
    if name == "lerobot_act":
        for needed in ("lerobot", "torchvision"):
            if importlib.util.find_spec(needed) is None:
                pytest.skip(f"{needed} is not installed")
    if name == "streaming":
        pytest.importorskip("accelerate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        patch.syspath_prepend(str(FOLDER))
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


@pytest.mark.parametrize("name", SHOWN)
def test_example_runs_on_a_given_dataset(
    name: str, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, recording)
    assert "position to save" in capsys.readouterr().out


@pytest.mark.long
@pytest.mark.parametrize("name", SHOWN)
def test_example_runs_on_float64_and_repeats(
    name: str, doubles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(name, doubles)
    once = capsys.readouterr().out
    torch.manual_seed(1)  # other random state
    run(name, doubles)
    assert capsys.readouterr().out == once
    assert "position to save" in once


@pytest.mark.long
def test_example_runs_on_its_own_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("plain_loop")
    assert "position to save 512" in capsys.readouterr().out


@pytest.mark.long
def test_streaming_runs_on_its_own_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("streaming", "--dummy", "--steps", 2, "--batch-size", 8, "--num-threads", 1)
    assert "position to save 16 (1 processes" in capsys.readouterr().out


@pytest.mark.long
def test_streaming_of_two_processes_resumes_in_one(doubles: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")

    def stream(processes: int, output: str, *words: object) -> float:
        launch = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
            if processes == 2
            else []
        )
        options = [
            "--root",
            doubles,
            "--batch-size",
            8,
            "--save-freq",
            3,
            "--output-dir",
            tmp_path / output,
            *words,
        ]
        command = [sys.executable, *launch, str(FOLDER / "streaming.py"), *map(str, options)]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert f"({processes} processes" in done.stdout
        return float(re.findall(r"loss ([\d.]+)", done.stdout)[-1])

    loss = stream(1, "whole", "--steps", 7)
    stream(2, "parts", "--steps", 4)
    resumed = tmp_path / "parts" / "4.pt"
    assert stream(1, "parts", "--steps", 7, "--resume-from", resumed) == pytest.approx(
        loss, rel=0.05
    )
    # of both
    assert stream(2, "again", "--steps", 7, "--resume-from", resumed) == pytest.approx(
        loss, rel=0.05
    )
    assert sorted(path.name for path in (tmp_path / "parts").iterdir()) == [
        "3.pt",
        "4.pt",
        "6.pt",
        "7.pt",
    ]
    whole, parts = (
        torch.load(tmp_path / name / "7.pt", weights_only=True) for name in ("whole", "parts")
    )
    assert parts["loader"] == whole["loader"]
    assert parts["loader"]["position"] == 56
    assert torch.allclose(parts["model"]["weight"], whole["model"]["weight"], atol=1e-2)


def test_streaming_takes_one_source() -> None:
    pytest.importorskip("accelerate")
    with pytest.raises(SystemExit):
        run("streaming", "--root", "somewhere", "--repo-id", "someone/table")


def test_examples_are_short_and_all_tested() -> None:
    files = {path.stem: path.read_text().splitlines() for path in FOLDER.glob("*.py")}
    assert set(files) == {*SHOWN, "streaming", "tiny"}
    assert all(len(lines) < (125 if name == "streaming" else 50) for name, lines in files.items())
