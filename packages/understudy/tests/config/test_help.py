"""Help of the commands: every setting has a meaning, a placeholder and a default, and every example
works.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal, get_args

import pytest

from understudy.config.train import TrainConfig
from understudy.policies.registry import type_names
from understudy.train.checkpoint import run_dir
from understudy_kit import Ge, Positional, load
from understudy_kit.cli import main
from understudy_kit.cli.help_texts import EXAMPLES, MOST_USED
from understudy_kit.config import help


@dataclass
class Inner:
    """Numbers of the inner part."""

    rate: Annotated[float, Ge(0)] = 0.5
    """Rate in samples
    per second."""


@dataclass
class Settings:
    """Settings of a test."""

    path: Positional[str] = ""
    """Folder."""
    quiet: bool = False
    """Print less."""
    size: tuple[int, int] = (4, 8)
    """Height and width in pixels."""
    limit: int | Literal["auto"] | None = None
    """Most items."""
    mode: Literal["one", "two"] | dict[Literal["one", "two"], float] = "one"
    """Choice."""
    names: tuple[str, ...] = ()
    """Names; the default is all."""
    weights: Mapping[str, float] | dict[str, float] = field(default_factory=dict)
    """Weights. By name."""
    inner_part: Inner = field(default_factory=Inner)


def test_groups_have_flags_meanings_and_defaults() -> None:
    outer, inner = help.groups(Settings)
    assert [(own.path, own.positional) for own in outer.settings[:2]] == [
        ("path", True),
        ("quiet", False),
    ]
    rows = {own.path: (own.flag(), own.meaning()) for own in (*outer.settings, *inner.settings)}
    assert rows["quiet"] == ("--quiet, --no-quiet", "Print less. (default: off)")
    assert rows["size"] == ("--size INT INT", "Height and width in pixels. (default: 4 8)")
    assert rows["limit"] == ("--limit INT|auto", "Most items. (default: none)")
    assert rows["mode"] == ("--mode MODE | MODE WEIGHT ...", "Choice. (default: one)")
    assert rows["names"] == ("--names TEXT ...", "Names; the default is all.")
    assert rows["inner_part.rate"] == (
        "--inner-part.rate FLOAT",
        "Rate in samples per second. (default: 0.5)",
    )
    assert (inner.name, inner.text) == ("inner_part", "Numbers of the inner part.")


def test_groups_show_the_values_of_an_instance() -> None:
    _, inner = help.groups(Settings, Settings(inner_part=Inner(rate=2.0)))
    assert inner.settings[0].meaning() == "Rate in samples per second. (default: 2.0)"


def test_first_sentence_keeps_the_default() -> None:
    assert (
        help.first_sentence("One, of 3.5 units. Two. (default: 7)")
        == "One, of 3.5 units. (default: 7)"
    )
    assert help.first_sentence("One. (default: none)") == "One. (default: none)"


@pytest.mark.parametrize("columns", [20, 80, 300])
def test_format_groups_fits_the_terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    words = [
        line
        for line in help.format_groups(list(help.groups(TrainConfig))).splitlines()
        if "{" not in line
    ]
    texts = [line for line in words if "https://" not in line]  # an address stays whole
    assert max(map(len, texts)) <= max(60, min(120, columns))


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_every_setting_of_a_command_has_a_meaning(name: str) -> None:
    for group in help.groups(main.find_commands()[name].settings_class):
        assert group.text
        for own in group.settings:
            assert own.text.endswith("."), own.path
            assert "VALUE" not in own.flag(), own.path


def test_most_used_settings_exist() -> None:
    known = {own.path for group in help.groups(TrainConfig) for own in group.settings}
    assert set(MOST_USED) <= known


@pytest.mark.parametrize("example", [line for examples in EXAMPLES.values() for line in examples])
def test_examples_of_help_are_read(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("settings.yaml", "mixture.yaml"):
        Path(file).write_text("data:\n  root: d\n")
    words = shlex.split(example.partition(" > ")[0].replace(" --print-config", ""))[1:]
    name = next(name for name in main.COMMANDS if words[: len(name.split())] == name.split())
    count, words = main.split_launch(words[len(name.split()) :])
    monkeypatch.setattr(run_dir, "resumed_settings", lambda _: load(TrainConfig, "settings.yaml"))
    assert main.read_settings(name, words) is not None
    assert count is None or main.COMMANDS[name].launchable


@pytest.mark.parametrize("name", sorted(main.COMMANDS))
def test_help_has_usage_first_and_examples_last(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([*name.split(), "--help"])
    assert ended.value.code == 0
    output = capsys.readouterr().out
    assert output.startswith(f"usage: understudy {name}")
    assert re.findall(r"^\w.*:$", output, re.MULTILINE)[-1] == "examples:"
    assert output.rstrip().endswith(EXAMPLES[name][-1])


def test_help_names_every_policy_type() -> None:
    found = {one.path: one for group in help.groups(TrainConfig) for one in group.settings}[
        "policy.type"
    ]
    assert set(get_args(found.kind)) == set(type_names()) >= {"flow", "pi05", "pi0"}


@pytest.mark.parametrize(("name", "count"), [("train", 2), ("rollout", 0)])
def test_help_shows_launch_where_it_works(
    name: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main.main([name, "--help"])
    output = capsys.readouterr().out
    assert output.count("\n  --launch N") == count  # by itself, and among the most used ones
    assert "--launch" not in output.partition("every command:")[2].partition("\n\n")[0]
