"""The program `understudy`: one command per line, one-line errors and exit codes.

    0    done
    1    failed
    2    wrong input: unusable settings or an unusable dataset
    75   stopped by a signal with a checkpoint: `understudy resume` continues (schedulers may requeue)
    130  interrupted with nothing to save

The table holds names only. A command's settings are imported when it is called, and its code after they are checked.
So help does not import torch, and a typing error is reported at once.
"""

import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130


@dataclass(frozen=True)
class Command:
    """A row of the table; `settings` and `run` are "module:name".

    `run` takes the settings and returns an exit code or None.
    """

    settings: str
    run: str
    summary: str
    argument: str = ""
    """Positional argument: [FILE] (settings in YAML, TOML or JSON, optional), RUN, PATH or [PATH ...]."""
    launchable: bool = False
    """Whether several processes may run it together: `--launch N`, or torchrun."""
    extra: str = "train"
    """Extra to install besides the core; reading settings alone needs `train`."""


COMMANDS = {
    "demo": Command(
        "cli.demo:DemoConfig",
        "cli.demo:demo",
        "the whole job in minutes, on a simulated table",
        "[FILE]",
        extra="demo",
    ),
    "record": Command(
        "cli.record:RecordConfig", "cli.record:record", "record demonstrations of a scripted expert", "[FILE]"
    ),
    "train": Command("config.train:TrainConfig", "cli.train:train", "train a policy", "[FILE]", launchable=True),
    "resume": Command(
        "config.train:TrainConfig", "cli.train:resume", "continue at the exact next sample", "RUN", launchable=True
    ),
    "validate": Command(
        "cli.validate:ValidateConfig",
        "cli.validate:validate",
        "validation loss per norm head, source and task",
        "RUN",
        launchable=True,
    ),
    "plan": Command("cli.plan:PlanConfig", "cli.plan:plan", "memory of a run per GPU, before it is started", "[FILE]"),
    "profile": Command(
        "cli.profile:ProfileConfig",
        "cli.profile:profile",
        "time and memory of a training step",
        "[FILE]",
        launchable=True,
    ),
    "rollout": Command("config.rollout:RolloutConfig", "cli.rollout:rollout", "success per task, simulated", "RUN"),
    "export": Command("cli.export:ExportConfig", "cli.export:export", "a run's policy, as a robot loads it", "RUN"),
    "push": Command(
        "cli.hub.push:PushConfig", "cli.hub.push:push", "publish a policy, run or dataset on the hub", "PATH"
    ),
    "pull": Command(
        "cli.hub.pull:PullConfig", "cli.hub.pull:pull", "fetch a policy, run or dataset from the hub", "PATH"
    ),
    "serve": Command(
        "config.serve:ServeConfig",
        "cli.robot.serve:serve",
        "a policy for robots, over a websocket",
        "POLICY",
        extra="serve",
    ),
    "replay": Command(
        "cli.robot.replay:ReplayConfig",
        "cli.robot.replay:replay",
        "a recorded episode through the server, beside validation",
        "RUN",
        extra="serve",
    ),
    "report": Command(
        "cli.report:ReportConfig",
        "cli.report:report",
        "a run's report.html again, or several runs side by side",
        "RUN [RUN ...]",
    ),
    "check": Command(
        "cli.dataset.check:CheckConfig", "cli.dataset.check:check", "contents and faults of a dataset", "PATH"
    ),
    "view": Command(
        "cli.dataset.view:ViewConfig", "cli.dataset.view:view", "look through episodes in a browser", "PATH"
    ),
    "edit": Command(
        "cli.dataset.edit:EditConfig",
        "cli.dataset.edit:edit",
        "select, merge, change or transcode datasets",
        "[PATH ...]",
    ),
    "segment": Command(
        "cli.dataset.segment:SegmentConfig", "cli.dataset.segment:segment", "cut episodes into segments", "[PATH ...]"
    ),
    "ranges": Command("cli.ranges:RangesConfig", "cli.ranges:ranges", "find the frames in which a robot moves", "PATH"),
    "bench": Command(
        "cli.bench.bench:BenchConfig",
        "cli.bench.bench:bench",
        "loading speed of a dataset, beside its codec",
        "PATH",
        launchable=True,
    ),
    "fast fit": Command(
        "cli.prepare.fast:FastFitConfig",
        "cli.prepare.fast:fit",
        "fit action tokens (FAST) to a dataset",
        "[FILE]",
        extra="train",
    ),
    "tokenizer fit": Command(
        "cli.prepare.tokenizer:TokenizerFitConfig",
        "cli.prepare.tokenizer:fit",
        "fit a small text tokenizer to a dataset",
        "[FILE]",
        extra="train",
    ),
    "order explain": Command(
        "cli.order:ExplainConfig", "cli.order:explain", "the order of samples, and how well it mixes", "[PATH ...]"
    ),
    "completion": Command(
        "cli.completion.completion:CompletionConfig",
        "cli.completion.completion:completion",
        "print a completion script for a shell",
        "SHELL",
    ),
}

