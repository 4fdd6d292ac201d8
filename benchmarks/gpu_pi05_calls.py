"""Attention and sampling of the network, without training: kinds of rows of `gpu_pi05_rows.py`."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpu_pi05_run import CAMERAS, Row, attempt, gib, inputs, sample_tokens, sampler, sizes_of, wait
from understudy.policies.common.flow_matching import euler
from understudy.policies.common.towers import attend, attend_segments, make_segments, takes_varlen
from understudy.policies.pi05.config import Sizes
from understudy.policies.pi05.network import Pi0Network

BACKENDS = {
    "flash": "_scaled_dot_product_flash_attention",
    "efficient": "_scaled_dot_product_efficient_attention",
    "cudnn": "_scaled_dot_product_cudnn_attention",
    "math": "_scaled_dot_product_attention_math",
}
"""Name of each back-end -> its operation in a trace; flash has another name on a CPU, which begins with this one."""


def attention(row: Row) -> dict[str, Any]:
    """Back-end and milliseconds (forward and backward) of each kind of attention of a step, and of a whole network."""
    device, sizes, count = torch.device(row["device"]), sizes_of(row["size"]), row["batch"]
    tokens = sample_tokens(row["size"])
    prefix = tokens["images"] + tokens["text"]
    v, a = sizes.vision, sizes.vlm
    keys = prefix + sizes.chunk
    valid = torch.arange(prefix, device=device) < prefix - torch.arange(count, device=device)[:, None] % 8
    own = torch.ones(count, sizes.chunk, dtype=torch.bool, device=device)
    dense = torch.cat([valid, own], dim=1)[:, None, None].expand(count, 1, sizes.chunk, keys)
    calls = {  # queries, keys, heads, heads of keys, head_dim, mask
        "images": (count * len(CAMERAS), v.tokens, v.tokens, v.heads, v.heads, v.width // v.heads, None),
        "prefix": (count, prefix, prefix, a.num_heads, a.num_kv_heads, a.head_dim, None),
        "prefix, dense mask": (count, prefix, prefix, a.num_heads, a.num_kv_heads, a.head_dim, valid[:, None, None]),
        "actions": (count, sizes.chunk, keys, a.num_heads, a.num_kv_heads, a.head_dim, None),
        "actions, dense mask": (count, sizes.chunk, keys, a.num_heads, a.num_kv_heads, a.head_dim, dense),
    }
    found: dict[str, Any] = {"calls": {}, "network": {}}
    for name, (rows, queries, seen, heads, kv_heads, dim, mask) in calls.items():
        found["calls"][name] = attempt(_attention_call, device, (rows, heads, queries, dim), (kv_heads, seen), mask)
    found["calls"]["prefix, segments"] = attempt(_segments_call, device, sizes, valid)
    small = dataclasses.replace(
        sizes,
        vision=dataclasses.replace(v, depth=2),
        vlm=dataclasses.replace(a, depth=2),
        expert=dataclasses.replace(sizes.expert, depth=2),
        vocab=min(sizes.vocab, 8192),
    )
    for name, masked in (("unmasked", False), ("masked", True)):
        found["network"][name] = attempt(_traced_network, small, row, masked, device)
    return found


def _attention_call(
    device: torch.device, shape: tuple[int, ...], keys: tuple[int, int], mask: Tensor | None
) -> dict[str, Any]:
    dtype = torch.bfloat16
    q = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    k, v = (torch.randn(shape[0], *keys, shape[3], device=device, dtype=dtype, requires_grad=True) for _ in range(2))

    def call() -> None:
        attend(q, k, v, mask).sum().backward()

    times = _timed(call, device, 10)
    return _back_ends(call, device) | {"ms": round(1e3 * statistics.median(times), 3)}


def _segments_call(device: torch.device, sizes: Sizes, valid: Tensor) -> dict[str, Any]:
    """The prefix without its padding, by varlen attention where the device has it; and its distance from dense."""
    a, dtype, lengths = sizes.vlm, torch.bfloat16, valid.sum(dim=1).cpu()
    count, taken = int(lengths.sum()), takes_varlen(device, dtype)
    q, k, v = (
        torch.randn(count, heads, a.head_dim, device=device, dtype=dtype, requires_grad=True)
        for heads in (a.num_heads, a.num_kv_heads, a.num_kv_heads)
    )
    flat = torch.arange(count)
    plans = [make_segments(flat, lengths, flat, lengths, device, varlen=varlen) for varlen in (taken, False)]

    def call() -> None:
        attend_segments(q, k, v, plans[0]).sum().backward()

    times = _timed(call, device, 10)
    with torch.no_grad():
        found, dense = (attend_segments(q, k, v, plan).float() for plan in plans)
    apart = float((found - dense).abs().max() / dense.abs().max())
    name = {"varlen": 1} if taken else _back_ends(call, device)["back_ends"]
    return {"back_ends": name, "ms": round(1e3 * statistics.median(times), 3), "from_dense": apart}


def _traced_network(sizes: Sizes, row: Row, masked: bool, device: torch.device) -> dict[str, Any]:
    with torch.device(device):
        network = Pi0Network(sizes, torch.bfloat16)
    values = inputs(sizes, row["size"], 2, device)
    if masked:
        values["image_masks"] = torch.tensor([[True, True, True], [True, True, False]])
        values["token_masks"] = torch.arange(values["tokens"].shape[1], device=device) < torch.tensor(
            [[values["tokens"].shape[1]], [values["tokens"].shape[1] // 2]], device=device
        )
    noise = values.pop("noise")
    extra = {"actions": torch.zeros_like(noise), "noise": noise, "time": torch.full((2,), 0.5, device=device)}
    return _back_ends(lambda: network.flow_loss(**values, **extra).sum().backward(), device)


def _back_ends(call: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Count the calls per back-end in `call()`, forward passes alone, and name the attention kernels of a GPU."""
    from torch.profiler import ProfilerActivity, profile

    call()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as traced:
        call()
        wait(device)
    taken: dict[str, int] = {}
    kernels = set()
    for event in traced.key_averages():
        for name, operation in BACKENDS.items():
            if event.key.startswith(f"aten::{operation}") and "backward" not in event.key:
                taken[name] = taken.get(name, 0) + event.count
        if "aten::" not in event.key and any(word in event.key for word in ("flash", "fmha", "cudnn", "sdpa")):
            kernels.add(event.key[:80])
    return {"back_ends": taken} | ({"kernels": sorted(kernels)} if kernels else {})


