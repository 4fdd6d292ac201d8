"""Messages about arguments that cannot be parsed: unknown settings, and values of the wrong type."""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from understudy.cli.arguments.setting_paths import list_settings, setting_paths
from understudy.config.foreign import FOREIGN, equivalent
from understudy.config.schema import SUFFIXES
from understudy.policies.registry import BUILT_IN, policy_type

PARSING = {
    r"^Error parsing (\S+): invalid literal for int\(\) with base 10: ": r"\1: must be a whole number, not ",
    r"^Error parsing (\S+): could not convert string to float: ": r"\1: must be a number, not ",
    r"^Error parsing (\S+): no type matching (.*) could be instantiated from (.*)\.$": r"\1: must be \2, not \3",
    r"^Error parsing (\S+): Could not parse arguments (.*) into tuple type .*$": r"\1: cannot take \2",
    r"^invalid choice (.*) for argument '(\S+)'\. Expected one of \('(.*)'\)\.$": r"\2: must be one of '\3', not \1",
    r"^Missing value for argument '(?:\(')?(-[^\s',]+)(?:',\))?'\. .*$": r"\1: its value is missing",
}
"""Messages of Python and tyro about a wrong value -> ours."""

WEIGHTS = re.compile(r"(-\S+): must be \{([^{}]*)\}\|\{\[\{([^{}]*)\} FLOAT \[\.\.\.\]\]\}, not (\[.*\])")
"""Message about a value that is neither a choice nor weights of choices."""

TRAINS = "--data.root"
"""Flag of the commands with the settings of a training, into which names of other trainers are translated."""


def describe_refused(cls: type, arguments: list[str]) -> Iterator[str]:
    """Yield one line for each flag that `REFUSED_FLAGS` of the settings class lists: it would have no effect."""
    refused: Mapping[str, str] = getattr(cls, "REFUSED_FLAGS", {})
    for argument in arguments:
        flag = argument.partition("=")[0]
        if argument.startswith("--") and (why := refused.get(flag[2:].replace("-", "_"))):
            yield f"{flag}: has no effect here: {why}"


def translate(cls: type, arguments: list[str], default: Any = None) -> Iterator[str]:
    """Yield one line for each flag of another trainer that is unknown here.

    An argument that tyro cannot parse hides the unknown ones from `describe_unknown`.

    Args:
        cls: Settings class.
        arguments: Words of the command line.
        default: Instance with the chosen policy, whose own settings are known too.
    """
    flags = _flags(cls, default)
    for argument in arguments if TRAINS in flags else ():
        flag = argument.partition("=")[0]
        name = flag.replace("_", "-")
        if flag.startswith("--") and name not in flags and name[2:].removeprefix("no-") in FOREIGN:
            yield _unknown_flag(flag, flags)


def describe_unknown(cls: type, unknown: list[str], arguments: list[str], default: Any = None) -> Iterator[str]:
    """Yield one line for each unknown argument of `arguments`; the value after an unknown flag belongs to the flag.

    Args:
        cls: Settings class.
        unknown: Words that no setting takes.
        arguments: Words of the command line.
        default: Instance with the chosen policy, whose settings are the known ones of `policy`.
    """
    flags = _flags(cls, default)
    words = [word for argument in arguments for word in argument.split("=", 1)]
    flag_of = dict(zip(words[1:], words))
    value = False
    for argument in unknown:
        if argument.startswith("-") and not (value and re.match(r"-\.?\d", argument)):
            flag = argument.partition("=")[0]
            listed = flag.lstrip("-").replace("-", "_") in dict(list_settings(cls))
            yield f"{flag}: a list, which only a settings file can set" if listed else _unknown_flag(flag, flags)
            value = "=" not in argument
        elif value:
            value = False
        else:
            yield _misplaced(argument, flag_of.get(argument, ""), flags)


def _flags(cls: type, default: Any) -> list[str]:
    """Return the flags of a settings class, with those of the policy that `default` has."""
    policy = getattr(default, "policy", None)
    paths = [path for path, _ in setting_paths(cls) if policy is None or not path.startswith("policy.")]
    paths += [f"policy.{own.name}" for own in fields(policy)] if policy is not None else []
    return [f"--{path.replace('_', '-')}" for path in paths]


