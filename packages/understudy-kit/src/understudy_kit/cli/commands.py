"""The table of commands, and those that other packages add.

A command is an entry point of the group `understudy.commands`: its name, with a dot for each space,
and its function, which takes the settings and returns an exit code or None:

    [project.entry-points."understudy.commands"]
    "order.explain" = "my_package:explain"

The table has what the program says of a command before it imports its module: for the list of all
commands, and where the distribution of a command is not installed. The function imports torch and
the like itself, after the settings are checked. So help is printed at once, and so is a typing
error. A function of another package may carry its facts (`describe`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar, get_type_hints

from understudy_base import EntryPoint, EntryPointError, find_entry_points, missing_distribution

GROUP = "understudy.commands"
"""Group of the entry points."""
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Command:
    """What the program knows of a command."""

    summary: str = ""
    """The command in a few words, for the list of commands."""
    argument: str = ""
    """Positional argument: [FILE] (settings in YAML, TOML or JSON, optional), RUN, PATH or [PATH
    ...].
    """
    launchable: bool = False
    """Whether several processes may run it together: `--launch N`, or torchrun."""
    extra: str = ""
    """Extra of its distribution that it needs; "" for none."""
    wheel: str = ""
    """Distribution that it comes with, a key of
    `optional_packages.PIP_LINES`; "" for one of another package."""
    loads_images: bool = False
    """Whether it loads images in a separate process. Freed memory is then kept (`malloc.py`)."""
    own_signals: bool = False
    """Whether it ends at SIGTERM in a way of its own. All others end as at Ctrl-C, and remove what
    is unfinished.
    """
    ends_with: int | None = None
    """Exit code for a signal before it has begun, that of a later one; None: the code of the
    signal.
    """
    less_memory: str = "use a device with more free memory"
    """What reduces its memory on the device."""
    stored: Callable[[str], Any] | None = None
    """For a command that continues something, as `resume`: returns the settings from which it
    starts, which its first word names.
    """


@dataclass(frozen=True)
class Found:
    """A command and its entry point; without one its distribution is not installed."""

    name: str
    row: Command | None
    """Facts of the table; None for a command of another package."""
    point: EntryPoint | None

    @cached_property
    def function(self) -> Callable[[Any], int | None]:
        """Its function, imported.

        Raises:
            MissingExtraError: its distribution is not installed.
            EntryPointError: it cannot be imported, or several packages have a command of this name.
        """
        if self.point is None:
            assert self.row is not None
            raise missing_distribution("this command", self.row.wheel)
        function: Callable[[Any], int | None] = self.point.load()
        return function

    @cached_property
    def settings_class(self) -> type:
        """Class of its settings, the type of the function's argument."""
        try:
            kinds = get_type_hints(self.function)
            return next(kind for name, kind in kinds.items() if name != "return")
        except (TypeError, NameError, StopIteration) as error:
            fix = "its function takes one argument, whose type is the class of its settings"
            raise EntryPointError(f"{self.point} is no command: {fix}") from error

    @property
    def facts(self) -> Command:
        """Facts of the table, and those that the function carries."""
        carried: Command = getattr(self.function, "command", Command())
        return carried if self.row is None else replace(self.row, stored=carried.stored)


def describe(command: Command) -> Callable[[F], F]:
    """Let the function of a command carry its facts.

    Of a command in the table of this program, `stored` alone counts.
    """

    def add(function: F) -> F:
        function.command = command  # type: ignore[attr-defined]
        return function

    return add


def find_commands() -> dict[str, Found]:
    """Return all commands by name, those of the table first. Nothing is imported."""
    points: dict[str, EntryPoint] = {}
    for spelled, point in find_entry_points(GROUP).items():
        name = spelled.replace(".", " ")
        if name in points:
            point = points[name]._replace(rivals=(*points[name].rivals, point.distribution))
        points[name] = point
    return {
        name: Found(name, COMMANDS.get(name), points.get(name)) for name in [*COMMANDS, *points]
    }


def find_command(words: Sequence[str]) -> Found | None:
    """Return the command with which a line begins; None without one."""
    for name, command in find_commands().items():
        if list(words[: name.count(" ") + 1]) == name.split():
            return command
    return None