LOADING = ("demo", "train", "resume", "validate", "profile", "bench")
"""Commands that load images in a process of their own; for them freed memory is kept (see `load/malloc.py`)."""


LESS_MEMORY = {
    **dict.fromkeys(
        ("train", "resume", "profile"),
        "reduce it with --micro-batch-size N (fewer samples at a time, the same batch), --activation-checkpoint full "
        "(recompute activations) or --precision bf16",
    ),
    "rollout": "reduce it with --num-envs N (fewer environments at a time)",
}
"""Command -> settings that reduce its memory on the device."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code. `--debug` adds the traceback to a one-line error."""
    from understudy.credentials import strip_credentials
    from understudy.policies.registry import given_code

    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        sys.argv[1:] = map(strip_credentials, arguments)  # trackers record the command line
    file, arguments = take_option(arguments, "--policy-code")
    if file is not None and not os.path.isfile(file):
        print(f"understudy: --policy-code {file!r}: there is no such file; give the Python file", file=sys.stderr)
        return WRONG_INPUT
    debug = "--debug" in arguments
    arguments = [argument for argument in arguments if argument != "--debug"]
    if not debug:
        warnings.formatwarning = _one_line
    if not arguments or arguments[0] in ("-h", "--help"):
        print(overview())
        return 0 if arguments else WRONG_INPUT
    if arguments[0] == "--version":
        from understudy._version import __version__

        print(f"understudy {__version__}")
        if arguments[1:] in (["-v"], ["--verbose"]):
            print(resolve("cli.versions:versions")())
        return 0
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
        if len(arguments) == 1:
            return main(arguments)
    if arguments in (["order"], ["order", "-h"], ["order", "--help"]):
        arguments = ["order", "explain", "--help"]
    name = next((command for command in COMMANDS if arguments[: len(command.split())] == command.split()), None)
    if name is None:
        print(_unknown(" ".join(arguments[: 1 + (arguments[0] == "order")])), file=sys.stderr)
        return WRONG_INPUT
    with given_code(file or ""):
        code = _run(name, arguments[len(name.split()) :], debug)
    if code and argv is None and int(os.environ.get("WORLD_SIZE") or 1) > 1:
        # Threads of torch's process group that still start up would abort the interpreter's exit, and hide the code.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """Format a warning without its place in our code, which only --debug shows."""
    from understudy.credentials import redact

    return redact(f"{'note' if category is UserWarning else category.__name__}: {message}\n")


def overview() -> str:
    """Help text of the program."""
    calls = {f"{name} {command.argument}": command.summary for name, command in COMMANDS.items()}
    width = max(map(len, calls)) + 2
    lines = [f"  {call:<{width}}{summary}" for call, summary in calls.items()]
    return "\n".join(
        [
            "usage: understudy COMMAND … [--setting VALUE …]",
            "",
            "Train robot policies from demonstrations.",
            "",
            *lines,
            "",
            "`understudy COMMAND --help` lists the settings of a command. With `--print-config` a command only prints",
            "its complete settings. `--debug` shows the traceback of an error. `understudy --version -v` lists the",
            "installed versions.",
        ]
    )


def _unknown(word: str) -> str:
    import difflib

    close = [name for name in COMMANDS if name.split()[0] == word.split()[0]] or difflib.get_close_matches(
        word, COMMANDS, n=1
    )
    hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(COMMANDS)}"
    return f"understudy: unknown command {word!r}; {hint}"


