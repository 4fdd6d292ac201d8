"""Work that is cut into parts by the data alone, computed by one process, by several, or by a Ray
cluster.

A part is a tuple of items, and its result depends on nothing but them. So results are the same for
any number of processes, and a part whose process was killed is computed again. With a folder each
result is a file of it, named by a hash of all that the result depends on: a later call with the
same work continues there. A file that is cut or damaged does not count (`plain_values.py`).
"""

import ctypes
import hashlib
import io
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from understudy_base import (
    DatasetError,
    __version__,
    fork_server,
    optional_imports,
    use_for_sockets,
)
from understudy_data.plain_values import is_result, read_result, write_result
from understudy_data.storage.dataset_version import DatasetVersion

Part = tuple[Any, ...]
TRIES = 3
"""Processes that an item may end before its result is `Lost`."""


class Work(Protocol):
    """A picklable function of a part."""

    def __call__(self, part: Part) -> Any:
        """Compute the result of a part."""

    def depends_on(self, part: Part) -> Any:
        """Return plain values that the result depends on, beside the part, the work's class and
        this version.
        """


@dataclass(frozen=True)
class Lost:
    """Result of an item that ended its process `TRIES` times."""

    reason: str

    @property
    def error(self) -> DatasetError:
        """The same as an error of the data."""
        return DatasetError(
            f"reading it is not possible: {self.reason}", fix="replace the file, or leave it out"
        )


