"""scripts/check_commit_message.py: imperative subjects of 72 characters, and a body."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "check_commit_message.py"


@pytest.mark.parametrize(
    ("message", "complaints"),
    [
        ("Recycle frames after a decode error\n\nA stale format made the next one wrong.\n", []),
        ("Pass the position on\n\n# a comment of git\nWorkers need it.\n", []),
        ("fixup! whatever", []),
        ("Recycled frames\n\nBecause.\n", ["imperative"]),
        ("recycle frames\n\nBecause.\n", ["capital"]),
        ("Recycle frames.\nBecause.\n", ["full stop", "second line", "no body"]),
        ("R" + "x" * 72 + "\n\nBecause.\n", ["73 characters"]),
        ("", ["no subject"]),
    ],
)
def test_check_commit_message(message: str, complaints: list[str], tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_text(message)
    done = subprocess.run([sys.executable, str(SCRIPT), str(file)], capture_output=True, text=True)
    assert done.returncode == bool(complaints)
    assert len(done.stderr.splitlines()) == len(complaints)
    for complaint in complaints:
        assert complaint in done.stderr
