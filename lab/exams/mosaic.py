"""Tests of MosaicML Streaming on `Order`: partitions over nodes, ranks and workers, shuffles,
mixtures and samplings.

The package `streaming` is not needed: the names that the tests import are these. Of it only `World`
is theirs, which counts nodes, ranks and workers.
"""

import importlib.util
import json
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shared import explain
from understudy import Order
from understudy_data.order import batch_positions


@lru_cache(maxsize=64)
def order_of(lengths: tuple[int, ...], seed: int = 0, mode: str = "uniform") -> Order:
    """Order of one dataset with episodes of these lengths."""
    segments = np.array([[episode, 0, length] for episode, length in enumerate(lengths)])
    source = SimpleNamespace(name="shards", segments=segments, gop=1, reach=(0, 0))
    return Order.from_datasets([source], batch_size=1, seed=seed, mode=mode)


def get_partitions(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    num_physical_nodes: int,
    ranks_per_node: int,
    workers_per_rank: int,
    batch_size: int,
    drop_first: int = 0,
    initial_physical_nodes: int | None = None,
) -> np.ndarray:
    """Samples of an epoch from number `drop_first` on, as int64 [nodes, ranks, workers, batches,
    batch_size].

    Worker w of W makes the batches w, w + W, ... of its rank. -1 fills the batches behind the
    epoch's last whole one.
    """
    nodes = (num_canonical_nodes, num_physical_nodes)
    # the tests want this algorithm to have its limit; ours has none
    if algo == "orig" and max(nodes) % min(nodes):
        raise ValueError("Either canonical or physical nodes must be divisible by the other")
    world = num_physical_nodes * ranks_per_node
    order = order_of((num_samples,), mode="sequential")
    size = world * batch_size
    steps = max(0, -(-(num_samples - drop_first) // size))
    frames = order.locate(np.arange(drop_first, drop_first + steps * size))[2].reshape(steps, size)
    shares = np.stack([batch_positions(0, size, rank, world) for rank in range(world)])
    rounds = -(-steps // workers_per_rank)
    out = np.full((rounds * workers_per_rank, world, batch_size), -1, np.int64)
    out[:steps] = frames[:, shares]
    parts = out.reshape(rounds, workers_per_rank, num_physical_nodes, ranks_per_node, batch_size)
    return parts.transpose(2, 3, 1, 0, 4)


def get_shuffle(
    sizes: np.ndarray, num_canonical_nodes: int, seed: int, epoch: int, block_size: int
) -> np.ndarray:
    order = order_of(tuple(sizes.tolist()), seed)
    total = int(sizes.sum())
    return order.lines(np.arange(epoch * total, (epoch + 1) * total))[2]


def get_sampling(
    sizes: np.ndarray, choose: int, granularity: int, seed: int, epoch: int, use_epoch: bool
) -> np.ndarray:
    """Samples per shard among the first `choose` of an epoch."""
    order = order_of(tuple(sizes.tolist()), seed)
    total = int(sizes.sum())
    first = epoch * total if use_epoch else 0
    return np.bincount(order.locate(np.arange(first, first + choose))[1], minlength=len(sizes))


class MDSWriter:
    """Write samples of one column into a folder."""

    def __init__(self, out: str, columns: Any) -> None:
        self._path, self._values = Path(out, "values.json"), list[int]()

    def __enter__(self) -> "MDSWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self._path.parent.mkdir(parents=True)
        self._path.write_text(json.dumps(self._values))

    def write(self, sample: dict[str, int]) -> None:
        self._values.append(sample["value"])


class Stream:
    def __init__(
        self,
        local: str,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
    ) -> None:
        self.values = json.loads(Path(local, "values.json").read_text())
        self.proportion = proportion
        self.repeat = repeat
        self.choose = choose


class StreamingDataset:
    """A mixture of streams; each pass is the next epoch of as many samples as the streams choose
    together.

    Their unshuffled epoch is one stream after the other, so the samples of an epoch are put into
    that sequence.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        epoch_size: int | None = None,
        num_canonical_nodes: int = 1,
        batch_size: int = 1,
    ) -> None:
        self.streams, self.num_samples = streams, sum(len(stream.values) for stream in streams)
        for stream in streams:
            size = len(stream.values)
            if stream.proportion is not None:
                total = sum(float(other.proportion or 0) for other in streams)
                stream.choose = round(stream.proportion / total * (epoch_size or self.num_samples))
            elif stream.choose is None:
                stream.choose = round((1 if stream.repeat is None else stream.repeat) * size)
        self._epoch = sum(int(stream.choose or 0) for stream in streams)
        for stream in streams:
            stream.proportion = int(stream.choose or 0) / self._epoch
            stream.repeat = int(stream.choose or 0) / len(stream.values)
        self._present = [stream for stream in streams if stream.choose]
        sources = [
            SimpleNamespace(
                name=str(k), segments=np.array([[0, 0, len(stream.values)]]), gop=1, reach=(0, 0)
            )
            for k, stream in enumerate(self._present)
        ]
        weights = [float(stream.choose or 0) for stream in self._present]
        self._order = Order.from_datasets(
            sources, weights=weights, batch_size=batch_size, mode="sequential"
        )
        self._position = 0

    def __iter__(self) -> Iterator[dict[str, int]]:
        source, _, frame = self._order.locate(
            np.arange(self._position, self._position + self._epoch)
        )
        self._position += self._epoch
        for number in np.argsort(source, kind="stable"):
            yield {"value": self._present[source[number]].values[frame[number]]}


@pytest.fixture
def local_remote_dir(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "local"), str(tmp_path / "remote")


def module(name: str, **members: Any) -> None:
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__dict__.update(members)


module("streaming", MDSWriter=MDSWriter, Stream=Stream, StreamingDataset=StreamingDataset)
module("streaming.base", distributed=None)
module("streaming.base.partition", get_partitions=get_partitions)
module("streaming.base.sampling", get_sampling=get_sampling)
shuffles = ("get_shuffle_py1br", "get_shuffle_py1e", "get_shuffle_py1s", "get_shuffle_py2s")
module("streaming.base.shuffle", **dict.fromkeys(shuffles, get_shuffle))
spec = importlib.util.spec_from_file_location("streaming.base.world", "streaming/base/world.py")
assert spec is not None
assert spec.loader is not None
sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[spec.name])

ENDLESS = (
    "the stream of samples has no end: behind an epoch comes the next one, so no position is "
    "too far"
)
CANONICAL = (
    "there are no canonical nodes, so nothing depends on their number and there is nothing "
    "to warn of"
)
FEW = (
    "ranks without a sample of their own take part in the step with samples of the next epoch, "
    "without a warning"
)
GLOBAL = "an epoch is one permutation of all samples; no node keeps the same samples in every epoch"
UNWARNED = "test_partition_samples_per_node_less_than_ranks_warning"
SMALL = ("4-5", "4-15", "4-25", "8-5", "8-15", "8-25", "8-55")
FAILURES = {
    "test_partition_invalid_drop_first": ENDLESS,
    "test_partition_samples_less_than_ncn": CANONICAL,
    **{f"{UNWARNED}[4-8-8-{nodes.replace('-', '-4-')}]": FEW for nodes in SMALL},
    **dict.fromkeys(
        ("test_shuffle_py1br", "test_shuffle_py1e", "test_shuffle_py1s", "test_shuffle_py2s"),
        GLOBAL,
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    explain(items, FAILURES)
