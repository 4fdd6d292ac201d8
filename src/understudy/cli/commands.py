"""The table of commands.

It holds names only. A command's module is imported when it is called. The function imports torch and the like itself,
after the settings are checked. So help is printed at once, and so is a typing error.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, get_type_hints


@dataclass(frozen=True)
class Command:
    """A row of the table."""

    run: str
    """Its function as "module:name" below `cli`. It takes the settings, and returns an exit code or None."""
    summary: str
    argument: str = ""
    """Positional argument: [FILE] (settings in YAML, TOML or JSON, optional), RUN, PATH or [PATH ...]."""
    launchable: bool = False
    """Whether several processes may run it together: `--launch N`, or torchrun."""
    extra: str = "train"
    """Extra to install besides the core; reading settings alone needs `train`."""

    def function(self) -> Callable[[Any], int | None]:
        """Import the function."""
        module, name = self.run.split(":")
        function: Callable[[Any], int | None] = getattr(import_module(f"understudy.cli.{module}"), name)
        return function

    def settings_class(self) -> type:
        """Return the class of the settings, the type of the function's argument."""
        kind: type = next(iter(get_type_hints(self.function()).values()))
        return kind


COMMANDS = {
    "demo": Command("demo:demo", "the whole job in minutes, on a simulated table", "[FILE]", extra="demo"),
    "record": Command("data.record:record", "record demonstrations of a scripted expert", "[FILE]"),
    "train": Command("runs:train", "train a policy", "[FILE]", launchable=True),
    "resume": Command("runs:resume", "continue at the exact next sample", "RUN", launchable=True),
    "validate": Command("runs:validate", "validation loss per norm head, source and task", "RUN", launchable=True),
    "plan": Command("plan:plan", "memory of a run per GPU, before it is started", "[FILE]"),
    "profile": Command("profile:profile", "time and memory of a training step", "[FILE]", launchable=True),
    "rollout": Command("rollout:rollout", "success per task, simulated", "RUN"),
    "export": Command("runs:export", "a run's policy, as a robot loads it", "RUN"),
    "push": Command("hub:push", "publish a policy, run or dataset on the hub", "PATH"),
    "pull": Command("hub:pull", "fetch a policy, run or dataset from the hub", "PATH"),
    "serve": Command("serve:serve", "a policy for robots, over a websocket", "POLICY", extra="serve"),
    "replay": Command(
        "replay:replay", "a recorded episode through the server, and open-loop validation", "RUN", extra="serve"
    ),
    "contract": Command("contract:contract", "a contract, or the contradictions between two", "PATH [PATH]"),
    "why": Command("why:why", "why a policy does not grasp, of a trace", "[POLICY] TRACE"),
    "report": Command("runs:report", "a run's report.html again, or which of several runs is better", "RUN [RUN ...]"),
    "score": Command("data.score:score", "values and advantages of a dataset's frames", "RUN DATA OUT"),
    "import": Command(
        "data.importing:import_", "bags, HDF5 and Zarr files as a LeRobot dataset", "[PATH ...]", extra="import"
    ),
    "check": Command("data.check:check", "contents and faults of a dataset", "PATH"),
    "view": Command("data.view:view", "look through episodes in a browser", "PATH"),
    "edit": Command("data.edit:edit", "select, merge, change or transcode datasets", "[PATH ...]"),
    "publish": Command("data.publish:publish", "append the recordings of several writers", "PATH [PATH ...]"),
    "segment": Command("data.edit:segment", "cut episodes into segments", "[PATH ...]"),
    "ranges": Command("data.ranges:ranges", "find the frames in which a robot moves", "PATH"),
    "select": Command(
        "data.select:select", "save a selection of a dataset as a view, or list its views", "PATH [NAME]"
    ),
    "bench": Command("bench.bench:bench", "loading speed of a dataset, and of its codec", "PATH", launchable=True),
    "statistics": Command(
        "data.prepare:prepare_statistics", "the statistics of a run's data, before it starts", "[FILE]"
    ),
    "fast fit": Command("data.prepare:fit_fast", "fit action tokens (FAST) to a dataset", "[FILE]"),
    "tokenizer fit": Command("data.prepare:fit_tokenizer", "fit a small text tokenizer to a dataset", "[FILE]"),
    "order explain": Command("data.order:explain", "the order of samples, and how well it mixes", "[PATH ...]"),
    "order export": Command(
        "data.order_export:export", "the samples of a run or an order, as parquet", "PATH [PATH ...]"
    ),
    "audit": Command("audit:audit", "how often each frame was trained on, and by which step", "RUN"),
}

