"""`understudy train --launch N`: N processes of one command on this host, which stop, fail and finish as one.

The processes are told who they are in the words of torchrun (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE,
MASTER_ADDR, MASTER_PORT), so `torchrun --nproc-per-node N -m understudy train ...` runs the same training. What
torchrun cannot do is end it the way a scheduler needs: it answers every end but 0 with 1, so nobody could tell "stopped
with a checkpoint, requeue me" (75) from a failure; it sends SIGTERM to all ranks as soon as one has left with anything
but 0, also while another is still writing; and by default SIGUSR1 kills it and leaves its workers behind. Here

  - a signal goes on to every rank, and the ranks decide: nobody is stopped in the middle of a checkpoint;
  - the exit code is that of the ranks: 0, 75, or that of the first one that failed;
  - a rank that dies ends the others within seconds, and what it said last is shown;
  - the ranks end when this process does, however it does.

No torch here: the launcher costs nothing beside its ranks.
"""

import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from understudy.config.limits import PROCESSES, too_many
from understudy.errors import ConfigError

STOPPED = 75
FAILED = 1
WAKE = 0.5
"""Seconds after which the main thread looks up: a signal that the system gives to another thread wakes it not."""
SETTLE = 0.5  # seconds to see who else fails: the first to leave is not always the one to blame
GRACE = 5.0  # seconds between asking the others to leave and making them
TAIL = 8192  # bytes of a silent rank's output that are kept for the case that it fails
SHOWN = 4  # ranks that failed whose last words are shown
PORT = 29500  # torch's own, where hosts must agree without talking
FORWARDED = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGHUP: signal.SIGTERM,  # the terminal is gone: stop as if asked to
}


@dataclass(frozen=True)
class Hosts:
    """Where this host stands among those of the job, and where its rank 0 listens."""

    count: int
    index: int
    address: str
    port: int | None
    """None: any free one, where there is a single host."""


def hosts(environment: Mapping[str, str]) -> Hosts:
    """NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT as far as they are set; without them this host is alone.

    Raises:
        ConfigError: a value that is no number or out of its range, several hosts without an address where they meet,
            or an environment that already is that of one rank.
    """
    if "RANK" in environment:
        what = f"--launch: this process already is rank {environment['RANK']} of a job that something else launched"
        raise ConfigError(f"{what}; leave --launch out, or unset RANK")
    count = _number(environment, "NNODES", 1, 1)
    index = _number(environment, "NODE_RANK", 0, 0, count - 1)
    port = _number(environment, "MASTER_PORT", PORT, 1, 65535) if count > 1 or "MASTER_PORT" in environment else None
    address = environment.get("MASTER_ADDR", "")
    if count > 1 and not address:
        raise ConfigError(f"NNODES={count} but MASTER_ADDR is not set: name the host of NODE_RANK=0")
    if count > 1 and "NODE_RANK" not in environment:
        raise ConfigError(f"NNODES={count} but NODE_RANK is not set: number the hosts from 0 to {count - 1}")
    return Hosts(count, index, address or "127.0.0.1", port)


def _number(environment: Mapping[str, str], name: str, default: int, low: int, high: int | None = None) -> int:
    text = environment.get(name, str(default))
    limits = f"from {low} to {high}" if high is not None else f"at least {low}"
    if not text.isascii() or not text.isdigit() or int(text) < low or (high is not None and int(text) > high):
        raise ConfigError(f"{name}={text!r}: must be a whole number, {limits}")
    return int(text)


def launch(command: Sequence[str], count: int, name: str = "understudy") -> int:
    """Run `count` processes of `command` on this host until they end, and return their exit code.

    Only global rank 0 writes to this process's output; of each other rank the last lines are kept, and shown if it
    fails. SIGTERM, SIGINT and SIGUSR1 are handed to every rank.

    Returns:
        0 when all ranks have, 75 when they stopped with a checkpoint, the code of the first that failed (1 if a signal
        killed it), 128 + n when signal n was handed on before the ranks could listen to it.
    Raises:
        ConfigError: see `hosts`, or a count that this host cannot run.
    """
    if count < 1:
        raise ConfigError(f"--launch {count}: at least 1 process")
    for line in too_many("--launch", count, PROCESSES):
        raise ConfigError(line)
    where = hosts(os.environ)
    with closing(socket.socket()) as held:
        port = where.port if where.port is not None else _reserve(held)
        ranks = [_Rank(where.index * count + local, where.count * count) for local in range(count)]
        asked: list[signal.Signals] = []
        with _forwarding(ranks, asked):
            try:
                for local, rank in enumerate(ranks):
                    rank.start(command, _environment(where, port, local, count))
                return _watch(ranks, asked, name)
            finally:
                _end(ranks)


