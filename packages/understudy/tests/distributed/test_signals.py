"""Signals ask for a stop: one request may arrive more than once, a second request acts as it always
did.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from understudy.config.train import ParallelConfig, TrainConfig
from understudy.distributed.mesh import Mesh, join_mesh
from understudy.testing.ranks import in_ranks, outcomes_in_ranks
from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run
from understudy_kit import Stop, Stopped, ended_in_calls, interrupted_by_signals, signals
from understudy_kit.signals import SIGNALS, Interrupted


def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a moment for the handler


@pytest.mark.parametrize("number", SIGNALS)
def test_stop_signals_merge_repeated_requests(number: signal.Signals) -> None:
    """From the scheduler, and again from the launcher; SIGTERM and SIGUSR1 would end this process
    if they counted.
    """
    before = signal.getsignal(number)
    with Stop.on_signals() as stop:
        assert not stop.asked
        send(number)
        assert stop.asked
        send(number)
        send(signal.SIGTERM)
    assert signal.getsignal(number) == before


def test_stop_signals_second_request_has_its_default_effect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(signals, "SAME_REQUEST", -1.0)

    def asked_twice() -> None:
        with Stop.on_signals() as stop:
            send(signal.SIGINT)
            assert stop.asked
            send(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        asked_twice()


def waits_alone(code: int | None) -> None:
    """Join a run whose other process never comes, and get a signal while the first waits for it."""
    os.environ.update(RANK="0", WORLD_SIZE="2")

    def interrupt() -> None:
        with socket.socket() as probe:
            while probe.connect_ex(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
                time.sleep(0.05)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=interrupt, daemon=True).start()
    config = TrainConfig(device="cpu", parallel=ParallelConfig(timeout=300))
    with Stop.on_signals(at_once=True), join_mesh(config.mesh, code):
        raise AssertionError("there is no other process")


@pytest.mark.short("75")
@pytest.mark.parametrize("code", [75, None])
def test_a_signal_ends_a_process_that_waits_for_others(code: int | None) -> None:
    """It waits inside a call, where no handler runs."""
    assert outcomes_in_ranks(1, waits_alone, code) == [("died", code or 143)]


def test_ended_in_calls_leaves_a_signal_to_its_handler() -> None:
    with pytest.raises(Interrupted), interrupted_by_signals(), ended_in_calls(0):
        send(signal.SIGTERM)


def leaves_apart(data: Path, out: Path) -> int:
    """Rank 0 gets a signal while it joins, rank 1 as soon as it has joined."""
    rank = int(os.environ["RANK"])
    together = Mesh.together
    first = Mesh.first

    @contextmanager
    def late(mesh: Mesh) -> Iterator[None]:
        with together(mesh):
            yield
        time.sleep(1.0)
        send(signal.SIGTERM)

    def signalled(mesh: Mesh, make: Callable[[], Any]) -> Any:
        send(signal.SIGTERM)
        return first(mesh, make)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Mesh, *(("together", late) if rank == 0 else ("first", signalled)))
        return run.train(tiny_config(data, out, device="cpu"))


@pytest.mark.long
def test_a_rank_that_lost_another_by_the_same_signal_has_stopped(tmp_path: Path) -> None:
    """It returned 1: a failure, after which a scheduler does not start again."""
    data = tiny_dataset(tmp_path / "data")
    assert in_ranks(2, leaves_apart, data, tmp_path / "r") == [75, 75]
    assert not (tmp_path / "r").exists()


class Dropping:
    """Gets a signal in its `__del__`, where Python drops the exception of the handler."""

    def __del__(self) -> None:
        send(signal.SIGTERM)


def wait() -> None:
    """Wait for a signal that comes again."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        time.sleep(0.01)


def test_interrupted_by_signals_sends_a_dropped_exception_again() -> None:
    before = signal.getsignal(signal.SIGTERM)
    reached = []

    def works_on() -> None:
        with interrupted_by_signals():
            Dropping()
            reached.append("dropped")
            wait()
            reached.append("never")

    with pytest.raises(Interrupted) as caught:
        works_on()
    assert caught.value.args == (signal.SIGTERM,)
    assert reached == ["dropped"]
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_interrupted_by_signals_leaves_the_cleanup_alone(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a later signal."""
    reached = []

    def cleans_up() -> None:
        with interrupted_by_signals():
            try:
                send(number)
            finally:
                send(number)
                reached.append("cleanup")
                monkeypatch.setattr(signals, "SAME_REQUEST", -1.0)
                send(number)
                reached.append("never")

    with pytest.raises(Interrupted):
        cleans_up()
    assert reached == ["cleanup"]


IMPORTED = """
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

os.kill(os.getpid(), signal.SIGTERM)
VALUES = sum(range(10**5))
"""


@pytest.mark.parametrize("kind", ["interrupted", "stopped", "other"])
def test_a_signal_inside_an_import_waits_for_its_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A block that ends with the import stops at its end."""
    (tmp_path / f"imported_{kind}.py").write_text(IMPORTED)
    monkeypatch.syspath_prepend(tmp_path)
    found = []

    def imports() -> None:
        with Stop.on_signals(at_once=True) if kind != "interrupted" else interrupted_by_signals():
            found.append(import_module(f"imported_{kind}").VALUES)
            if kind != "other":
                wait()
        with interrupted_by_signals():
            wait()

    with pytest.raises(Interrupted if kind == "interrupted" else Stopped):
        imports()
    assert found == [sum(range(10**5))]


EVALUATED = """
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path
import sys

from understudy_kit.signals import Interrupted, interrupted_by_signals

try:
    with interrupted_by_signals():
        eval("os.kill(os.getpid(), signal.SIGTERM) or sum(range(10**5))")
except Interrupted as error:
    sys.exit(128 + error.args[0])
"""


def test_an_interrupted_eval_leaves_the_exit_code(tmp_path: Path) -> None:
    """Python ends a module that is run by SIGINT after a KeyboardInterrupt has left an eval."""
    (tmp_path / "evaluated.py").write_text(EVALUATED)
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "evaluated"], env=os.environ | {"PYTHONPATH": path}
    )
    assert done.returncode == 143


def test_an_ignored_sigint_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupted_by_signals():
            send(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
