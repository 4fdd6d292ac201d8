"""The launcher: ranks know their number, stop together, fail together and leave no process. Ranks
without torch.
"""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_kit import launch as launcher
from understudy_kit.cli import main
from understudy_kit.launch import launch, read_hosts

RANK = Path(__file__).parents[4] / "packages/understudy/src/understudy/testing/rank.py"
ENVIRONMENT = (
    "RANK",
    "WORLD_SIZE",
    "NNODES",
    "NODE_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def ranks(folder: Path, *words: str) -> list[str]:
    return [sys.executable, "-S", str(RANK), str(folder), *words]


def told(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted(folder.glob("rank-*.json"))]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < until, "waited four minutes"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Launched:
    """A launcher in a process of its own, so that signals and kills meet it as they do in the
    world.
    """

    def __init__(self, folder: Path, count: int, *words: str, first: str = "") -> None:
        # Whatever signals an earlier test's library has blocked in this process, a shell would not.
        code = "import signal, sys; signal.pthread_sigmask(signal.SIG_SETMASK, []); "
        code += (
            f"from understudy_kit.launch import launch; {first}sys.exit(launch(sys.argv[1:], "
            f"{count}))"
        )
        self.folder = folder
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *ranks(folder, *words)], stderr=subprocess.PIPE, text=True
        )
        wait_for(lambda: len(told(folder)) == count)
        self.pids = [rank["pid"] for rank in told(folder)]

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=240)
        wait_for(lambda: not any(map(alive, self.pids)))
        return self.process.returncode, said


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Launched]]:
    begun: list[Launched] = []

    def begin(count: int, *words: str, first: str = "") -> Launched:
        folder = tmp_path / str(len(begun))
        folder.mkdir()
        begun.append(Launched(folder, count, *words, first=first))
        return begun[-1]

    yield begin
    for one in begun:
        for pid in [one.process.pid, *one.pids]:
            if alive(pid):
                os.kill(pid, signal.SIGKILL)


def test_launch_sets_variables_and_shows_only_rank_0(
    tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    assert launch(ranks(tmp_path, "say"), 3) == 0
    mine = told(tmp_path)
    assert [(r["RANK"], r["LOCAL_RANK"], r["WORLD_SIZE"], r["LOCAL_WORLD_SIZE"]) for r in mine] == [
        (str(n), str(n), "3", "3") for n in range(3)
    ]
    assert {(r["MASTER_ADDR"], r["OMP_NUM_THREADS"]) for r in mine} == {("127.0.0.1", "1")}
    assert len({r["MASTER_PORT"] for r in mine}) == 1
    assert capfd.readouterr() == ("rank 0 is here\n", "")


def test_launch_passes_the_environment_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    given = {
        "NNODES": "2",
        "NODE_RANK": "1",
        "MASTER_ADDR": "the-first-host",
        "MASTER_PORT": "1234",
        "OMP_NUM_THREADS": "3",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert launch(ranks(tmp_path, "say"), 2) == 0
    mine = told(tmp_path)
    assert [(r["RANK"], r["LOCAL_RANK"], r["WORLD_SIZE"]) for r in mine] == [
        ("2", "0", "4"),
        ("3", "1", "4"),
    ]
    assert {(r["MASTER_ADDR"], r["MASTER_PORT"], r["OMP_NUM_THREADS"]) for r in mine} == {
        ("the-first-host", "1234", "3")
    }
    assert capfd.readouterr() == ("", "")  # rank 0 is on the other host


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"RANK": "1"}, ["--launch", "RANK", 1]),
        ({"NNODES": "two"}, ["NNODES='two'"]),
        ({"NNODES": "0"}, ["NNODES='0'", 1]),
        ({"NNODES": "2", "NODE_RANK": "0"}, ["NNODES=2", "MASTER_ADDR"]),
        ({"NNODES": "2", "MASTER_ADDR": "a"}, ["NNODES=2", "NODE_RANK"]),
        ({"NNODES": "2", "NODE_RANK": "2", "MASTER_ADDR": "a"}, ["NODE_RANK='2'", 0, 1]),
        ({"MASTER_PORT": "70000"}, ["MASTER_PORT='70000'"]),
    ],
)
def test_read_hosts_refuses_a_wrong_environment(
    environment: dict[str, str], told: list[object]
) -> None:
    with refused(*told, kind=ConfigError):
        read_hosts(environment)


