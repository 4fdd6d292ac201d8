"""Several processes of one run, for tests: call a function in N ranks at once and return the
results of all.

A server process imports torch once and forks every rank from it, so ranks cost milliseconds and not
three seconds each. A rank runs a module-level function of a test file or of `support`; arguments
and results are pickled. Still, pack many asserts into one call: the ranks share the cores with
other processes.
"""

import faulthandler
import gc
import importlib.util
import inspect
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    [
        "torch._dynamo",  # FSDP2 wants it
        "torch.distributed.fsdp",
        "torch.distributed.checkpoint",
        "torch.distributed.checkpoint.staging",
        "understudy.train.run",
        "hypothesis",
        "pytest",
    ]
)


START_TIMEOUT = 300
"""Seconds in which a rank starts: the server imports torch before the first one."""


class RankFailed(AssertionError):
    """A rank raised, died, or did not end in time; the message has every rank's traceback or exit
    code.
    """


def in_ranks(
    world: int, function: Callable[..., Any], *arguments: Any, timeout: float = 600
) -> list[Any]:
    """Call `function(*arguments)` in `world` processes with the environment of torchrun; returns
    results by rank.

    Raises:
        RankFailed: unless every rank returned within `timeout` seconds; no process is left behind.
    """
    outcomes = outcomes_in_ranks(world, function, *arguments, timeout=timeout)
    if any(kind != "returned" for kind, _ in outcomes):
        raise RankFailed(
            "\n".join(f"rank {rank} {kind}: {value}" for rank, (kind, value) in enumerate(outcomes))
        )
    return [value for _, value in outcomes]


def outcomes_in_ranks(
    world: int, function: Callable[..., Any], *arguments: Any, timeout: float = 600
) -> list[tuple[str, Any]]:
    """Like `in_ranks`, for ranks that may fail.

    The seconds of `timeout` count from the moment when all ranks have started, which takes long
    where the server has not imported torch yet.

    Returns ("returned", value), ("raised", traceback), ("died", exit code) or ("hung", the stacks
    of its threads) by rank.
    """
    held = socket.socket()
    place = {
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": world,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": reserved(held),
    }
    file = inspect.getfile(function)
    name = function.__qualname__
    started = []
    ends = []
    folder = tempfile.TemporaryDirectory(prefix="ranks-")
    dumps = [str(Path(folder.name, str(rank))) for rank in range(world)]
    # The server has the environment and the arithmetic threads of its start.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for rank in range(world):
        ours, theirs = SERVER.Pipe(duplex=False)
        environment = {
            key: str(value) for key, value in {**place, "RANK": rank, "LOCAL_RANK": rank}.items()
        }
        process = SERVER.Process(
            target=_rank,
            args=(theirs, dumps[rank], environment, file, name, arguments),
            daemon=True,
        )
        process.start()
        theirs.close()
        started.append(process)
        ends.append(ours)
    try:
        for end in ends:
            _await_start(end)
        outcomes = []
        found = _outcomes(started, ends, time.monotonic() + timeout)
        for process, dump, (kind, value) in zip(started, dumps, found):
            if kind == "hung":
                value = _stacks(process, dump)
            outcomes.append((kind, value))
        return outcomes
    finally:
        for process, end in zip(started, ends):
            process.kill()
            process.join()
            end.close()
        folder.cleanup()
        held.close()


def reserved(held: socket.socket) -> int:
    """A free port for rank 0's store, reserved while `held` is open."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


def _await_start(end: Connection) -> None:
    """Wait for the first message of a rank, which is empty. A rank that died is left to
    `_outcomes`.
    """
    if end.poll(START_TIMEOUT):
        with suppress(EOFError):
            end.recv_bytes()


def _stacks(process: Any, path: str) -> str:
    """The stacks of all threads of a rank that hangs, which writes them to `path` on a signal."""
    os.kill(process.pid, signal.SIGUSR2)
    process.join(1)
    return Path(path).read_text()


def _outcomes(started: list[Any], ends: list[Connection], deadline: float) -> list[tuple[str, Any]]:
    outcomes: list[tuple[str, Any]] = [("hung", None)] * len(started)
    waiting = {end: rank for rank, end in enumerate(ends)}
    while waiting and (left := deadline - time.monotonic()) > 0:
        for end in wait(list(waiting), timeout=left):
            assert isinstance(end, Connection)
            rank = waiting.pop(end)
            try:
                outcomes[rank] = pickle.loads(end.recv_bytes())
            except EOFError:
                started[rank].join(60)
                outcomes[rank] = ("died", started[rank].exitcode)
    return outcomes


def _rank(
    out: Connection,
    stacks: str,
    environment: dict[str, str],
    file: str,
    name: str,
    arguments: tuple[Any, ...],
) -> None:
    descriptor = os.open(stacks, os.O_WRONLY | os.O_CREAT)  # open as long as the process lives
    faulthandler.register(signal.SIGUSR2, descriptor)
    os.environ.update(environment)
    gc.freeze()  # the modules of the server: a training run begins with a search for garbage
    out.send_bytes(b"")
    try:
        import torch

        torch.set_num_threads(1)
        function: Any = _module(file)
        for part in name.split("."):
            function = getattr(function, part)
        result: tuple[str, Any] = ("returned", function(*arguments))
    except BaseException:
        result = ("raised", traceback.format_exc())
    out.send_bytes(pickle.dumps(result))  # `send` would leave tensors in memory of this process
    out.close()
    # Without the exit handlers of the interpreter, which could wait for dead peers.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _module(file: str) -> Any:
    """The module of a file under its own name: other processes cannot import pytest's name for a
    test file.
    """
    name = "rank_" + Path(file).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