GROUPS = {
    "data": (
        *("record", "import", "check", "view", "edit", "segment", "ranges", "select", "publish", "score", "statistics"),
        *("fast fit", "tokenizer fit", "bench"),
    ),
    "train": (
        *("demo", "train", "resume", "validate", "plan", "profile", "rollout", "order explain", "order export"),
        "audit",
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
    **dict.fromkeys(("merge", "concat", "combine", "join", "cat", "aggregate"), f"{_EDIT} with several SRC"),
    **dict.fromkeys(("delete", "remove", "rm", "drop"), f"{_EDIT} --exclude-episodes 0-2"),
    "split": f"{_EDIT} --split train=0.9 val=0.1",
    "filter": f"{_EDIT} --where CONDITION, or understudy select PATH NAME --where CONDITION",
    **dict.fromkeys(("trim", "crop"), f"{_EDIT} --drop-n-first-frames 10, or understudy segment SRC OUT"),
    **dict.fromkeys(("resize", "transcode", "reencode", "encode", "compress"), f"{_EDIT} --size 224 --codec libx264"),
    **dict.fromkeys(("rename", "cp", "copy", "annotate", "relabel"), f"{_EDIT}, whose --help lists all changes"),
    "convert": f"{_EDIT} for LeRobot datasets, understudy import SOURCE OUT for bags, HDF5 and Zarr",
    **dict.fromkeys(("compare", "diff"), "understudy report RUN RUN for runs, understudy contract PATH PATH"),
    **dict.fromkeys(("eval", "evaluate", "test", "simulate", "sim"), f"{_ROLLOUT}, or understudy validate RUN"),
    "play": f"{_ROLLOUT} for a policy, {_VIEW} for recorded episodes",
    **dict.fromkeys(("info", "inspect", "describe", "summary", "lint", "verify", "doctor"), _CHECK),
    "stats": f"{_CHECK}, or understudy statistics [FILE]",
    **dict.fromkeys(("viz", "visualize", "visualise", "browse", "open", "gui", "app"), _VIEW),
    **dict.fromkeys(("plot", "log", "logs", "history", "metrics", "status", "dashboard"), _REPORT),
    **dict.fromkeys(("show", "list", "ls"), f"{_CHECK} for a dataset, {_REPORT} for a run"),
    **dict.fromkeys(("upload", "share"), "understudy push PATH"),
    **dict.fromkeys(("download", "fetch", "get", "clone"), "understudy pull PATH"),
    **dict.fromkeys(("finetune", "fine-tune", "fit", "run"), "understudy train [FILE], with --init-from POLICY"),
    "continue": "understudy resume RUN",
    **dict.fromkeys(("infer", "inference", "predict", "deploy", "act", "server"), _SERVE),
    **dict.fromkeys(("teleop", "teleoperate", "collect"), "a tool of your robot; simulated, understudy record"),
    **dict.fromkeys(("explain", "diagnose", "debug"), "understudy why TRACE"),
    **dict.fromkeys(("benchmark", "perf", "speed"), "understudy bench PATH"),
}
"""Names that others have for a command -> the call here."""

LOADING = ("demo", "train", "resume", "validate", "profile", "bench")
"""Commands that load images in a separate process; for them freed memory is kept (see `load/malloc.py`)."""

OWN_SIGNALS = ("train", "resume", "serve")
"""Commands that end at SIGTERM in a way of their own; all others end as at Ctrl-C, and remove what is unfinished."""

ENDS_WITH = {"train": 75, "resume": 75}
"""Command -> exit code for a signal before it has begun, that of a later one; others have the code of the signal."""

LESS_MEMORY = {
    **dict.fromkeys(
        ("train", "resume", "profile"),
        "reduce it with --micro-batch-size N (fewer samples at a time, the same batch), --activation-checkpoint full "
        "(recompute activations) or --precision bf16",
    ),
    "rollout": "reduce it with --num-envs N (fewer environments at a time)",
}
"""Command -> settings that reduce its memory on the device."""
