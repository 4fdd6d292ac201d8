"""Work cut into parts on a Ray cluster of several nodes on this machine. Needs the extra `ray`
(`nox -s ray`).
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from understudy_data.parts import Lost, Part, Workers
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.check.examine import check_dataset
from understudy_tools.edit import videos, write_set
from understudy_tools.testing.edited import content, edit
from understudy_tools.testing.part_work import SlowNode, Squares
from understudy_tools.testing.processes import ray_workers
from understudy_tools.testing.s3 import s3_bucket, upload, uploaded

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.long

PARTS: list[Part] = [(number,) for number in range(24)]
RESULTS = [(part, [part[0] ** 2]) for part in PARTS]
MEMORY = 80 << 20


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    head = {"num_cpus": 1, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.first = cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    (tmp_path / "calls").mkdir()
    return tmp_path / "calls"


def test_cluster_repeats_parts_names_items_and_raises_errors(
    cluster: Any, calls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Workers(ray=cluster.address) as workers:
        assert list(workers.run(Squares(calls, once=(3, 5)), PARTS)) == RESULTS
        results = list(workers.run(Squares(calls, deadly=(5,)), [(4, 5)]))
        with pytest.raises(ValueError):
            list(workers.run(Squares(calls, wrong=(1,)), PARTS))
    assert [(part, isinstance(result, Lost)) for part, result in results] == [
        ((4,), False),
        ((5,), True),
    ]
    assert "raylet" not in capsys.readouterr().out


def test_cluster_with_a_slow_node_that_leaves_and_one_that_joins(
    cluster: Any, calls: Path, tmp_path: Path
) -> None:
    finished: list[Part] = []

    def done(part: Part) -> None:
        finished.append(part)
        if len(finished) == 3:
            cluster.add_node(num_cpus=1, object_store_memory=MEMORY)
        if len(finished) == 8:
            cluster.remove_node(cluster.first, allow_graceful=False)

    work = SlowNode(calls, slow=0.2, node=cluster.first.node_id)
    with Workers(ray=cluster.address, folder=tmp_path / "work") as workers:
        assert list(workers.run(work, PARTS, done)) == RESULTS
    assert sorted(finished) == PARTS
    with Workers(folder=tmp_path / "work") as workers:  # the results of the cluster
        before = work.calls()
        assert list(workers.run(work, PARTS)) == RESULTS
    assert work.calls() == before


def test_cluster_edits_and_checks_as_one_process(cluster: Any, tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_dataset(source, Spec("v3.0", lengths=(30, 41, 22), gop=4))
    settings: dict[str, Any] = {"codec": "libx264", "gop": 3}
    edit(source, tmp_path / "one", **settings)
    with Workers(ray=cluster.address) as workers:
        edit(source, tmp_path / "many", workers=workers, **settings)
        report = check_dataset(tmp_path / "many", "all", workers=workers)
    assert report.findings == check_dataset(tmp_path / "many", "all").findings
    assert content(tmp_path / "many") == content(tmp_path / "one")


def test_cluster_edits_into_a_bucket_as_one_process(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    settings: dict[str, Any] = {"codec": "libx264", "gop": 3}
    write_dataset(source, Spec("v3.0", lengths=(30, 41, 22, 35, 28, 33), gop=4))
    for name, value in {"FILES": 2, "PART_IMAGES": 1, "PARTS_OF_PROCESS": 1}.items():
        monkeypatch.setattr(videos, name, value)
    for name in ("DATA_MB", "VIDEO_MB"):
        monkeypatch.setattr(write_set, name, 0.01)
    edit(source, tmp_path / "one", **settings)
    killed = list[int]()
    is_done = threading.Event()

    def kill_one() -> None:
        while not killed and not is_done.wait(0.01):
            for worker in ray_workers()[:1]:
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    with (
        s3_bucket("sets") as options,
        Workers(ray=cluster.address, folder=tmp_path / "work") as workers,
    ):
        killer = threading.Thread(target=kill_one)
        killer.start()
        try:
            upload([source], "s3://sets/out", options, workers, **settings)
        finally:
            is_done.set()
            killer.join()
        assert uploaded(options, "s3://sets/out") == content(tmp_path / "one")
    assert len(killed) == 1


DRIVER = """
import sys
from pathlib import Path
from understudy_tools.testing.edited import edit
from understudy_tools.edit import videos, write_set
from understudy_data.parts import Workers
if __name__ == "__main__":
    videos.PART_IMAGES, write_set.PART_ROWS = 1, 1
    source, out, work, address = sys.argv[1:]
    with Workers(ray=address, folder=work) as workers:
        edit(Path(source), Path(out), workers=workers, codec="libx264", gop=3)
"""
KINDS = {"worker": 3, "driver": 1, "node": 3, "stop": 1}
"""Events with their weights. `stop` halts a worker for two seconds: a slow node."""


@pytest.mark.parametrize("kills", [6, 60])
def test_kills_at_random_change_nothing(
    cluster: Any, tmp_path: Path, kills: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    source = tmp_path / "source"
    script = tmp_path / "driver.py"
    draw = random.Random(kills)
    events = Counter[str]()
    write_dataset(source, Spec("v3.0", lengths=(30, 41, 22, 35, 28, 33), gop=4))
    edit(source, tmp_path / "whole", codec="libx264", gop=3)
    script.write_text(DRIVER)
    nodes = [cluster.first, cluster.add_node(num_cpus=1, object_store_memory=MEMORY)]
    rounds = 0
    while sum(events.values()) < kills:
        out = tmp_path / f"out-{rounds}"
        work = tmp_path / f"work-{rounds}"
        command = [sys.executable, str(script), str(source), str(out), str(work), cluster.address]
        while not out.exists():
            with (tmp_path / "errors").open("w") as stderr:  # a full pipe would stop the driver
                driver = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
            parts = 0
            while driver.poll() is None and sum(events.values()) < kills:
                time.sleep(draw.uniform(0.02, 0.2))
                workers = ray_workers()
                if len(list(work.glob("*.part"))) == parts or not workers:
                    continue
                (kind,), parts = (
                    draw.choices(list(KINDS), list(KINDS.values())),
                    len(list(work.glob("*.part"))),
                )
                victim = draw.choice(workers)
                if kind == "driver":
                    driver.kill()
                elif kind == "node":
                    cluster.remove_node(nodes.pop(0), allow_graceful=False)
                    nodes.append(cluster.add_node(num_cpus=1, object_store_memory=MEMORY))
                else:
                    signals = (
                        [signal.SIGSTOP, signal.SIGCONT] if kind == "stop" else [signal.SIGKILL]
                    )
                    for number in signals:
                        try:
                            os.kill(victim, number)
                        except ProcessLookupError:
                            break
                        time.sleep(2 * (number == signal.SIGSTOP))
                events[kind] += 1
            driver.wait(300)
            errors = (tmp_path / "errors").read_text()
            # A task that three of the kills hit is named; the same command continues.
            assert driver.returncode in (0, -signal.SIGKILL) or "it ended 3 processes" in errors, (
                errors
            )
        assert content(out) == content(tmp_path / "whole")
        rounds += 1
    print(dict(events), "in", rounds, "edits")
