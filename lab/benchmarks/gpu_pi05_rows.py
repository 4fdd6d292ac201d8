"""The measurements of `gpu_pi05.py`, each in a process of its own:
`python lab/benchmarks/gpu_pi05_rows.py JSON`.

The argument is the row: its `kind`, the `size` of the network, the `device` and settings. The last
printed line is the result as JSON; `{"error": ...}` where the row failed, "OOM" where the memory of
the device did not suffice.

Needs torch, numpy, safetensors and msgspec, and pydantic for the settings; only `memory` reads
more.
"""

import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from gpu_pi05_run import (
    CAMERAS,
    Row,
    attempt,
    batches,
    failure,
    gib,
    inputs,
    make_state,
    normalization,
    policy_config,
    sample_tokens,
    sampler,
    sizes_of,
    train_config,
    wait,
)
from understudy.distributed.mesh import join_mesh
from understudy.policies.common.flow_matching import euler
from understudy.policies.common.towers import attend

BACKENDS = {
    "flash": "_scaled_dot_product_flash_attention",
    "efficient": "_scaled_dot_product_efficient_attention",
    "cudnn": "_scaled_dot_product_cudnn_attention",
    "math": "_scaled_dot_product_attention_math",
}
"""Name of each back-end -> its operation in a trace; flash has another name on a CPU, which begins
with this one.
"""


def train(row: Row) -> dict[str, Any]:
    """Speed and memory of the training step."""
    with join_mesh(train_config(row).mesh) as mesh:
        state = make_state(row, mesh)
        data = batches(row, mesh.device)
        device = mesh.device
        wait(device)
        resident = torch.cuda.memory_allocated() if device.type == "cuda" else 0

        def run(count: int) -> tuple[float, list[Any]]:
            wait(device)
            start = time.perf_counter()
            done = [state.train_step(next(data)) for _ in range(count)]
            wait(device)
            return (time.perf_counter() - start) / count, done

        first, _ = run(1)
        run(2)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        probe, _ = run(1)
        count = row.get("steps") or min(20, max(3, int(8 / probe)))
        step, results = run(count)
        found = {
            "samples_per_s": round(row["batch"] / step, 3),
            "step_s": round(step, 4),
            "first_step_s": round(first, 2),
            "steps": count,
            "loss": results[-1].loss.item(),
            "skipped": sum(result.skipped.item() for result in results),
        }
        if device.type == "cuda":
            found |= {
                "state_gib": gib(resident),
                "peak_gib": gib(torch.cuda.max_memory_allocated()),
            }
            found |= {"reserved_gib": gib(torch.cuda.max_memory_reserved())}
        if found["skipped"] or found["loss"] != found["loss"]:
            raise ValueError(
                f"{found['skipped']} of {count} steps had a gradient that is not finite: {found}"
            )
        return found


def memory(row: Row) -> dict[str, Any]:
    """Memory that `understudy plan` predicts for a `train` row, by shapes alone."""
    from understudy.train.profiling.plan import trace_step

    config = train_config(row)
    network = policy_config(config)
    data: Any = SimpleNamespace(
        policy_config=lambda config: network,
        names=("",),
        head_of_source=None,
        heads=[""],
        training=(),
    )
    one = {
        key: value[:1]
        for key, value in next(batches({**row, "batch": 1}, torch.device("cpu"))).items()
    }
    scales = normalization(network.action_dim)
    shapes = trace_step(config, data, scales, one, 1, row["device"], row["batch"])
    return {f"{name.replace(' ', '_')}_gib": gib(size) for name, size in shapes.memory.items()}


def attention(row: Row) -> dict[str, Any]:
    """Back-end and milliseconds (forward and backward) of each kind of attention of a step."""
    device = torch.device(row["device"])
    sizes = sizes_of(row["size"])
    count = row["batch"]
    tokens = sample_tokens(row["size"])
    prefix = tokens["images"] + tokens["text"]
    v = sizes.vision
    a = sizes.vlm
    keys = prefix + sizes.chunk
    valid = (
        torch.arange(prefix, device=device)
        < prefix - torch.arange(count, device=device)[:, None] % 8
    )
    own = torch.ones(count, sizes.chunk, dtype=torch.bool, device=device)
    dense = torch.cat([valid, own], dim=1)[:, None, None].expand(count, 1, sizes.chunk, keys)
    calls = {  # queries, keys, heads, heads of keys, head_dim, mask
        "images": (
            count * len(CAMERAS),
            v.tokens,
            v.tokens,
            v.heads,
            v.heads,
            v.width // v.heads,
            None,
        ),
        "prefix": (count, prefix, prefix, a.num_heads, a.num_kv_heads, a.head_dim, None),
        "prefix, dense mask": (
            count,
            prefix,
            prefix,
            a.num_heads,
            a.num_kv_heads,
            a.head_dim,
            valid[:, None, None],
        ),
        "actions": (count, sizes.chunk, keys, a.num_heads, a.num_kv_heads, a.head_dim, None),
        "actions, dense mask": (
            count,
            sizes.chunk,
            keys,
            a.num_heads,
            a.num_kv_heads,
            a.head_dim,
            dense,
        ),
    }
    found: dict[str, Any] = {"calls": {}}
    for name, (rows, queries, seen, heads, kv_heads, dim, mask) in calls.items():
        found["calls"][name] = attempt(
            _attention_call, device, (rows, heads, queries, dim), (kv_heads, seen), mask
        )
    return found


