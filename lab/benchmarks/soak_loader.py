"""Soak test of the loader: memory stays flat at full rate, and kills and restarts leave the stream
unchanged.

    python lab/benchmarks/soak_loader.py [--minutes 30] [--kills 1000] [--data PATH] [--cache DIR]

Prints a row of the tables of lab/journal/reliability.md for each; exit code 1 if one fails.
Without --data it uses the images of `loader.py` (AV1, a key frame every 2, 224 pixels), made on the
first run: all 256 episodes at full rate, eight of them for the kills, because an uninterrupted run
must repeat all batches of the victims.

A victim is a process forked from this one, which has all imports and no open files. It opens the
dataset and the saved order and loads from the last position reached, with another number of threads
each time. SIGKILL ends it at a random instant, on average after some batches, often before the
first. It writes a hash of each batch as the batch is used. `soak_trainer.py` does the same to the
trainer.
"""

import argparse
import hashlib
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.utils.data

from common import CACHE, conditions
from loader_sets import Encoding, Recording, joined
from loader_trial import Setting
from understudy import Loader, Order, keep_freed_memory
from understudy_data.load.loader import Batch

STRETCHES = 10  # of equal length, whose median memories are compared
# factors of the time given, after a victim with no batch and after one with some:
LONGER = 1.05
SHORTER = 0.98
# three in ten die before their first batch, on a machine of any load


def resident_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def fingerprint(batch: Batch) -> str:
    """A hash of everything in a batch."""
    hashed = hashlib.blake2b(digest_size=16)
    for key in sorted(batch):
        value = batch[key]
        hashed.update(key.encode())
        if isinstance(value, torch.Tensor):
            hashed.update(f"{value.dtype} {tuple(value.shape)}".encode())
            hashed.update(value.contiguous().numpy().data)
        else:
            hashed.update(repr(value).encode())
    return hashed.hexdigest()


@dataclass(frozen=True)
class Memory:
    """Result of `steady`. `spread`: the largest median of ten stretches over the smallest, minus
    1.
    """

    seconds: float
    samples: int
    epochs: float
    megabytes: float
    spread: float
    medians: tuple[float, ...]
    """MB, of each stretch: growth shows as a slope."""


def steady(setting: Setting, seconds: float, every: float) -> Memory:
    """Load at full rate and read resident memory `every` seconds, after a tenth of the time to warm
    up.
    """
    data = setting.data()
    order = setting.order(data)
    seen: list[int] = []
    with Loader(
        [data], order=order, num_threads=setting.threads or "auto", memory=setting.memory
    ) as loader:
        start = last = time.monotonic()
        for _ in loader:
            now = time.monotonic()
            if now - last >= every:
                last = now
                if now - start > seconds / 10:
                    seen.append(resident_bytes())
            if now - start >= seconds and len(seen) >= STRETCHES:
                break
        samples = loader.position
    size = len(seen) // STRETCHES
    medians = [median(seen[i * size : (i + 1) * size]) for i in range(STRETCHES)]
    spread = max(medians) / min(medians) - 1
    shown = tuple(round(value / 1e6, 1) for value in medians)
    return Memory(now - start, samples, samples / len(data), median(seen) / 1e6, spread, shown)


@dataclass(frozen=True)
class Kills:
    """Result of `kill_victims`."""

    kills: int
    in_vain: int
    """Victims that died before their first batch."""
    batches: int
    seconds: float
    differs_at: int | None
    """Number of the first batch that differs from the uninterrupted stream; None if all are equal.
    """


def victim(setting: Setting, log: Path, start: int, stop: int | None = None) -> None:
    """Load from `start` (to `stop`), and log each batch after its use."""
    data = setting.data()
    saved = log.with_name("order.json")
    if not saved.exists():  # the first victim has time for it
        saved.write_text(setting.order(data).to_json())
    order = Order.from_json(saved.read_text(), [data])
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Loader(
        [data],
        order=order,
        num_threads=setting.threads or "auto",
        memory=setting.memory,
        position=start,
    ) as loader:
        for batch in loader:
            os.write(
                handle, f"{loader.position - order.batch_size} {fingerprint(batch)}\n".encode()
            )  # whole or not at all
            if stop is not None and loader.position >= stop:
                break


