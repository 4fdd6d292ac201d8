"""Copies of own code in runs and exported folders: complete, of the digest of the original, named
by hand once.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.policies.own_code import trusted, types
from understudy.policies.own_code.sources import CODE, MODULES, read_sources
from understudy.policies.policy_folder import check_replaceable
from understudy.testing.runs import tiny_dataset
from understudy_kit import main

PAGE = (Path(__file__).parents[5] / "docs" / "own_policies.md").read_text()
FILES = {
    "beside.py": "from parts.inner import FACTOR\n",
    "parts/__init__.py": "from .inner import FACTOR\n",
    "parts/inner.py": "from . import deeper\nFACTOR = deeper.FACTOR\n",
    "parts/deeper.py": "from .sub.leaf import FACTOR\n",
    "parts/sub/__init__.py": "",
    "parts/sub/leaf.py": "FACTOR = 2\n",
    "bare/unused.py": "raise SystemExit('not imported')\n",
    "bare/low/leaf.py": "OTHER = 3\n",
}
"""Local modules by path: a package with relative imports, and packages without `__init__.py`."""
COPIED = set(FILES) - {"bare/unused.py"} | {"bare/__init__.py", "bare/low/__init__.py"}
IMPORTS = (
    "import beside\nfrom bare.low.leaf import OTHER\nassert (beside.FACTOR, OTHER) == (2, 3)\n"
)
LOAD = (
    "import sys, understudy\npolicy = understudy.load_policy(sys.argv[1], code=sys.argv[2])\n"
    "print(policy.config.hidden, sys.modules['beside'].__file__)"
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the policy of the documentation and modules beside it; they are forgotten
    behind the test.
    """
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(trusted.NAMED, "")
    block = re.search(r'```python title="my_policy.py"\n(.*?)```', PAGE, re.DOTALL)
    assert block is not None
    folder = tmp_path / "code"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "my_policy.py").write_text(IMPORTS + block[1])
    before = set(sys.modules)
    yield folder
    types._types.clear()
    types._imported.clear()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def fresh(folder: Path, code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Load a policy in a process that has named no code yet, in another working directory."""
    line = [sys.executable, "-c", LOAD, str(folder), code]
    environment = {**os.environ, trusted.NAMED: ""}
    return subprocess.run(
        line, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.long
def test_exported_code_is_complete_and_named_once(place: Path, tmp_path: Path) -> None:
    file = place / "my_policy.py"
    run = tmp_path / "run"
    out = tmp_path / "out"
    tiny_dataset(tmp_path / "data")
    words = [
        "--policy.type",
        f"{file}:MINE",
        "--policy.hidden",
        "8",
        "--data.root",
        str(tmp_path / "data"),
    ]
    words += [
        "--steps",
        "1",
        "--batch-size",
        "2",
        "--val.every",
        "0",
        "--log.no-report",
        "--output-dir",
        str(run),
    ]
    assert main(["train", *words]) == 0
    assert main(["export", str(run), "--output-dir", str(out)]) == 0
    original = read_sources(file)
    for folder in (run, run / "policy", out):
        files = {
            path.relative_to(folder / MODULES).as_posix()
            for path in (folder / MODULES).rglob("*.py")
        }
        assert files == COPIED
        assert read_sources(folder / CODE).digest == original.digest
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "beside.py").write_text("raise SystemExit('of another project')\n")
    moved = Path(shutil.move(out, tmp_path / "moved"))
    shutil.rmtree(place)
    refused = fresh(moved, "", elsewhere)
    assert refused.returncode != 0
    assert "--policy-code" in refused.stderr
    for code in (str(moved / CODE), ""):  # named by hand once, found by its digest later
        done = fresh(moved, code, elsewhere)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == ["8", str(moved / MODULES / "beside.py")]
    (moved / MODULES / "parts" / "sub" / "leaf.py").write_text("FACTOR = 2  # changed\n")
    (moved / "understudy.sha256").unlink()
    changed = fresh(moved, "", elsewhere)
    assert changed.returncode != 0
    assert "--policy-code" in changed.stderr


def test_a_copy_is_replaced_and_a_folder_of_other_files_is_not(place: Path, tmp_path: Path) -> None:
    kind = types.name_by_hand(f"{place / 'my_policy.py'}:MINE")
    types.import_type(kind, object)
    folder = tmp_path / "policy"
    folder.mkdir()
    types.write_code(kind, folder)
    (folder / "config.json").write_text(f'{{"type": "{kind}"}}')
    check_replaceable(folder, kind)
    (folder / MODULES / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=MODULES):
        check_replaceable(folder, kind)
    (folder / MODULES / "notes.txt").unlink()
    (folder / MODULES / "link.py").symlink_to(place / "my_policy.py")
    with pytest.raises(FileExistsError, match=MODULES):
        check_replaceable(folder, kind)
