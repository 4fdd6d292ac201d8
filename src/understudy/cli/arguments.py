"""Parse command-line arguments into settings: defaults, then a file or a run, then flags. Errors are one line."""

import difflib
import inspect
import io
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from understudy.config import help
from understudy.config.renamed import current_flags
from understudy.config.schema import SUFFIXES, complete, load, plain, validate
from understudy.errors import ConfigError
from understudy.optional_packages import optional_imports

with optional_imports():
    import tyro

GENERAL = [
    ("-h, --help", "Show this help."),
    ("--print-config", "Print the complete settings as YAML, and do nothing else."),
    ("--debug", "Show the traceback of an error."),
]
"""Flags of every command."""
LAUNCH = (
    "--launch N",
    "Start N processes on this host, one per GPU, as `torchrun --nproc-per-node N -m understudy ...` would.",
)
POSITIONAL = {
    "[FILE]": "Settings file in YAML, TOML or JSON; flags take precedence. The default is no file.",
    "RUN": "Run directory: the --output-dir of its `train`.",
}
"""Meaning of a positional argument that is no setting."""
MOST_USED = (
    "data.root",
    "output_dir",
    "steps",
    "batch_size",
    "micro_batch_size",
    "optim.lr",
    "data.chunk_size",
    "data.cameras",
    "data.val_fraction",
    "policy.image_size",
    "init_from",
    "device",
    "precision",
    "loader.num_threads",
    "loader.memory",
    "checkpoint.every",
    "val.every",
    "rollout.every",
    "log.trackers",
)
"""Settings of a run that its help repeats at the end, with the first sentence of each."""
EXAMPLES = {
    "demo": ("understudy demo", "understudy demo --output-dir runs/short --episodes 50 --steps 500"),
    "record": (
        "understudy record --output-dir data/table --episodes 200",
        "understudy record --output-dir data/push --env metaworld --tasks push-v3 --image-size 128",
    ),
    "train": (
        "understudy train --data.root data/table --output-dir runs/table",
        "understudy train settings.yaml --steps 5000 --optim.lr 3e-4",
        "understudy train mixture.yaml --launch 2",
        "understudy train settings.yaml --print-config > whole.yaml",
    ),
    "resume": ("understudy resume runs/table", "understudy resume runs/table --steps 10000"),
    "validate": (
        "understudy validate runs/table",
        "understudy validate runs/table --checkpoint best --per-dim --launch 2",
    ),
    "plan": (
        "understudy plan settings.yaml --gpu-memory 80GB",
        "understudy plan --data.root data/table --policy.type pi05 --precision bf16-split --gpu-memory 80GB",
    ),
    "fast fit": (
        "understudy fast fit settings.yaml --output-dir fast",
        "understudy fast fit --policy.type pi05 --data.root data/table --data.chunk-size 50 --output-dir fast",
    ),
    "tokenizer fit": (
        "understudy tokenizer fit --policy.size tiny --data.root data/table --output-dir tokenizer",
        "understudy tokenizer fit settings.yaml --output-dir tokenizer",
    ),
    "profile": (
        "understudy profile --data.root data/table",
        "understudy profile settings.yaml --batch-size 128 --profile.steps 50 --json",
    ),
    "rollout": (
        "understudy rollout runs/table --episodes 30",
        "understudy rollout runs/mt10 --env metaworld --tasks push-v3 door-open-v3 --action-steps 8",
    ),
    "export": (
        "understudy export runs/table",
        "understudy export runs/table --checkpoint best --dtype bf16 --output-dir policies/table",
        "understudy export runs/pi05 --format lerobot --output-dir policies/pi05",
    ),
    "report": ("understudy report runs/table",),
    "inspect": (
        "understudy inspect data/table",
        "understudy inspect hf://datasets/OWNER/NAME --limit 50 --page table.html",
        "understudy inspect data/table --keep-ranges keep.json --chunk-size 16",
    ),
    "ranges": (
        "understudy ranges data/table --output keep.json",
        "understudy ranges data/droid --output keep.json --preset droid",
    ),
    "bench": (
        "understudy bench data/table",
        "understudy bench data/table --batch-size 64 --num-threads 4 --memory 4GB",
    ),
    "order explain": (
        "understudy order explain",
        "understudy order explain data/one data/two --weights 2 1 --batch-size 256 --figure order.png",
    ),
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
    r"^Error parsing (\S+): Could not parse arguments (.*) into tuple type .*$": r"\1: cannot take \2",
    r"^invalid choice (.*) for argument '(\S+)'\. Expected one of \('(.*)'\)\.$": r"\2: must be one of '\3', not \1",
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
            raise ConfigError("run: required: understudy resume RUN")
    elif "FILE" in argument and arguments and Path(arguments[0]).suffix in SUFFIXES:
        default = load(cls, arguments.pop(0))
    elif helped and argument:
        program += f" {argument}"
    default = with_policy_type(cls, arguments, default)
    if helped:
        general = [*GENERAL, LAUNCH] if launchable else GENERAL
        _print(_help(cls, default, program, argument, about, general, EXAMPLES.get(name, ())))
        raise SystemExit(0)
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


def _help(
    cls: type,
    default: Any,
    program: str,
    argument: str,
    about: str,
    general: Sequence[tuple[str, str]],
    examples: Sequence[str],
) -> str:
    """Return the help of a command: argument, settings in groups, those of lists in a file, examples last."""
    found = list(help.groups(cls, default))
    rows = {own.path: (own.flag(), own.meaning()) for group in found for own in group.settings}
    own_text = next((own.meaning() for own in found[0].settings if own.positional), "")
    parts = [f"usage: {program} [--setting VALUE ...]", help.wrap(about)]
    if argument:
        parts.append("argument:\n" + help.format_rows([(argument, own_text or POSITIONAL[argument])]))
    parts.append(help.format_groups(found))
    for path, item in _lists(cls):
        parts.append(f"In a settings file, each item of `{path}` may have:\n{help.format_items(item)}")
    parts.append("every command:\n" + help.format_rows(general))
    if len(rows) > 2 * len(MOST_USED):
        first = [(rows[path][0], help.first_sentence(rows[path][1])) for path in MOST_USED if path in rows]
        if LAUNCH in general:
            first.append((LAUNCH[0], help.first_sentence(LAUNCH[1])))
        parts.append("most used:\n" + help.format_rows(first))
    parts.append("examples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join(part for part in parts if part)


def _print(text: str) -> None:
    """Print a text on a terminal of any encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding))


def _lists(cls: type, prefix: str = "") -> Iterator[tuple[str, type]]:
    """Yield dotted path and class of the settings that are lists of dataclasses, which flags cannot set."""
    hints = get_type_hints(cls)
    for own in fields(cls):
        kind = hints[own.name]
        item = help.item_class(own.name, cls)
        if item is not None:
            yield f"{prefix}{own.name}", item
        elif isinstance(kind, type) and is_dataclass(kind):
            yield from _lists(kind, f"{prefix}{own.name}.")


def _parsed(cls: type, arguments: list[str], default: Any, program: str) -> Any:
    """Parse the arguments with tyro.

    Raises:
        ConfigError: An argument is wrong; the message is tyro's box of several lines as one.
    """
    arguments = _squares(cls, arguments)
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
    return _with_near_choice(line)


def _with_near_choice(line: str) -> str:
    """Add the choice that a misspelt word is near to, if any: `must be INT|{latest,best}, not ['bast']`."""
    found = re.fullmatch(r"-\S+: must be .*\{(.*)\}.*, not \['(.*)'\]", line)
    near = difflib.get_close_matches(found[2], found[1].split(","), n=1) if found else []
    return f"{line}; did you mean {near[0]}?" if near else line


def _squares(cls: type, arguments: list[str]) -> list[str]:
    """Give a size of one number, `--policy.image-size 32`, its second one: height and width are equal."""
    pairs = [path for path, kind in _paths(cls) if path.endswith("image_size") and get_args(kind) == (int, int)]
    sizes = {f"--{path.replace('_', '-')}" for path in pairs}
    found = list[str]()
    for flag, value, following in zip(["", *arguments], arguments, [*arguments[1:], "--"]):
        found.append(value)
        if flag.replace("_", "-") in sizes and value.isdecimal() and following.startswith("--"):
            found.append(value)
    return found


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
    if "--data.root" in flags and ("/" in argument or path.exists()):
        return f"{argument}: no settings file ({', '.join(SUFFIXES)}); a dataset is given as --data.root {argument}"
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
