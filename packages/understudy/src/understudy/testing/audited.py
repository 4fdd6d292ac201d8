"""A run with everything that changes its samples, and a record of the samples that its steps really
consumed.

The record is made from the batches themselves, beside the run: session, step, whether the step
changed the weights, and source, episode and frame of each sample. It knows nothing of the order.
"""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from understudy.config.train import TrainConfig
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy.train import run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.state import TrainState
from understudy_data.video.packets import open_packets
from understudy_kit import override


@contextmanager
def recorded(
    out: Path, session: int, at: dict[int, Callable[[], object]], spoiled: int = 0
) -> Iterator[None]:
    """Record the samples of every step below `out`.samples; call `at[k]` during step k; spoil the
    actions of one.
    """
    plain = TrainState.train_step
    folder = out.with_name(out.name + ".samples")
    folder.mkdir(exist_ok=True)

    def train_step(self: TrainState, batch: Any, *rest: Any) -> Any:
        step = self.step + 1
        if step in at:
            at[step]()
        columns = [batch[key].tolist() for key in ("source", "episode_index", "frame_index")]
        if step == spoiled:
            batch["action"] = batch["action"] * torch.nan
        result = plain(self, batch, *rest)
        line = [session, step, bool(result.skipped), list(zip(*columns, strict=True))]
        with (folder / f"rank-{self.mesh.rank}").open("a") as file:
            file.write(json.dumps(line) + "\n")
        return result

    TrainState.train_step = train_step  # type: ignore[method-assign]
    try:
        yield
    finally:
        TrainState.train_step = plain  # type: ignore[method-assign]


def trained(out: Path, until: int) -> tuple[Counter[tuple[int, int, int]], set[int]]:
    """How often each (source, episode, frame) went into the weights of checkpoint `until`, and the
    skipped steps.
    """
    steps: dict[int, dict[int, list[Any]]] = {}
    for file in out.with_name(out.name + ".samples").iterdir():
        for session, step, skipped, samples in map(json.loads, file.read_text().splitlines()):
            steps.setdefault(step, {}).setdefault(session, []).append((skipped, samples))
    counts = Counter[tuple[int, int, int]]()
    lost = set()
    for step, sessions in steps.items():
        if step > until:
            continue
        # the last computation counts
        for skipped, samples in sessions[max(sessions)]:
            if skipped:
                lost.add(step)
            else:
                counts.update(map(tuple, samples))
    return counts, lost


def damage(dataset: Path, *frames: int) -> None:
    """Overwrite frames of the first video, so that they cannot be decoded."""
    video = sorted((dataset / "videos").rglob("*.mp4"))[0]
    packets = open_packets(str(video))
    content = bytearray(video.read_bytes())
    for frame in frames:
        begin = int(packets.index.offset[frame])
        size = int(packets.index.size[frame])
        content[begin + 5 : begin + size] = b"\xff" * (size - 5)
    packets.close()
    video.write_bytes(bytes(content))


def send(number: int) -> Callable[[], object]:
    return lambda: os.kill(os.getpid(), number)


def begins(config: TrainConfig, kill: int) -> None:
    """Train, killed during a step."""
    with recorded(Path(config.output_dir), 0, {kill: send(signal.SIGKILL)}):
        run.train(config)


def goes_on(
    out: Path, session: int, changes: dict[str, Any], weights: list[float], stop: int, spoiled: int
) -> int:
    """Resume with other settings; a signal stops the run in a step, 0: at its end."""
    config = override(RunDir(out).settings(), **changes)
    if weights:
        sources = tuple(
            replace(source, weight=weight) for source, weight in zip(config.data.sources, weights)
        )
        config = replace(config, data=replace(config.data, sources=sources))
    first = int(os.environ.get("RANK", "0")) == 0
    signals = {stop: send(signal.SIGTERM)} if stop and first else {}
    with recorded(out, session, signals, spoiled):
        return run.resume(config)


def eventful_run(config: TrainConfig, weights: list[float], scale: int = 1) -> Path:
    """Train with a kill, resumes on two ranks and one, other weights, a larger batch, and a step
    that is skipped.

    Args:
        config: of a mixture, with a checkpoint every 4 steps and 16 in all, each times `scale`.
        weights: of the sources after the first resume.
        scale: of all steps.
    """
    out = Path(config.output_dir)
    (kind, code), *_ = outcomes_in_ranks(1, begins, config, 7 * scale)
    assert (kind, code) == ("died", -signal.SIGKILL)
    in_ranks(
        2, goes_on, out, 1, {"batch_size": config.batch_size + 2}, weights, 10 * scale, 9 * scale
    )
    (kind, _), *_ = outcomes_in_ranks(1, goes_on_and_dies, out, 2, 14 * scale)
    assert kind == "died"
    assert in_ranks(2, goes_on, out, 3, {}, [], 0, 0) == [run.DONE, run.DONE]
    return out


def goes_on_and_dies(out: Path, session: int, kill: int) -> None:
    with recorded(out, session, {kill: send(signal.SIGKILL)}):
        run.resume(RunDir(out).settings())
