"""`understudy train --launch N`: N processes of one command on this host, which stop, fail and
finish as one.

The processes get torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR,
MASTER_PORT), so `torchrun --nproc-per-node N -m understudy train ...` runs the same training. But
torchrun cannot end it as a scheduler needs: it exits with 1 for every code but 0, so "stopped with
a checkpoint, requeue me" (75) looks like a failure; it sends SIGTERM to all ranks when one exits
with another code than 0, even while others are writing; and by default SIGUSR1 kills it and leaves
its workers behind. Here

  - a signal is forwarded to every rank, and the ranks decide: none is stopped in the middle of a
    checkpoint;
  - the exit code comes from the ranks: 0, 75, or that of the first one that failed;
  - a rank that dies ends the others within seconds, and its last output is shown;
  - the ranks end when this process does, in any way.

No torch: the launcher costs nothing next to its ranks.
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

from understudy_base import ConfigError
from understudy_kit.config.limits import HostLimit

STOPPED = 75
FAILED = 1
WAKE = 0.5
"""Seconds between wake-ups of the main thread: a signal delivered to another thread does not wake
it.
"""
SETTLE = 0.5  # seconds to collect other failures: the first rank to exit is not always the cause
GRACE = 5.0  # seconds between SIGTERM and SIGKILL
TAIL = 8192  # bytes of a silent rank's latest output, shown if it fails
MAX_RANKS = 4  # failed ranks whose last output is shown
PORT = 29500  # torch's default, for hosts that must agree without communication
FORWARDED = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGUSR1: signal.SIGUSR1,
    signal.SIGHUP: signal.SIGTERM,  # the terminal is gone: a stop request
}


@dataclass(frozen=True)
class Hosts:
    """Number and index of the hosts of a job, and the address of rank 0."""

    count: int
    index: int
    address: str
    port: int | None
    """None for any free port, with a single host."""


def read_hosts(environment: Mapping[str, str]) -> Hosts:
    """Read NNODES, NODE_RANK, MASTER_ADDR and MASTER_PORT; the default is a single host.

    Raises:
        ConfigError: a value is not a number or out of range, several hosts have no common address,
            or the environment is already that of one rank.
    """
    if "RANK" in environment:
        conflict = (
            f"--launch: this process is already rank {environment['RANK']} of another "
            "launcher's job"
        )
        raise ConfigError(f"{conflict}; leave --launch out, or unset RANK")
    count = _number(environment, "NNODES", 1, 1)
    index = _number(environment, "NODE_RANK", 0, 0, count - 1)
    port = None
    if count > 1 or "MASTER_PORT" in environment:
        port = _number(environment, "MASTER_PORT", PORT, 1, 65535)
    address = environment.get("MASTER_ADDR", "")
    if count > 1 and not address:
        raise ConfigError(
            f"NNODES={count} but MASTER_ADDR is not set: set it to the host of NODE_RANK=0"
        )
    if count > 1 and "NODE_RANK" not in environment:
        raise ConfigError(
            f"NNODES={count} but NODE_RANK is not set: number the hosts from 0 to {count - 1}"
        )
    return Hosts(count, index, address or "127.0.0.1", port)


def _number(
    environment: Mapping[str, str], name: str, default: int, low: int, high: int | None = None
) -> int:
    text = environment.get(name, str(default))
    limits = f"from {low} to {high}" if high is not None else f"at least {low}"
    if (
        not text.isascii()
        or not text.isdigit()
        or int(text) < low
        or (high is not None and int(text) > high)
    ):
        raise ConfigError(f"{name}={text!r}: must be a whole number, {limits}")
    return int(text)


def launch(command: Sequence[str], count: int, name: str = "understudy") -> int:
    """Run `count` processes of `command` on this host until they end, and return their exit code.

    Only global rank 0 writes to this process's output; the last lines of each other rank are shown
    if it fails. SIGTERM, SIGINT and SIGUSR1 are forwarded to every rank.

    Args:
        command: program and arguments.
        count: number of processes.
        name: name of the program in messages.

    Returns:
        0 if all ranks ended with it, 75 if they stopped with a checkpoint, the code of the first
        that failed (1 if a signal killed it), 128 + n if signal n was forwarded before the ranks
        could handle it.

    Raises:
        ConfigError: see `read_hosts`, or this host cannot run that many processes.
    """
    if count < 1:
        raise ConfigError(f"--launch {count}: at least 1 process")
    for line in HostLimit.PROCESSES.problems("--launch", count):
        raise ConfigError(line)
    where = read_hosts(os.environ)
    with closing(socket.socket()) as held:
        port = where.port if where.port is not None else reserve_port(held)
        ranks = [Rank(where.index * count + local, where.count * count) for local in range(count)]
        received: list[signal.Signals] = []
        with _forward_signals(ranks, received):
            try:
                for local, rank in enumerate(ranks):
                    rank.start(command, _environment(where, port, local, count))
                return watch_ranks(ranks, received, name)
            finally:
                _stop(ranks)


def module_command(module: str) -> list[str]:
    """Return the command of `python -m MODULE`, which imports from the same folders as this
    process.

    By itself `-m` puts the working directory first on `sys.path`. There, in the folder of a
    stranger, a file of the name of any module would be imported.
    """
    try:
        is_on_path = os.getcwd() in {os.path.abspath(entry) for entry in sys.path}
    except OSError:  # the folder was removed
        is_on_path = False
    safe = [] if is_on_path else ["-P"]
    return [sys.executable, *safe, "-m", module]


def reserve_port(held: socket.socket) -> int:
    """Reserve a free port.

    Other programs that ask for any free port get another one. Rank 0's store may listen on this
    one: it allows the address to be reused, as this socket does.
    """
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


def _environment(where: Hosts, port: int, local: int, count: int) -> dict[str, str]:
    variables = {
        "RANK": where.index * count + local,
        "WORLD_SIZE": where.count * count,
        "LOCAL_RANK": local,
        "LOCAL_WORLD_SIZE": count,
        "GROUP_RANK": where.index,
        "GROUP_WORLD_SIZE": where.count,
        "MASTER_ADDR": where.address,
        "MASTER_PORT": port,
    }
    # By default every rank would start a thread per core.
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    return {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        **{key: str(value) for key, value in variables.items()},
    }


@dataclass(eq=False)
class Rank:
    """One process, its exit code and its last output."""

    number: int
    world: int
    process: subprocess.Popen[bytes] | None = None
    code: int | None = None
    """As in `subprocess`: the negative number of a signal that killed it."""
    early: list[int] = field(default_factory=list)
    """Signals that arrived while the process was being started."""
    tail: bytearray = field(default_factory=bytearray)
    listener: threading.Thread | None = None

    @property
    def silent(self) -> bool:
        """Whether its output is not shown."""
        return self.number != 0

    def start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the process and send it the signals that arrived before."""
        output = subprocess.PIPE if self.silent else None
        errors = subprocess.STDOUT if self.silent else None
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,  # Ctrl-C reaches only this process, which forwards it once
            preexec_fn=_die_with_parent(),
        )
        while self.early:
            self.signal(self.early.pop(0))
        if self.silent:
            self.listener = threading.Thread(target=self._listen, daemon=True)
            self.listener.start()

    def _listen(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while output := self.process.stdout.read1(65536):  # type: ignore[attr-defined]
            self.tail += output
            del self.tail[:-TAIL]

    def last_lines(self) -> list[str]:
        """Last lines of output, of a silent rank that has exited."""
        if self.listener is not None:
            self.listener.join(1.0)  # its children may hold the pipe open for longer
        return self.tail.decode(errors="replace").strip().splitlines()

    def wait(self, ended: "queue.Queue[Rank]") -> None:
        """Wait until the process has ended, note its exit code, and put the rank into `ended`."""
        assert self.process is not None
        self.code = self.process.wait()
        ended.put(self)

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, as soon as it exists, or to all of its children, too."""
        if self.process is None:
            self.early.append(number)
            return
        if self.process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            if group:
                os.killpg(self.process.pid, number)
            else:
                os.kill(self.process.pid, number)


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function for a child that asks the kernel (Linux) for a SIGTERM when this process
    dies, also by SIGKILL.

    The rank then saves and exits. Otherwise the ranks would continue training without a launcher.
    """
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None)
    parent = os.getpid()
    PR_SET_PDEATHSIG = 1

    def ask() -> None:
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM))
        if os.getppid() != parent:
            os._exit(FAILED)  # the parent died first

    return ask


