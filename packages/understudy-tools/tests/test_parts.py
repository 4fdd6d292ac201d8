"""Work cut into parts: equal for any number of processes, after kills, and with results of an
earlier call.
"""

import atexit
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.parts import TRIES, Lost, Part, Workers
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.testing.part_work import Squares
from understudy_tools.testing.processes import children, forked

PARTS: list[Part] = [(1, 2), (3,), (4, 5, 6), (7,), (8, 9)]
RESULTS = [(part, [number**2 for number in part]) for part in PARTS]


@pytest.fixture(autouse=True)
def support_in_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    (tmp_path / "calls").mkdir()
    return tmp_path / "calls"


def test_cut_parts_have_equal_cost_and_keep_the_order() -> None:
    assert Workers.cut("abcde", [1, 1, 3, 1, 1], 2) == [("a", "b"), ("c",), ("d", "e")]
    assert Workers.cut("", [], 2) == []


def test_a_kept_value_is_there_for_a_later_call(tmp_path: Path) -> None:
    Workers(folder=tmp_path / "work").keep("name", {"a": (1, 2)})
    assert Workers(folder=tmp_path / "work").kept("name") == {"a": (1, 2)}
    assert Workers(folder=tmp_path / "work").kept("other") is None
    Workers().keep("name", 1)
    assert Workers().kept("name") is None


def test_a_mark_counts_the_files_of_a_dataset(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec(lengths=(3, 4), cameras=()))
    mark = Workers.mark([Catalog.open(root), 1])
    assert Workers.mark([Catalog.open(root), 1]) == mark  # opened at another time
    assert Workers.mark([Catalog.open(root), 2]) != mark
    info = root / "meta/info.json"
    info.write_text(info.read_text() + " ")
    assert Workers.mark([Catalog.open(root), 1]) != mark


@pytest.mark.parametrize("count", [1, 2, 5])
def test_run_gives_results_in_order(calls: Path, count: int) -> None:
    finished: list[Part] = []
    with Workers(count) as workers:
        assert list(workers.run(Squares(calls), PARTS, finished.append)) == RESULTS
        assert list(workers.run(Squares(calls, setting=1), PARTS[:1])) == RESULTS[:1]
    assert sorted(finished) == PARTS
    assert children() == []


def test_run_works_where_no_fork_server_can_be_started(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptors: list[int]) -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr("multiprocessing.forkserver.connect_to_new_process", refuse)
    with Workers(2) as workers:
        assert list(workers.run(Squares(calls), PARTS)) == RESULTS


def test_run_repeats_the_part_of_a_killed_process(calls: Path) -> None:
    work = Squares(calls, once=(3, 5))
    with Workers(2) as workers:
        assert list(workers.run(work, PARTS)) == RESULTS
    assert work.calls() == len(PARTS) + 2


def test_run_names_the_item_that_ends_its_processes(calls: Path) -> None:
    work = Squares(calls, deadly=(5,))
    with Workers(2) as workers:
        results = list(workers.run(work, PARTS))
    lost = [part for part, result in results if isinstance(result, Lost)]
    assert lost == [(5,)]
    assert [pair for pair in results if pair[0] != (5,)] == [
        *RESULTS[:2],
        ((4,), [16]),
        ((6,), [36]),
        *RESULTS[3:],
    ]
    assert len(list(calls.glob("5.*"))) == TRIES


@pytest.mark.parametrize("count", [1, 2])
def test_run_raises_the_error_of_a_part_and_ends_the_others(calls: Path, count: int) -> None:
    with pytest.raises(ValueError), Workers(count) as workers:
        list(workers.run(Squares(calls, wrong=(7,)), PARTS))
    assert children() == []


def test_run_is_refused_while_the_results_of_another_are_read(calls: Path) -> None:
    with Workers(2) as workers:
        reading = workers.run(Squares(calls), PARTS)
        assert next(reading) == RESULTS[0]
        with pytest.raises(RuntimeError):
            next(workers.run(Squares(calls), PARTS))
        reading.close()  # type: ignore[attr-defined]
        assert list(workers.run(Squares(calls, setting=1), PARTS)) == RESULTS


