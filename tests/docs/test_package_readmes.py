"""READMEs of the distributions: their rooms, imports and sizes are those of the source, and their
code runs.
"""

import re
import runpy
import tokenize
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("mujoco", reason="the recording needs the extra demo")

from understudy.testing.docs import ROOT, blocks, expand
from understudy_data.testing.datasets import rate_episodes
from understudy_kit import main

SEAMS = runpy.run_path(str(ROOT / "scripts/seams.py"))
NAMES = ("data", "kit", "tools", "understudy", "robot", "zoo")
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)


@cache
def siblings() -> dict[str, set[str]]:
    """Distributions from which each one takes a name."""
    found: dict[str, set[str]] = {}
    for crossing in SEAMS["find_crossings"](SEAMS["find_modules"]()):
        found.setdefault(crossing.wheel, set()).add(crossing.other)
    return found


def folder(name: str) -> Path:
    return ROOT / "packages" / ("understudy" if name == "understudy" else f"understudy-{name}")


def source(name: str) -> Path:
    (top,) = (folder(name) / "src").iterdir()
    return top


def files(name: str) -> list[Path]:
    return [path for path in source(name).rglob("*.py") if "testing" not in path.parts]


def count_tokens(path: Path) -> int:
    with path.open("rb") as file:
        return sum(token.type in COUNTED for token in tokenize.tokenize(file.readline))


def readme(name: str) -> str:
    return (folder(name) / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_rooms_are_those_of_the_source(name: str) -> None:
    cells = re.findall(r"^\| (`.+?) \|", readme(name), flags=re.MULTILINE)
    rooms = {path.name for path in source(name).iterdir() if (path / "__init__.py").is_file()} - {
        "testing"
    }
    modules = {path.stem for path in source(name).glob("[!_]*.py")} - {"devices"}
    assert set(re.findall(r"`(\w+)`", " ".join(cells))) == rooms | modules


@pytest.mark.parametrize("name", NAMES)
def test_imports_are_those_of_the_source(name: str) -> None:
    (stated,) = re.findall(r"^It imports (.+?)\.\s", readme(name), flags=re.MULTILINE | re.DOTALL)
    assert set(re.findall(r"`([\w-]+)`", stated)) == {
        folder(other).name for other in siblings()[name]
    }


@pytest.mark.parametrize("name", NAMES)
def test_size_is_that_of_the_source(name: str) -> None:
    """Within 5 %: a rise is a line of the changelog."""
    ((number, tokens),) = re.findall(
        r"Its size is (\d+) files\s+with\s+([\d,]+) tokens", readme(name)
    )
    assert int(number) == pytest.approx(len(files(name)), rel=0.05, abs=1)
    assert int(tokens.replace(",", "")) == pytest.approx(
        sum(map(count_tokens, files(name))), rel=0.05
    )


@pytest.mark.long
def test_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the sequence of the distributions, in one folder, with fewer steps."""
    monkeypatch.chdir(tmp_path)
    assert main(["record", "--output-dir", "data/my_set", "--episodes", "4"]) == 0
    rate_episodes(tmp_path / "data/my_set", success=[True, False, True, True])
    for name in NAMES:
        for language, block in blocks(readme(name)):
            if language == "python":
                exec(compile(block.replace("1000", "2"), f"README of {name}", "exec"), {})
            for words in expand(block.replace("1000", "2"), {}) if language == "bash" else []:
                # `serve` runs until Ctrl-C
                assert words[1] == "serve" or main(words[1:]) == 0, words
