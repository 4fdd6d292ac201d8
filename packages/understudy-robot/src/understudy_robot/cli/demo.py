"""`understudy demo`: the whole job in minutes: record, train, kill, resume, validate, roll out,
report.

Two processes run the same training side by side. One is never stopped, but ends early. The other is
killed with SIGKILL before it reaches the end of the first one, resumed, and trained to its own end.
Up to the end of the first one, the two loss series must be equal bit for bit, and there every
tensor of their checkpoints. Each part is an ordinary command.
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
from typing import IO, Annotated

from understudy import TrainConfig
from understudy_base import ConfigError
from understudy_kit import Ge, Interval, dump_yaml, module_command, override

MARK = ".understudy-demo"


@dataclass(frozen=True)
class DemoConfig:
    """Record, train, kill, resume, validate and roll out on a simulated table, in about five
    minutes.
    """

    output_dir: str = "runs/demo"
    """Folder for the recording and the run. An earlier demonstration there is replaced."""
    seed: Annotated[int, Interval(ge=0, lt=1 << 32)] = 0
    """Seed of recording, training and rollouts."""
    episodes: Annotated[int, Ge(6)] = 200
    """Episodes to record."""
    steps: Annotated[int, Interval(ge=20, le=10**9)] = 2500
    """Training steps."""
    rollouts: Annotated[int, Ge(1)] = 30
    """Episodes to roll out, and as many again with another block named."""


def training(config: DemoConfig) -> TrainConfig:
    """Settings of the demonstration's run: defaults, except for its length and folder."""
    out = Path(config.output_dir)
    every = config.steps // 10
    # The checkpoints from the end of the compared steps on are kept.
    kept = 2 + (config.steps - 6 * every) // every
    return override(
        TrainConfig(),
        output_dir=str(out / "run"),
        steps=config.steps,
        seed=config.seed,
        data={"root": str(out / "dataset")},
        checkpoint={"every": every, "keep_last": kept},
        val={"every": 2 * every},
        log={"every": 10, "report": False},  # the report is written once, after the rollouts
    ).resolved()


def shortened(plan: TrainConfig, out: Path, steps: int) -> TrainConfig:
    """The same training in another folder, up to a step; its learning rate decays as that of
    `plan`.
    """
    schedule = {"decay_steps": plan.schedule.decay_steps or plan.steps}
    ends = {"steps": steps, "checkpoint": {"every": steps}, "val": {"every": 0}}
    return override(plan, output_dir=str(out), schedule=schedule, **ends)


def demo(config: DemoConfig) -> int:
    """Run the demonstration; the last lines are for machines.

    Returns:
        0, or 1 if the resumed run differs from the uninterrupted one.
    """
    out = Path(config.output_dir)
    clear_folder(out)
    plan = training(config)
    run = Path(plan.output_dir)
    dataset = plan.data.root
    beside = out / "never-stopped"
    _print_title(f"record {config.episodes} episodes of a scripted expert")
    _run_command(
        "record", "--output-dir", dataset, "--episodes", config.episodes, "--seed", config.seed
    )

    kill_at = plan.checkpoint.every * 26 // 5
    end = plan.checkpoint.every * 6
    _print_title(
        f"train {config.steps} steps; beside it {end} steps in a process that is never stopped"
    )
    short = shortened(plan, beside, end)
    started: list[subprocess.Popen[bytes]] = []
    with (out / "never-stopped.log").open("w") as log:
        try:
            started.append(_start("train", write_settings(short, out), stderr=log))
            started.append(_start("train", write_settings(plan, out)))
            kill_at_step(started[1], run, kill_at, end)
            started.append(_start("resume", run))
            _finish(started[2])
            _finish(started[0])
        finally:
            for process in started:
                process.kill()  # after an error; without effect on a process that has ended
    identical = compare_runs(run, beside, kill_at, end)

    _print_title("validation loss per task")
    _run_command("validate", run)
    _print_title(f"roll out in {config.rollouts} scenes that were never recorded")
    _run_command("rollout", run, "--episodes", config.rollouts, "--seed", config.seed)
    _print_title(f"roll out in {config.rollouts} scenes with swapped text: it names another block")
    _run_command(
        "rollout", run, "--episodes", config.rollouts, "--seed", config.seed, "--swap-text"
    )
    _print_title("write the report")
    _run_command("report", run)

    print()
    for name, line in (("", "success"), ("-swapped", "swapped-text success")):
        result = run / f"rollouts/tabletop-seed{config.seed}{name}.json"
        rate = json.loads(result.read_text())["success"]
        print(f"{line} {rate['successes']}/{rate['episodes']}")
    answer = "yes" if identical else "no"
    print(f"resume identical: {answer}")
    print(f"report: {run / 'report.html'}", flush=True)
    return 0 if identical else 1


