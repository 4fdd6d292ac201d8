"""Parse command-line arguments into settings: defaults, then a file or a run, then flags. Errors are one line."""

import inspect
import io
import pydoc
import shutil
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from understudy.cli.arguments.examples import EXAMPLES, GENERAL, LAUNCH, MOST_USED, POSITIONAL
from understudy.cli.arguments.messages import describe_error, describe_refused, describe_unknown, translate
from understudy.cli.arguments.setting_paths import list_settings, setting_paths
from understudy.config import help
from understudy.config.schema import SUFFIXES, complete, plain, read_file, run_defaults, validate
from understudy.errors import ConfigError
from understudy.optional_packages import MissingExtraError, optional_imports
from understudy.policies.registry import is_code, pin

with optional_imports():
    import tyro


def settings(
    name: str, cls: type, argument: str, arguments: list[str], *, launchable: bool, resumed: Any = None
) -> Any:
    """Parse and check the settings of a command.

    Args:
        name: Name of the command.
        cls: Class of its settings.
        argument: Its positional argument (`main.Command.argument`).
        arguments: Words of the command line after the name.
        launchable: Whether several processes may run it.
        resumed: For `resume` alone: a function from a run's folder to its settings.

    Raises:
        ConfigError: Lists all errors, one line each.
        SystemExit: Help was requested and has been printed.
    """
    arguments, default, content, file = list(arguments), None, dict[str, Any](), None
    program = " ".join(filter(None, ["understudy", name]))
    helped = bool({"-h", "--help"} & set(arguments))
    about = inspect.cleandoc(cls.__doc__ or "")
    if resumed is not None:
        if arguments and not arguments[0].startswith("-"):
            run = arguments.pop(0)
            default = resumed(run)
            program += f" {run}"
            about = "Continue the run with its own settings, which are the defaults below, and these changes."
        elif helped:
            program += " RUN"
            about = "Continue the run with its own settings and these changes. The defaults below are those of a new "
            about += "run: `understudy resume RUN --help` shows the run's own."
        else:
            raise ConfigError("run: required: understudy resume RUN")
    elif "FILE" in argument and arguments and Path(arguments[0]).suffix in SUFFIXES:
        content = read_file(file := arguments.pop(0))
        default = validate(cls, content, where=file)
    elif helped and argument:
        program += f" {argument}"
    if refused := list(describe_refused(cls, arguments)):
        raise ConfigError("; ".join(refused))
    default = with_policy_type(cls, arguments, default)

    def with_brought(chosen: Any) -> Any:
        """Return the defaults with those that the policy of `chosen` brings."""
        brought = run_defaults(chosen) if resumed is None else {}
        if not brought:
            return default
        return replace(validate(cls, content, where=file, brought=brought), policy=chosen.policy)

    if helped:
        try:
            first = with_brought(cls() if default is None and "policy" in get_type_hints(cls) else default)
            default = with_brought(first)
        except MissingExtraError as error:
            about += f" The policy brings other defaults than those below, but {error}."
        examples, paged = EXAMPLES.get(name, ()), sys.stdin.isatty() and sys.stdout.isatty()
        _print(_help(cls, default, program, argument, about, examples, launchable=launchable, paged=paged), paged)
        raise SystemExit(0)
    parsed = _parsed(cls, arguments, default, program)
    for _ in range(2):  # flags decide the defaults, and precede them; the schedule follows from the steps
        if (chosen := with_brought(parsed)) is not default:
            parsed = _parsed(cls, arguments, chosen, program)
    return complete(validate(cls, plain(parsed)))


def with_policy_type(cls: type, arguments: list[str], default: Any) -> Any:
    """Return defaults whose `policy` is of the type that `--policy.type` names.

    Raises:
        ConfigError: there is no such type.
    """
    flags = [argument.partition("=") for argument in arguments]
    named = [
        value or (arguments[i + 1] if i + 1 < len(arguments) else "")
        for i, (flag, _, value) in enumerate(flags)
        if flag == "--policy.type"
    ]
    kind = get_type_hints(cls).get("policy")
    if not named or kind is None:
        return default
    default = cls() if default is None else default
    try:
        chosen = kind.select({"type": (name := pin(named[-1]))})
    except ValueError as error:
        raise ConfigError("; ".join([f"--policy.type: {error}", *translate(cls, arguments)])) from error
    if is_code(name):
        return replace(default, policy=replace(chosen(), type=name))
    return default if isinstance(default.policy, chosen) else replace(default, policy=chosen())