def test_read_hosts_port() -> None:
    assert read_hosts({}).port is None
    assert read_hosts({"NNODES": "2", "NODE_RANK": "1", "MASTER_ADDR": "a"}).port == launcher.PORT
    with refused("--launch", 0, kind=ConfigError):
        launch(["true"], 0)


def test_reserved_port_allows_a_store() -> None:
    with socket.socket() as held, socket.socket() as other, socket.socket() as store:
        port = launcher.reserve_port(held)
        with refused(errno.EADDRINUSE, kind=OSError):
            other.bind(("127.0.0.1", port))  # a program that does not know of it
        store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
        store.bind(("", port))
        store.listen()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP])
def test_launch_forwards_a_signal_once_to_every_rank(
    start: Callable[..., Launched], number: signal.Signals
) -> None:
    """The last rank still writes for 0.8 s when the first has left with 75, longer than failures
    take to settle.
    """
    job = start(3, "stay")
    job.process.send_signal(number)
    assert job.end() == (75, "")
    saved = [json.loads((job.folder / f"saved-{rank}.json").read_text()) for rank in range(3)]
    assert saved == [[launcher.FORWARDED[number]]] * 3


LATE = "import subprocess, time; plain = subprocess.Popen.__init__; "
LATE += "subprocess.Popen.__init__ = lambda *a, **k: (plain(*a, **k), time.sleep(0.5))[0]; "


def test_launch_forwards_an_early_signal_once(start: Callable[..., Launched]) -> None:
    """On busy cores the last rank listens before the launcher knows that it has started it."""
    job = start(2, "stay", first=LATE)
    job.process.send_signal(signal.SIGUSR1)
    assert job.end() == (75, "")
    saved = [json.loads((job.folder / f"saved-{rank}.json").read_text()) for rank in range(2)]
    assert saved == [[signal.SIGUSR1]] * 2


def test_launch_waits_for_stopping_ranks(start: Callable[..., Launched]) -> None:
    """One of several hosts' ranks got the signal, and the ranks agreed: the launcher never heard of
    it.
    """
    job = start(2, "stay")
    for pid in job.pids:
        os.kill(pid, signal.SIGUSR1)
    assert job.end() == (75, "")


def test_launch_names_a_killed_rank(start: Callable[..., Launched]) -> None:
    job = start(3, "deaf", "stay", "deaf")
    os.kill(job.pids[1], signal.SIGKILL)
    code, said = job.end()
    assert code == 1
    assert f"rank 1 of 3 was killed by SIGKILL (process {job.pids[1]}" in said
    assert "the others were stopped" in said


def test_ranks_end_with_a_killed_launcher(start: Callable[..., Launched]) -> None:
    job = start(2, "stay")
    job.process.kill()
    assert job.end()[0] == -signal.SIGKILL
    saved = [json.loads((job.folder / f"saved-{rank}.json").read_text()) for rank in range(2)]
    # They could still write a checkpoint. (The kernel signals them once for each thread of the
    # launcher.)
    assert [set(got) for got in saved] == [{signal.SIGTERM}] * 2


