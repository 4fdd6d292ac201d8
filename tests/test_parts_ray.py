"""Work cut into parts on a Ray cluster of several nodes on this machine. Needs the extra `ray`."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.part_work import Squares
from understudy.parts import Lost, Workers

ray = pytest.importorskip("ray")
pytestmark = pytest.mark.long

PARTS = [(number,) for number in range(12)]
RESULTS = [(part, [part[0] ** 2]) for part in PARTS]


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    memory = {"object_store_memory": 80 << 20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, **memory})
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    (tmp_path / "calls").mkdir()
    return tmp_path / "calls"


def test_cluster_gives_results_in_order(cluster: Any, calls: Path) -> None:
    with Workers(ray=cluster.address) as workers:
        assert list(workers.run(Squares(calls, once=(3, 5)), PARTS)) == RESULTS
        with pytest.raises(ValueError):
            list(workers.run(Squares(calls, wrong=(1,)), PARTS))


def test_cluster_names_the_item_that_ends_its_processes(cluster: Any, calls: Path) -> None:
    with Workers(ray=cluster.address) as workers:
        results = list(workers.run(Squares(calls, deadly=(5,)), [(4, 5)]))
    assert [(part, isinstance(result, Lost)) for part, result in results] == [((4,), False), ((5,), True)]