def _unknown_flag(flag: str, flags: list[str]) -> str:
    name = flag.lstrip("-").replace("_", "-")
    if TRAINS in flags and (ours := equivalent(name.removeprefix("no-"))):
        return f"{flag}: unknown setting; here it is {ours}"
    if "--policy.type" in flags and (types := _types_with(name)):
        return f"{flag}: a setting of the policy types {', '.join(types)}: add --policy.type {types[0]}"
    foreign = [f"--{other}" for other in FOREIGN] if TRAINS in flags else []
    close = difflib.get_close_matches(f"--{name}", [*foreign, *flags], n=1, cutoff=0.85)
    if close and close[0] not in flags:
        return f"{flag}: unknown setting; {close[0]} of another trainer is here {FOREIGN[close[0][2:]]}"
    close = difflib.get_close_matches(f"--{name}", flags, n=1, cutoff=0.65)
    close = close or [f for f in flags if f.rpartition(".")[2] == name][:1]
    return f"{flag}: unknown setting; " + (f"did you mean {close[0]}?" if close else "--help lists all")


def _types_with(name: str) -> list[str]:
    """Return the built-in policy types that have the setting `policy.NAME`."""
    group, _, field = name.partition(".")
    if group != "policy" or field == "type":
        return []
    types = {kind: fields(policy_type(kind).settings) for kind in BUILT_IN}
    return [kind for kind, owned in types.items() if field in {own.name.replace("_", "-") for own in owned}]


def _misplaced(argument: str, flag: str, flags: list[str]) -> str:
    """Describe an argument that no setting takes; `flag` is the word before it."""
    name, override, _ = argument.partition("=")
    if override and TRAINS in flags and (ours := equivalent(name)):
        return f"{name}: unknown setting; here it is {ours}"
    path = Path(argument)
    if TRAINS in flags and (path / "meta").is_dir():
        return f"{argument}: this is a dataset; did you mean --data.root {argument}?"
    if TRAINS in flags and (path / "checkpoints").is_dir():
        return f"{argument}: this is a run; did you mean understudy resume {argument}?"
    if path.suffix in SUFFIXES and TRAINS in flags:
        return f"{argument}: a settings file comes before the flags, and there is one"
    if path.suffix and TRAINS in flags:
        return f"{argument}: settings files end in {', '.join(SUFFIXES)}"
    if TRAINS in flags and ("/" in argument or path.exists()):
        return f"{argument}: no settings file ({', '.join(SUFFIXES)}); a dataset is given as --data.root {argument}"
    if flag.startswith("--"):
        return f"{flag}: takes no value but true or false, not {argument}"
    return f"{argument}: unexpected argument; settings are --name value"


def describe_error(box: str) -> str:
    """Extract the message from tyro's box, without the help of the argument that follows it."""
    words: list[str] = []
    for line in box.splitlines()[1:]:
        text = line.strip("│╭╮╰╯ ")
        rule = set(text) <= set("─-")  # tyro's ASCII boxes have rules of "-", also below the title
        if (rule and words) or text.startswith("Got errors"):
            break
        if not rule:
            words.append(text)
    line = " ".join(words) or " ".join(box.split())
    for pattern, ours in PARSING.items():
        line = re.sub(pattern, ours, line)
    line = re.sub(r"must be \{None\}\|INT, not \['(.*)'\]$", r"must be a whole number, not '\1'", line)
    return _with_example(line) or _with_near_choice(line)


def _with_example(line: str) -> str | None:
    """Return the message about a choice, or weights of choices, with an example; None for other messages."""
    found = WEIGHTS.fullmatch(line)
    if found is None:
        return None
    flag, *lists, given = found.groups()
    choices, weighted = (words.replace(" ", "").split(",") for words in lists)
    near = difflib.get_close_matches(given.strip("[]'"), choices, n=1) if "=" not in given else []
    example = f"`{flag} {weighted[0]} 0.5 {weighted[-1]} 0.5`"
    message = f"{flag}: must be one of {', '.join(choices)}, or weights as in {example}, not {given}"
    return message + (f"; did you mean {near[0]}?" if near else "")


def _with_near_choice(line: str) -> str:
    """Add the choice that a misspelt word is near to, if any: `must be INT|{latest,best}, not ['bast']`."""
    found = re.fullmatch(r"-\S+: must be .*\{(.*)\}.*, not \['(.*)'\]", line)
    near = difflib.get_close_matches(found[2], found[1].split(","), n=1) if found else []
    return f"{line}; did you mean {near[0]}?" if near else line
