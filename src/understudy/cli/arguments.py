"""Parse command-line arguments into settings: defaults, then a file or a run, then flags. Errors are one line."""

import difflib
import inspect
import io
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from understudy.config.renamed import current_flags
from understudy.config.schema import SUFFIXES, complete, load, plain, validate
from understudy.errors import ConfigError
from understudy.extras import optional_imports

with optional_imports():
    import tyro

LAUNCH = "--launch N starts N processes on this host, as `torchrun --nproc-per-node N -m understudy …` would."
EXAMPLES = {
    "train": (
        "understudy train --data.root data/table --output-dir runs/table",
        "understudy train settings.yaml --steps 5000 --optim.lr 3e-4",
        "understudy train mixture.yaml --launch 2",
        "understudy train settings.yaml --print-config > whole.yaml",
    ),
    "resume": ("understudy resume runs/table", "understudy resume runs/table --steps 10000"),
}
FOREIGN = {
    "dataset.repo-id": "--data.root hf://datasets/OWNER/NAME",
    "data.repo-id": "--data.root hf://datasets/OWNER/NAME",
    "repo-id": "--data.root hf://datasets/OWNER/NAME",
    "dataset.root": "--data.root FOLDER",
    "dataset.episodes": "--data.episodes",
    "rename-map": "`cameras` of each of data.sources, in a settings file",
    "policy.path": "--init-from FOLDER",
    "policy.pretrained-path": "--init-from FOLDER",
    "policy.device": "--device",
    "policy.use-amp": "--precision bf16",
    "policy.chunk-size": "--data.chunk-size",
    "model.action-horizon": "--data.chunk-size",
    "action-horizon": "--data.chunk-size",
    "policy.n-action-steps": "--rollout.action-steps",
    "job-name": "--output-dir runs/NAME",
    "exp-name": "--output-dir runs/NAME",
    "num-workers": "--loader.num-threads",
    "num-train-steps": "--steps",
    "save-freq": "--checkpoint.every",
    "save-interval": "--checkpoint.every",
    "log-freq": "--log.every",
    "log-interval": "--log.every",
    "eval-freq": "--rollout.every",
    "eval.n-episodes": "--rollout.episodes",
    "env.type": "--rollout.env",
    "optimizer.lr": "--optim.lr",
    "scheduler.type": "--schedule.kind",
    "wandb.enable": "--log.trackers wandb",
    "wandb.project": "--log.trackers wandb",
    "fsdp-devices": "--parallel.dp-shard",
    "resume": "understudy resume RUN",
    "overwrite": "--output-dir with another name: a run is never overwritten",
}
"""Settings of LeRobot and openpi -> the equivalent here."""
PARSING = {
    r"^Error parsing (\S+): invalid literal for int\(\) with base 10: ": r"\1: must be a whole number, not ",
    r"^Error parsing (\S+): could not convert string to float: ": r"\1: must be a number, not ",
    r"^Error parsing (\S+): no type matching (.*) could be instantiated from (.*)\.$": r"\1: must be \2, not \3",
    r"^Missing value for argument '(?:\(')?(-[^\s',]+)(?:',\))?'\. .*$": r"\1: its value is missing",
}
"""Messages of Python and tyro about a wrong value -> ours."""


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
    arguments, default = current_flags(cls, list(arguments)), None
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
            raise ConfigError("run: required: understudy resume RUN [--…]")
    elif "FILE" in argument and arguments and Path(arguments[0]).suffix in SUFFIXES:
        default = load(cls, arguments.pop(0))
    elif helped and argument:
        program += f" {argument}"
    default = with_policy_type(cls, arguments, default)
    if helped:
        examples = "".join(f"\n  {example}" for example in EXAMPLES.get(name, ()))
        parts = [about, LAUNCH if launchable else "", f"Examples:{examples}" if examples else ""]
        _help(cls, arguments, default, program, "\n\n".join(part for part in parts if part))
    return complete(validate(cls, plain(_parsed(cls, arguments, default, program))))


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
        chosen = kind.select({"type": named[-1]})
    except ValueError as error:
        raise ConfigError(f"--policy.type: {error}") from error
    return default if isinstance(default.policy, chosen) else replace(default, policy=chosen())


def _help(cls: type, arguments: list[str], default: Any, program: str, about: str) -> None:
    """Print the help of a command, and of the lists that only a settings file can set; never returns."""
    try:
        tyro.cli(cls, args=arguments, default=default, prog=program, description=about)
    finally:
        for path, item in _lists(cls):
            print(f"\nIn a settings file, each item of `{path}` may have:\n")
            print(_boxes(item))


