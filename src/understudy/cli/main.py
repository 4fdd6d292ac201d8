"""The command line: one verb per line, settings from a file and from flags, errors as one clear line, exit codes.

    0    done
    1    failed
    2    wrong input: settings or a dataset that cannot be used as asked
    75   stopped by a signal with a checkpoint: `understudy resume` carries on (schedulers may requeue)
    130  interrupted where there is nothing to save

Only names stand here. A verb's settings are imported when it is called and its work after they have been checked, so
that help costs no torch, and a typing mistake no waiting.
"""

import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130


@dataclass(frozen=True)
class Verb:
    """`settings` and `work` are "module:name"; the work takes the settings and returns an exit code or None."""

    settings: str
    work: str
    about: str
    first: str = ""
    """What is named before the flags: FILE (settings in YAML, TOML or JSON, may be left out), RUN or PATH."""
    ranks: bool = False
    """Whether several processes may do it together: `--launch N`, or torchrun."""
    extra: str = "train"
    """What must be installed besides the core: reading settings alone needs `train`."""


VERBS = {
    "demo": Verb(
        "cli.demo:DemoConfig",
        "cli.demo:demo",
        "the whole job in minutes, on a simulated table",
        "[FILE]",
        extra="demo",
    ),
    "record": Verb(
        "cli.record:RecordConfig",
        "cli.record:record",
        "record demonstrations of a scripted expert",
        "[FILE]",
    ),
    "train": Verb("config.train:TrainConfig", "cli.train:train", "train a policy", "[FILE]", ranks=True),
    "resume": Verb(
        "config.train:TrainConfig",
        "cli.train:resume",
        "carry on at the exact next sample",
        "RUN",
        ranks=True,
    ),
    "validate": Verb(
        "cli.train:ValidateConfig",
        "cli.train:validate",
        "held-out loss per head, source and task",
        "RUN",
        ranks=True,
    ),
    "profile": Verb(
        "cli.profile:ProfileConfig",
        "cli.profile:profile",
        "where a step's time and memory go",
        "[FILE]",
        ranks=True,
    ),
    "rollout": Verb(
        "config.rollout:RolloutConfig",
        "cli.rollout:rollout",
        "success per task, simulated",
        "RUN",
    ),
    "export": Verb(
        "train.checkpoint.export:ExportConfig",
        "train.checkpoint.export:export",
        "a run's policy, as a robot loads it",
        "RUN",
    ),
    "report": Verb(
        "report.run.page:ReportConfig",
        "report.run.page:report",
        "write a run's report.html anew",
        "RUN",
        extra="report",
    ),
    "inspect": Verb("cli.inspect:InspectConfig", "cli.inspect:inspect", "look at a dataset", "PATH"),
    "ranges": Verb("cli.ranges:RangesConfig", "cli.ranges:ranges", "find where the robot moves", "PATH"),
    "bench": Verb(
        "cli.bench.bench:BenchConfig",
        "cli.bench.bench:bench",
        "how fast a dataset loads, beside its codec",
        "PATH",
    ),
    "order explain": Verb(
        "cli.order:ExplainConfig",
        "cli.order:explain",
        "which samples come when, and how well mixed",
    ),
}

LOADING = ("demo", "train", "resume", "validate", "profile", "bench")
"""Verbs that read pictures one after the other, in a process that is their own."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code. `--debug` shows the traceback of an error that is otherwise one line."""
    from understudy.addresses import strip_credentials

    arguments = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        sys.argv[1:] = map(strip_credentials, arguments)  # trackers write the command line down
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
            print(_named("cli.versions:versions")())
        return 0
    if arguments[0] == "help":
        arguments = [*arguments[1:], "--help"]
        if len(arguments) == 1:
            return main(arguments)
    if arguments == ["order"]:
        arguments += ["explain", "--help"]
    name = next((verb for verb in VERBS if arguments[: len(verb.split())] == verb.split()), None)
    if name is None:
        print(_unknown(arguments[0]), file=sys.stderr)
        return WRONG_INPUT
    return _guarded(name, arguments[len(name.split()) :], debug)