def _print_title(text: str) -> None:
    print(f"\n== {text}", flush=True)


def clear_folder(out: Path) -> None:
    """Remove the files of an earlier demonstration from `out`, and no others.

    Raises:
        ConfigError: A file with one of our names is not of a demonstration, or the run was trained
            further since.
    """
    from understudy import RunDir

    mark = out / MARK
    parts = [out / name for name in ("dataset", "run", "never-stopped")]
    files = [out / name for name in ("run.yaml", "never-stopped.yaml", "never-stopped.log")]
    existing = [part for part in (*parts, *files) if part.exists()]
    if existing and not mark.exists():
        raise ConfigError(f"{existing[0]}: is not of a demonstration; choose another --output-dir")
    run = RunDir(out / "run")
    if run.config.exists() and (
        not files[0].exists() or files[0].read_text() != run.config.read_text()
    ):
        raise ConfigError(
            f"{run.root}: was trained with other settings since; choose another --output-dir, or "
            "remove it"
        )
    for part in (part for part in parts if part.exists()):
        shutil.rmtree(part)
    out.mkdir(parents=True, exist_ok=True)
    mark.touch()


def _run_command(*arguments: object) -> None:
    """Run a command in this process; its failure ends the demonstration."""
    from understudy_kit import main

    if (code := main([str(argument) for argument in arguments])) != 0:
        raise SystemExit(code)


def _start(*arguments: object, stderr: IO[str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a command in a separate process."""
    command = [*module_command("understudy"), *map(str, arguments)]
    # glibc returns every large array to the system at once, and torch requests the next: keeping
    # them saves 10 %.
    environment = os.environ | {
        "MALLOC_MMAP_THRESHOLD_": str(1 << 25),
        "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    }
    return subprocess.Popen(command, stderr=stderr, env=environment)


def _finish(process: "subprocess.Popen[bytes]") -> None:
    """Wait for a command's process; its failure ends the demonstration."""
    if (code := process.wait()) != 0:
        command = " ".join(map(str, process.args))  # type: ignore[arg-type]
        print(f"demo: {command} ended with {code}", file=sys.stderr)
        raise SystemExit(code)


def write_settings(config: TrainConfig, out: Path) -> Path:
    """Write the settings to a file for `understudy train FILE`; returns its path."""
    path = out / f"{Path(config.output_dir).name}.yaml"
    path.write_text(dump_yaml(config))
    return path


def kill_at_step(process: "subprocess.Popen[bytes]", run: Path, step: int, end: int) -> None:
    """Send SIGKILL once the run has logged `step`; its last checkpoint must be before `end`."""
    from understudy import RunDir

    while process.poll() is None:
        logged = RunDir(run).records("train")
        if logged and logged[-1]["step"] >= step:
            process.send_signal(signal.SIGKILL)
            process.wait()
            saved = (RunDir(run).steps() or [0])[-1]
            if saved >= end:
                raise RuntimeError(
                    f"killed too late to compare: step {saved} is saved; use more steps"
                )
            last = logged[-1]["step"]
            print(
                f"\nkilled with SIGKILL after step {last}, resuming from step {saved}", flush=True
            )
            return
        time.sleep(0.05)
    raise RuntimeError(
        f"the training ended with {process.returncode} before it could be killed; use more steps"
    )


def compare_runs(run: Path, never_stopped: Path, kill_at: int, end: int) -> bool:
    """Compare two runs bit for bit: the losses up to step `end`, and the tensors there. Prints the
    differences.
    """
    from understudy import RunDir

    runs = (RunDir(run), RunDir(never_stopped))
    resumed, whole = (of_run.records("train")[:end] for of_run in runs)
    print("  step  killed and resumed     never stopped")
    for a, b in list(zip(resumed, whole))[kill_at - 3 : kill_at + 4]:
        print(f"{a['step']:6d}  {a['loss']:<20.17g}  {b['loss']:<20.17g}")
    first, second = (of_run.read_tensors(end) for of_run in runs)
    differ = [name for name in first if not first[name].equal(second[name])]
    print(
        f"of {end} steps {sum(a != b for a, b in zip(resumed, whole))} differ (loss, gradient "
        "norm, learning rate)"
    )
    print(f"of {len(first)} tensors at step {end} {len(differ)} differ (weights and moments)")
    return len(resumed) == end and resumed == whole and not differ and first.keys() == second.keys()
