"""Completion scripts in real shells: commands, settings, the policy's own ones, and choices."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import get_type_hints

import pytest

import understudy
from support.refusals import refused
from understudy.cli.completion import SCRIPTS
from understudy.cli.completion import complete as answer
from understudy.cli.main import COMMANDS, main, read_settings
from understudy.config.flags import is_policy, list_settings
from understudy.config.help import flag_of, negation_of
from understudy.errors import ConfigError
from understudy.policies.registry import policy_type, type_names

Complete = Callable[[str], list[str]]

BASH = r"""
source "$1"
complete -p understudy | grep -q -- '-F _understudy' || exit 9
COMP_WORDS=("${@:2}")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_understudy
printf '%s\n' "${COMPREPLY[@]}"
"""
ZSH = r"""
compdef() { }
compset() { }
_files() { print -r -- FILES }
_describe() { print -rl -- ${(P)@[-1]%%:*} }
source $1
words=("${@[2,-1]}") CURRENT=$(( $# - 1 ))
_understudy
"""
FISH = r"""
source $argv[1]
complete -C "$argv[2]"
"""
SHELLS = ("bash", "zsh", "fish")


@pytest.fixture(scope="module")
def shells(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Complete]:
    """Shell -> a function from a command line to the words that it offers for the last one."""
    folder = tmp_path_factory.mktemp("completion")
    program = folder / "understudy"
    source = Path(understudy.__file__).parents[1]
    program.write_text(f'#!/bin/sh\nPYTHONPATH={source} exec {sys.executable} -m understudy "$@"\n')
    program.chmod(0o755)

    def completer(shell: str) -> Complete:
        path = folder / f"understudy.{shell}"
        path.write_text(SCRIPTS[shell])

        def run(line: str) -> list[str]:
            words = line.split(" ")
            command = {
                "bash": ["bash", "--norc", "-c", BASH, "bash", str(path), *words],
                "zsh": ["zsh", "-f", "-c", ZSH, "zsh", str(path), *words],
                "fish": ["fish", "--no-config", "-c", FISH, str(path), line],
            }[shell]
            env = {"PATH": f"{folder}:/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
            done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder)
            assert (done.returncode, done.stderr) == (0, ""), (line, done)
            offered = [found.split("\t")[0] for found in done.stdout.splitlines() if found]
            return [word for word in offered if word.startswith(words[-1])]

        return run

    return {shell: completer(shell) for shell in SHELLS}


@pytest.fixture(params=SHELLS)
def complete(request: pytest.FixtureRequest, shells: dict[str, Complete]) -> Complete:
    if shutil.which(request.param, path="/usr/bin:/bin") is None:
        pytest.skip(f"{request.param} is not installed")
    return shells[request.param]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_setting_of_every_command_is_completed(name: str) -> None:
    """Each flag is one that the parser knows, and no setting is absent."""
    cls = COMMANDS[name].settings_class()
    has_policy = is_policy(get_type_hints(cls).get("policy"))
    kinds = type_names() if name == "train" else ["flow"]
    for kind in kinds:
        settings = list(list_settings(cls, policy_type(kind).settings))
        paths = {setting.path for setting in settings if not setting.positional and setting.item is None}
        flags = {flag_of(path) for path in paths}
        off = {negation_of(setting.path) for setting in settings if setting.kind is bool}
        words = [*name.split(), *(["--policy.type", kind] if has_policy else []), "--"]
        offered = {line.split("\t")[0] for line in answer(words)}
        general = {"--help", "--print-config", "--debug", "--policy-code"}
        assert offered == flags | off | general | ({"--launch"} if COMMANDS[name].launchable else set())


def offered(line: str) -> list[str]:
    """Words that `understudy __complete` offers for the last one of a command line."""
    words = line.split(" ")[1:]
    return [word for word in (found.split("\t")[0] for found in answer(words)) if word.startswith(words[-1])]


def test_shell_asks_for_its_words(complete: Complete) -> None:
    """Commands, flags, the policy's own ones and choices reach the shell; the tests below have all candidates."""
    assert complete("understudy tra") == ["train"]
    assert complete("understudy train --policy.type pi05 --policy.siz") == ["--policy.size"]
    assert complete("understudy train --policy.siz") == []
    assert sorted(complete("understudy train --data.on-bad-frame ")) == ["raise", "substitute"]


def test_commands_are_completed() -> None:
    assert set(offered("understudy ")) == {name.split()[0] for name in COMMANDS} | {"help", "--help", "--version"}
    assert offered("understudy order ") == ["export", "explain"]
    assert offered("understudy help val") == ["validate"]


def test_flags_and_choices_are_completed() -> None:
    assert "--optim.lr" in offered("understudy train --optim.l")
    assert "--print-config" in offered("understudy order explain --p")
    assert offered("understudy train --launc") == ["--launch"]
    assert offered("understudy plan --launc") == []
    assert sorted(offered("understudy completion ")) == ["bash", "fish", "zsh"]
    assert {"latest", "best"} <= set(offered("understudy export runs/a --checkpoint "))
    assert {"flow", "pi05"} <= set(offered("understudy train --policy.type "))
    assert offered("understudy train --policy.noise-s") == ["--policy.noise-samples"]
    assert "raise" not in offered("understudy train --data.on-bad-frame raise ")
    assert "tensorboard" in offered("understudy train --log.trackers wandb ")


def test_a_value_behind_an_equals_sign_is_completed(complete: Complete, request: pytest.FixtureRequest) -> None:
    if "bash" in request.node.name:  # it splits --flag=value, which COMP_WORDS of this test does not show
        assert answer(["train", "--data.on-bad-frame", "=", "ra"]) == ["raise"]
    else:
        assert complete("understudy train --data.on-bad-frame=ra") == ["--data.on-bad-frame=raise"]


def test_completion_prints_the_script(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == SCRIPTS["zsh"]
    assert main(["__complete", "tra"]) == 0
    assert capsys.readouterr().out.startswith("train\t")


def test_completion_needs_a_known_shell() -> None:
    with refused("shell", "bash", "zsh", "fish", kind=ConfigError):
        read_settings("completion", [])
    with refused("tcsh", kind=ConfigError):
        read_settings("completion", ["tcsh"])
