"""Filling of whole and sharded parameters, from the meta device on, with the rows of each rank
alone.
"""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from understudy.config.train import DataConfig, ParallelConfig, TrainConfig
from understudy.distributed import fill_weights as filling
from understudy.distributed.fill_weights import fill, local_rows, materialise
from understudy.distributed.mesh import join_mesh, shard
from understudy.testing.ranks import in_ranks


class Network(nn.Module):
    """Parameters whose rows two ranks share evenly, unevenly, and not at all; a scalar; a
    buffer.
    """

    def __init__(self) -> None:
        super().__init__()
        with torch.device("meta"):
            self.layers = nn.ModuleList(nn.Linear(6, 8, bias=bool(i)) for i in range(2))
            self.odd = nn.Linear(4, 5)
            self.one = nn.Parameter(torch.empty(1, 3))
        self.register_buffer("table", torch.arange(3.0))


def value(name: str, shape: Any) -> Tensor:
    generator = torch.Generator().manual_seed(sum(name.encode()))
    return torch.randn(*shape, generator=generator)


WHOLE = {name: value(name, parameter.shape) for name, parameter in Network().named_parameters()}


def test_fill_fills_whole_tensors_of_any_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network()
    materialise([network], torch.device("cpu"))
    assert torch.equal(network.table, torch.arange(3.0))
    for part in (1, 40, 1 << 20):
        monkeypatch.setattr(filling, "PART", part)
        for parameter in network.parameters():
            parameter.data.fill_(torch.nan)
        fill(network.named_parameters(), lambda name, start, stop: WHOLE[name][start:stop].double())
        assert all(
            torch.equal(parameter, WHOLE[name]) for name, parameter in network.named_parameters()
        )
    scalar = torch.tensor(0.0)
    small = torch.zeros(2, dtype=torch.bfloat16)
    fill(
        [("scalar", scalar), ("small", small)],
        lambda *_: torch.tensor([1.5, 2.0])[: 1 if _[0] == "scalar" else 2],
    )
    assert (scalar.item(), small.tolist()) == (1.5, [1.5, 2.0])


def fill_rank(shards: int) -> dict[str, Any]:
    """Shard on the meta device, give memory, fill; returns whole tensors and the rows that this
    rank read.
    """
    config = TrainConfig(
        data=DataConfig(root="d"), device="cpu", parallel=ParallelConfig(dp_shard=shards)
    )
    rows: Counter[str] = Counter()

    def read(name: str, start: int, stop: int) -> Tensor:
        rows[name] += stop - start
        return WHOLE[name][start:stop]

    with join_mesh(config.mesh) as mesh:
        network = Network()
        shard(network, mesh, config.precision, list(network.layers))
        assert all(parameter.is_meta for parameter in network.parameters())
        materialise([network], mesh.device)
        fill(network.named_parameters(), read)
        own = {name: local_rows(parameter)[1:] for name, parameter in network.named_parameters()}
        whole = {name: parameter.full_tensor() for name, parameter in network.named_parameters()}
    return {
        "equal": {n: torch.equal(t, WHOLE[n]) for n, t in whole.items()},
        "rows": dict(rows),
        "own": own,
    }


@pytest.mark.short("2")
@pytest.mark.parametrize("shards", [1, 2])
def test_fill_reads_the_rows_of_each_rank_alone(shards: int) -> None:
    found = in_ranks(2, fill_rank, shards)
    for rank in found:
        assert all(rank["equal"].values())
        assert rank["rows"] == {
            name: stop - start for name, (start, stop) in rank["own"].items() if stop > start
        }
    read = sum((Counter(rank["rows"]) for rank in found), Counter())
    assert read == {name: len(tensor) * 2 // shards for name, tensor in WHOLE.items()}
    if shards == 2:
        assert [rank["own"]["odd.weight"] for rank in found] == [(0, 3), (3, 5)]
        assert [rank["own"]["one"] for rank in found] == [(0, 1), (1, 1)]
