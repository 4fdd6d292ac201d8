"""Work cut into parts on a Ray cluster of several nodes on this machine. Needs the extra `ray` (`nox -s ray`)."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.datasets import Spec, write_dataset
from support.edited import edit
from support.part_work import SlowNode, Squares
from understudy.check.examine import check_dataset
from understudy.parts import Lost, Part, Workers

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
    assert [(part, isinstance(result, Lost)) for part, result in results] == [((4,), False), ((5,), True)]
    assert "raylet" not in capsys.readouterr().out


def test_cluster_with_a_slow_node_that_leaves_and_one_that_joins(cluster: Any, calls: Path, tmp_path: Path) -> None:
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
    names = sorted(str(path.relative_to(tmp_path / "one")) for path in (tmp_path / "one").rglob("*.*"))
    assert names == sorted(str(path.relative_to(tmp_path / "many")) for path in (tmp_path / "many").rglob("*.*"))
    for name in names:
        if Path(name).suffix in (".mp4", ".parquet") or name == "meta/stats.json":
            assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "many" / name).read_bytes(), name
