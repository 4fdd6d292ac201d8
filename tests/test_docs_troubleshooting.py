"""docs/troubleshooting.md quotes messages of this version, and names commands and settings that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from understudy.cli.arguments.setting_paths import setting_paths
from understudy.cli.main import COMMANDS, resolve

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
MESSAGES = [line.strip() for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
MESSAGES = [line for line in MESSAGES if line]


@cache
def texts() -> str:
    """Constants of the source code, one per line, with `…` in place of the values of a formatted one."""
    found = []
    for path in (ROOT / "src/understudy").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value.replace("\n", " "))
    return "\n".join(found)


@pytest.mark.parametrize("message", MESSAGES)
def test_messages_are_those_of_the_source(message: str) -> None:
    """The fixed words of a message are in one constant, in their sequence."""
    parts = [re.escape(part.strip()) for part in message.split("…") if part.strip(" ;:")]
    assert re.search("[^\n]*".join(parts), texts()), message


def test_negative_control() -> None:
    with pytest.raises(AssertionError):
        test_messages_are_those_of_the_source("the gradient exploded; …")


def test_commands_and_settings_exist() -> None:
    assert len(MESSAGES) > 8
    own = [flag for name in COMMANDS for flag in setting_paths(resolve(COMMANDS[name].settings))]
    flags = {f"--{path.replace('_', '-')}" for path, _ in own} | {"--debug", "--version", "--launch"}
    for flag in set(re.findall(r"(?<![\w-])--[a-z][a-z0-9.-]*[a-z0-9]", PAGE)):
        assert flag in flags, flag
    for command in set(re.findall(r"`understudy ([a-z]+)", PAGE)):
        assert command in COMMANDS, command