def _help(
    cls: type,
    default: Any,
    program: str,
    argument: str,
    about: str,
    examples: Sequence[str],
    *,
    launchable: bool,
    paged: bool,
) -> str:
    """Return the help of a command: argument, settings in groups, those of lists in a file, examples last.

    A pager shows the beginning first, and a terminal without one the end: there the most used settings are.
    """
    found = list(help.groups(cls, default))
    rows = {own.path: (own.flag(), own.meaning()) for group in found for own in group.settings}
    own_text = next((own.meaning() for own in found[0].settings if own.positional), "")
    parts = [f"usage: {program} [--setting VALUE ...]", help.wrap(about)]
    if summarized := len(rows) > 2 * len(MOST_USED):
        place = "below" if paged else "at the end"
        parts.append(help.wrap(f"`most used`, {place}, repeats the settings that most runs need."))
    if argument:
        parts.append("argument:\n" + help.format_rows([(argument, own_text or POSITIONAL[argument])]))
    parts.append(help.format_groups(found))
    for path, item in list_settings(cls):
        parts.append(f"In a settings file, each item of `{path}` may have:\n{help.format_items(item)}")
    parts.append("every command:\n" + help.format_rows(GENERAL))
    if launchable:
        parts.append("several processes:\n" + help.format_rows([LAUNCH]))
    if summarized:
        first = [(rows[path][0], help.first_sentence(rows[path][1])) for path in MOST_USED if path in rows]
        if launchable:
            first.append((LAUNCH[0], help.first_sentence(LAUNCH[1])))
        parts.insert(3 if paged else len(parts), "most used:\n" + help.format_rows(first))
    parts.append("examples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(part for part in parts if part)


def _print(text: str, paged: bool) -> None:
    """Print a text on a terminal of any encoding; one that is longer than the terminal comes in the user's pager."""
    encoding = sys.stdout.encoding or "utf-8"
    text = text.encode(encoding, "replace").decode(encoding)
    if paged and text.count("\n") >= shutil.get_terminal_size().lines:
        pydoc.pager(text)
    else:
        print(text)


def _parsed(cls: type, arguments: list[str], default: Any, program: str) -> Any:
    """Parse the arguments with tyro.

    Raises:
        ConfigError: An argument is wrong; the message is tyro's box of several lines as one.
    """
    code, arguments = "", _squares(cls, _booleans(cls, arguments, default))
    if is_code(str(getattr(getattr(default, "policy", None), "type", ""))):
        code, arguments = default.policy.type, _without_type(arguments)
        default = replace(default, policy=replace(default.policy, type=type(default.policy).type))
    if empty := _empty_list(cls, arguments):
        raise ConfigError(f"{empty}: no value follows it; leave it out for none")
    default = _without_mappings(cls, arguments, default)
    output = io.StringIO()
    try:
        with redirect_stderr(output):
            parsed, unknown = tyro.cli(cls, args=arguments, default=default, prog=program, return_unknown_args=True)
    except SystemExit as exit:
        if exit.code in (0, None):
            raise
        raise ConfigError("; ".join([describe_error(output.getvalue()), *translate(cls, arguments, default)])) from None
    if unknown:
        raise ConfigError("; ".join(describe_unknown(cls, unknown, arguments, default)))
    return replace(parsed, policy=replace(parsed.policy, type=code)) if code else parsed


def _without_type(arguments: list[str]) -> list[str]:
    """Remove `--policy.type FILE.py:NAME`, which `with_policy_type` has read."""
    kept = [argument for argument in arguments if not argument.startswith("--policy.type=")]
    while "--policy.type" in kept:
        del kept[(place := kept.index("--policy.type")) : place + 2]
    return kept


def _empty_list(cls: type, arguments: list[str]) -> str | None:
    """Find a list flag that no value follows: an unset variable of a shell must not select all episodes."""
    lists = {
        f"--{path.replace('_', '-')}" for path, kind in setting_paths(cls) if get_origin(kind) in (tuple, list, dict)
    }
    for flag, following in zip(arguments, [*arguments[1:], "--"]):
        if flag.replace("_", "-") in lists and (not following.strip() or following.startswith("--")):
            return flag
    return None


def _without_mappings(cls: type, arguments: list[str], default: Any) -> Any:
    """Empty each mapping of the defaults that a flag gives as a whole: tyro would take its single keys alone."""
    given = {argument.partition("=")[0].replace("_", "-") for argument in arguments}
    policy = getattr(default, "policy", None)
    for path, kind in [*setting_paths(cls), *(setting_paths(type(policy), "policy.") if policy is not None else ())]:
        if default is not None and get_origin(kind) is dict and f"--{path.replace('_', '-')}" in given:
            default = _replaced(default, path.split("."), {})
    return default


def _replaced(group: Any, path: list[str], value: Any) -> Any:
    """Return a group of settings with another value at a path."""
    name, *rest = path
    return replace(group, **{name: _replaced(getattr(group, name), rest, value) if rest else value})


def _booleans(cls: type, arguments: list[str], default: Any) -> list[str]:
    """Write `--name true` and `--name=false` as tyro takes them: `--name` and `--no-name`."""
    policy = getattr(default, "policy", None)
    paths = [*setting_paths(cls), *(setting_paths(type(policy), "policy.") if policy is not None else ())]
    booleans = {f"--{path.replace('_', '-')}" for path, kind in paths if kind is bool}
    words = list[str]()
    for word in arguments:
        flag, equals, value = word.partition("=")
        if not equals:
            flag, value = words[-1] if words else "", word
        name = flag.replace("_", "-")
        if name not in booleans or value.lower() not in ("true", "false"):
            words.append(word)
            continue
        group, dot, last = name.removeprefix("--").rpartition(".")
        words = words if equals else words[:-1]
        words.append(name if value.lower() == "true" else f"--{group}{dot}no-{last}")
    return words


def _squares(cls: type, arguments: list[str]) -> list[str]:
    """Give a size of one number, `--policy.image-size 32`, its second one: height and width are equal."""
    pairs = [path for path, kind in setting_paths(cls) if path.endswith("image_size") and get_args(kind) == (int, int)]
    sizes = {f"--{path.replace('_', '-')}" for path in pairs}
    found = list[str]()
    for flag, value, following in zip(["", *arguments], arguments, [*arguments[1:], "--"]):
        found.append(value)
        if flag.replace("_", "-") in sizes and value.isdecimal() and following.startswith("--"):
            found.append(value)
    return found
