"""Cached results of operations on shapes: those of the mode itself, to the byte, and with its aliases."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensorMode

from support.runs import tiny_config, tiny_dataset
from understudy.config.train import EmaConfig, OptimConfig, ParallelConfig
from understudy.policies.flow.config import FlowSettings
from understudy.policies.pi05.config import Pi05Settings
from understudy.policies.pi05.sizes import Sizes
from understudy.train.data.run_data import choose_normalization, open_data
from understudy.train.profiling import plan as planning
from understudy.train.profiling.live_bytes import LiveBytes
from understudy.train.profiling.plan import one_sample, trace_step
from understudy.train.profiling.shape_cache import ShapeCache

SMALL = replace(
    Sizes.TINY,
    vision=replace(Sizes.TINY.vision, depth=2),
    vlm=replace(Sizes.TINY.vlm, depth=2),
    expert=replace(Sizes.TINY.expert, depth=2),
)
CASES: dict[str, tuple[int, str, dict[str, Any]]] = {
    "flow, EMA, micro-batches": (1, "cpu", {"optim": OptimConfig(ema=EmaConfig(0.9)), "micro_batch_size": 2}),
    "flow, shards, bf16": (2, "cuda", {"parallel": ParallelConfig(dp_shard=2), "precision": "bf16"}),
    "pi05, adapters, full": (
        1,
        "cuda",
        {
            "policy": Pi05Settings(size="tiny", network=json.dumps(asdict(SMALL))),
            "lora": {"rank": 4, "base": "bfloat16"},
            "precision": "bf16",
            "activation_checkpoint": "full",
        },
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dataset(tmp_path_factory.mktemp("cache") / "dataset")


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_shapes_of_a_step_are_the_same_without_the_cache(
    data: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    world_size, device, changes = CASES[case]
    changes = {"batch_size": 4, "policy": FlowSettings(image_size=(32, 32), width=32, blocks=2), **changes}
    config = tiny_config(data, data.parent / "run", **changes).resolved()
    opened = open_data(config)
    given = config, opened, choose_normalization(config, opened), one_sample(config, opened), world_size, device, 2
    caches: list[ShapeCache] = []

    def noted(mode: FakeTensorMode) -> ShapeCache:
        caches.append(ShapeCache(mode))
        return caches[-1]

    def without(mode: FakeTensorMode) -> Callable[..., Any]:
        return lambda func, args, kwargs: func(*args, **kwargs)

    monkeypatch.setattr(planning, "ShapeCache", noted)
    found = trace_step(*given, flops=True)
    monkeypatch.setattr(planning, "ShapeCache", without)
    assert found == trace_step(*given, flops=True)
    assert caches[0].hits > 300


@pytest.fixture
def cached() -> Iterator[tuple[ShapeCache, LiveBytes]]:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    cache = ShapeCache(mode)
    with mode, LiveBytes(run=cache) as live:
        yield cache, live


def facts(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor.device.type


def same_memory(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def test_a_repeated_result_has_its_own_memory(cached: tuple[ShapeCache, LiveBytes]) -> None:
    cache, live = cached
    x = torch.ones(3, 5).t()
    first, hits, before = x * 2, cache.hits, live.now
    second = x * 2
    assert (cache.hits, live.now) == (hits + 1, before + 60)
    assert facts(first) == facts(second) == ((5, 3), (1, 5), 0, torch.float32, "cpu")
    assert not same_memory(first, second)
    assert not same_memory(x, second)


@pytest.mark.parametrize(
    ("change", "shape"),
    [
        (lambda x, ones: x.add_(ones), (4,)),
        (lambda x, ones: x.copy_(ones), (4,)),
        (lambda x, ones: x.unsqueeze_(0), (1, 4)),
        (lambda x, ones: torch.add(ones, 1, out=x), (4,)),
    ],
)
def test_an_operation_in_place_always_runs(
    cached: tuple[ShapeCache, LiveBytes], change: Callable[[Tensor, Tensor], Tensor], shape: tuple[int, ...]
) -> None:
    cache, live = cached
    ones, inputs = torch.ones(4), [torch.zeros(4) for _ in range(3)]
    hits, before = cache.hits, live.now
    for x in inputs:
        assert change(x, ones) is x
        assert x.shape == shape
    assert (cache.hits, live.now) == (hits, before)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t(),
        lambda x: x[1:, 2],
        lambda x: x.detach(),
        lambda x: x.expand(7, 4, 6),
        lambda x: torch.ops.aten._unsafe_view(x, [24]),  # its schema hides the alias
        lambda x: torch.ops.aten.alias(x),
    ],
)
def test_a_repeated_view_has_the_memory_of_its_own_input(
    cached: tuple[ShapeCache, LiveBytes], view: Callable[[Tensor], Tensor]
) -> None:
    cache, live = cached
    inputs = [torch.zeros(4, 6) for _ in range(3)]
    before, hits = live.now, cache.hits
    views = [view(x) for x in inputs]
    assert cache.hits >= hits + 2
    assert live.now == before
    assert facts(views[0]) == facts(views[1]) == facts(views[2])
    assert [[same_memory(v, x) for x in inputs] for v in views] == [[v is w for w in views] for v in views]
    del inputs
    assert live.now == before  # the views keep the memory
    del views
    assert live.now == before - 3 * 96


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (lambda: torch.ones(4, 4) * 2, lambda: torch.ones(4, 4, dtype=torch.bfloat16) * 2),
        (lambda: torch.ones(4, 4) * 2, lambda: torch.ones(4, 4).t() * 2),
        (lambda: torch.ones(4, dtype=torch.int64) * 2, lambda: torch.ones(4, dtype=torch.int64) * 2.0),
        (lambda: torch.ones(4).sum(0, keepdim=False), lambda: torch.ones(4).sum(0, keepdim=True)),
        (lambda: torch.ones(9).to(torch.float64), lambda: torch.ones(9).to(torch.bfloat16)),
        (lambda: torch.ones(4, 4)[0] + 0, lambda: torch.ones(4, 4)[:, 0] + 0),
    ],
)
def test_other_arguments_have_other_results(
    cached: tuple[ShapeCache, LiveBytes], one: Callable[[], Tensor], other: Callable[[], Tensor]
) -> None:
    both = facts(one()), facts(other())
    assert both == (facts(one()), facts(other()))  # repeated
    with FakeTensorMode():
        assert both == (facts(one()), facts(other()))


def test_several_results_and_the_values_of_a_tensor(cached: tuple[ShapeCache, LiveBytes]) -> None:
    cache, _ = cached
    x = torch.ones(6, 4)
    norms = [torch.native_layer_norm(x, (4,), None, None, 1e-5) for _ in range(2)]
    assert cache.hits
    assert [facts(each) for each in norms[0]] == [facts(each) for each in norms[1]]
    assert len({each.untyped_storage()._cdata for each in (*norms[0], *norms[1])}) == 6
    known, numbers = torch.tensor(3.0), []
    for _ in range(2):
        numbers.append((known * 1).item())  # of a constant, which the mode knows
        with pytest.raises(DynamicOutputShapeException):
            x.nonzero()
    assert numbers == [3.0, 3.0]
