"""docs/viewing.md: its commands are read."""

import re
import shlex
from pathlib import Path

import pytest

from understudy.cli import main

PAGE = (Path(__file__).parents[1] / "docs/viewing.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL) for line in block.splitlines()]


def test_page_shows_commands_of_view_only() -> None:
    assert len(COMMANDS) >= 4
    assert {command.split()[1] for command in COMMANDS} == {"view"}


@pytest.mark.parametrize("command", COMMANDS)
def test_page_commands_are_read(command: str) -> None:
    words = shlex.split(command)
    assert main.read_settings(words[1], words[2:]) is not None