def _attention_call(
    device: torch.device, shape: tuple[int, ...], keys: tuple[int, int], mask: Tensor | None
) -> dict[str, Any]:
    dtype = torch.bfloat16
    q = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    k, v = (
        torch.randn(shape[0], *keys, shape[3], device=device, dtype=dtype, requires_grad=True)
        for _ in range(2)
    )

    def call() -> None:
        attend(q, k, v, mask).sum().backward()

    times = _timed(call, device, 10)
    return _back_ends(call, device) | {"ms": round(1e3 * statistics.median(times), 3)}


def _back_ends(call: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Count the calls per back-end in `call()`, forward passes alone, and name the attention
    kernels of a GPU.
    """
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
        if "aten::" not in event.key and any(
            word in event.key for word in ("flash", "fmha", "cudnn", "sdpa")
        ):
            kernels.add(event.key[:80])
    return {"back_ends": taken} | ({"kernels": sorted(kernels)} if kernels else {})


@torch.no_grad()
def sampling(row: Row) -> dict[str, Any]:
    """Milliseconds of prefix, Euler step and ten steps at batch 1, from one stored precision of the
    weights.
    """
    device = torch.device(row["device"])
    sizes = sizes_of(row["size"])
    network = sampler(sizes, row["stored"], device)
    if row.get("compile"):
        for block in (*network.vision.layers, *network.layers):
            block.compile()
    values = inputs(sizes, row["size"], 1, device)
    noise = values.pop("noise")
    state = values.pop("state")
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
        found[name] = {
            "plain": attempt(lambda part=part: _percentiles(_timed(part, device, repeats)))
        }
        if device.type == "cuda":
            found[name]["graph"] = attempt(
                lambda part=part: _percentiles(_timed(_graphed(part), device, repeats))
            )
    if device.type == "cuda":
        found["peak_gib"] = gib(torch.cuda.max_memory_allocated())
    return found


def _graphed(call: Callable[[], Any]) -> Callable[[], Any]:
    """Capture `call` in a CUDA graph; the result replays it. Each has the memory of the capture as
    its own.
    """
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


def _timed(
    call: Callable[[], object], device: torch.device, repeats: int, limit: float = 6.0
) -> list[float]:
    """Seconds of each of up to `repeats` calls, from an idle device to an idle device; fewer after
    `limit` seconds.
    """
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
    return {name: round(1e3 * ordered[place], 3) for name, place in places.items()} | {
        "repeats": len(ordered)
    }


@contextmanager
def arithmetic(row: Row) -> Iterator[None]:
    """Let float32 products run on tensor cores (TF32) within this context, as the row `fp32` of the
    table says.
    """
    before = torch.get_float32_matmul_precision()
    if row["device"] == "cuda" and row.get("precision") == "fp32":
        torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def conditions(row: Row) -> dict[str, Any]:
    """Device and versions."""
    cuda = row["device"] == "cuda"
    return {
        "name": torch.cuda.get_device_name()
        if cuda
        else platform.processor() or platform.machine(),
        "device_gib": gib(torch.cuda.get_device_properties(0).total_memory) if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


KINDS = {each.__name__: each for each in (conditions, train, attention, sampling, memory)}


def measure(row: Row) -> dict[str, Any]:
    """Measure one row; a failure is its result."""
    start = time.perf_counter()
    try:
        if row["device"] == "cpu":
            torch.set_num_threads(1)
        with arithmetic(row):
            found = KINDS[row["kind"]](row)
    except Exception as error:
        found = failure(error)
    return {**row, **found, "seconds": round(time.perf_counter() - start, 1)}


if __name__ == "__main__":
    print(json.dumps(measure(json.loads(sys.argv[1]))), flush=True)
    os._exit(0)  # a device that failed may hang at exit
