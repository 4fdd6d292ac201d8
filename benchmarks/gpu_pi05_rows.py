"""The measurements of `gpu_pi05.py`, each in a process of its own: `python benchmarks/gpu_pi05_rows.py JSON`.

The argument is the row: its `kind`, the `size` of the network, the `device` and settings. The last printed line is the
result as JSON; `{"error": ...}` where the row failed, "OOM" where the memory of the device did not suffice.

Needs torch, numpy and safetensors, and pydantic for the settings; only `memory` reads more.
"""

import dataclasses
import hashlib
import json
import os
import platform
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from gpu_pi05_calls import attention, sampling
from gpu_pi05_run import (
    CAMERAS,
    PIXELS,
    Row,
    batches,
    failure,
    forward_flops,
    gib,
    make_state,
    normalization,
    policy_config,
    sample_tokens,
    sizes_of,
    train_config,
    wait,
)
from understudy.distributed.mesh import join_mesh
from understudy.policies.pi05.network import Pi0Network

# -- kinds of rows


def train(row: Row) -> dict[str, Any]:
    """Speed and memory of the training step."""
    with join_mesh(train_config(row)) as mesh:
        if row.get("fully_shard"):  # a mesh of size 2 uses the code of several processes; the absent one is not asked
            state = make_state(row, dataclasses.replace(mesh, world_size=2))
            state.checked = True
        else:
            state = make_state(row, mesh)
        data, device = batches(row, mesh.device), mesh.device
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
            found |= {"state_gib": gib(resident), "peak_gib": gib(torch.cuda.max_memory_allocated())}
            found |= {"reserved_gib": gib(torch.cuda.max_memory_reserved())}
        if found["skipped"] or found["loss"] != found["loss"]:
            raise ValueError(f"{found['skipped']} of {count} steps had a gradient that is not finite: {found}")
        return found


def flops(row: Row) -> dict[str, Any]:
    """Arithmetic of a sample, forward and backward, counted on shapes; and the formula of its matrix products."""
    sizes, tokens = sizes_of(row["size"]), sample_tokens(row["size"])
    side, dim, count = PIXELS[row["size"]], sizes.dim, row.get("batch", 1)
    with torch.device("meta"):
        network = Pi0Network(sizes)
        images, words = torch.empty(count, len(CAMERAS), 3, side, side), torch.zeros(count, tokens["text"]).long()
        actions, times = torch.empty(count, sizes.chunk, dim), torch.empty(count)
    with FlopCounterMode(display=False) as counter:
        network.flow_loss(images, None, words, None, torch.empty_like(actions[:, 0]), actions, actions, times).sum(
            dtype=torch.float32
        ).backward()
    return {
        "flops_per_sample": counter.get_total_flops() / count,
        "formula": 3 * forward_flops(sizes, **tokens),
        "tokens_per_sample": sum(tokens.values()),
        "parameters": sum(p.numel() for p in network.parameters()),
    }


def bits(row: Row) -> dict[str, Any]:
    """Two runs with the same seed in one process, with torch's default algorithms and with deterministic ones."""
    found: dict[str, Any] = {}
    for name in ("default", "deterministic"):
        torch.use_deterministic_algorithms(name == "deterministic", warn_only=True)
        runs, took = [], 0.0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                losses, digest, took = _short_run(row)
                runs.append((losses, digest))
                _release()
        alerts = {str(w.message).split(" ")[0] for w in caught if "determinis" in str(w.message)}
        found[name] = {
            "losses_equal": runs[0][0] == runs[1][0],
            "weights_equal": runs[0][1] == runs[1][1],
            "step_s": round(took, 4),
            "without_deterministic_form": sorted(alerts),
        }
    torch.use_deterministic_algorithms(False)
    return found


def _short_run(row: Row) -> tuple[list[float], str, float]:
    """Losses of three steps, digest of the float32 values of the weights behind them, and seconds of the last step."""
    with join_mesh(train_config(row)) as mesh:
        state, data = make_state(row, mesh), batches(row, mesh.device)
        results = [state.train_step(next(data)) for _ in range(2)]
        wait(mesh.device)
        start = time.perf_counter()
        results.append(state.train_step(next(data)))
        wait(mesh.device)
        took = time.perf_counter() - start
        digest = hashlib.sha256()
        for parameter in state.policy.parameters():
            digest.update(word_sum(state.optimizer.local_master(parameter)).to_bytes(8, "big", signed=True))
        return [result.loss.item() for result in results], digest.hexdigest(), took


@torch.no_grad()
def word_sum(tensor: Tensor, part: int = 1 << 24) -> int:
    """Sum the words of a float32 tensor times odd factors, modulo 2^64: a change of one word always changes it."""
    words, total = tensor.detach().reshape(-1).view(torch.int32), 0
    for low in range(0, len(words), part):
        some = words[low : low + part].to(torch.int64)
        factors = torch.arange(low, low + len(some), device=words.device) * 2 + 1
        total += int((some * factors).sum())
    return (total + 2**63) % 2**64 - 2**63


def waits(row: Row) -> dict[str, Any]:
    """Places where one training step makes the host wait for the device, by torch's own warnings."""
    if row["device"] != "cuda":
        return {"error": "a CPU has nothing to wait for"}
    with join_mesh(train_config(row)) as mesh:
        state, data = make_state(row, mesh), batches(row, mesh.device)
        for _ in range(2):
            state.train_step(next(data))
        batch = next(data)
        wait(mesh.device)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                state.train_step(batch)
            finally:
                torch.cuda.set_sync_debug_mode("default")
        places = [f"{each.filename}:{each.lineno}" for each in caught if "synchroniz" in str(each.message)]
    return {"count": len(places), "places": {place: places.count(place) for place in sorted(set(places))}}


def memory(row: Row) -> dict[str, Any]:
    """Memory that `understudy plan` predicts for a `train` row, by shapes alone."""
    from understudy.train.profiling.plan import trace_step

    config = train_config(row)
    network = policy_config(config)
    data: Any = SimpleNamespace(
        policy_config=lambda config: network, names=("",), head_of_source=None, heads=[""], training=()
    )
    one = {key: value[:1] for key, value in next(batches({**row, "batch": 1}, torch.device("cpu"))).items()}
    scales = normalization(network.action_dim)
    shapes = trace_step(config, data, scales, one, 1, row["device"], row["batch"])
    return {f"{name.replace(' ', '_')}_gib": gib(size) for name, size in shapes.memory.items()}


# -- one row


def _release() -> None:
    import gc

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def arithmetic(row: Row) -> Iterator[None]:
    """Let float32 products run on tensor cores (TF32) within this context, as the row `fp32` of the table says."""
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
        "name": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "device_gib": gib(torch.cuda.get_device_properties(0).total_memory) if cuda else None,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
    }


KINDS = {each.__name__: each for each in (conditions, train, flops, bits, waits, attention, sampling, memory)}


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
    row = json.loads(sys.argv[1])
    if row["kind"] == "bits":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it no product is deterministic
    print(json.dumps(measure(row)), flush=True)
    os._exit(0)  # a device that failed may hang at exit