@torch.no_grad()
def sampling(row: Row) -> dict[str, Any]:
    """Milliseconds of prefix, Euler step and ten steps at batch 1, from one stored precision of the weights."""
    device, sizes = torch.device(row["device"]), sizes_of(row["size"])
    network = sampler(sizes, row["stored"], device)
    if row.get("compile"):
        for block in (*network.vision.layers, *network.layers):
            block.compile()
    values = inputs(sizes, row["size"], 1, device)
    noise, state = values.pop("noise"), values.pop("state")
    time_ = torch.full((1,), 0.5, device=device)
    observed = network.observe(**values)
    field = network.field(observed, state)

    def prefill() -> object:
        return network.field(network.observe(**values), state)

    parts: dict[str, Callable[[], Any]] = {
        "prefill": prefill,
        "step": lambda: field(noise, time_),
        "ten steps": lambda: euler(field, noise, 10),
        "all": lambda: network.sample(**values, state=state, noise=noise, steps=10),
    }
    found: dict[str, Any] = {}
    repeats = row.get("repeats") or 100
    for name, part in parts.items():
        found[name] = {"plain": attempt(lambda part=part: _percentiles(_timed(part, device, repeats)))}
        if device.type == "cuda":
            found[name]["graph"] = attempt(lambda part=part: _percentiles(_timed(_graphed(part), device, repeats)))
    if device.type == "cuda":
        found["graph_equals_plain"] = attempt(lambda: _same(parts["all"]))
        found["peak_gib"] = gib(torch.cuda.max_memory_allocated())
    return found


def _graphed(call: Callable[[], Any]) -> Callable[[], Any]:
    """Capture `call` in a CUDA graph; the result replays it. Each has the memory of the capture as its own."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


def _same(call: Callable[[], Tensor]) -> bool:
    expected = call().clone()
    return bool(torch.equal(_graphed(call)(), expected))


def _timed(call: Callable[[], object], device: torch.device, repeats: int, limit: float = 6.0) -> list[float]:
    """Seconds of each of up to `repeats` calls, from an idle device to an idle device; fewer after `limit` seconds."""
    for _ in range(min(5, repeats)):
        call()
    found: list[float] = []
    while len(found) < repeats and (len(found) < 10 or sum(found) < limit):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        found.append(time.perf_counter() - start)
    return found


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    places = {f"p{p}": min(len(ordered) - 1, p * len(ordered) // 100) for p in (50, 99)}
    return {name: round(1e3 * ordered[place], 3) for name, place in places.items()} | {"repeats": len(ordered)}