def _one_line(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning as a person reads it; where in our code it was said is for --debug."""
    from understudy.addresses import redact

    return redact(f"{'note' if category is UserWarning else category.__name__}: {message}\n")


def overview() -> str:
    """The help text of the command itself."""
    calls = {f"{name} {verb.first}": verb.about for name, verb in VERBS.items()}
    width = max(map(len, calls)) + 2
    lines = [f"  {call:<{width}}{about}" for call, about in calls.items()]
    return "\n".join(
        [
            "usage: understudy VERB … [--setting VALUE …]",
            "",
            "Train robot policies from demonstrations.",
            "",
            *lines,
            "",
            "`understudy VERB --help` lists the settings of a verb; with `--print-config` a verb only prints its",
            "settings as they would be used; `--debug` shows where an error comes from; `understudy --version -v`",
            "lists the versions in use.",
        ]
    )


def _unknown(word: str) -> str:
    import difflib

    close = [verb for verb in VERBS if verb.split()[0] == word] or difflib.get_close_matches(word, VERBS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(VERBS)}"
    return f"understudy: no verb {word!r}; {hint}"


def _guarded(name: str, arguments: list[str], debug: bool) -> int:
    """Parse and work; what a person can mend becomes one line, what only we can mend keeps its traceback."""
    from understudy.addresses import redact
    from understudy.errors import ConfigError, DatasetError
    from understudy.extras import describe_missing, require

    try:
        verb = VERBS[name]
        require(verb.extra)
        _named("progress:show_log")()
        _named("video.native.loops:check_native_mode")()
        count, arguments = _launched(arguments) if verb.ranks else (None, arguments)
        strip_credentials = "--print-config" in arguments
        arguments = [argument for argument in arguments if argument != "--print-config"]
        settings = settings_of(name, arguments)  # checked once here before every rank reads them too
        if strip_credentials:
            print(_named("config.schema:dump_yaml")(settings), end="")
            return 0
        if count is not None:
            command = [sys.executable, "-m", "understudy", *name.split(), *arguments, *(["--debug"] if debug else [])]
            return int(_named("distributed.launch:launch")(command, count, f"understudy {name}"))
        if name in LOADING:
            _named("malloc:keep_freed_memory")()
        code = _named(verb.work)(settings)
        return int(code or 0)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has left; say nothing into the void
        return FAILED
    except (ConfigError, DatasetError, KeyboardInterrupt, MemoryError, OSError) as error:
        if debug:
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
        message = "interrupted" if isinstance(error, KeyboardInterrupt) else str(error) or "not enough memory"
        rank = os.environ.get("RANK", "0")
        print(f"understudy {name}{f', rank {rank}' if rank != '0' else ''}: {redact(message)}", file=sys.stderr)
        if isinstance(error, KeyboardInterrupt):
            return INTERRUPTED
        return FAILED if isinstance(error, OSError | MemoryError) else WRONG_INPUT
    except Exception as error:
        missing = describe_missing(error) if isinstance(error, ImportError) else None
        if missing is None or debug:
            print(redact(traceback.format_exc()), end="", file=sys.stderr)
        if missing is None:
            return FAILED
        print(f"understudy {name}: {missing}", file=sys.stderr)
        return WRONG_INPUT


def settings_of(name: str, arguments: Sequence[str]) -> Any:
    """The settings that the arguments of the verb `name` ask for, checked; ConfigError says all that is wrong."""
    verb = VERBS[name]
    resumed = _named("train.checkpoint.run_dir:resumed_settings") if name == "resume" else None
    read = _named("cli.arguments:settings")
    return read(name, _named(verb.settings), verb.first, list(arguments), ranks=verb.ranks, resumed=resumed)


def _launched(arguments: list[str]) -> tuple[int | None, list[str]]:
    """`--launch N` is about processes and no setting of a run, so it is taken out before the settings are read."""
    from understudy.errors import ConfigError

    for index, argument in enumerate(arguments):
        if argument == "--launch" or argument.startswith("--launch="):
            _, equals, text = argument.partition("=")
            rest = arguments[index + 1 :]
            if not equals:
                text, rest = (rest[0], rest[1:]) if rest else ("", rest)
            if not (text.isascii() and text.isdigit()):
                raise ConfigError(f"--launch {text!r}: say how many processes this host runs")
            return int(text), arguments[:index] + rest
    return None, arguments


def _named(where: str) -> Any:
    module, name = where.split(":")
    return getattr(import_module(f"understudy.{module}"), name)