def test_run_goes_on_after_kills_of_the_fork_server(calls: Path) -> None:
    finished = []
    with Workers(2) as workers:
        for part, result in workers.run(
            Squares(calls, slow=0.02), [(number,) for number in range(12)]
        ):
            finished.append((part, result))
            for server in forked([os.getpid()]) if len(finished) % 5 == 0 else ():
                os.kill(server, signal.SIGKILL)
    assert finished == [((number,), [number**2]) for number in range(12)]


def test_the_end_of_a_child_leaves_the_socket_of_its_fork_server(calls: Path) -> None:
    with Workers(2) as workers:
        list(workers.run(Squares(calls), PARTS))
    for _ in range(2):  # from Python 3.14 on, a child calls this by itself
        child = multiprocessing.get_context("forkserver").Process(target=atexit._run_exitfuncs)
        child.start()
        child.join()
        assert child.exitcode == 0


SERVER_OF_ANOTHER = """
import multiprocessing
import os
from multiprocessing.forkserver import _forkserver
if __name__ == "__main__":
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["understudy_data.parts"])
    child = context.Process(target=print)
    child.start()
    child.join()
    folder = os.path.dirname(_forkserver._forkserver_address)
    _forkserver._stop()
    assert os.path.isdir(folder)
"""


def test_a_fork_server_of_another_keeps_its_folder(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SERVER_OF_ANOTHER)
    subprocess.run([sys.executable, str(tmp_path / "script.py")], check=True)


def test_a_single_process_apart_survives_an_item(calls: Path) -> None:
    with Workers(1, apart=True) as workers:
        results = list(workers.run(Squares(calls, deadly=(3,)), [(3,), (4,)]))
    assert [isinstance(result, Lost) for _, result in results] == [True, False]


@pytest.mark.parametrize("count", [1, 2])
def test_run_continues_with_the_results_of_a_folder(
    calls: Path, tmp_path: Path, count: int
) -> None:
    folder = tmp_path / "work"
    with pytest.raises(ValueError), Workers(1, folder=folder) as workers:
        list(workers.run(Squares(calls, wrong=(7,)), PARTS))
    before = len(list(calls.iterdir()))
    finished: list[Part] = []
    with Workers(count, folder=folder) as workers:
        assert list(workers.run(Squares(calls), PARTS, finished.append)) == RESULTS
    assert len(list(calls.iterdir())) - before == 2  # (7,) and (8, 9)
    assert sorted(finished) == PARTS
    with Workers(count, folder=folder) as workers:
        list(workers.run(Squares(calls, setting=1), PARTS))  # another setting reuses nothing
    assert len(list(calls.iterdir())) - before == 2 + len(PARTS)


DRIVER = """
import sys
from pathlib import Path
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.testing.part_work import Squares
from understudy_data.parts import Workers
if __name__ == "__main__":
    calls, folder = map(Path, sys.argv[1:])
    with Workers(2, folder=folder) as workers:
        squares = Squares(calls, slow=0.05, held=(5, 6, 7))
        print(list(workers.run(squares, [(n,) for n in range(8)])))
"""


@pytest.mark.short("2-1")
@pytest.mark.parametrize("wait_for", [1, 5])  # with the second, both processes wait in a part
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_driver_leaves_nothing_and_continues(
    calls: Path, tmp_path: Path, number: int, wait_for: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tempfile.mkdtemp()  # tmp_path is too long for a socket
    monkeypatch.setenv("TMPDIR", temporary)
    script = tmp_path / "driver.py"
    hold = tmp_path / "hold"
    script.write_text(DRIVER)
    hold.touch()
    command = [sys.executable, str(script), str(calls), str(tmp_path / "work")]
    driver = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while len(list(tmp_path.glob("work/*.part"))) < wait_for:
        assert driver.poll() is None
        time.sleep(0.02)
    processes = forked([driver.pid])
    processes += forked(processes)
    driver.send_signal(number)
    assert driver.wait(60) != 0
    deadline = time.monotonic() + 60
    while alive := [process for process in processes if Path(f"/proc/{process}/exe").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)
    os.rmdir(temporary)
    hold.unlink()
    monkeypatch.delenv("TMPDIR")
    done = len(list(tmp_path.glob("work/*.part")))
    before = len(list(calls.iterdir()))
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert answer.strip() == str([((n,), [n**2]) for n in range(8)])
    assert len(list(calls.iterdir())) - before == 8 - done
