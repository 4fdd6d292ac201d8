"""`understudy demo`: the whole job in minutes. Record, train, be killed and resume, validate, roll out, report.

Two processes train the same thing side by side. One is never stopped, but ends early; the other is killed with SIGKILL
half-way, before it comes to where the first one ends, is resumed, and goes on to its own end. As far as the first one
goes their loss series, and at its end every tensor of their checkpoints, must be equal bit for bit. Nothing here is a
special path: each part is a command that can be typed.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated

from understudy.config.declare import Ge, Interval

if TYPE_CHECKING:
    from understudy.config.train import TrainConfig

MARK = ".understudy-demo"


@dataclass(frozen=True)
class DemoConfig:
    """The demonstration on the embedded tabletop: "pick up the {colour} block"."""

    out: str = "runs/demo"
    """Folder for the recording and the run. What an earlier demonstration left there is replaced."""
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 0
    """Decides recording, training and rollouts."""
    episodes: Annotated[int, Ge(6)] = 200
    """Episodes to record."""
    steps: Annotated[int, Interval(ge=20, le=10**9)] = 2500
    """Training steps; they, and not the clock, decide when training ends."""
    rollouts: Annotated[int, Ge(1)] = 30
    """Episodes to play, and as many again with another block named."""


def training(config: DemoConfig) -> "TrainConfig":
    """The settings of the demonstration's run: the defaults, and what depends on its length and place."""
    from understudy.config.data import DataConfig
    from understudy.config.train import CheckpointConfig, LogConfig, TrainConfig, ValConfig

    out, every = Path(config.out), config.steps // 10
    return TrainConfig(
        output_dir=str(out / "run"),
        steps=config.steps,
        seed=config.seed,
        data=DataConfig(root=str(out / "dataset")),
        # The checkpoints from the end of the compared steps on are kept.
        checkpoint=CheckpointConfig(every=every, keep_last=2 + (config.steps - 6 * every) // every),
        val=ValConfig(every=2 * every),
        log=LogConfig(every=10, report=False),  # the report is written once, after the rollouts
    ).resolved()


def demo(config: DemoConfig) -> int:
    """Run it; the last lines are for machines. Returns 1 when the resumed run is not the one that was never stopped."""
    from understudy.config.schema import override

    out = Path(config.out)
    _make_room(out)
    plan = training(config)
    run, dataset, beside = Path(plan.output_dir), plan.data.root, out / "never-stopped"
    _say(f"record {config.episodes} episodes of a scripted expert")
    _do("record", "--out", dataset, "--episodes", config.episodes, "--seed", config.seed)

    kill_at, end = plan.checkpoint.every * 26 // 5, plan.checkpoint.every * 6
    _say(f"train {config.steps} steps; beside it {end} steps in a process that is never stopped")
    short = override(plan, output_dir=str(beside), steps=end, checkpoint={"every": end}, val={"every": 0})
    started: list[subprocess.Popen[bytes]] = []
    with (out / "never-stopped.log").open("w") as log:
        try:
            started.append(_start("train", _written(short, out), stderr=log))
            started.append(_start("train", _written(plan, out)))
            _kill(started[1], run, kill_at, end)
            started.append(_start("resume", run))
            _finish(started[2])
            _finish(started[0])
        finally:
            for process in started:
                process.kill()  # where we failed; one that has ended does not mind
    identical = _compare(run, beside, kill_at, end)

    _say("held-out loss per task")
    _do("validate", run)
    _say(f"play {config.rollouts} scenes that nothing was recorded in")
    _do("rollout", run, "--episodes", config.rollouts, "--seed", config.seed)
    _say(f"and {config.rollouts} in which the text names another block than the scene was made for")
    _do("rollout", run, "--episodes", config.rollouts, "--seed", config.seed, "--swap-text")
    _say("write the report")
    _do("report", run)

    print()
    for name, line in (("", "success"), ("-swapped", "swapped-text success")):
        rate = json.loads((run / f"rollouts/tabletop-seed{config.seed}{name}.json").read_text())["success"]
        print(f"{line} {rate['successes']}/{rate['episodes']}")
    print(f"resume identical: {'yes' if identical else 'no'}")
    print(f"report: {run / 'report.html'}", flush=True)
    return 0 if identical else 1


def _say(what: str) -> None:
    print(f"\n== {what}", flush=True)


def _make_room(out: Path) -> None:
    """Remove what an earlier demonstration left in `out`, and nothing else.

    Raises ConfigError when something there bears our names but is not ours, or was trained further since.
    """
    from understudy.errors import ConfigError
    from understudy.train.checkpoint.run_dir import RunDir

    mark, parts = out / MARK, [out / name for name in ("dataset", "run", "never-stopped")]
    files = [out / name for name in ("run.yaml", "never-stopped.yaml", "never-stopped.log")]
    taken = [part for part in (*parts, *files) if part.exists()]
    if taken and not mark.exists():
        raise ConfigError(f"{taken[0]}: is not of a demonstration; choose another --out")
    run = RunDir(out / "run")
    if run.config.exists() and (not files[0].exists() or files[0].read_text() != run.config.read_text()):
        raise ConfigError(f"{run.root}: was trained with other settings since; choose another --out, or remove it")
    for part in (part for part in parts if part.exists()):
        shutil.rmtree(part)
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _do(*arguments: object) -> None:
    """A command, in this process; one that fails has said why, and ends the demonstration."""
    from understudy.cli.main import main

    if (code := main([str(argument) for argument in arguments])) != 0:
        raise SystemExit(code)


def _start(*arguments: object, stderr: IO[str] | None = None) -> "subprocess.Popen[bytes]":
    """A command, in a process of its own."""
    command = [sys.executable, "-m", "understudy", *map(str, arguments)]
    # glibc gives every large array back at once, and torch asks for the next: keeping them saves a tenth of the time.
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": str(1 << 25), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
    return subprocess.Popen(command, stderr=stderr, env=environment)


def _finish(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a command's process; one that fails ends the demonstration."""
    if (code := process.wait()) != 0:
        print(f"demo: {' '.join(map(str, process.args))} ended with {code}", file=sys.stderr)  # type: ignore[arg-type]
        raise SystemExit(code)


def _written(config: "TrainConfig", out: Path) -> Path:
    """The settings as a file for `understudy train FILE`."""
    from understudy.config.schema import dump_yaml

    path = out / f"{Path(config.output_dir).name}.yaml"
    path.write_text(dump_yaml(config))
    return path


def _kill(process: "subprocess.Popen[bytes]", run: Path, step: int, end: int) -> None:
    """SIGKILL, once the run has logged `step`; what it then resumes from must lie before `end`."""
    from understudy.train.checkpoint import checkpoint
    from understudy.train.track import metrics_file

    while process.poll() is None:
        logged = metrics_file.read(run / "metrics.jsonl", "train")
        if logged and logged[-1]["step"] >= step:
            process.send_signal(signal.SIGKILL)
            process.wait()
            saved = (checkpoint.list_steps(run / "checkpoints") or [0])[-1]
            if saved >= end:
                raise RuntimeError(f"killed too late to compare: step {saved} is saved; use more steps")
            print(f"\nkilled with SIGKILL after step {logged[-1]['step']}, resuming from step {saved}", flush=True)
            return
        time.sleep(0.05)
    raise RuntimeError(f"the training ended with {process.returncode} before it could be killed; use more steps")


def _compare(run: Path, never_stopped: Path, kill_at: int, end: int) -> bool:
    """Whether both runs logged the same losses up to step `end`, and hold the same tensors there, bit for bit."""
    from understudy.train.checkpoint.checkpoint import read_tensors
    from understudy.train.track import metrics_file

    one, two = (metrics_file.read(path / "metrics.jsonl", "train")[:end] for path in (run, never_stopped))
    print("  step  killed and resumed     never stopped")
    for a, b in list(zip(one, two))[kill_at - 3 : kill_at + 4]:
        print(f"{a['step']:6d}  {a['loss']:<20.17g}  {b['loss']:<20.17g}")
    first, second = (read_tensors(path / f"checkpoints/step-{end:08d}") for path in (run, never_stopped))
    differ = [name for name in first if not first[name].equal(second[name])]
    print(f"of {end} steps {sum(a != b for a, b in zip(one, two))} differ (loss, gradient norm, learning rate)")
    print(f"of {len(first)} tensors at step {end} {len(differ)} differ (weights and moments)")
    return len(one) == end and one == two and not differ and first.keys() == second.keys()