def _run(name: str, arguments: list[str], debug: bool) -> int:
    """Parse and run a command. Errors that the user can correct become one line; ours keep their traceback."""
    from understudy.credentials import redact
    from understudy.errors import ConfigError, DatasetError, is_wrong_input
    from understudy.optional_packages import describe_missing, require

    try:
        command = COMMANDS[name]
        require("train", command.extra)  # settings need the first
        resolve("progress:show_log")()
        if os.environ.get("UNDERSTUDY_NATIVE"):  # the check imports PyAV, which help must not
            resolve("video.native.loops:check_native_mode")()
        count, arguments = split_launch(arguments) if command.launchable else (None, arguments)
        print_only = "--print-config" in arguments
        arguments = [argument for argument in arguments if argument != "--print-config"]
        settings = read_settings(name, arguments)  # checked once here, before every rank reads them too
        if print_only:
            print(resolve("config.schema:dump_yaml")(settings), end="")
            return 0
        if count is not None:
            words = [sys.executable, "-m", "understudy", *name.split(), *arguments, *(["--debug"] if debug else [])]
            return int(resolve("distributed.launch:launch")(words, count, f"understudy {name}"))
        if name in LOADING:
            resolve("load.malloc:keep_freed_memory")()
        code = resolve(command.run)(settings)
        return int(code or 0)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone
        return FAILED
    except (ConfigError, DatasetError, KeyboardInterrupt, MemoryError, OSError) as error:
        if debug:
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
        message = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or "not enough memory"
        print(f"understudy {name}{_rank()}: {redact(message)}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        return WRONG_INPUT if is_wrong_input(error) else FAILED
    except Exception as error:
        missing = describe_missing(error) if isinstance(error, ImportError) else None
        line = missing or _describe_out_of_memory(error, name)
        if line is None or debug:
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
        if line is not None:
            print(f"understudy {name}{_rank()}: {line}", file=sys.stderr)
        return WRONG_INPUT if missing else FAILED


def _rank() -> str:
    """Name this process in a message, unless it is rank 0."""
    rank = os.environ.get("RANK", "0")
    return f", rank {rank}" if rank != "0" else ""


def _describe_out_of_memory(error: Exception, name: str) -> str | None:
    """Return the message for an error of torch's allocators, with settings that need less; None for other errors."""
    from understudy.errors import is_out_of_memory

    if not is_out_of_memory(error):
        return None
    reason = re.split(r" GPU \d+ has ", next(iter(str(error).strip().splitlines()), "out of memory"))[0]
    advice = LESS_MEMORY.get(name, "use a device with more free memory")
    return f"the device is out of memory; {advice} ({reason})"


def read_settings(name: str, arguments: Sequence[str]) -> Any:
    """Read and check the settings of the command `name` from its arguments.

    Raises:
        ConfigError: Lists all errors in the settings.
    """
    command = COMMANDS[name]
    resumed = resolve("train.checkpoint.run_dir:resumed_settings") if name == "resume" else None
    parse = resolve("cli.arguments.parse:settings")
    cls = resolve(command.settings)
    return parse(name, cls, command.argument, list(arguments), launchable=command.launchable, resumed=resumed)


def split_launch(arguments: list[str]) -> tuple[int | None, list[str]]:
    """Remove `--launch N`, which is no setting of a run; returns N (or None) and the other arguments.

    Raises:
        ConfigError: N is not a number.
    """
    from understudy.errors import ConfigError

    text, rest = take_option(arguments, "--launch")
    if text is None:
        return None, rest
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"--launch {text!r}: must be the number of processes on this host")
    return int(text), rest


def take_option(arguments: list[str], name: str) -> tuple[str | None, list[str]]:
    """Remove an option that is no setting; returns its value, None without it, and the other arguments."""
    for index, argument in enumerate(arguments):
        if argument == name or argument.startswith(f"{name}="):
            _, equals, text = argument.partition("=")
            rest = arguments[index + 1 :]
            if not equals:
                text, rest = (rest[0], rest[1:]) if rest else ("", rest)
            return text, arguments[:index] + rest
    return None, arguments


def resolve(where: str) -> Any:
    """Import "module:name" of this package."""
    module, name = where.split(":")
    return getattr(import_module(f"understudy.{module}"), name)