class Workers:
    """Processes that compute parts; a context, which ends them.

    Args:
        count: number of processes; 1 computes in this one, which an item can then end.
        ray: address of a Ray cluster, which computes instead; "" for none.
        folder: folder of results; None keeps none.
        apart: also let a single process be another one.
    """

    def __init__(
        self, count: int = 1, ray: str = "", folder: str | Path | None = None, apart: bool = False
    ) -> None:
        self._count = count
        self._ray = ray
        self.folder = Path(folder) if folder else None
        self._is_here = count == 1 and not ray and not apart
        self._engine: _Processes | _Cluster | None = None
        self._is_running = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _started(self) -> "_Processes | _Cluster":
        if self._engine is None:
            self._engine = _Cluster(self._ray) if self._ray else _Processes(self._count)
        return self._engine

    @staticmethod
    def cut(items: Iterable[Any], costs: Iterable[float], limit: float) -> list[Part]:
        """Divide items into parts of neighbors that cost about `limit` each."""
        parts = list[Part]()
        part = list[Any]()
        total = 0.0
        for item, cost in zip(items, costs, strict=True):
            part.append(item)
            total += cost
            if total >= limit:
                parts.append(tuple(part))
                part = []
                total = 0.0
        return [*parts, tuple(part)] if part else parts

    @staticmethod
    def mark(value: Any) -> str:
        """Return a digest of what results depend on, any picklable value. Of a dataset's version
        its files count, and not when it was opened.
        """
        content = io.BytesIO()
        _Marker(content).dump(value)
        return hashlib.sha256(content.getvalue()).hexdigest()

    def kept(self, name: str) -> Any:
        """Return the value that an earlier call kept in the file `name` of the folder; None where
        there is none, or no folder.
        """
        if self.folder is None or not is_result(self.folder / name):
            return None
        return read_result(self.folder / name)

    def keep(self, name: str, value: Any) -> None:
        """Write a plain value into the file `name` of the folder, if there is one."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_result(self.folder / name, value)

    @property
    def most(self) -> int:
        """Most parts to compute at a time."""
        return 1 if self._is_here else self._started().most

    def run(
        self, work: Work, parts: Sequence[Part], done: Callable[[Part], None] = lambda part: None
    ) -> Iterator[tuple[Part, Any]]:
        """Yield each part with its result, in order. A part that ended its processes comes item by
        item.

        Args:
            work: computes a part.
            parts: the parts.
            done: called with each part as it is finished, in any order.

        Raises:
            RuntimeError: the results of an earlier call are still being read.
            BaseException: the error of a part; the others end.
        """
        if self._is_running:
            raise RuntimeError("read or close the results of the earlier call first")
        self._is_running = True
        is_done = False
        try:
            yield from self._run(work, parts, done)
            is_done = True
        finally:
            self._is_running = False
            if not is_done:
                self._close()  # its tasks are of no use to a later call

    def _run(
        self, work: Work, parts: Sequence[Part], done: Callable[[Part], None]
    ) -> Iterator[tuple[Part, Any]]:
        files = [self._file(work, part) for part in parts]
        results = {
            number: _open(file) for number, file in enumerate(files) if file and is_result(file)
        }
        for number in results:
            done(parts[number])
        missing = [number for number in range(len(parts)) if number not in results]
        finished = self._compute(work, [parts[number] for number in missing])
        for number in range(len(parts)):
            while number not in results:
                place, pairs = next(finished)
                index = missing[place]
                file = files[index]
                if file and not any(isinstance(result, Lost) for _, result in pairs):
                    file.parent.mkdir(parents=True, exist_ok=True)
                    write_result(file, pairs)
                    results[index] = _open(file)
                else:
                    results[index] = pairs.copy
                done(parts[index])
            yield from results.pop(number)()

    def _file(self, work: Work, part: Part) -> Path | None:
        if self.folder is None:
            return None
        causes = __version__, type(work).__qualname__, part, work.depends_on(part)
        return self.folder / f"{hashlib.sha256(repr(causes).encode()).hexdigest()[:32]}.part"

    def _compute(
        self, work: Work, parts: Sequence[Part]
    ) -> Generator[tuple[int, list[tuple[Part, Any]]], None, None]:
        """Yield (number of a part, its items with their results) as they are finished."""
        if self._is_here:
            yield from ((number, [(part, work(part))]) for number, part in enumerate(parts))
            return
        if not parts:
            return
        engine = self._started()
        singles = dict[int, list[Any]]()
        engine.start(work)
        waiting = deque[_Task]((number, None, part) for number, part in enumerate(parts))
        while waiting or engine.running:
            while waiting and len(engine.running) < engine.most:
                engine.submit(waiting.popleft())
            (number, place, part), result = engine.wait()
            if place is None and isinstance(result, Lost) and len(part) > 1:
                singles[number] = [None] * len(part)
                waiting.extendleft((number, place, (item,)) for place, item in enumerate(part))
            elif place is None:
                yield number, [(part, result)]
            else:
                singles[number][place] = (part, result)
                if None not in singles[number]:
                    yield number, singles.pop(number)


class _Marker(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        """Return the files of a version; None for all else, which is pickled as it is."""
        if not isinstance(value, DatasetVersion):
            return None
        return sorted((name, stat and stat.tag) for name, stat in value.marks.items())


def _open(file: Path) -> Callable[[], list[tuple[Part, Any]]]:
    return lambda: read_result(file)


_Task = tuple[int, int | None, Part]
"""Number of a part, place of an item in it or None for all of them, and these items."""


def _serve(connection: Connection) -> None:
    """Compute parts until the connection ends; on Linux a death of the command ends this process at
    once.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (server := fork_server()) is not None and server._forkserver_alive_fd is not None:
        # the server ends when all processes with it have ended
        os.close(server._forkserver_alive_fd)
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: the fork server dies with the command
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL))
    work: Any = None
    while True:
        try:
            new_work, part = connection.recv()
            work = pickle.loads(new_work) if new_work is not None else work
            connection.send_bytes(_answer(work, part))
        except (EOFError, ConnectionError):
            return


def _answer(work: Work, part: Part) -> bytes:
    """Return the pickled result of a part, or its error."""
    try:
        return pickle.dumps((True, work(part)))
    except Exception as error:
        try:
            answer = pickle.dumps((False, error))
            pickle.loads(answer)
            return answer
        except Exception:
            return pickle.dumps((False, RuntimeError(f"{type(error).__name__}: {error}")))


def _result(answer: bytes) -> Any:
    is_result, content = pickle.loads(answer)
    if not is_result:
        raise content
    return content


