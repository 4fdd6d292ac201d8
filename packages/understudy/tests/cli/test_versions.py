"""`understudy --version -v` says whether compiled loops decode images."""

import os
import subprocess
import sys

import av
import numpy as np
import pytest

from understudy_data.video.native.loops import loops_status

MAIN = (
    "import sys; from understudy_kit.cli.main import main; main(sys.argv[1:]); print('torch' in "
    "sys.modules)"
)


def run_with(native: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", MAIN, *arguments]
    environment = {**os.environ, "UNDERSTUDY_NATIVE": native}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True
    ).stdout.splitlines()


@pytest.mark.long
@pytest.mark.skipif(loops_status().library is None, reason="no compiled loops here")
def test_version_command_reports_loops() -> None:
    *printed, has_torch = run_with("1", "--version", "-v")
    lines = dict(line.split(None, 1) for line in printed)
    assert lines["av"] == av.__version__
    assert lines["numpy"] == np.__version__
    assert {"understudy", "python", "torch", "pyarrow", "ffmpeg"} <= set(lines)
    assert lines["native"].startswith("used")
    assert has_torch == "False"
    off = run_with("0", "--version", "-v")[-2]
    assert off.startswith("native")
    assert "UNDERSTUDY_NATIVE=0" in off
    assert len(run_with("1", "--version")) == 2
