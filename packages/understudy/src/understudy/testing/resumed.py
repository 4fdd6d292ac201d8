"""Stopped and resumed runs, and the positions that each of their steps consumed."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from understudy.config.train import TrainConfig
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.state import TrainState


@contextmanager
def watched(
    out: Path, at: dict[int, Callable[[], object]] | None = None, session: int = 0
) -> Iterator[None]:
    """Log the positions of every step below `out`.positions; call `at[k]` during step k (from 1).

    `session` numbers the attempts at one run, ascending.
    """
    plain = TrainState.train_step
    folder = out.with_name(out.name + ".positions")
    folder.mkdir(exist_ok=True)

    def advance(self: TrainState, batch: Any, *rest: Any) -> Any:
        if at and self.step + 1 in at:
            at[self.step + 1]()
        result = plain(self, batch, *rest)
        # after the step, which may change the batch
        with (folder / f"rank-{self.mesh.rank}").open("a") as file:
            file.write(json.dumps([session, self.step, batch["position"].tolist()]) + "\n")
        return result

    TrainState.train_step = advance  # type: ignore[method-assign]
    try:
        yield
    finally:
        TrainState.train_step = plain  # type: ignore[method-assign]


def consumed(out: Path) -> Counter[int]:
    """How often each position went into the weights.

    A step after the checkpoint of a resume is computed again, perhaps by other ranks. Only its last
    computation counts.
    """
    steps: dict[int, dict[int, list[int]]] = {}
    for file in out.with_name(out.name + ".positions").iterdir():
        for session, step, positions in (
            json.loads(line) for line in file.read_text().splitlines()
        ):
            steps.setdefault(step, {}).setdefault(session, []).extend(positions)
    counts = Counter[int]()
    for sessions in steps.values():
        counts.update(sessions[max(sessions)])
    return counts


def send(number: int) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


# -- functions of each rank ------------------------------------------------------------------------


def stops(config: TrainConfig, out: Path) -> dict[str, Any]:
    """Runs of this rank: whole; stopped by a signal to one rank, by the file, before the first
    step; resumed.
    """
    from dataclasses import replace

    import torch.distributed as dist

    dist.init_process_group("gloo")  # around all of them: ranks cannot use one port twice
    rank = dist.get_rank()
    results = {}

    def named(name: str) -> TrainConfig:
        return replace(config, output_dir=str(out / name))

    def steps(name: str) -> list[int]:
        return checkpoint.list_steps(out / name / "checkpoints")

    results["whole"] = run.train(named("whole"))
    signals = {5: send(signal.SIGUSR1)} if rank == 1 else {}
    with watched(out / "signal", signals):
        results["signal"] = [run.train(named("signal")), steps("signal")]
    results["signal, on"] = run.resume(RunDir(out / "signal").settings())
    touches = {6: (out / "file/STOP").touch} if rank == 0 else {}
    with watched(out / "file", touches):
        results["file"] = [run.train(named("file")), steps("file")]
    plain = run.open_data
    if rank == 1:
        run.open_data = lambda *arguments: (
            os.kill(os.getpid(), signal.SIGTERM),
            plain(*arguments),
        )[1]  # type: ignore[func-returns-value]
    results["early"] = [run.train(named("early")), steps("early")]
    run.open_data = plain
    results["early, on"] = run.resume(RunDir(out / "early").settings())
    return results


def carried_on(out: Path, stop_at: int | None, session: int) -> int:
    """Resume with the present ranks, and stop again at a step."""
    rank = int(os.environ.get("RANK", "0"))
    signals = {stop_at: send(signal.SIGTERM)} if stop_at and rank == 0 else {}
    with watched(out, signals, session):
        return run.resume(RunDir(out).settings())
