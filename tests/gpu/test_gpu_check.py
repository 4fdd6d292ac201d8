"""`scripts/gpu-check` continues after a failed part, keeps to its time, and reports a missing
GPU.
"""

import json
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.long

SCRIPT = Path(__file__).parents[2] / "scripts" / "gpu-check"


@pytest.fixture
def script() -> ModuleType:
    loader = SourceFileLoader("gpu_check", str(SCRIPT))
    module = module_from_spec(spec_from_loader("gpu_check", loader))  # type: ignore[arg-type]
    sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


def test_a_part_that_fails_or_hangs_does_not_stop_the_next(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    junit = (
        "<testsuite><testcase classname='a' name='b'/><testcase classname='a' "
        "name='c'><failure message='no'/>"
    )
    tests = (
        f"open({str(tmp_path / 'tests.xml')!r}, "
        f"'w').write({junit + '</testcase></testsuite>'!r}); raise SystemExit(1)"
    )
    asked = [
        ("tests", tests, 1.0),
        ("hangs", "import time; print('begun', flush=True); time.sleep(600)", 1e-9),
        ("loader", "print('{\"keys_that_differ\": 0}')", 1.0),
    ]
    monkeypatch.setattr(script, "conditions", lambda: {"gpu": "imaginary"})
    monkeypatch.setattr(
        script,
        "parts",
        lambda junit: [(n, [sys.executable, "-c", c], share) for n, c, share in asked],
    )
    monkeypatch.setattr(sys, "argv", ["gpu-check", "--out", str(tmp_path)])
    assert script.main() == 1
    found = json.loads((tmp_path / "gpu-check.json").read_text())["parts"]
    assert {name: part["ok"] for name, part in found.items()} == {
        "tests": False,
        "hangs": False,
        "loader": True,
    }
    assert (found["tests"]["passed"], list(found["tests"]["failed"])) == (1, ["a::c"])
    assert "not done after" in found["hangs"]["why"]
    assert found["loader"]["result"] == {"keys_that_differ": 0}
    summary = (tmp_path / "gpu-check.md").read_text()
    assert all(
        word in summary for word in ("tests: FAILED", "hangs: FAILED", "loader: passed", "a::c")
    )


def test_it_finds_the_tests_and_without_a_gpu_runs_nothing(
    script: ModuleType, tmp_path: Path
) -> None:
    files = script.parts(tmp_path / "x.xml")[0][1]
    assert (
        sum(
            Path(file).name in ("test_gpu.py", "test_bf16_split.py", "test_master_weights.py")
            for file in files
        )
        == 3
    )
    if script.conditions()["gpu"]:
        pytest.skip("there is a GPU here")
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 1, done.stderr
    found = json.loads((tmp_path / "gpu-check.json").read_text())
    assert found["conditions"]["torch"]
    assert {part["why"] for part in found["parts"].values()} == {"torch finds no CUDA device here"}
    assert "no CUDA device" in done.stdout
