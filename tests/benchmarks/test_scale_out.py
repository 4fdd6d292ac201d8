"""`lab/benchmarks/scale_out.py` on a small set."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
SCRIPT = Path(__file__).parents[2] / "lab/benchmarks/scale_out.py"


def test_outputs_are_equal_and_kills_change_nothing() -> None:
    words = ["--episodes", "3", "--frames", "20", "--rounds", "1", "--kills", "3", "--json"]
    done = subprocess.run([sys.executable, str(SCRIPT), *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["check"]["equal"]
    assert facts["edit"]["equal"]
    assert (facts["kills"]["kills"], facts["kills"]["wrong"], facts["kills"]["left"]) == (3, 0, 0)
    assert [row["images"]["busy"] for row in facts["simulation"] if row["workers"] == 1] == [
        1.0,
        1.0,
    ]
