"""Several processes of one run, for tests: a function called in N ranks at once, and what each of them returned.

A server process imports torch once and forks every rank from it, so ranks cost milliseconds and not three seconds each.
What a rank does is a module-level function of a test file or of `support`; arguments and results are pickled. Pack many
asserts into one call all the same: the ranks share the cores with whatever else runs.
"""

import importlib.util
import inspect
import multiprocessing
import os
import pickle
import socket
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
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


class RankFailed(AssertionError):
    """A rank raised, died, or did not end in time; the message has every rank's traceback or exit code."""


def in_ranks(world: int, function: Callable[..., Any], *arguments: Any, timeout: float = 600) -> list[Any]:
    """`function(*arguments)` in `world` processes which are told who they are as torchrun would; results by rank.

    Raises:
        RankFailed: unless every rank returned within `timeout` seconds; no process is left behind.
    """
    outcomes = outcomes_in_ranks(world, function, *arguments, timeout=timeout)
    if any(kind != "returned" for kind, _ in outcomes):
        raise RankFailed("\n".join(f"rank {rank} {kind}: {value}" for rank, (kind, value) in enumerate(outcomes)))
    return [value for _, value in outcomes]


def outcomes_in_ranks(
    world: int, function: Callable[..., Any], *arguments: Any, timeout: float = 600
) -> list[tuple[str, Any]]:
    """As `in_ranks`, for ranks that are meant to fail: ("returned", value), ("raised", traceback), ("died", exit code)
    or ("hung", None) by rank."""
    held = socket.socket()
    place = {"WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": reserved(held)}
    file, name = inspect.getfile(function), function.__qualname__
    started, ends = [], []
    # The server has the environment and the arithmetic threads of the moment in which it is started.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for rank in range(world):
        ours, theirs = SERVER.Pipe(duplex=False)
        environment = {key: str(value) for key, value in {**place, "RANK": rank, "LOCAL_RANK": rank}.items()}
        process = SERVER.Process(target=_rank, args=(theirs, environment, file, name, arguments), daemon=True)
        process.start()
        theirs.close()
        started.append(process)
        ends.append(ours)
    try:
        return _outcomes(started, ends, time.monotonic() + timeout)
    finally:
        for process, end in zip(started, ends):
            process.kill()
            process.join()
            end.close()
        held.close()


def reserved(held: socket.socket) -> int:
    """A free port where rank 0's store may listen while `held` is open, and which nobody else is given meanwhile."""
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


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


def _rank(out: Connection, environment: dict[str, str], file: str, name: str, arguments: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    if str(TESTS) not in sys.path:
        sys.path.insert(0, str(TESTS))
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
    # Without the goodbyes of an interpreter, which could wait for peers that are gone.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _module(file: str) -> Any:
    """The module of a file, under a name of its own: pytest's name for a test file cannot be imported elsewhere."""
    name = "rank_" + Path(file).stem
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]
