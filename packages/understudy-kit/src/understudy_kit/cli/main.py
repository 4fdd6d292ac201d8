"""The program `understudy`: one command per line, one-line errors and exit codes.

    0    done
    1    failed
    2    wrong input: unusable settings or an unusable dataset
    75   a run stopped by a signal: `understudy resume` continues (schedulers may requeue)
    130  ended by Ctrl-C, 143 by SIGTERM; `serve` and `view`, which end in no other way, exit with 0

Before a command has begun, Python itself may end by SIGTERM or SIGINT; a shell gives these codes,
too.

The commands are in `commands.py`. Other parts of the program are entry points as well:

    understudy.options    an option of all commands -> a context manager that gets its text
    understudy.variables  an environment variable -> a check of its value before a command begins
    understudy.versions   any name -> the lines of `--version -v`
"""

import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from understudy_base import (
    ConfigError,
    DataAccessError,
    EntryPointError,
    UnderstudyError,
    find_entry_points,
    summarize,
)
from understudy_kit.cli.commands import (
    COMMANDS,
    GROUPS,
    GUESSES,
    Found,
    find_command,
    find_commands,
)
from understudy_kit.cli.console import start_again_as_utf8, write_any_text

OPTIONS = "understudy.options"
VARIABLES = "understudy.variables"
VERSIONS = "understudy.versions"
FAILED = 1
WRONG_INPUT = 2
INTERRUPTED = 128  # and the number of the signal


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. `--debug` adds the traceback to a one-line error.

    Args:
        argv: words of the command; None: those of this process, which then ends with the command.
    """
    if argv is not None:
        return _main(argv)
    from understudy_kit.signals import ended_by_signals

    with ended_by_signals("understudy"):
        try:
            code = _main(None)
            if sys.stdout is not None:
                sys.stdout.flush()
            return code
        # the reader of our output is gone, and Python writes the rest of it at the exit
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED


def _main(argv: Sequence[str] | None) -> int:
    from understudy_base import strip_credentials

    if argv is None:
        start_again_as_utf8()
        write_any_text()
    words = sys.argv[1:] if argv is None else argv
    arguments = list(words)
    if argv is None:
        sys.argv[1:] = map(strip_credentials, arguments)  # trackers record the command line
    with ExitStack() as options:
        try:
            arguments = enter_options(arguments, options)
        except (ConfigError, EntryPointError) as error:
            print(f"understudy: {error}", file=sys.stderr)
            return WRONG_INPUT
        return _main_with_options(arguments, is_called=argv is not None)


def enter_options(arguments: list[str], options: ExitStack) -> list[str]:
    """Enter the contexts of the options of all commands that are given; return the other words.

    Raises:
        ConfigError: the text of an option is wrong.
        EntryPointError: it cannot be imported.
    """
    for name, point in find_entry_points(OPTIONS).items():
        text, arguments = take_option(arguments, f"--{name}")
        if text is not None:
            options.enter_context(point.load()(text))
    return arguments


def _main_with_options(arguments: list[str], is_called: bool) -> int:
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if not debug:
        warnings.formatwarning = _one_line
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0 if arguments else WRONG_INPUT
    if arguments[0] == "--version":
        from understudy_base import __version__

        print(f"understudy {__version__}")
        if arguments[1:] in (["-v"], ["--verbose"]):
            return _print_versions(debug)
        return 0
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
        if len(arguments) == 1:
            return main(arguments)
    if arguments in (["order"], ["order", "-h"], ["order", "--help"]):
        arguments = ["order", "explain", "--help"]
    found = find_command(arguments)
    if found is None:
        print(_unknown(" ".join(arguments[: 1 + (arguments[0] == "order")])), file=sys.stderr)
        return WRONG_INPUT
    from understudy_kit.signals import ended_by_signals

    ends_with = found.row.ends_with if found.row else None
    ending = nullcontext() if is_called else ended_by_signals(f"understudy {found.name}", ends_with)
    with ending:
        code = _run(found, arguments[len(found.name.split()) :], debug)
    if code and not is_called and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        # Threads of torch's process group that still start up would abort the interpreter's exit,
        # and hide the code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _print_versions(debug: bool) -> int:
    """Print the lines of each entry point of `--version -v`, of a broken one its error."""
    from understudy_base import redact

    code = 0
    for name, point in find_entry_points(VERSIONS).items():
        try:
            lines = str(point.load()())
        except Exception as error:  # the versions of the others are wanted all the more
            code = WRONG_INPUT
            if isinstance(error, UnderstudyError):
                problem = str(error)
            else:
                problem = f"{point} failed: {summarize(error)}"
            lines = redact(f"{name:<10} {problem}")
            if debug:
                print(redact(traceback.format_exc()), end="", file=sys.stderr)
        print(lines)
    return code


def _one_line(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """Format a warning without its place in our code, which only --debug shows."""
    from understudy_base import redact

    kind = "note" if category is UserWarning else category.__name__
    return redact(f"{kind}: {message}\n")


def overview() -> str:
    """Help text of the program."""
    found = find_commands()
    calls = {name: f"{name} {command.argument}" for name, command in COMMANDS.items()}
    width = max(map(len, calls.values())) + 2
    lines = []
    for title, names in GROUPS.items():
        lines.append(f"{title}:")
        for name in names:
            missing = "" if found[name].point else " (not installed)"
            lines.append(f"  {calls[name]:<{width}}{COMMANDS[name].summary}{missing}")
        lines.append("")
    if others := [command for command in found.values() if command.row is None]:
        lines.append("other packages:")
        for command in others:
            distribution = command.point.distribution if command.point else ""
            lines.append(f"  {command.name:<{width}}{distribution}")
        lines.append("")
    return "\n".join(
        [
            "usage: understudy COMMAND … [--setting VALUE …]",
            "",
            "Train robot policies from demonstrations.",
            "",
            *lines,
            "`understudy COMMAND --help` lists the settings of a command. With `--print-config` a "
            "command only prints",
            "its complete settings. `--debug` shows the traceback of an error. `understudy "
            "--version -v` lists the",
            "installed versions.",
        ]
    )


def _unknown(word: str) -> str:
    import difflib

    if remedy := GUESSES.get(word.split()[0].lower()):
        return f"understudy: unknown command {word!r}; here it is {remedy}"
    names = list(find_commands())
    close = [name for name in names if name.split()[0] == word.split()[0]]
    close = close or difflib.get_close_matches(word, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(names)}"
    return f"understudy: unknown command {word!r}; {hint}"


def _run(found: Found, arguments: list[str], debug: bool) -> int:
    """Parse and run a command. Errors that the user can correct become one line; ours keep their
    traceback.
    """
    try:
        return _call(found, arguments, debug)
    except BrokenPipeError:
        return FAILED  # the reader of our output is gone
    except (Exception, KeyboardInterrupt) as error:
        from understudy_base import redact

        line, code = _describe(error, found)
        if line is None or debug:
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
        if line is not None:
            print(f"understudy {found.name}{_rank()}: {line}", file=sys.stderr)
        return code


def _call(found: Found, arguments: list[str], debug: bool) -> int:
    """Parse the arguments of a command and call it, in this process or in several."""
    from understudy_base import require

    name = found.name
    asks_help = not {"-h", "--help"}.isdisjoint(arguments)
    if found.row and found.row.extra and found.point and not asks_help:
        require(found.row.extra)
    command = found.facts
    if command.extra and not asks_help:
        require(command.extra)
    from understudy_base import show_log
    from understudy_kit.config.schema import dump_yaml
    from understudy_kit.signals import interrupted_by_signals

    show_log()
    for variable, point in find_entry_points(VARIABLES).items():
        if os.environ.get(variable):  # its check may import what help must not
            point.load()()
    count: int | None = None
    if command.launchable:
        count, arguments = split_launch(arguments)
    print_only = "--print-config" in arguments
    arguments = [argument for argument in arguments if argument != "--print-config"]
    # checked once here, before every rank reads them too
    settings = read_settings(name, arguments)
    if print_only:
        print(dump_yaml(settings), end="")
        return 0
    if count is not None:
        from understudy_kit.launch import launch, module_command

        words = [*module_command("understudy"), *name.split(), *arguments]
        if debug:
            words.append("--debug")
        return launch(words, count, f"understudy {name}")
    if command.loads_images:
        from understudy_base import keep_freed_memory

        keep_freed_memory()
    handled_signals = nullcontext() if command.own_signals else interrupted_by_signals()
    with handled_signals:
        return int(found.function(settings) or 0)


def _describe(error: BaseException, found: Found) -> tuple[str | None, int]:
    """Return the line for an error of a command, None for a fault of ours, and the exit code."""
    from understudy_base import (
        describe_missing,
        describe_old_numpy,
        is_wrong_input,
        redact,
    )

    if isinstance(error, KeyboardInterrupt):
        from understudy_kit.signals import Interrupted

        number = error.args[0] if isinstance(error, Interrupted) else signal.SIGINT
        return "interrupted", INTERRUPTED + number
    if isinstance(error, FileExistsError):
        message = str(error)
        if error.filename is not None:
            message = (
                f"{error.filename}: {error.strerror} (name another output, or wait for the other "
                "process)"
            )
        return redact(message), WRONG_INPUT
    if isinstance(error, ConfigError | DataAccessError | MemoryError | OSError):
        code = WRONG_INPUT if is_wrong_input(error) else FAILED
        return redact(str(error) or "not enough memory"), code
    if isinstance(error, UnicodeEncodeError):
        fix = "rename the file, or the text, with letters of UTF-8"
        return f"{error.object[:200]!r} cannot be written as text: {fix}", WRONG_INPUT
    missing: ImportError | None = None
    if isinstance(error, EntryPointError):
        missing = error
    elif isinstance(error, ImportError):
        missing = describe_missing(error) or describe_old_numpy(error)
    if missing is not None:
        return str(missing), WRONG_INPUT
    assert isinstance(error, Exception)
    return _describe_out_of_memory(error, found), FAILED


def _rank() -> str:
    """Name this process in a message, unless it is rank 0."""
    rank = os.environ.get("RANK", "0")
    return f", rank {rank}" if rank != "0" else ""


def _describe_out_of_memory(error: Exception, found: Found) -> str | None:
    """Return the message for an error of torch's allocators, with settings that need less; None for
    other errors.
    """
    from understudy_base import is_out_of_memory

    if not is_out_of_memory(error):
        return None
    reason = re.split(
        r" GPU \d+ has ", next(iter(str(error).strip().splitlines()), "out of memory")
    )[0]
    return f"the device is out of memory; {found.facts.less_memory} ({reason})"


def read_settings(name: str, arguments: Sequence[str]) -> Any:
    """Read and check the settings of the command `name` from its arguments.

    Raises:
        ConfigError: Lists all errors in the settings.
    """
    from understudy_kit.cli.arguments import settings

    found = find_commands()[name]
    return settings(found.name, found.settings_class, found.facts, arguments)


def split_launch(arguments: list[str]) -> tuple[int | None, list[str]]:
    """Remove `--launch N`, which is not a setting of a run; returns N (or None) and the other
    arguments.

    Raises:
        ConfigError: N is not a number.
    """
    text, remaining = take_option(arguments, "--launch")
    if text is None:
        return None, remaining
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"--launch {text!r}: must be the number of processes on this host")
    return int(text), remaining


def take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Remove an option that is no setting; returns its value, None without it, and the other
    arguments.
    """
    for index, argument in enumerate(arguments):
        if argument == name or argument.startswith(f"{name}="):
            _, equals, text = argument.partition("=")
            following = arguments[index + 1 :]
            if not equals and following:
                text = following.pop(0)
            return text, arguments[:index] + following
    return None, arguments
