"""`scripts/exams.py`: foreign tests from a git repository, run with a shim, and counted."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOREIGN = """
import pytest

def test_passes(): pass
def test_differs(): assert False
def test_breaks(): assert False
@pytest.mark.parametrize("value", [1, 2])
def test_waits(value): pass
"""
SHIM = """
from shared import explain, publish

def pytest_collection_modifyitems(items):
    explain(items, {failures}, {{"test_waits[2]": "not here"}})
    publish(["one fact"])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script with one exam, whose tests are in a repository and whose page is empty."""
    spec = importlib.util.spec_from_file_location("exams_script", ROOT / "scripts/exams.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "exams_script", module)
    spec.loader.exec_module(module)
    repository = tmp_path / "repositories/owner+name"
    (repository / "tests").mkdir(parents=True)
    (repository / "tests/test_foreign.py").write_text(FOREIGN)
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (
        ["init", "--quiet"],
        ["add", "."],
        [*identity, "commit", "--quiet", "-m", "x"],
        ["tag", "v1"],
    ):
        subprocess.run(["git", *words], cwd=repository, check=True)
    monkeypatch.setenv("UNDERSTUDY_EXAM_SOURCES", str(repository.parent))
    monkeypatch.setattr(module, "PLACE", tmp_path / "exams")
    monkeypatch.setattr(module, "PAGE", tmp_path / "page.md")
    module.PAGE.write_text(f"# Page\n\n{module.BEGIN}\n{module.END}\n\nend\n")
    monkeypatch.setenv("PYTHONPATH", "")
    exam = module.Exam(
        "strangers", "About.", "shim", ("tests/test_foreign.py",), "owner/name", "v1"
    )
    monkeypatch.setattr(module, "EXAMS", (exam,))
    return module


def run(script: ModuleType, monkeypatch: pytest.MonkeyPatch, failures: dict[str, str]) -> int:
    """Run the script with a shim that explains some failures."""
    original = script.extract

    def extract(exam: object, folder: Path) -> None:
        original(exam, folder)
        (folder / "shim.py").write_text(SHIM.format(failures=failures))

    monkeypatch.setattr(script, "extract", extract)
    monkeypatch.setattr("sys.argv", ["exams.py"])
    status: int = script.main()
    return status


def test_failures_are_counted_as_explained_or_not(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(script, monkeypatch, {"test_differs": "another contract"}) == 1
    page = script.PAGE.read_text()
    assert "| strangers | `test_foreign` | owner/name v1 | 2 | 1 | 1 | 1 |" in page
    assert "explained, 1: another contract" in page
    assert "skipped, 1: not here" in page
    assert "one fact" in page
    assert page.endswith("\n\nend\n")


@pytest.mark.parametrize(
    "failures",
    [
        {"test_differs": "x", "test_breaks": "y", "test_passes": "this one passes"},
        {"test_differs": "x", "test_breaks": "y", "test_gone": "this one does not exist"},
    ],
)
def test_explanations_that_no_longer_hold_are_errors(
    failures: dict[str, str], script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(script, monkeypatch, failures) == 1


def test_explained_failures_alone_are_no_error(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(script, monkeypatch, {"test_differs": "x", "test_breaks": "y"}) == 0
