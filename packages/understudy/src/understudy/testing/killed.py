"""Training runs that SIGKILL ends again and again until they are done, and the conditions that must
hold then.

Every attempt is a process (two, on two ranks) forked from this one, which has imported torch and
has no open files. A victim dies in one of two ways:

    at a change   it kills itself just before its n-th change of the disk (open to write, fsync,
                  rename, remove …), or the n-th of those inside saves
    at a time     it is killed from outside after a random time, on a disk with a slow fsync, so
                  that much of that time is inside saves

After every kill, each folder with a checkpoint's name must hold that step of the uninterrupted run,
bit for bit. At the end, series, tensors and policy must equal those of the uninterrupted run, and
every position must have gone into the weights once. `lab/benchmarks/soak_trainer.py` does this a
hundred times.
"""

import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch._dynamo
import torch.distributed.checkpoint  # imported before the forks, not in each of them
import torch.distributed.fsdp
import torch.distributed.tensor

from understudy.config.train import ParallelConfig, TrainConfig
from understudy.policies.registry import policy_type
from understudy.policies.settings import PolicySettings
from understudy.testing.checkpoint_ranks import digest
from understudy.testing.ranks import reserved
from understudy.testing.resumed import consumed, watched
from understudy.testing.runs import same_run, series, tiny_config
from understudy.train import run
from understudy.train.checkpoint import checkpoint
from understudy.train.checkpoint.run_dir import RunDir
from understudy_kit import override

CHANGES = ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link")
PATIENCE = 600.0
"""Seconds after which a rank counts as hanging when the other one is gone."""


@dataclass(frozen=True)
class Kind:
    """Kind of a run."""

    worlds: tuple[int, ...]
    """Processes of its attempts, in turn."""
    shard: int = 1
    background: bool = False
    keep: int = 2
    lora: int = 0
    """Rank of low-rank adapters."""
    lora_base: Literal["stored", "float32", "bfloat16"] = "stored"
    """Dtype of the matrices below the adapters."""
    policy: str = "flow"
    """`flow`; `pi05` with the losses of flow, response and FAST tokens; or `world_action` in all
    modes.
    """

    def __str__(self) -> str:
        saves = "saves beside the training" if self.background else "saves in the training"
        worlds = " -> ".join(map(str, self.worlds))
        unit = "ranks" if self.worlds != (1,) else "process"
        sharded = ", sharded" if self.shard > 1 else ""
        return f"{worlds} {unit}{sharded}, {saves}"

    def config(self, data: Path, out: Path) -> TrainConfig:
        parallel = ParallelConfig(dp_shard=self.shard, timeout=300.0)
        checkpoints = {"every": 3, "keep_last": self.keep, "async_save": self.background}
        changes: dict[str, Any] = {}
        if self.policy == "pi05":
            changes |= {
                "policy": pi05_settings(data.parent),
                "data": {"response": "task"},
                "steps": 6,
            }
            checkpoints["every"] = 2
        elif self.policy == "world_action":
            changes |= {
                "policy": world_action_settings(data.parent / "tokenizer.model"),
                "mode": "joint",
            }
        lora = {"rank": self.lora, "base": self.lora_base}
        config = tiny_config(
            data, out, parallel=parallel, checkpoint=checkpoints, log={"every": 2}, lora=lora
        )
        return override(config, **changes)


KINDS = (
    Kind((1,)),
    Kind((1,), background=True),
    Kind((2,), shard=2, background=True),
    Kind((2,)),
    Kind((2, 1), background=True),  # from one to the other and back at every kill
)

