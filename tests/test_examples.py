"""Every example runs as it is written, on the recording that it makes itself and on one that it is given."""

import importlib.util
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy import Catalog

FOLDER = Path(__file__).parents[1] / "examples"
SHOWN = ("plain_loop", "torch_dataloader", "accelerate_loop", "lerobot_act")


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examples") / "given"
    runpy.run_path(str(FOLDER / "tiny.py"))["record"](str(root), episodes=6, frames=30)
    assert len(Catalog.open(root).episodes) == 6
    return root


@pytest.fixture(autouse=True)
def no_state_of_accelerate() -> Iterator[None]:
    """Accelerate keeps its state in the process; find none and leave none behind."""
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


@pytest.mark.parametrize("name", SHOWN)
def test_it_runs_on_a_given_dataset(name: str, recording: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(name, recording)
    assert "position to save" in capsys.readouterr().out


def test_it_runs_on_a_recording_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run("plain_loop")
    assert "position to save 512" in capsys.readouterr().out


def test_all_are_short_and_none_is_forgotten() -> None:
    files = {path.stem: path.read_text().splitlines() for path in FOLDER.glob("*.py")}
    assert set(files) == {*SHOWN, "tiny"}
    assert all(len(lines) < 40 for lines in files.values())