def _lists(cls: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Yield dotted path and class of the settings that are lists of dataclasses, which flags cannot set."""
    hints = get_type_hints(cls)
    for own in fields(cls):
        kind = hints[own.name]
        item = next((one for one in getattr(kind, "__args__", ()) if isinstance(one, type) and is_dataclass(one)), None)
        if item is not None:
            yield f"{prefix}{own.name}", item
        elif isinstance(kind, type) and is_dataclass(kind):
            yield from _lists(kind, f"{prefix}{own.name}.")


def _boxes(cls: type) -> str:
    """Render the fields of a dataclass as tyro shows them, with names as in a file."""
    output = io.StringIO()
    try:
        with redirect_stdout(output):
            tyro.cli(cls, args=["--help"], prog="", description="", use_underscores=True)
    except SystemExit:
        pass
    lines = output.getvalue().splitlines()
    start = next((i for i, line in enumerate(lines) if "show this help message" in line), -1) + 1
    return "\n".join(re.sub(r"^([\s│]*)--", r"\1", line).rstrip() for line in lines[start:]).rstrip()


def _parsed(cls: type, arguments: list[str], default: Any, program: str) -> Any:
    """Parse the arguments with tyro.

    Raises:
        ConfigError: An argument is wrong; the message is tyro's box of several lines as one.
    """
    if empty := _empty_list(cls, arguments):
        raise ConfigError(f"{empty}: no value follows it; leave it out for none")
    output = io.StringIO()
    try:
        with redirect_stderr(output):
            parsed, unknown = tyro.cli(cls, args=arguments, default=default, prog=program, return_unknown_args=True)
    except SystemExit as exit:
        if exit.code in (0, None):
            raise
        raise ConfigError(_line(output.getvalue())) from None
    if unknown:
        raise ConfigError("; ".join(_describe_unknown(cls, unknown)))
    return parsed


def _empty_list(cls: type, arguments: list[str]) -> str | None:
    """Find a list flag that no value follows: an unset variable of a shell must not select all episodes."""
    lists = {f"--{path.replace('_', '-')}" for path, kind in _paths(cls) if get_origin(kind) in (tuple, list, dict)}
    for flag, following in zip(arguments, [*arguments[1:], "--"]):
        if flag.replace("_", "-") in lists and (not following.strip() or following.startswith("--")):
            return flag
    return None


def _line(box: str) -> str:
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
    return line


def _describe_unknown(cls: type, unknown: list[str]) -> Iterator[str]:
    """Yield one line for each unknown argument; the value after an unknown flag belongs to the flag."""
    flags = [f"--{path.replace('_', '-')}" for path, _ in _paths(cls)]
    value = False
    for argument in unknown:
        if argument.startswith("-"):
            flag = argument.partition("=")[0]
            listed = flag.lstrip("-").replace("-", "_") in dict(_lists(cls))
            yield f"{flag}: a list, which only a settings file can set" if listed else _unknown_flag(flag, flags)
            value = "=" not in argument
        elif value:
            value = False
        else:
            yield _misplaced(argument, flags)


def _unknown_flag(flag: str, flags: list[str]) -> str:
    if ours := FOREIGN.get(flag.lstrip("-").replace("_", "-").removeprefix("no-")):
        return f"{flag}: unknown setting; here it is {ours}"
    name = flag.lstrip("-").replace("_", "-")
    close = difflib.get_close_matches(f"--{name}", flags, n=1) or [f for f in flags if f.rpartition(".")[2] == name][:1]
    return f"{flag}: unknown setting; " + (f"did you mean {close[0]}?" if close else "--help lists all")


def _misplaced(argument: str, flags: list[str]) -> str:
    path = Path(argument)
    if "--data.root" in flags and (path / "meta").is_dir():
        return f"{argument}: this is a dataset; did you mean --data.root {argument}?"
    if "--data.root" in flags and (path / "checkpoints").is_dir():
        return f"{argument}: this is a run; did you mean understudy resume {argument}?"
    if path.suffix and "--data.root" in flags:
        return f"{argument}: settings files end in {', '.join(SUFFIXES)}"
    return f"{argument}: unexpected argument; settings are --name value"


def _paths(cls: type, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted path and type of all settings of a dataclass."""
    hints = get_type_hints(cls)
    for own in fields(cls):
        kind = hints[own.name]
        if isinstance(kind, type) and is_dataclass(kind):
            kind = getattr(kind, "select", lambda _, kind=kind: kind)({})
            yield from _paths(kind, f"{prefix}{own.name}.")
        else:
            yield f"{prefix}{own.name}", kind
