"""scripts/setup prints each of its steps before it takes it, with uv or without."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "setup"
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv .venv") echo "+ venv"; mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
    *"install --quiet uv") echo "+ uv"; cp uv .venv/bin/uv ;;
    *"config get"*) exit 1 ;;
    *"install --quiet --upgrade pip>=25.1") ;;
    *"install -c constraints.txt -e packages/understudy-data[torch]") echo "+ pip" ;;
    *"--group dev -e packages/understudy-conformance -e packages/understudy-data[torch,"*)
        echo "+ pip" ;;
    -) cat > /dev/null ;;
    *) echo "unexpected: $*" >&2; exit 9 ;;
esac
"""


@pytest.mark.parametrize(("extra", "works"), [("demo", True), ("demo", False), ("dev", False)])
def test_setup_prints_its_steps(tmp_path: Path, extra: str, works: bool) -> None:
    for folder in ("scripts", "packages/understudy-data", "packages/understudy-conformance"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SCRIPT, tmp_path / "scripts/setup")
    for name, text in (
        ("python", PYTHON),
        ("uv", f"#!/bin/sh\necho '+ uv install'\nexit {0 if works else 1}\n"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    env = {"PATH": "/usr/bin:/bin", "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        [tmp_path / "scripts/setup", extra], env=env, capture_output=True, text=True, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    steps = [line[2:] for line in lines if line.startswith("+ ")]
    assert steps == ["venv", "uv", "uv install", *([] if works else ["pip"])]
    for number, line in enumerate(lines):
        if line.startswith("+ "):
            assert lines[number - 1].startswith("setup: "), lines
    assert lines[-1].startswith("setup: done in ")
    assert (tmp_path / ".venv" / f".installed-{extra}").is_file()
