"""Completion scripts in real shells: commands, settings, the policy's own ones, and choices."""

import shutil
import subprocess
from collections.abc import Callable
from typing import get_type_hints

import pytest

from support.refusals import refused
from understudy.cli.arguments.setting_paths import list_settings, setting_paths
from understudy.cli.completion import bash, fish, zsh
from understudy.cli.completion.tables import Table, command_tables
from understudy.cli.main import COMMANDS, main, read_settings, resolve
from understudy.errors import ConfigError

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
def tables() -> list[Table]:
    return command_tables()


@pytest.fixture(scope="module")
def shells(tables: list[Table], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Complete]:
    """Shell -> a function from a command line to the words that it offers for the last one."""
    folder = tmp_path_factory.mktemp("completion")
    scripts = {"bash": bash.script(tables), "zsh": zsh.script(tables), "fish": fish.script(tables)}

    def completer(shell: str) -> Complete:
        path = folder / f"understudy.{shell}"
        path.write_text(scripts[shell])

        def run(line: str) -> list[str]:
            words = line.split(" ")
            command = {
                "bash": ["bash", "--norc", "-c", BASH, "bash", str(path), *words],
                "zsh": ["zsh", "-f", "-c", ZSH, "zsh", str(path), *words],
                "fish": ["fish", "--no-config", "-c", FISH, str(path), line],
            }[shell]
            env = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LC_ALL": "C.UTF-8"}
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


def test_tables_have_every_setting_of_every_command(tables: list[Table]) -> None:
    """Each flag is one that the parser knows, and no setting is absent."""
    assert [table.command for table in tables] == list(COMMANDS)
    for table in tables:
        cls = resolve(COMMANDS[table.command].settings)
        lists = dict(list_settings(cls))
        paths = {f"--{path.replace('_', '-')}" for path, _ in setting_paths(cls) if path not in lists}
        if table.policies:
            paths = {path for path in paths if not path.startswith("--policy.")}
            for own, flags in table.policies.items():
                kind = get_type_hints(cls)["policy"].select({"type": own})
                fields = {f"--policy.{path.replace('_', '-')}" for path, _ in setting_paths(kind)}
                assert {flag.name for flag in flags if ".no-" not in flag.name} == fields
        offered = {flag.name for flag in table.flags}
        assert paths - offered <= {"--path", "--paths", "--policy", "--runs", "--run", "--shell", "--datasets"}, (
            table.command
        )
        extra = {name for name in offered - paths if ".no-" not in name and not name.startswith("--no-")}
        assert extra <= {"--help", "--print-config", "--debug", "--policy-code", "--launch"}, table.command


def test_commands_are_completed(complete: Complete) -> None:
    assert complete("understudy tra") == ["train"]
    assert set(complete("understudy ")) == {name.split()[0] for name in COMMANDS} | {"help"} | (
        set(complete("understudy ")) & {"--help", "--version"}
    )
    assert complete("understudy order ") == ["explain"]
    assert complete("understudy help val") == ["validate"]


def test_flags_and_choices_are_completed(complete: Complete) -> None:
    assert "--optim.lr" in complete("understudy train --optim.l")
    assert "--print-config" in complete("understudy order explain --p")
    assert complete("understudy train --launc") == ["--launch"]
    assert complete("understudy plan --launc") == []
    assert sorted(complete("understudy train --data.on-bad-frame ")) == ["raise", "substitute"]
    assert sorted(complete("understudy completion ")) == ["bash", "fish", "zsh"]
    assert {"latest", "best"} <= set(complete("understudy export runs/a --checkpoint "))


def test_flags_of_the_policy_follow_its_type(complete: Complete) -> None:
    assert complete("understudy train --policy.noise-s") == ["--policy.noise-samples"]
    assert complete("understudy train --policy.type pi05 --policy.siz") == ["--policy.size"]
    assert complete("understudy train --policy.siz") == []
    assert {"flow", "pi05"} <= set(complete("understudy train --policy.type "))


def test_choices_end_with_the_value_unless_the_flag_takes_many(complete: Complete) -> None:
    assert "raise" not in complete("understudy train --data.on-bad-frame raise ")
    assert "tensorboard" in complete("understudy train --log.trackers wandb ")


def test_completion_prints_the_script(
    tables: list[Table], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("understudy.cli.completion.tables.command_tables", lambda: tables)
    assert main(["completion", "zsh"]) == 0
    assert capsys.readouterr().out == zsh.script(tables)


def test_completion_needs_a_known_shell() -> None:
    with refused("shell", "bash", "zsh", "fish", kind=ConfigError):
        read_settings("completion", [])
    with refused("tcsh", kind=ConfigError):
        read_settings("completion", ["tcsh"])
