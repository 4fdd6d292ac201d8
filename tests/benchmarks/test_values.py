"""A short form of `lab/benchmarks/values.py`: all ways are trained and played, and `plain` is its
own control.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "lab/benchmarks/values.py"


@pytest.mark.long
def test_values_measures_all_ways() -> None:
    sizes = ["--episodes", "24", "--steps", "5", "--seeds", "1", "--scenes", "2"]
    done = subprocess.run(
        [sys.executable, SCRIPT, "--json", *sizes], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    demonstrations = result["demonstrations"]
    assert {kind: facts["successes"] for kind, facts in demonstrations.items()} == {
        "good": 6, "slow": 6, "failing": 0, "corrected": 6
    }  # fmt: skip
    assert demonstrations["slow"]["frames"] > 2 * demonstrations["good"]["frames"]
    assert set(result["ways"]) == {"plain", "filtered", "positive", "weighted", "conditioned"}
    assert result["ways"]["plain"]["difference"] == 0