_LESS = (
    "reduce it with --micro-batch-size N (fewer samples at a time, the same batch), "
    "--activation-checkpoint full (recompute activations) or --precision bf16"
)
COMMANDS = {
    "demo": Command(
        "the whole job in minutes, on a simulated table",
        "[FILE]",
        extra="demo",
        wheel="robot",
        loads_images=True,
    ),
    "record": Command("record demonstrations of a scripted expert", "[FILE]", wheel="robot"),
    "train": Command(
        "train a policy",
        "[FILE]",
        launchable=True,
        wheel="understudy",
        loads_images=True,
        own_signals=True,
        ends_with=75,
        less_memory=_LESS,
    ),
    "resume": Command(
        "continue at the exact next sample",
        "RUN",
        launchable=True,
        wheel="understudy",
        loads_images=True,
        own_signals=True,
        ends_with=75,
        less_memory=_LESS,
    ),
    "validate": Command(
        "validation loss per norm head, source and task",
        "RUN",
        launchable=True,
        wheel="understudy",
        loads_images=True,
    ),
    "plan": Command("memory of a run per GPU, before it is started", "[FILE]", wheel="understudy"),
    "profile": Command(
        "time and memory of a training step",
        "[FILE]",
        launchable=True,
        wheel="understudy",
        loads_images=True,
        less_memory=_LESS,
    ),
    "rollout": Command(
        "success per task, simulated",
        "RUN",
        wheel="robot",
        less_memory="reduce it with --num-envs N (fewer environments at a time)",
    ),
    "export": Command("a run's policy, as a robot loads it", "RUN", wheel="understudy"),
    "push": Command("publish a policy, run or dataset on the hub", "PATH", wheel="tools"),
    "pull": Command("fetch a policy, run or dataset from the hub", "PATH", wheel="tools"),
    "serve": Command(
        "a policy for robots, over a websocket",
        "POLICY",
        wheel="robot",
        own_signals=True,
    ),
    "replay": Command(
        "a recorded episode through the server, and open-loop validation",
        "RUN",
        wheel="robot",
    ),
    "contract": Command(
        "a contract, or the contradictions between two", "PATH [PATH]", wheel="robot"
    ),
    "why": Command("why a policy does not grasp, of a trace", "[POLICY] TRACE", wheel="robot"),
    "report": Command(
        "a run's report.html again, or which of several runs is better",
        "RUN [RUN ...]",
        wheel="understudy",
    ),
    "score": Command("values and advantages of a dataset's frames", "RUN DATA OUT", wheel="zoo"),
    "import": Command(
        "bags, HDF5 and Zarr files as a LeRobot dataset",
        "[PATH ...]",
        extra="import",
        wheel="tools",
    ),
    "check": Command("contents and faults of a dataset", "PATH", wheel="tools"),
    "view": Command("look through episodes in a browser", "PATH", wheel="tools"),
    "edit": Command("select, merge, change or transcode datasets", "[PATH ...]", wheel="tools"),
    "publish": Command(
        "append the recordings of several writers", "PATH [PATH ...]", wheel="tools"
    ),
    "segment": Command("cut episodes into segments", "[PATH ...]", wheel="tools"),
    "ranges": Command("find the frames in which a robot moves", "PATH", wheel="tools"),
    "select": Command(
        "save a selection of a dataset as a view, or list its views", "PATH [NAME]", wheel="tools"
    ),
    "bench": Command(
        "loading speed of a dataset, beside decoding in a row",
        "PATH",
        launchable=True,
        wheel="understudy",
        loads_images=True,
    ),
    "statistics": Command(
        "the statistics of a run's data, before it starts", "[FILE]", wheel="understudy"
    ),
    "fast fit": Command("fit action tokens (FAST) to a dataset", "[FILE]", wheel="understudy"),
    "tokenizer fit": Command(
        "fit a small text tokenizer to a dataset", "[FILE]", wheel="understudy"
    ),
    "order explain": Command(
        "the order of samples, and how well it mixes", "[PATH ...]", wheel="tools"
    ),
    "order export": Command(
        "the samples of a run or an order, as parquet", "PATH [PATH ...]", wheel="understudy"
    ),
    "audit": Command(
        "how often each frame was trained on, and by which step", "RUN", wheel="understudy"
    ),
    "check-policy": Command(
        "proofs of any policy: padding, noise, sums, actions, saving",
        "POLICY",
        wheel="understudy",
    ),
}
"""The commands of understudy, in the order in which they are looked for."""

