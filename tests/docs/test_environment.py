"""docs/commands.md: its table of environment variables has each one that the code reads, and no
other.
"""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

from understudy.distributed.mesh import ACCELERATE

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/commands.md").read_text()
NO_VARIABLES = {
    "BGR",
    "CHW",
    "CERTIFICATE_VERIFY_FAILED",
    "ERROR",
    "EXAM_FACTS",
    "FETCH_HEAD",
    "FOLDER",
    "GET",
    "CPU",
    "GPU",
    "HF_HUB_OFFLINE",
    "HOME",
    "HWC",
    "JPEG",
    "LANG",
    "LD_LIBRARY_PATH",
    "PATH",
    "PNG",
    "POLICY",
    "RGB",
    "SHELL",
    "TENSORS",
    "TMPDIR",
    "TRACE",
    "WHC",
}
"""Texts in capitals in such modules: words of messages and of help, and the environments of child
processes.
"""
OF_SHELL = {"PWD", "OLDPWD", "SECONDS"}


def of_table() -> list[str]:
    """Names in the first column."""
    rows = re.search(
        r"\| variable \| read by \| meaning \|\n\|---\|---\|---\|\n((?:\|.*\n)+)", PAGE
    )
    assert rows is not None
    return [
        name
        for row in rows[1].splitlines()
        for name in re.findall(r"`([A-Z0-9_*]+)`", row.split(" | ")[0])
    ]


def of_python(file: Path) -> set[str]:
    """Constants in capitals of a module that reads or passes on variables."""
    text = file.read_text()
    if "environ" not in text and "getenv" not in text:
        return set()
    values = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    return {
        value
        for value in values
        if isinstance(value, str) and re.fullmatch(r"[A-Z][A-Z0-9_]{2,}", value)
    }


def of_script(file: Path) -> set[str]:
    """Variables of a shell script, or of the commands in a recipe."""
    return set(re.findall(r"\$\{?([A-Z][A-Z0-9_]{2,})", file.read_text()))


def of_code() -> set[str]:
    found = set[str]()
    for folder in (
        *(
            path.relative_to(ROOT)
            for path in ROOT.glob("packages/*/src/understudy*")
            if "conformance" not in path.name
        ),
        "scripts",
        "recipes",
        "examples",
    ):
        for file in (ROOT / folder).rglob("*.py"):
            if "testing" not in file.parts:
                found |= of_python(file)
    for folder in ("scripts", "recipes"):
        files = [
            path
            for path in (ROOT / folder).rglob("*")
            if path.is_file() and path.suffix in ("", ".sbatch", ".yaml")
        ]
        for file in files:
            found |= of_script(file)
    for folder in (
        "tests",
        "lab",
        *ROOT.glob("packages/*/tests"),
        *ROOT.glob("packages/*/src/*/testing"),
    ):
        for file in (ROOT / folder).rglob("*.py"):
            found |= set(re.findall(r"\bUNDERSTUDY_[A-Z0-9_]+", file.read_text()))
    # whose names there begin with ACCELERATE_
    return found - NO_VARIABLES - OF_SHELL - ACCELERATE.keys()


def test_table_has_each_variable_that_the_code_reads() -> None:
    table = of_table()
    assert len(set(table)) == len(table) > 30
    code = of_code()
    assert {"UNDERSTUDY_NATIVE", "NODE_RANK", "EXTRA_ARGS", "RANKS"} <= code
    assert sorted(name for name in code if not any(fnmatch(name, known) for known in table)) == []
    assert sorted(known for known in table if not any(fnmatch(name, known) for name in code)) == []