class _Processes:
    """Processes of this host, started when they are needed.

    Attributes:
        most: most tasks to submit at a time.
        running: connection -> its task.
    """

    def __init__(self, count: int) -> None:
        self.most = count
        self.running: dict[Connection, _Task] = {}
        # A fork server imports the package of the first work once for all processes, and has no
        # threads of ours.
        method = "forkserver" if sys.platform == "linux" else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        self._processes: dict[Connection, Any] = {}
        self._idle: dict[Connection, int] = {}  # number of the work that it has
        self._works = 0
        self._work = b""
        self._deaths: dict[_Task, int] = {}

    def start(self, work: Work) -> None:
        """Set the work of later tasks."""
        self._work = pickle.dumps(work)
        self._works += 1
        self._deaths = {}
        package = type(work).__module__.rpartition(".")[0]
        modules = [name for name in sys.modules if name.startswith((package, "numpy."))]
        if sys.platform == "linux":
            with suppress(OSError):  # the first process then finds out that no socket can be made
                use_for_sockets()
        # the first module removes the folder of the server's socket
        self._context.set_forkserver_preload([use_for_sockets.__module__, *modules])

    def submit(self, task: _Task) -> None:
        """Give a task to an idle process, or to a new one."""
        attempts = 0
        while not self._idle:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            try:
                process.start()
            # the fork server was killed: the next attempt starts another
            except (EOFError, OSError):
                attempts += 1
                if attempts > TRIES:
                    raise
                # none can be started: TMPDIR is too long for its socket, for example
                if attempts == TRIES:
                    self._context = multiprocessing.get_context("spawn")
                time.sleep(0.1)
            else:
                self._processes[ours] = process
                self._idle[ours] = 0
            theirs.close()
        connection, number_of_work = self._idle.popitem()
        self.running[connection] = task
        new_work = None if number_of_work == self._works else self._work
        with suppress(OSError):  # the process is dead: `wait` finds the end of its connection
            connection.send((new_work, task[2]))

    def wait(self) -> tuple[_Task, Any]:
        """Return a finished task with its result."""
        while True:
            for ready in wait(list(self.running)):
                assert isinstance(ready, Connection)
                task = self.running.pop(ready)
                try:
                    answer = ready.recv_bytes()
                except (EOFError, OSError):
                    process = self._processes.pop(ready)
                    process.join()
                    ready.close()
                    self._deaths[task] = self._deaths.get(task, 0) + 1
                    if self._deaths[task] == TRIES:
                        return task, Lost(
                            f"it ended {TRIES} processes, the last one with code {process.exitcode}"
                        )
                    self.submit(task)
                else:
                    self._idle[ready] = self._works
                    return task, _result(answer)

    def close(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.kill()
        for connection, process in self._processes.items():
            process.join()
            connection.close()


@lru_cache(maxsize=1)
def _work(content: bytes) -> Any:
    return pickle.loads(content)


def _remote(work: bytes, part: Part) -> bytes:
    return _answer(_work(work), part)


class _Cluster:
    """A Ray cluster, which repeats the tasks of lost processes and nodes."""

    def __init__(self, address: str) -> None:
        with optional_imports():
            import ray
        # Ray prints its errors to stdout, which is for results
        self._stdout = redirect_stdout(sys.stderr)
        self._stdout.__enter__()
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        self._ray = ray
        self._work = None
        self._task = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_remote)
        self.running: dict[Any, _Task] = {}

    @property
    def most(self) -> int:
        """Most tasks to submit at a time: two for each core of the cluster."""
        return 2 * max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self, work: Work) -> None:
        """Set the work of later tasks."""
        self._work = self._ray.put(pickle.dumps(work))

    def submit(self, task: _Task) -> None:
        """Give a task to the cluster."""
        self.running[self._task.remote(self._work, task[2])] = task

    def wait(self) -> tuple[_Task, Any]:
        """Return a finished task with its result."""
        (ready,), _ = self._ray.wait(list(self.running), num_returns=1)
        task = self.running.pop(ready)
        try:
            return task, _result(self._ray.get(ready))
        except self._ray.exceptions.RayTaskError:
            raise  # of a node that lacks this package, for example
        except self._ray.exceptions.RayError as error:
            return task, Lost(
                f"it ended {TRIES} processes, the last one with {type(error).__name__}"
            )

    def close(self) -> None:
        """Cancel the tasks and leave the cluster."""
        for task in self.running:
            self._ray.cancel(task, force=True)
        self._ray.shutdown()
        self._stdout.__exit__(None, None, None)