def test_launch_with_a_signal_before_the_ranks_handle_it(start: Callable[..., Launched]) -> None:
    job = start(2, "young")
    job.process.send_signal(signal.SIGUSR1)
    code, said = job.end()
    assert code == 128 + signal.SIGUSR1
    assert "before there was anything to save" in said


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (
            ("stay", "exit=1"),
            1,
            ["rank 1 of 2 failed with exit code 1", "| rank 1 leaves because of a reason"],
        ),
        (
            ("stay", "exit=2"),
            2,
            ["rank 1 of 2 failed with exit code 2", "| rank 1 leaves because of a reason"],
        ),
        (
            ("exit=1", "stay"),
            1,
            ["rank 0 leaves because of a reason\n", "rank 0 of 2 failed with exit code 1"],
        ),
        (("stay", "die"), 1, ["rank 1 of 2 was killed by SIGKILL"]),
        (
            ("exit=1", "die"),
            1,
            ["rank 1 of 2 was killed by SIGKILL", "rank 0 then failed with exit code 1"],
        ),
    ],
)
def test_launch_reports_the_failed_ranks(
    words: tuple[str, ...],
    code: int,
    says: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "stay" not in words:
        monkeypatch.setattr(launcher, "SETTLE", 60)  # until all have left
    assert launch(ranks(tmp_path, *words), 2) == code
    told = capfd.readouterr().err
    for text in says:
        assert text in told


def test_launch_reports_the_cause_behind_the_first_exit(capfd: pytest.CaptureFixture) -> None:
    noticed = launcher.Rank(0, 2, code=1)
    reason = launcher.Rank(1, 2, code=2, tail=bytearray(b"the image is bad"))
    for rank in (noticed, reason):
        rank.process = SimpleNamespace(pid=1)  # type: ignore[assignment]
    assert launcher.report_failure([noticed, reason], [], "understudy") == 1
    told = capfd.readouterr().err
    assert "rank 0 of 2 failed with exit code 1" in told
    assert "last output of rank 1:\n  | the image is bad" in told


def test_launch_ends_after_a_signal_at_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rest of the wait is negative when the handler returns."""
    failed = launcher.Rank(0, 2, code=1)
    stays = launcher.Rank(1, 2)
    may_leave = threading.Event()
    left = []
    process: Any = SimpleNamespace(pid=1, poll=lambda: 1, wait=lambda _: 1)
    failed.process = process
    failed.wait = lambda ended: ended.put(failed)  # type: ignore[method-assign]

    def wait(ended: Any) -> None:
        if not may_leave.wait(240):
            left.append(stays)
        ended.put(stays)

    stays.wait = wait  # type: ignore[method-assign]
    monkeypatch.setattr(launcher, "SETTLE", 0.3)
    before = signal.signal(signal.SIGUSR2, lambda *_: time.sleep(0.5))
    sender = threading.Timer(0.1, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR2))
    try:
        sender.start()
        assert launcher.watch_ranks([failed, stays], [], "understudy") == 1
        assert not left, "it waited until the other had left by itself"
    finally:
        may_leave.set()
        sender.join()
        signal.signal(signal.SIGUSR2, before)


def test_launch_prints_wrong_input_once(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "SETTLE", 60)
    assert launch(ranks(tmp_path, "exit=2"), 2) == 2
    assert capfd.readouterr().err.count("because of a reason") == 1


def test_launch_prints_the_cause_last(
    tmp_path: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After what rank 0 prints when it is stopped because of the other rank."""
    monkeypatch.setattr(launcher, "SETTLE", 3)  # rank 0 can handle the signal by then
    assert launch(ranks(tmp_path, "speak", "exit=2"), 2) == 2
    lines = capfd.readouterr().err.splitlines()
    assert "rank 0 was stopped" in lines
    assert "rank 1 leaves because of a reason" in lines[-1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--launch", "2", "--steps", "3"],
        ["--launch=2", "--steps", "3"],
        ["--steps", "3", "--launch", "2"],
    ],
)
def test_command_line_launches_without_the_flag(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[object] = []

    def record(*given: object) -> int:
        called.extend(given)
        return 75

    monkeypatch.setattr(launcher, "launch", record)
    assert main.main(["train", *arguments, "--data.root", "d"]) == 75
    command = [sys.executable, "-m", "understudy", "train", "--steps", "3", "--data.root", "d"]
    assert called == [command, 2, "understudy train"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["train", "--launch"], "--launch ''"),
        (["train", "--launch", "many"], "--launch 'many'"),
        (["train", "--launch", "0", "--data.root", "d"], "--launch 0"),
        (["train", "--launch", "2"], "data.root: required"),  # once, not from every rank
        (["resume", "nowhere", "--launch", "2"], "nowhere"),
    ],
)
def test_command_line_refuses_mistakes_before_launching(
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    assert main.main(arguments) == main.WRONG_INPUT
    assert told in capsys.readouterr().err