TOWER = {"depth": 2, "mlp_dim": 32, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
WORLD_ACTION = {
    "vision": {"width": 16, "depth": 1, "mlp": 32, "heads": 2, "patch": 8, "image": 16},
    "vlm": {"width": 24, **TOWER},
    "expert": {"width": 16, **TOWER},
    "vocab": 256,
    "dim": 8,
}
"""Dimensions of a world-action model that trains in a second."""


def world_action_settings(tokenizer: Path, **changes: Any) -> PolicySettings:
    """Settings of a small world-action model with two future images, and the file of its
    tokenizer.
    """
    return policy_type("world_action").settings(
        network=json.dumps(WORLD_ACTION),
        tokenizer=str(tokenizer),
        prompt_tokens=64,
        future_images=2,
        future_patch=8,
        **changes,
    )


def pi05_settings(files: Path) -> PolicySettings:
    """Settings of a pi0.5 of the tiny size, with the tokenizers of `write_tokenizers`."""
    return policy_type("pi05").settings(
        size="tiny",
        image_size=(64, 64),
        tokenizer=str(files / "tokenizer.model"),
        prompt_tokens=64,
        response_tokens=8,
        fast=str(files / "fast"),
        action_tokens=32,
        noise_samples=2,
    )


def write_tokenizers(files: Path) -> None:
    """Write the tokenizers of `pi05_settings`; needs the extra pi05."""
    from understudy.policies.common.fast_tokenizer import FastTokenizer
    from understudy.testing.sentences import write_model

    write_model(files)
    FastTokenizer.fit(np.random.default_rng(0).uniform(-1, 1, (300, 3, 2)), 400).save(
        files / "fast"
    )


@dataclass(frozen=True)
class Victim:
    """The rank to kill, and when: before its change number `change`, before change `in_save` inside
    saves, or `seconds` after the start.
    """

    rank: int
    change: int | None = None
    in_save: int | None = None
    seconds: float | None = None


@dataclass
class Tally:
    """Result of the kills."""

    kills: int = 0
    in_saves: int = 0
    """Kills inside a save; the survivor may have removed the unfinished checkpoint."""
    attempts: int = 0
    finished: int = 0
    looked_at: int = 0
    """Checkpoints compared with the uninterrupted run after kills."""
    slowest: float = 0.0
    """Longest time in seconds that a rank took to end after the other one was killed."""
    wrong: list[str] = field(default_factory=list)


class Changes:
    """Count changes of files below `root`; end the process without notice before the victim's
    change.
    """

    def __init__(self, root: Path, victim: Victim | None) -> None:
        self.root = str(root)
        self.victim = victim or Victim(0)
        self.count = self.count_in_saves = 0
        self.saving = False
        slow = 0.0 if self.victim.seconds is None else 0.02
        sys.addaudithook(self.audit)
        plain = os.fsync

        def fsync(handle: int) -> None:
            self.happens()
            time.sleep(slow)
            plain(handle)

        os.fsync = fsync

    def audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if event not in CHANGES:
            return
        path = str(arguments[event == "os.link"])  # a link's first argument is the file that exists
        if not path.startswith(self.root + "/"):
            return
        if event == "open" and not (
            isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        ):
            return
        self.saving = ".tmp" in path
        self.happens()

    def happens(self) -> None:
        if self.count == self.victim.change or (
            self.saving and self.count_in_saves == self.victim.in_save
        ):
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        self.count_in_saves += self.saving


def attempt(
    kind: Kind, number: int, data: Path, out: Path, victim: Victim | None, tally: Tally
) -> list[int] | None:
    """Start or resume the run; returns the changes that each rank made, or None if the victim
    died.
    """
    world = kind.worlds[number % len(kind.worlds)]
    held = socket.socket()  # until the ranks have ended
    port = str(reserved(held))
    tally.attempts += 1
    started = time.monotonic()
    ranks = []
    for rank in range(world):
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reading)
            place = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": world,
                "LOCAL_WORLD_SIZE": world,
            }
            os.environ.update({name: str(value) for name, value in place.items()})
            os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
            mine = victim if victim is not None and victim.rank == rank else None
            _live(kind, number, data, out, Changes(out, mine), writing)
        os.close(writing)
        ranks.append((child, reading))
    if victim is not None and victim.seconds is not None:
        if world > 1:
            # a rank that has not met the victim would wait for it; a launcher ends it then
            for _, reading in ranks:
                select.select([reading], [], [], PATIENCE)
        time.sleep(max(0.0, started + victim.seconds - time.monotonic()))
        # not yet waited for, so its number is not reused
        os.kill(ranks[victim.rank][0], signal.SIGKILL)
    counts = _ended(ranks, victim, out, tally)
    held.close()
    return counts


def _live(kind: Kind, number: int, data: Path, out: Path, changes: Changes, writing: int) -> None:
    """Run a rank. Does not return."""
    join = torch.distributed.init_process_group

    def meet(*arguments: Any, **options: Any) -> None:
        join(*arguments, **options)
        os.write(writing, b" ")

    torch.distributed.init_process_group = meet
    try:
        with open(out.with_name(f"{out.name}.log"), "a") as log:
            os.dup2(log.fileno(), 2)
            with watched(out, session=number):
                begun = RunDir(out).config.exists()
                if begun:
                    settings = override(RunDir(out).settings(), log={"report": False})
                code = run.resume(settings) if begun else run.train(kind.config(data, out))
        os.write(writing, str(changes.count).encode())
        os._exit(code)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(99)


def _ended(
    ranks: list[tuple[int, int]], victim: Victim | None, out: Path, tally: Tally
) -> list[int] | None:
    """Wait for all ranks. A rank beside a victim must end by itself."""
    codes: dict[int, int] = {}
    died = None
    while len(codes) < len(ranks):
        for rank, (child, _) in enumerate(ranks):
            if rank in codes:
                continue
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                codes[rank] = os.waitstatus_to_exitcode(status)
                died = time.monotonic() if died is None and codes[rank] == -signal.SIGKILL else died
        if died is not None and time.monotonic() - died > PATIENCE:
            tally.wrong.append(f"{out.name}: a rank hangs after the other one was killed")
            for rank, (child, _) in enumerate(ranks):
                if rank not in codes:
                    os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    if died is not None:
        tally.slowest = max(tally.slowest, time.monotonic() - died)
    counts = []
    for _, reading in ranks:
        with os.fdopen(reading) as pipe:
            counts.append(int(pipe.read().strip() or 0))
    if victim is not None and codes[victim.rank] == -signal.SIGKILL:
        return None
    if any(codes.values()):
        tally.wrong.append(
            f"{out.name}: ended with {codes}: {out.with_name(out.name + '.log').read_text()[-600:]}"
        )
    return counts