def fork_victim(setting: Setting, log: Path, start: int, stop: int | None = None) -> int:
    """Fork a victim; returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        victim(setting, log, start, stop)
        code = 0
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    finally:
        os._exit(code)


def lines(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def kill_victims(setting: Setting, folder: Path, kills: int, seed: int = 0) -> Kills:
    """Kill victims one after the other, then let one run undisturbed to the same position, and
    compare.

    It kills more than `kills` if none of them delivered a batch.

    Raises:
        RuntimeError: a victim ends by itself or cannot deliver a batch.
    """
    draw = random.Random(seed)
    begun = time.monotonic()
    batch = setting.batch
    log = folder / "killed"
    whole = folder / "whole"
    patience = _until_first(setting, folder / "first")
    reached = 0
    in_vain = 0
    number = 0
    while number < kills or not reached:  # an empty stream proves nothing
        number += 1
        child = fork_victim(replace(setting, threads=draw.randint(1, 4)), log, reached * batch)
        time.sleep(draw.uniform(0, 3 * patience))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            raise RuntimeError(f"a victim ended by itself with {os.waitstatus_to_exitcode(status)}")
        came = len(lines(log))
        in_vain += came == reached
        patience *= LONGER if came == reached else SHORTER
        reached = came
        if patience > 300:
            raise RuntimeError("victims deliver no batch any more")
    _, status = os.waitpid(fork_victim(setting, whole, 0, max(1, reached) * batch), 0)
    if status:
        raise RuntimeError(f"the undisturbed run failed with {os.waitstatus_to_exitcode(status)}")
    return Kills(
        number, in_vain, reached, time.monotonic() - begun, differs_at(lines(log), lines(whole))
    )


def differs_at(broken: list[str], whole: list[str]) -> int | None:
    """Number of the first batch that differs between the interrupted and the whole stream; None if
    all are equal.
    """
    if broken == whole[: len(broken)]:
        return None if broken else 0
    return next(
        (n for n, (one, two) in enumerate(zip(broken, whole, strict=False)) if one != two),
        len(whole),
    )


def _until_first(setting: Setting, log: Path) -> float:
    """Seconds from the fork to the first batch, now."""
    start = time.monotonic()
    child = fork_victim(setting, log, 0)
    while not lines(log):
        time.sleep(0.005)
        if os.waitpid(child, os.WNOHANG)[0]:
            raise RuntimeError("a victim ended by itself")
    seconds = time.monotonic() - start
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return seconds


def dataset(options: argparse.Namespace, tiles: int) -> str:
    """Path of the dataset: that of `--data`, or eight different episodes, repeated `tiles`
    times.
    """
    if options.data:
        return str(options.data)
    recorded = Recording(options.cache, Path(options.real) if options.real else None)
    parts = recorded.encoded(Encoding("libsvtav1", 2, 224))
    return str(joined(recorded.cache / f"soak-224-{tiles}", parts, tiles, cameras=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="at full rate; 0: skip")
    parser.add_argument("--kills", type=int, default=1000, help="number of kills; 0: skip")
    parser.add_argument("--data", default="", help="a dataset to load instead")
    parser.add_argument(
        "--memory", default="200MB", help="memory budget of the loader; less than all images"
    )
    parser.add_argument(
        "--real",
        default=os.environ.get("UNDERSTUDY_TEST_DATA", ""),
        help="folder of real recordings",
    )
    parser.add_argument("--cache", default=CACHE, type=Path, help="for the dataset")
    parser.add_argument("--seed", type=int, default=0, help="of the instants")
    options = parser.parse_args()
    where = conditions()
    passed = True
    place = f"{where['cores']} cores, {where['cpu']}, torch {where['torch']} |"
    date = where["date"].split()[0]
    if options.kills:  # first: forked victims have loaded nothing then
        with tempfile.TemporaryDirectory() as folder:
            setting = Setting(dataset(options, tiles=1), memory=options.memory)
            kills = kill_victims(setting, Path(folder), options.kills, options.seed)
        passed &= kills.differs_at is None
        text = (
            f"{kills.batches:,} batches, {kills.in_vain} killed before their first one, "
            f"{kills.seconds / 60:.0f} min"
        )
        verdict = (
            "every batch as in the uninterrupted run"
            if passed
            else f"FAILED: batch {kills.differs_at} differs"
        )
        print(
            f"| {date} | loader, {kills.kills:,} × SIGKILL and restart | {text} | {verdict} | "
            f"{place}",
            flush=True,
        )
    if options.minutes:
        memory = steady(
            Setting(dataset(options, tiles=32), memory=options.memory),
            options.minutes * 60,
            every=1.0,
        )
        flat = memory.spread <= 0.02
        rate = f"{memory.samples / memory.seconds:,.0f} per second"
        text = f"{memory.samples:,} samples ({memory.epochs:.1f} epochs), {rate}"
        verdict = (
            f"{'' if flat else 'FAILED: '}{memory.megabytes:,.0f} MB, flat within "
            f"{memory.spread:.1%}"
        )
        print(f"MB, stretch by stretch: {', '.join(map(str, memory.medians))}", file=sys.stderr)
        print(
            f"| {date} | loader, {memory.seconds / 60:.0f} min at full rate | {text} | {verdict} | "
            f"{place}"
        )
        passed &= flat
    sys.exit(0 if passed else 1)


if __name__ == "__main__":
    keep_freed_memory()  # as a training run does
    main()