def _reserve(held: socket.socket) -> int:
    """A free port that stays ours: another program that asks for any free port is given another one, but rank 0's
    store, which like this socket allows the address to be reused, may listen on it."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


def _environment(where: Hosts, port: int, local: int, count: int) -> dict[str, str]:
    told = {
        "RANK": where.index * count + local,
        "WORLD_SIZE": where.count * count,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": count,
        "GROUP_RANK": where.index,
        "GROUP_WORLD_SIZE": where.count,
        "MASTER_ADDR": where.address,
        "MASTER_PORT": port,
    }
    # Without a word about it every rank would start a thread per core.
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return {**os.environ, "OMP_NUM_THREADS": threads, **{key: str(value) for key, value in told.items()}}


@dataclass(eq=False)
class _Rank:
    """One process, its end and its last words."""

    number: int
    world: int
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None
    """As in `subprocess`: minus the signal's number when one killed it."""
    early: list[int] = field(default_factory=list)
    """Signals that came while it was being started, when it may already run and has no process to send them to."""
    tail: bytearray = field(default_factory=bytearray)
    listener: threading.Thread | None = None

    @property
    def silent(self) -> bool:
        return self.number != 0

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self.silent else None,
            stderr=subprocess.STDOUT if self.silent else None,
            start_new_session=True,  # a Ctrl-C reaches this process alone, which hands it on once
            preexec_fn=_ends_with_parent(),
        )
        while self.early:
            self.signal(self.early.pop(0))
        if self.silent:
            self.listener = threading.Thread(target=self._listen, daemon=True)
            self.listener.start()

    def _listen(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while said := self.process.stdout.read1(65536):  # type: ignore[attr-defined]
            self.tail += said
            del self.tail[:-TAIL]

    def last_words(self) -> list[str]:
        """Lines; only of a silent rank that has left."""
        if self.listener is not None:
            self.listener.join(1.0)  # what it started may hold the pipe open for longer
        return self.tail.decode(errors="replace").strip().splitlines()

    def wait(self, ended: "queue.Queue[_Rank]") -> None:
        assert self.process is not None
        self.code = self.process.wait()
        ended.put(self)

    def signal(self, number: int, everything: bool = False) -> None:
        """To the process, as soon as there is one, or to everything that it has started."""
        if self.process is None:
            self.early.append(number)
            return
        if self.process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number) if everything else os.kill(self.process.pid, number)


def _ends_with_parent() -> Callable[[], None] | None:
    """What a child does first: ask the kernel (Linux) for a SIGTERM when this process dies, also by SIGKILL. It then
    saves and leaves; without it a launcher killed by its scheduler would leave the ranks training behind its back."""
    if not sys.platform.startswith("linux"):
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()
    PR_SET_PDEATHSIG = 1

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:
            os._exit(FAILED)  # it died before we could ask

    return ask


@contextmanager
def _forwarding(ranks: Sequence[_Rank], asked: list[signal.Signals]) -> Iterator[None]:
    """While this lasts, signals of `FORWARDED` go to all ranks and are noted in `asked`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _: FrameType | None) -> None:
        asked.append(signal.Signals(number))
        for rank in ranks:
            rank.signal(FORWARDED[signal.Signals(number)])

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _watch(ranks: Sequence[_Rank], asked: Sequence[signal.Signals], name: str) -> int:
    """Until all have left as they should, or one has not."""
    # No SimpleQueue: a signal handler that outlasts the timeout has it wait for ever.
    ended: queue.Queue[_Rank] = queue.Queue()
    for rank in ranks:
        threading.Thread(target=rank.wait, args=(ended,), daemon=True).start()
    left, failed = len(ranks), list[_Rank]()
    while left and not failed:
        try:
            rank, left = ended.get(timeout=WAKE), left - 1
        except queue.Empty:
            continue
        failed += [rank] if rank.code not in (0, STOPPED) else []
    if not failed:
        return max(rank.code or 0 for rank in ranks)
    until = time.monotonic() + SETTLE
    with suppress(queue.Empty):
        while left:
            rank, left = ended.get(timeout=max(0.0, until - time.monotonic())), left - 1
            failed += [rank] if rank.code not in (0, STOPPED) else []
    return _blame(failed, asked, name)


def _blame(failed: Sequence[_Rank], asked: Sequence[signal.Signals], name: str) -> int:
    """Say who failed and how; `failed` in the sequence in which they left. Returns the exit code of it all."""
    # Whoever was killed did not fail because of the others; the others may have failed because of it.
    first = min(failed, key=lambda rank: (rank.code or 0) >= 0)
    for number in asked:
        if first.code == -FORWARDED[number]:
            print(f"{name}: {number.name} came before there was anything to save", file=sys.stderr)
            return 128 + number
    told = [rank for rank in failed if not rank.silent and rank.code == first.code]
    if told and (first.code or 0) > 1:
        return first.code or FAILED  # wrong input: rank 0 has said what is wrong with it, and all have found it
    lines = [f"{name}: rank {first.number} of {first.world} {_how(first)}; the others were stopped"]
    lines += [f"  rank {rank.number} then {_how(rank)}" for rank in failed if rank is not first]
    # The first to leave may only have noticed that another one was about to.
    for rank in [first, *(rank for rank in failed if rank is not first)][:SHOWN]:
        if said := rank.last_words()[-30 if rank is first else -5 :]:
            lines += [f"  the last that rank {rank.number} said:", *(f"  | {line}" for line in said)]
    print("\n".join(lines), file=sys.stderr)
    return max(first.code or 0, FAILED)


def _how(rank: _Rank) -> str:
    assert rank.process is not None
    code = rank.code or 0
    if code >= 0:
        return f"failed with exit code {code} (process {rank.process.pid})"
    try:
        killer = signal.Signals(-code).name
    except ValueError:
        killer = f"signal {-code}"
    hint = ", by the kernel if memory ran out" if -code == signal.SIGKILL else ""
    return f"was killed by {killer} (process {rank.process.pid}{hint})"


def _end(ranks: Sequence[_Rank]) -> None:
    """Whatever still runs leaves now: asked first, then made to. A rank that waits for a dead one cannot listen."""
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    until = time.monotonic() + GRACE
    for rank in ranks:
        if rank.process is None:
            continue
        try:
            rank.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.signal(signal.SIGKILL, everything=True)
            rank.process.wait()
