"""The examples of the README and of docs/loading.md run as written."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mujoco", reason="the recording needs the extra demo")

import understudy as us
from understudy.testing.docs import ROOT, run_python
from understudy_kit import main

README = ROOT / "README.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recording of the examples."""
    root = tmp_path_factory.mktemp("readme")
    assert main(["record", "--output-dir", str(root / "runs/demo/dataset"), "--episodes", "6"]) == 0
    return root


def first_run() -> list[list[str]]:
    """Commands of the page's first run, in its sequence, as words after `understudy`."""
    (record,) = re.findall(r"```sh\nunderstudy (record .*)\n```", README.read_text())
    (commands,) = re.findall(
        r"```sh\n(understudy check.*?)```", README.read_text(), flags=re.DOTALL
    )
    return [record.split(), *(line.partition("#")[0].split()[1:] for line in commands.splitlines())]


def test_readme_runs_from_its_first_line_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer episodes and steps than the page has."""
    monkeypatch.chdir(tmp_path)
    short = {
        "record": ["--episodes", "20"],
        "train": ["--steps", "1", "--batch-size", "8", "--val.every", "0"],
        "rollout": ["--episodes", "2"],
    }
    for words in first_run():
        if words[0] in ("record", "rollout"):
            words = words[: words.index("--episodes")]
        assert words[0] == "serve" or main([*words, *short.get(words[0], [])]) == 0, words
    names = run_python(README, {"observation": us.EpisodeDataset("data/first")[0]}, slice(1, 2))
    assert names["actions"].shape == (8, 4)
    names = run_python(README, {}, slice(0, 1))
    assert names["state"].shape == (32, 4)
    assert names["batch"]["observation.images.front"].shape == (32, 3, 64, 64)
    assert names["saved"]["position"] == 100 * 32


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_first_run_of_the_readme_ends_with_an_arm_that_moves(tmp_path: Path) -> None:
    """The commands as the page has them: at least 27 of 30 blocks are picked up (89 to 100 % of
    30/30).
    """
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for words in first_run():
        if words[0] == "serve":  # it runs until Ctrl-C
            continue
        command = [sys.executable, "-m", "understudy", *words]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    (result,) = (tmp_path / "runs/first/rollouts").glob("*.json")
    success = json.loads(result.read_text())["success"]
    assert success["episodes"] == 30
    assert success["successes"] >= 27


def numbers(text: str) -> list[str]:
    """Numbers of a text, without thousands separators."""
    return re.findall(r"\d+(?:\.\d+)?(?:e-?\d+)?", re.sub(r"(?<=\d),(?=\d{3})", "", text))


def test_figures_of_the_readme_are_on_the_page_of_figures() -> None:
    """A figure of the README is in docs/measured.md or the journal, with as many or more digits."""
    text = README.read_text()
    tables = re.findall(r"^\| (?:CPU ms|\| result).*\n\|-.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    assert len(tables) == 2
    costs, figures = ([row.split("|") for row in table.splitlines()] for table in tables)
    found = numbers(" ".join([*(" ".join(row[2:]) for row in costs), *(row[2] for row in figures)]))
    assert len(found) > 12
    pages = [ROOT / "docs/measured.md", ROOT / "lab/journal/performance.md"]
    values = [float(word) for page in pages for word in numbers(page.read_text())]
    for word in found:
        digits = len(word.partition(".")[2])
        assert any(round(value, digits) == float(word) for value in values), word


def test_loading_page_example_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names = run_python(ROOT / "docs" / "loading.md", {})
    sample = names["sample"]
    batch = names["batch"]
    assert sample["action"].shape == (4, 4)
    assert sample["observation.images.front"].shape == (2, 3, 64, 64)
    assert sample["action_is_pad"].shape == (4,)
    assert sample["task"].startswith("pick up the ")
    assert batch["action"].shape == (32, 4, 4)
    assert names["loader"].position == 32