@contextmanager
def _forward_signals(ranks: Sequence[Rank], received: list[signal.Signals]) -> Iterator[None]:
    """Forward signals in `FORWARDED` to all ranks within this context, and note them in
    `received`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def forward(number: int, _: FrameType | None) -> None:
        received.append(signal.Signals(number))
        for rank in ranks:
            rank.signal(FORWARDED[signal.Signals(number)])

    previous_handlers = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def watch_ranks(ranks: Sequence[Rank], received: Sequence[signal.Signals], name: str) -> int:
    """Wait until all ranks have ended or one has failed; returns the exit code."""
    # Not a SimpleQueue: it would wait forever if a signal handler outlasts the timeout.
    ended: queue.Queue[Rank] = queue.Queue()
    for rank in ranks:
        threading.Thread(target=rank.wait, args=(ended,), daemon=True).start()
    left = len(ranks)
    failed = list[Rank]()
    while left and not failed:
        try:
            rank = ended.get(timeout=WAKE)
            left = left - 1
        except queue.Empty:
            continue
        if rank.code not in (0, STOPPED):
            failed.append(rank)
    if not failed:
        return max(rank.code or 0 for rank in ranks)
    until = time.monotonic() + SETTLE
    with suppress(queue.Empty):
        while left:
            rank = ended.get(timeout=max(0.0, until - time.monotonic()))
            left = left - 1
            if rank.code not in (0, STOPPED):
                failed.append(rank)
    _stop(ranks)  # first: what rank 0 prints when it is stopped must not hide the cause
    return report_failure(failed, received, name)


def report_failure(failed: Sequence[Rank], received: Sequence[signal.Signals], name: str) -> int:
    """Print the failed ranks, in the sequence of their exits, and return the exit code of the
    job.
    """
    # A killed rank is a cause; the others may have failed because of it.
    first = min(failed, key=lambda rank: (rank.code or 0) >= 0)
    for number in received:
        if first.code in (-FORWARDED[number], 128 + FORWARDED[number]):
            print(
                f"{name}: {number.name} arrived before there was anything to save", file=sys.stderr
            )
            return 128 + number
    shown = [rank for rank in failed if not rank.silent and rank.code == first.code]
    if shown and (first.code or 0) > 1:
        return first.code or FAILED  # wrong input: all ranks found it, and rank 0 printed the error
    lines = [
        f"{name}: rank {first.number} of {first.world} {_describe_exit(first)}; the others were "
        "stopped"
    ]
    lines += [
        f"  rank {rank.number} then {_describe_exit(rank)}" for rank in failed if rank is not first
    ]
    # The first to exit may only have noticed the failure of another one.
    for rank in [first, *(rank for rank in failed if rank is not first)][:MAX_RANKS]:
        most_lines = 30 if rank is first else 5
        if output := rank.last_lines()[-most_lines:]:
            lines += [f"  last output of rank {rank.number}:", *(f"  | {line}" for line in output)]
    print("\n".join(lines), file=sys.stderr)
    return max(first.code or 0, FAILED)


def _describe_exit(rank: Rank) -> str:
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


def _stop(ranks: Sequence[Rank]) -> None:
    """Whatever still runs leaves now: received first, then made to. A rank that waits for a dead
    one cannot listen.
    """
    for rank in ranks:
        rank.signal(signal.SIGTERM)
    until = time.monotonic() + GRACE
    for rank in ranks:
        if rank.process is None:
            continue
        try:
            rank.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.signal(signal.SIGKILL, group=True)
            rank.process.wait()
