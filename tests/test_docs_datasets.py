"""docs/datasets.md: its commands are read, and its conditions are conditions."""

import re
import shlex
from pathlib import Path

import pytest

from understudy.cli import main
from understudy.data.selection.where import Where

PAGE = (Path(__file__).parents[1] / "docs/datasets.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]


def test_page_shows_every_setting_of_edit_that_changes_data() -> None:
    assert len(COMMANDS) >= 20
    assert {command.split()[1] for command in COMMANDS} == {"edit", "segment", "train"}


@pytest.mark.parametrize("command", COMMANDS)
def test_page_commands_are_read(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command)
    assert main.read_settings(words[1], words[2:]) is not None


def test_page_conditions_are_conditions() -> None:
    [block] = re.findall(r"all texts\):\n\n```\n(.*?)```", PAGE, flags=re.DOTALL)
    assert [Where(line).names for line in block.splitlines()] == [
        ["success", "quality"],
        ["operator", "mistakes"],
        ["task", "seconds"],
        ["name with spaces"],
    ]
