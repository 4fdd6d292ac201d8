"""The short form of `lab/benchmarks/soak_edit.py`: nothing or the whole output."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "lab/benchmarks/soak_edit.py"


def test_kill_leaves_nothing_or_the_whole_output() -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, "--kills", "4", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["kills"] == 4
    assert counts["nothing"] + counts["whole"] == 4
    assert counts["wrong"] == counts["folders_left_at_the_end"] == 0
