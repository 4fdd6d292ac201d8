"""Every example runs unchanged, on its own recording and on a given one."""

import importlib.util
import json
import runpy
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from understudy import Catalog, EpisodeDataset

FOLDER = Path(__file__).parents[1] / "examples"
SHOWN = ("plain_loop", "torch_dataloader", "accelerate_loop", "lerobot_act")


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
            field.with_type(pa.list_(pa.float64(), 4)) if pa.types.is_fixed_size_list(field.type) else field
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
    if name == "accelerate_loop":
        pytest.importorskip("accelerate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *map(str, arguments)])
        patch.syspath_prepend(str(FOLDER))
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_example_runs_on_a_given_dataset(name: str, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, recording)
    assert "position to save" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("name", SHOWN)
def test_example_runs_on_float64_and_repeats(name: str, doubles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, doubles)
    once = capsys.readouterr().out
    torch.manual_seed(1)  # other random state
    run(name, doubles)
    assert capsys.readouterr().out == once
    assert "position to save" in once


@pytest.mark.slow
def test_example_runs_on_its_own_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("plain_loop")
    assert "position to save 512" in capsys.readouterr().out


def test_examples_are_short_and_all_tested() -> None:
    files = {path.stem: path.read_text().splitlines() for path in FOLDER.glob("*.py")}
    assert set(files) == {*SHOWN, "tiny"}
    assert all(len(lines) < 40 for lines in files.values())