@dataclass(frozen=True)
class Whole:
    """An uninterrupted run of a kind."""

    out: Path
    changes: list[int]
    """Changes of the disk, by each rank."""
    seconds: float
    digests: dict[int, str]
    """Step -> hash of all tensors of its checkpoint."""


def uninterrupted(kind: Kind, data: Path, out: Path, tally: Tally) -> Whole:
    began = time.monotonic()
    changes = attempt(replace(kind, worlds=kind.worlds[:1], keep=99), 0, data, out, None, tally)
    seconds = time.monotonic() - began
    assert changes is not None
    found = {
        step: out / f"checkpoints/step-{step:08d}"
        for step in checkpoint.list_steps(out / "checkpoints")
    }
    digests = {step: digest(checkpoint.read_tensors(path)) for step, path in found.items()}
    return Whole(out, changes, seconds, digests)


def lineage(
    kind: Kind, whole: Whole, data: Path, out: Path, kills: int, draw: random.Random, tally: Tally
) -> None:
    """Kill one run `kills` times, then let it end. Compare after each kill and at the end."""
    number = killed = 0
    while killed < kills and number < 4 * kills:
        rank = draw.randrange(kind.worlds[number % len(kind.worlds)])
        # A resumed run has fewer steps left.
        steps = whole.digests
        reached = checkpoint.list_steps(out / "checkpoints")
        latest = reached[-1] if reached else 0
        left = 1 - latest / max(steps)
        if killed % 3 == 0:
            end = 8 if rank == 0 else 3
            victim = Victim(rank, in_save=draw.randrange(1, end))
        elif killed % 3 == 1:
            victim = Victim(
                rank, seconds=draw.uniform(0.1, 0.9) * whole.seconds * (0.2 + 0.8 * left)
            )
        else:
            most = whole.changes[min(rank, len(whole.changes) - 1)]
            victim = Victim(rank, change=draw.randrange(max(1, int(most * left))))
        dead = attempt(kind, number, data, out, victim, tally) is None
        number += 1
        if dead:
            killed += 1
            tally.in_saves += victim.in_save is not None or any((out / "checkpoints").glob("*.tmp"))
            _look(kind, whole, out, tally)
        elif RunDir(out).policy.exists():
            break
        if tally.wrong:
            break
    tally.kills += killed
    if not tally.wrong:
        attempt(kind, number, data, out, None, tally)
        _compare(kind, whole, out, tally)
        tally.finished += 1


def _look(kind: Kind, whole: Whole, out: Path, tally: Tally) -> None:
    """Every name without .tmp is a promise."""
    for step in checkpoint.list_steps(out / "checkpoints"):
        try:
            tensors = checkpoint.read_tensors(out / f"checkpoints/step-{step:08d}")
        except OSError as error:
            tally.wrong.append(f"{out.name}: torn: {error}")
            continue
        tally.looked_at += 1
        if len(kind.worlds) == 1 and digest(tensors) != whole.digests[step]:
            tally.wrong.append(f"{out.name}: step {step} differs from the uninterrupted run")


def _compare(kind: Kind, whole: Whole, out: Path, tally: Tally) -> None:
    if tally.wrong:
        return
    try:
        if len(kind.worlds) == 1:
            same_run(whole.out, out)
        else:  # position-exact: sums are rounded in another sequence
            one = series(whole.out)
            two = series(out)
            assert [r["step"] for r in one] == [r["step"] for r in two]
            assert all(abs(a["loss"] - b["loss"]) < 1e-3 * a["loss"] for a, b in zip(one, two))
        config = RunDir(out).settings()
        assert consumed(out) == Counter(range(config.steps * config.batch_size)), (
            "a position was lost or used twice"
        )
        assert not list((out / "checkpoints").glob("*.tmp"))
    except AssertionError as error:
        tally.wrong.append(f"{out.name}: {str(error)[:300]}")


def torn() -> None:
    """Negative control: write checkpoints under their final name."""
    checkpoint.unfinished_path = lambda final: final  # type: ignore[assignment]


def main(
    data: Path, out: Path, kinds: tuple[Kind, ...], kills: int, per_run: int, seed: int
) -> dict[str, Any]:
    """Kill `kills` times, in runs of all `kinds` in turn, each killed `per_run` times."""
    draw = random.Random(seed)
    tally = Tally()
    wholes = dict[Kind, Whole]()
    if any(kind.policy != "flow" for kind in kinds):
        write_tokenizers(data.parent)
    began = time.monotonic()
    number = 0
    while tally.kills < kills and not tally.wrong:
        kind = kinds[number % len(kinds)]
        if kind not in wholes:
            wholes[kind] = uninterrupted(kind, data, out / f"whole-{len(wholes)}", tally)
            if tally.wrong:
                break
        name = out / f"killed-{number}"
        left = min(per_run, kills - tally.kills)
        lineage(kind, wholes[kind], data, name, left, draw, tally)
        number += 1
    return {
        **vars(tally),
        "kinds": [str(kind) for kind in kinds],
        "seconds": time.monotonic() - began,
    }
