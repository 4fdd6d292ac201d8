"""Settings of a command from its words: defaults, then a file or a run, then flags; or its help."""

import inspect
import pydoc
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from understudy_base import ConfigError, MissingExtraError, with_addresses
from understudy_kit.cli.commands import Command
from understudy_kit.cli.help_texts import EXAMPLES, LAUNCH, MOST_USED, POSITIONAL, general
from understudy_kit.config import help
from understudy_kit.config.files import SUFFIXES, read_file
from understudy_kit.config.flags import (
    chosen_type,
    list_settings,
    name_by_hand,
    read_flags,
    type_flag,
)
from understudy_kit.config.hooks import union_of
from understudy_kit.config.schema import complete, plain


def settings(name: str, cls: type, command: Command, arguments: Sequence[str]) -> Any:
    """Parse and check the settings of a command.

    Args:
        name: Name of the command.
        cls: Class of its settings.
        command: Its facts.
        arguments: Words of the command line after the name.

    Raises:
        ConfigError: Lists all errors, one line each.
        SystemExit: Help was requested and has been printed.
    """
    content = dict[str, Any]()
    file = None
    words = list(arguments)
    argument = command.argument
    new = command.stored is None
    helped = bool({"-h", "--help"} & set(arguments))
    program = f"understudy {name}"
    about = with_addresses(inspect.cleandoc(cls.__doc__ or ""))
    name_by_hand(cls, words)
    if command.stored is not None and words and not words[0].startswith("-"):
        program += f" {words[0]}"
        content = plain(command.stored(words.pop(0)))
        about = (
            "Continue the run with its own settings, which are the defaults below, and these "
            "changes."
        )
    elif not new and not helped:
        raise ConfigError(f"{argument.lower()}: required: understudy {name} {argument}")
    elif "FILE" in argument and words and Path(words[0]).suffix in SUFFIXES:
        content = read_file(file := words.pop(0))
    elif argument:
        program += f" {argument}"
        if not new:
            about = (
                "Continue the run with its own settings and these changes. The defaults below "
                "are those of a new "
            )
            about += f"run: `understudy {name} {argument} --help` shows the run's own."
    if not helped:
        return complete(read_flags(cls, words, content, file, new=new))
    named = chosen_type(cls, words)
    union = union_of(cls)
    kind: list[str] = []
    if union is not None and named:
        kind.append(f"{type_flag(union[0])}={named}")
    try:
        default = read_flags(cls, kind, content, file, new=new)
    except MissingExtraError as error:
        default = read_flags(cls, kind, content, file, new=False)
        about += f" The policy brings other defaults than those below, but {error}."
    paged = sys.stdin.isatty() and sys.stdout.isatty()
    _print(_help(name, cls, default, program, about, command, paged=paged), paged)
    raise SystemExit(0)


def _help(
    name: str,
    cls: type,
    default: Any,
    program: str,
    about: str,
    command: Command,
    *,
    paged: bool,
) -> str:
    """Return the help of a command: argument, settings in groups, those of lists in a file,
    examples last.

    A pager shows the beginning first, and a terminal without one the end: there the most used
    settings are.
    """
    groups = list(help.groups(cls, default))
    rows = dict[str, tuple[str, str]]()
    for group in groups:
        rows |= {of.path: (of.flag(), of.meaning()) for of in group.settings}
    meaning = next((setting.meaning() for setting in groups[0].settings if setting.positional), "")
    parts = [f"usage: {program} [--setting VALUE ...]", help.wrap(about)]
    if summarized := len(rows) > 2 * len(MOST_USED):
        place = "below" if paged else "at the end"
        parts.append(help.wrap(f"`most used`, {place}, repeats the settings that most runs need."))
    argument = command.argument
    launchable = command.launchable
    if argument:
        text = meaning or POSITIONAL.get(argument, "")
        parts.append("argument:\n" + help.format_rows([(argument, text)]))
    parts.append(help.format_groups(groups))
    for setting in list_settings(cls):
        if setting.item is not None:
            items = help.format_items(setting.item)
            parts.append(f"In a settings file, each item of `{setting.path}` may have:\n{items}")
    parts.append("every command:\n" + help.format_rows(general()))
    if launchable:
        parts.append("several processes:\n" + help.format_rows([LAUNCH]))
    if summarized:
        most_used = [rows[path] for path in MOST_USED if path in rows] + [LAUNCH] * launchable
        first = [(flag, help.first_sentence(text)) for flag, text in most_used]
        position = 3 if paged else len(parts)
        parts.insert(position, "most used:\n" + help.format_rows(first))
    if examples := EXAMPLES.get(name, ()):
        parts.append("examples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(part for part in parts if part)


def _print(text: str, paged: bool) -> None:
    """Print a text; one that is longer than the terminal comes in the user's pager."""
    if paged and text.count("\n") >= shutil.get_terminal_size().lines:
        pydoc.pager(text)
    else:
        print(text)
