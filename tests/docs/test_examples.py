"""Every example runs unchanged, on its own recording and on a given one."""

import importlib.util
import json
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from understudy import Catalog, EpisodeDataset, Loader

FOLDER = Path(__file__).parents[2] / "examples"
SMALL = (
    *("--batch-size", 8, "--chunk-size", 6, "--image-size", 32),
    *("--num-threads", 1, "--save-freq", 3, "--log-freq", 1),
)
"""Options of a short run of streaming.py."""
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


@contextmanager
def without_state_of_accelerate() -> Iterator[None]:
    """Reset Accelerate's state, which lives in the process, before and after."""
    if importlib.util.find_spec("accelerate") is None:
        yield
        return
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


@pytest.fixture(autouse=True)
def no_state_of_accelerate() -> Iterator[None]:
    with without_state_of_accelerate():
        yield


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


def stream(processes: int, root: Path, output: Path, *words: object) -> list[float]:
    """Run streaming.py in this process or in two others; return the loss of each of its lines."""
    pytest.importorskip("accelerate")
    options = [*SMALL, "--root", root, "--output-dir", output, *words]
    if processes == 1:
        with without_state_of_accelerate(), redirect_stdout(StringIO()) as shown:
            run("streaming", *options)
        printed = shown.getvalue()
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command = [sys.executable, *launch, str(FOLDER / "streaming.py"), *map(str, options)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    assert f"({processes} processes" in printed
    return [float(loss) for loss in re.findall(r"loss ([\d.]+)", printed)]


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


@pytest.fixture(scope="module")
def streamed(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of 5 steps in one process."""
    folder = tmp_path_factory.mktemp("streamed") / "run"
    stream(1, recording, folder, "--steps", 5)
    return folder


@pytest.fixture(scope="module")
def streamed_by_two(recording: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of 5 steps in two processes."""
    folder = tmp_path_factory.mktemp("streamed") / "two"
    stream(2, recording, folder, "--steps", 5)
    return folder


def check_resume(processes: int, recording: Path, whole: Path, folder: Path) -> None:
    """A run that resumes at step 3 of a whole one computes the same bits."""
    assert {path.name for path in whole.iterdir()} == {"3.pt", "5.pt", "policy.pt"}
    stream(processes, recording, folder, "--steps", 5, "--resume-from", whole / "3.pt")
    one = read(whole / "5.pt")
    two = read(folder / "5.pt")
    assert one["loader"] == two["loader"]
    assert one["loader"]["position"] == 5 * 8
    assert one["model"].keys() == two["model"].keys()
    for name, weight in one["model"].items():
        assert torch.equal(weight, two["model"][name]), name


def test_streaming_resumes_to_the_bit(recording: Path, streamed: Path, tmp_path: Path) -> None:
    check_resume(1, recording, streamed, tmp_path)


@pytest.mark.long
def test_streaming_in_two_processes_resumes_to_the_bit(
    recording: Path, streamed_by_two: Path, tmp_path: Path
) -> None:
    check_resume(2, recording, streamed_by_two, tmp_path)


@pytest.mark.long
def test_streaming_computes_the_same_in_two_processes(
    streamed: Path, streamed_by_two: Path
) -> None:
    one, two = (read(folder / "5.pt") for folder in (streamed, streamed_by_two))
    assert one["loader"] == two["loader"]
    for name, weight in one["model"].items():
        torch.testing.assert_close(weight, two["model"][name], atol=2e-2, rtol=0)


def test_streaming_leaves_a_policy_that_acts(recording: Path, streamed: Path) -> None:
    act = runpy.run_path(str(FOLDER / "small_act.py"))["SmallACT"]
    policy = act.load(streamed / "policy.pt")
    weights = read(streamed / "5.pt")["model"]
    assert all(torch.equal(value, weights[name]) for name, value in policy.state_dict().items())
    with Loader(recording, batch_size=4, seed=1) as loader, torch.no_grad():
        actions = policy(next(loader))
    assert actions.shape == (4, 6, 4)
    assert actions.isfinite().all()


def test_streaming_learns(recording: Path, tmp_path: Path) -> None:
    losses = stream(1, recording, tmp_path, "--steps", 40, "--save-freq", 0)
    assert len(losses) == 40
    assert losses[-1] < losses[0] / 2
    assert (tmp_path / "40.pt").exists()


def test_sbatch_continues_on_two_nodes(recording: Path, streamed: Path, tmp_path: Path) -> None:
    """`srun` is a script that starts one task for each of two nodes of this host."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "srun").write_text(
        '#!/bin/bash\nshift\nfor node in 0 1; do SLURM_NODEID=$node "$@" & done\n'
        "wait -n && wait -n\n"
    )
    (programs / "scontrol").write_text("#!/bin/sh\necho 127.0.0.1\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    output = tmp_path / "run"
    output.mkdir()
    shutil.copy(streamed / "3.pt", output)
    (output / "10.pt.unfinished").touch()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    paths = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {**os.environ, "PATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    environment |= {"SLURM_NNODES": "2", "SLURM_JOB_NODELIST": "a,b", "SLURM_JOB_ID": "1"}
    environment |= {"RANKS_PER_NODE": "1", "MASTER_PORT": port, "OUTPUT": str(output)}
    words = [*map(str, SMALL), "--root", str(recording), "--steps", "5"]
    done = subprocess.run(
        [str(FOLDER / "streaming.sbatch"), *words],
        env=environment,
        cwd=FOLDER.parent,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "3.pt" in done.stderr
    assert "(2 processes" in done.stdout
    whole = read(streamed / "5.pt")
    continued = read(output / "5.pt")
    assert whole["loader"] == continued["loader"]
    for name, weight in whole["model"].items():
        torch.testing.assert_close(weight, continued["model"][name], atol=2e-2, rtol=0)


@pytest.mark.long
def test_streaming_resumes_on_another_number_of_processes(doubles: Path, tmp_path: Path) -> None:
    stream(2, doubles, tmp_path / "parts", "--steps", 3)
    for count in (1, 2):
        resume = ("--steps", 5, "--resume-from", tmp_path / "parts/3.pt")
        stream(count, doubles, tmp_path / f"in {count}", *resume)
    one, two = (read(tmp_path / f"in {count}/5.pt") for count in (1, 2))
    assert one["loader"] == two["loader"]
    for name, weight in one["model"].items():
        torch.testing.assert_close(weight, two["model"][name], atol=2e-2, rtol=0)


def test_streaming_takes_one_source() -> None:
    pytest.importorskip("accelerate")
    with pytest.raises(SystemExit):
        run("streaming", "--root", "somewhere", "--repo-id", "someone/table")


def test_examples_are_short_and_all_tested() -> None:
    files = {path.stem: path.read_text().splitlines() for path in FOLDER.glob("*.py")}
    assert set(files) == {*SHOWN, "streaming", "small_act", "tiny"}
    most = {"streaming": 135, "small_act": 95}
    assert all(len(lines) < most.get(name, 50) for name, lines in files.items())
