"""`benchmarks/decode_steps.py` on a video that is shorter than its usual runs."""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from understudy.video.encode import encode_video

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "decode_steps.py"


@pytest.fixture(scope="module")
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("decode_steps", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.long
def test_decode_steps_measures_a_video_shorter_than_two_runs(steps: ModuleType, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 255, (5, 64, 96, 3), np.uint8)
    encode_video(tmp_path / "a.mp4", iter(images), 30, "libx264", 2, 23, {})
    found = steps.measure(str(tmp_path / "a.mp4"), 1)
    assert {"packet", "codec", "decoder", "whole", "convert", "container"} <= set(found)
    assert all(value > 0 for name, value in found.items() if value is not None and name != "packet")


@pytest.mark.parametrize("flag", ["--frames", "--rounds"])
def test_decode_steps_refuses_counts_below_one(
    steps: ModuleType, flag: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["decode_steps.py", flag, "0"])
    with pytest.raises(SystemExit) as left:
        steps.main()
    assert left.value.code == 2
    assert f"{flag} is 0" in capsys.readouterr().err