GROUPS = {
    "data": (
        *(
            "record",
            "import",
            "check",
            "view",
            "edit",
            "segment",
            "ranges",
            "select",
            "publish",
            "score",
            "statistics",
        ),
        *("fast fit", "tokenizer fit", "bench"),
    ),
    "train": (
        *(
            "demo",
            "train",
            "resume",
            "validate",
            "plan",
            "profile",
            "rollout",
            "order explain",
            "order export",
        ),
        *("audit", "check-policy"),
    ),
    "robot": ("export", "serve", "replay", "contract", "why"),
    "look and share": ("report", "push", "pull"),
}
"""Groups of the help -> commands."""

_EDIT = "understudy edit SRC [SRC ...] OUT"
_ROLLOUT = "understudy rollout RUN"
_CHECK = "understudy check PATH"
_REPORT = "understudy report RUN"
_VIEW = "understudy view PATH"
_SERVE = "understudy serve POLICY"
GUESSES = {
    **dict.fromkeys(
        ("merge", "concat", "combine", "join", "cat", "aggregate"), f"{_EDIT} with several SRC"
    ),
    **dict.fromkeys(("delete", "remove", "rm", "drop"), f"{_EDIT} --exclude-episodes 0-2"),
    "split": f"{_EDIT} --split train=0.9 val=0.1",
    "filter": f"{_EDIT} --where CONDITION, or understudy select PATH NAME --where CONDITION",
    **dict.fromkeys(
        ("trim", "crop"), f"{_EDIT} --drop-n-first-frames 10, or understudy segment SRC OUT"
    ),
    **dict.fromkeys(
        ("resize", "transcode", "reencode", "encode", "compress"),
        f"{_EDIT} --size 224 --codec libx264",
    ),
    **dict.fromkeys(
        ("rename", "cp", "copy", "annotate", "relabel"), f"{_EDIT}, whose --help lists all changes"
    ),
    "convert": f"{_EDIT} for LeRobot datasets, understudy import SOURCE OUT for bags, HDF5 and "
    "Zarr",
    **dict.fromkeys(
        ("compare", "diff"), "understudy report RUN RUN for runs, understudy contract PATH PATH"
    ),
    **dict.fromkeys(
        ("eval", "evaluate", "test", "simulate", "sim"), f"{_ROLLOUT}, or understudy validate RUN"
    ),
    "play": f"{_ROLLOUT} for a policy, {_VIEW} for recorded episodes",
    **dict.fromkeys(("info", "inspect", "describe", "summary", "lint", "verify", "doctor"), _CHECK),
    "stats": f"{_CHECK}, or understudy statistics [FILE]",
    **dict.fromkeys(("viz", "visualize", "visualise", "browse", "open", "gui", "app"), _VIEW),
    **dict.fromkeys(("plot", "log", "logs", "history", "metrics", "status", "dashboard"), _REPORT),
    **dict.fromkeys(("show", "list", "ls"), f"{_CHECK} for a dataset, {_REPORT} for a run"),
    **dict.fromkeys(("upload", "share"), "understudy push PATH"),
    **dict.fromkeys(("download", "fetch", "get", "clone"), "understudy pull PATH"),
    **dict.fromkeys(
        ("finetune", "fine-tune", "fit", "run"), "understudy train [FILE], with --init-from POLICY"
    ),
    "continue": "understudy resume RUN",
    **dict.fromkeys(("infer", "inference", "predict", "deploy", "act", "server"), _SERVE),
    **dict.fromkeys(
        ("teleop", "teleoperate", "collect"), "a tool of your robot; simulated, understudy record"
    ),
    **dict.fromkeys(("explain", "diagnose", "debug"), "understudy why TRACE"),
    **dict.fromkeys(("benchmark", "perf", "speed"), "understudy bench PATH"),
}
"""Names that others have for a command -> the call here."""
