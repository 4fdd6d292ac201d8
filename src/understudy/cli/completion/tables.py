"""Commands, flags and choices for completion, read from the settings classes. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from understudy.cli.arguments.examples import GENERAL, LAUNCH
from understudy.cli.main import COMMANDS, resolve
from understudy.config import help
from understudy.policies.registry import PolicySettings, type_names


@dataclass(frozen=True)
class Flag:
    """One flag.

    Attributes:
        name: With its dashes.
        text: First sentence of its meaning.
        choices: Values to choose from; empty where any value is possible.
        takes_value: Whether a value follows.
        takes_many: Whether several values may follow.
    """

    name: str
    text: str
    choices: tuple[str, ...] = ()
    takes_value: bool = True
    takes_many: bool = False


@dataclass(frozen=True)
class Table:
    """Completions of one command.

    Attributes:
        command: Its name, of one or two words.
        summary: Its meaning.
        flags: Flags besides those of the policy.
        policies: Type of policy -> its flags; empty for a command without a policy. The first type is the default.
        choices: Choices of the positional argument.
    """

    command: str
    summary: str
    flags: tuple[Flag, ...]
    policies: dict[str, tuple[Flag, ...]]
    choices: tuple[str, ...]


def command_tables() -> list[Table]:
    """Return the completions of all commands, in the sequence of the help."""
    return [_table(name) for name in COMMANDS]


def _table(name: str) -> Table:
    command = COMMANDS[name]
    cls: Any = resolve(command.settings)
    policies: dict[str, tuple[Flag, ...]] = {}
    kind = get_type_hints(cls).get("policy")
    if isinstance(kind, type) and issubclass(kind, PolicySettings):
        default = cls()
        own = default.policy.type
        for policy in sorted(type_names(), key=lambda each: (each != own, each)):
            try:
                chosen = kind.select({"type": policy})
                found = _flags(cls, replace(default, policy=chosen()))
            except Exception:
                if policy == own:
                    raise
                continue  # a package of another author is broken or not installed; its name is still completed
            policies[policy] = tuple(flag for flag in found if flag.name.startswith("--policy."))
    flags = [flag for flag in _flags(cls) if not (policies and flag.name.startswith("--policy."))]
    for words, text in GENERAL:
        option = next(word for word in words.split() if word.startswith("--"))
        flags.append(Flag(option, text, takes_value=not words.endswith(option)))
    if command.launchable:
        flags.append(Flag(LAUNCH[0].split()[0], help.first_sentence(LAUNCH[1])))
    return Table(name, command.summary, tuple(flags), policies, _positional_choices(cls))


def _flags(cls: type, default: Any = None) -> list[Flag]:
    found = []
    for group in help.groups(cls, default):
        for own in group.settings:
            if own.positional:
                continue
            path, text = own.path.replace("_", "-"), help.first_sentence(own.meaning())
            if own.kind is bool:
                prefix, dot, name = path.rpartition(".")
                found.append(Flag(f"--{path}", text, takes_value=False))
                found.append(Flag(f"--{prefix}{dot}no-{name}", text, takes_value=False))
            else:
                found.append(Flag(f"--{path}", text, _choices(own.kind), takes_many=_is_list(own.kind)))
    return found


def _positional_choices(cls: type) -> tuple[str, ...]:
    return next((_choices(own.kind) for own in next(help.groups(cls)).settings if own.positional), ())


def _choices(kind: Any) -> tuple[str, ...]:
    """Choices of a type, also of those inside a union or a list."""
    if get_origin(kind) is Literal:
        return tuple(str(one) for one in get_args(kind) if one not in ("", None))
    found = [choice for one in get_args(kind) if one is not Ellipsis for choice in _choices(one)]
    return tuple(dict.fromkeys(found))


def _is_list(kind: Any) -> bool:
    return get_origin(kind) in (tuple, list, dict) or any(map(_is_list, get_args(kind)))


def alike(tables: Sequence[Table]) -> list[tuple[list[str], Table]]:
    """Group the commands with the same flags: (their names, the table of the first)."""
    found: dict[tuple[Any, ...], tuple[list[str], Table]] = {}
    for table in tables:
        key = (table.flags, tuple(table.policies.items()), table.choices)
        found.setdefault(key, ([], table))[0].append(table.command)
    return list(found.values())


def first_words(tables: Sequence[Table]) -> dict[str, str]:
    """Return the words that may follow `understudy`, with their meanings."""
    found: dict[str, str] = {}
    for table in tables:
        found.setdefault(table.command.split()[0], table.summary)
    return found | {"help": "help of a command", "--help": "list the commands", "--version": "print the version"}


def second_words(tables: Sequence[Table]) -> dict[str, list[str]]:
    """Return the first words of the commands of two words, with the words that may follow."""
    found: dict[str, list[str]] = {}
    for table in tables:
        first, *rest = table.command.split()
        if rest:
            found.setdefault(first, []).extend(rest)
    return found
