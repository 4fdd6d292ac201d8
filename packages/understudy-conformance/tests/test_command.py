"""The command, its processes and the plugin of pytest."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from understudy_conformance.catalog import REQUIREMENTS, SUBJECTS, select_requirements
from understudy_conformance.command import main
from understudy_conformance.report import format_requirements

TESTS = Path(__file__).parent
ROOT = TESTS.parents[2]


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes import the kit and the toys from this checkout."""
    folders = [str(TESTS.parent / "src"), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(folders))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--json"])
    results = json.loads(capsys.readouterr().out)["results"]
    return code, {result["number"]: result for result in results}


def test_command_passes_a_correct_loader_that_prints(capsys: pytest.CaptureFixture[str]) -> None:
    code, results = run(capsys, "loader", "conformance_toys:Prints")
    assert code == 0
    assert list(results) == [requirement.number for requirement in select_requirements("loader")]
    assert {result["status"] for result in results.values()} == {"passed"}
    assert results["R-LOAD-01"]["sentence"] == REQUIREMENTS["R-LOAD-01"].sentence


@pytest.mark.long
def test_command_ends_what_hangs_or_dies(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It leaves no file, though its processes are killed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    only = ("--only", "R-LOAD-01", "R-LOAD-05")
    code, results = run(capsys, "loader", "conformance_toys:Hangs", *only, "--timeout", "3")
    assert code == 1
    assert {result["facts"] for result in results.values()} == {"no answer within 3 s"}
    code, results = run(capsys, "loader", "conformance_toys:Dies", *only)
    assert code == 1
    assert all("SIGABRT" in result["facts"] for result in results.values())
    assert list(tmp_path.iterdir()) == []


def test_command_compares_processes(capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", "R-SEED-03")
    code, results = run(capsys, "seeds", "conformance_toys:first_indices", *only)
    assert (code, {result["status"] for result in results.values()}) == (0, {"passed"})
    assert results["R-SEED-03"]["facts"] == "two processes read the same items"


def test_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["seeds", "conformance_toys:hashed_indices"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if " R-SEED-" in line] == [
        "passed",
        "passed",
        "failed",
    ]
    assert lines[-1].startswith("2 passed, 1 failed, 0 not applicable")


@pytest.mark.parametrize(
    "path", ["conformance_toys", "conformance_toys:Nothing", "no_such_module:factory"]
)
def test_command_refuses_a_factory(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reader", path]) == 2
    assert path in capsys.readouterr().err


MISSING = [
    ("reader", "conformance_toys:LacksPackage", "R-READ-01"),
    ("reader", "conformance_toys:WrapsLack", "R-READ-03"),
    ("reader", "conformance_toys:QuotesLack", "R-READ-16"),
    ("reader", "conformance_toys:DiesOfLack", "R-READ-05"),
    ("reader", "conformance_toys:LacksLater", "R-READ-13"),
    ("weights", "conformance_toys:ModelLacks", "R-WEIGHTS-03"),
]


@pytest.mark.parametrize(("subject", "path", "number"), MISSING)
def test_missing_package_is_no_finding(
    subject: str, path: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([subject, path, "--only", number]) == 2
    printed = capsys.readouterr()
    assert "failed" not in printed.out
    assert "passed" not in printed.out
    assert "pip install no_package" in printed.err


@pytest.mark.long
def test_plugin_has_an_error_of_set_up_for_a_missing_package(tmp_path: Path) -> None:
    options = [
        "-q",
        "-p",
        "understudy_conformance.plugin",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    command = [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "--lerobot-conformance",
        "reader=conformance_toys:LacksPackage",
    ]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    count = len(select_requirements("reader"))
    assert f"{count} errors" in done.stdout
    assert "failed" not in done.stdout
    assert "pip install no_package" in done.stdout


def test_command_refuses_arguments() -> None:
    for arguments in (["reader"], ["pilot", "a:b"], ["reader", "a:b", "--only", "R-READ-99"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2


def test_plugin_imports_no_numpy_without_its_option() -> None:
    code = (
        "import sys, understudy_conformance.plugin as p; sys.exit('numpy' in sys.modules or not "
        "p.OPTION)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.long
def test_plugin_adds_a_test_per_requirement(tmp_path: Path) -> None:
    options = [
        "-q",
        "-rs",
        "-p",
        "understudy_conformance.plugin",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    options += ["--lerobot-conformance", "seeds=conformance_toys:hashed_indices"]
    options += ["--lerobot-conformance", "sampler=conformance_toys:Sampler"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 7 passed" in done.stdout
    assert "R-SEED-03" in done.stdout
    bad = subprocess.run(
        [*command, "--lerobot-conformance", "pilot=a:b"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert bad.returncode == 4


def test_documentation_has_the_requirements() -> None:
    assert format_requirements().strip() in (ROOT / "lab/journal/conformance.md").read_text()


def test_requirements_are_numbered_from_one() -> None:
    for subject, word in SUBJECTS.items():
        numbers = [requirement.number for requirement in select_requirements(subject)]
        assert numbers == [f"R-{word}-{i:02}" for i in range(1, len(numbers) + 1)]
        assert {REQUIREMENTS[number].subject for number in numbers} == {subject}
    assert sum(len(select_requirements(subject)) for subject in SUBJECTS) == len(REQUIREMENTS)
