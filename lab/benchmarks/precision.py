"""Six ways to store a model's weights and moments: bytes, time and loss.

    python lab/benchmarks/precision.py [--json] [--device cpu|cuda] [--seeds 3] [--steps 600]
        [--no-compile]

Loss: a small flow-matching network is trained in float32, then fine-tuned on a shifted task at the
rate of a large policy, once per variant with the same data and noise, computing in bfloat16 always;
`weights_moved` is the share of weights (of the truth, where it is kept) that differ from the start.
Time: the optimizer alone and a whole step, of a larger network, variants interleaved forwards and
backwards: the median. Bytes: on a GPU the slope of the allocated memory over three sizes of
network, where activations cancel, between steps and at the peak inside one; on a CPU the tensors
that are kept. `master_mismatches` counts bits of our masters that differ from float32 AdamW's after
1,000 steps, and words that splitting and joining changes.

Runs on a GPU where there is one, if no device is named. On a CPU the times order nothing that
matters for a GPU, and no speed is claimed.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common import conditions
from parsers import make_parser
from understudy import MasterWeights
from understudy.compile import missing_compiler
from understudy.optim.adamw import Float32AdamW
from understudy.optim.bf16_split import adamw_pointwise, as_tensor, join, split

OBSERVED = 16
ACTION = 8
WIDTH = 256
FINE_TUNE_LR = 2.5e-5
Named = list[tuple[str, nn.Parameter]]


def fused(params: Any, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, fused=True, weight_decay=0.0, **options)


@dataclass(frozen=True)
class Variant:
    weights: torch.dtype
    build: Callable[[Named, dict[str, Tensor], float], Any]
    """(named parameters, float32 values before the cast, learning rate) -> optimizer."""
    autocast: bool = False


def split_adamw(
    named: Named, masters: dict[str, Tensor], lr: float, compiled: bool
) -> Float32AdamW:
    return Float32AdamW(named, lr, weight_decay=0.0, masters=masters, compiled=compiled)


VARIANTS = {
    "fp32": Variant(torch.float32, lambda named, _, lr: fused(named, lr=lr)),
    "autocast": Variant(torch.float32, lambda named, _, lr: fused(named, lr=lr), autocast=True),
    "split": Variant(torch.bfloat16, partial(split_adamw, compiled=False)),
    "split_compiled": Variant(torch.bfloat16, partial(split_adamw, compiled=True)),
    "masters": Variant(
        torch.bfloat16, lambda named, m, lr: MasterWeights(fused(named, lr=lr), masters=m)
    ),
    "bf16": Variant(torch.bfloat16, lambda named, _, lr: fused(named, lr=lr)),
}


class Linear(nn.Linear):
    """The weight's dtype is storage, the input's is arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def network(sizes: list[int], seed: int, device: torch.device) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [Linear(inputs, outputs), nn.GELU()]
    return nn.Sequential(*layers[:-1]).to(device)


def built(name: str, model: nn.Module, lr: float) -> Any:
    """Cast the weights of a float32 model and make the variant's optimizer."""
    masters = {k: p.detach().clone() for k, p in model.named_parameters()}
    model.to(VARIANTS[name].weights)
    return VARIANTS[name].build(list(model.named_parameters()), masters, lr)


# -- loss


def loss(model: nn.Module, step: int, shift: float, autocast: bool, device: torch.device) -> Tensor:
    """Flow matching of actions sin(W obs + shift), batch 128; all draws from `step` alone."""
    generator = torch.Generator().manual_seed(step)
    observed = torch.randn(128, OBSERVED, generator=generator)
    mix = torch.randn(OBSERVED, ACTION, generator=torch.Generator().manual_seed(0)) / 4
    action = torch.sin(observed @ mix + shift)
    noise = torch.randn(128, ACTION, generator=generator)
    t = torch.rand(128, 1, generator=generator)
    x = torch.cat([observed, t * action + (1 - t) * noise, t], dim=1)
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        velocity = model(x.to(device, torch.float32 if autocast else torch.bfloat16))
    return (velocity.float() - (action - noise).to(device)).square().mean()


def train(
    model: nn.Module, optimizer: Any, steps: int, shift: float, autocast: bool, device: torch.device
) -> float:
    """Train, and return the mean loss over 20 batches that no training sees."""
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step, shift, autocast, device).backward()
        optimizer.step()
    with torch.no_grad():
        return statistics.fmean(
            float(loss(model, 10**6 + k, shift, autocast, device)) for k in range(20)
        )


def fine_tuned(name: str, base: nn.Module, steps: int, device: torch.device) -> tuple[float, float]:
    """(validation loss, share of weights that moved)."""
    model = small_network(0, device)
    model.load_state_dict(base.state_dict())
    optimizer = built(name, model, FINE_TUNE_LR)

    def truth() -> Tensor:
        values = [
            optimizer.master(p) if hasattr(optimizer, "master") else p for p in model.parameters()
        ]
        return torch.cat([value.detach().flatten() for value in values])

    before = truth().clone()
    value = train(model, optimizer, steps, 0.3, VARIANTS[name].autocast, device)
    return value, float((truth() != before).float().mean())


def small_network(seed: int, device: torch.device) -> nn.Sequential:
    return network([OBSERVED + ACTION + 1, WIDTH, WIDTH, WIDTH, ACTION], seed, device)


def losses(
    names: list[str], seeds: int, steps: int, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Fine-tuning per variant; the fp32 variant's spread over the seeds is the yardstick of the
    differences.
    """
    tuned: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for seed in range(seeds):
        base = small_network(seed, device)
        train(base, fused(base.parameters(), lr=1e-3), 2 * steps, 0.0, False, device)
        for name in names:
            tuned[name].append(fine_tuned(name, base, steps, device))
    return {
        name: {
            "val_loss": statistics.fmean(value for value, _ in pairs),
            "weights_moved": statistics.fmean(moved for _, moved in pairs),
            "val_loss_minus_fp32": [a[0] - b[0] for a, b in zip(pairs, tuned["fp32"])],
            "val_loss_seeds": [value for value, _ in pairs],
        }
        for name, pairs in tuned.items()
    }


# -- bytes and time


@dataclass(frozen=True)
class Size:
    """Size of the timed network: `blocks` square matrices, and the rows of its input."""

    width: int
    blocks: int
    rows: int

    def sizes(self, blocks: int) -> list[int]:
        return [self.width] * (blocks + 1)


SIZES = {"cpu": Size(1024, 8, 64), "cuda": Size(4096, 16, 8192)}


def whole_step(name: str, model: nn.Module, optimizer: Any, x: Tensor) -> None:
    optimizer.zero_grad()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=VARIANTS[name].autocast):
        out = model(x.float() if VARIANTS[name].autocast else x)
    out.float().square().mean().backward()
    optimizer.step()


def rows(size: Size, device: torch.device) -> Tensor:
    return torch.randn(size.rows, size.width, device=device, dtype=torch.bfloat16)


def kept_bytes(name: str, size: Size, device: torch.device) -> dict[str, float]:
    """Bytes per parameter, gradient included, between steps and (GPU) at the peak inside the
    optimizer's step.
    """
    if device.type == "cpu":
        model = network(size.sizes(2), 0, device)
        optimizer = built(name, model, 1e-4)
        whole_step(name, model, optimizer, rows(size, device))
        kept = [
            t
            for p in model.parameters()
            for t in (p, p.grad, *optimizer.state[p].values())
            if t is not None
        ]
        if isinstance(optimizer, MasterWeights):
            kept += [optimizer.master(p) for p in model.parameters()]
        count = sum(p.numel() for p in model.parameters())
        return {"bytes_per_param": sum(t.numel() * t.element_size() for t in kept) / count}
    counts = []
    resident = []
    peak = []
    for blocks in (size.blocks // 2, size.blocks, 2 * size.blocks):
        model = network(size.sizes(blocks), 0, device)
        optimizer = built(name, model, 1e-4)
        x = rows(size, device)
        for _ in range(2):
            whole_step(name, model, optimizer, x)
        torch.cuda.synchronize()
        resident.append(torch.cuda.memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        optimizer.step()
        torch.cuda.synchronize()
        peak.append(torch.cuda.max_memory_allocated())
        counts.append(sum(p.numel() for p in model.parameters()))
        del model, optimizer, x
    return {
        "bytes_per_param": statistics.linear_regression(counts, resident).slope,
        "bytes_per_param_peak": statistics.linear_regression(counts, peak).slope,
    }


def milliseconds(work: Callable[[], None], device: torch.device) -> float:
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end)
    start = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - start)


def in_turn(
    work: dict[str, Callable[[], None]], rounds: int, warm_up: int, device: torch.device
) -> dict[str, float]:
    """Median milliseconds of each, taken in turn, forwards and backwards (ABBA)."""
    taken: dict[str, list[float]] = {name: [] for name in work}
    order = list(work)
    for k in range(warm_up + rounds):
        for name in order if k % 2 else order[::-1]:
            taken[name].append(milliseconds(work[name], device))
    return {name: statistics.median(times[warm_up:]) for name, times in taken.items()}


def times(
    names: list[str], size: Size, rounds: int, warm_up: int, device: torch.device
) -> dict[str, dict[str, float]]:
    """The optimizer's step alone, and a whole step, of every variant side by side in one
    process.
    """
    x = rows(size, device)
    models = {name: network(size.sizes(size.blocks), 0, device) for name in names}
    optimizers = {name: built(name, models[name], 1e-4) for name in names}
    steps = {name: partial(whole_step, name, models[name], optimizers[name], x) for name in names}
    for step in steps.values():
        step()  # gradients, state and compiled code are there
    alone = in_turn({name: optimizers[name].step for name in names}, rounds, warm_up, device)
    whole = in_turn(steps, rounds, warm_up, device)
    return {name: {"step_ms": alone[name], "whole_step_ms": whole[name]} for name in names}


# -- exactness


def same_words(a: Tensor, b: Tensor) -> Tensor:
    return a.view(torch.int32) == b.view(torch.int32)


def master_mismatches(compiled: bool, device: torch.device, steps: int = 1000) -> int:
    """Master words that differ after `steps` steps from those of a float32 weight through the same
    arithmetic.
    """
    generator = torch.Generator(device).manual_seed(0)
    start = torch.randn(200 * 172, device=device, generator=generator) * 0.02
    live = nn.Parameter(start.bfloat16())
    ours = Float32AdamW([("w", live)], lr=1e-3, masters={"w": start}, compiled=compiled)
    truth = nn.Parameter(start.clone())
    theirs = torch.optim.AdamW([truth], lr=1e-3, fused=True)
    pointwise = torch.compile(adamw_pointwise, fullgraph=True, dynamic=True)
    m = torch.zeros_like(start)
    v = torch.zeros_like(start)
    one = torch.ones((), device=device)
    numbers = as_tensor(1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-2, device=device)
    weight = start.clone()
    for step in range(steps):
        size = 10 ** (step % 7 - 4)
        live.grad = (torch.randn(start.shape, device=device, generator=generator) * size).bfloat16()
        ours.step()
        if compiled:
            count = torch.full((), step + 1.0, device=device)
            weight, m, v = pointwise(weight, live.grad, m, v, count, one, numbers)
        else:
            truth.grad = live.grad.float()
            theirs.step()
            weight = truth.detach()
    return int((~same_words(ours.master(live), weight)).sum())


def word_mismatches(device: torch.device) -> int:
    """Words that splitting and joining changes, NaN apart: all 2^32 on a GPU, 2^26 spread over them
    on a CPU.
    """
    stride, chunk, wrong = (1, 1 << 28, 0) if device.type == "cuda" else (63, 1 << 24, 0)
    for low in range(-(1 << 31), 1 << 31, chunk * stride):
        words = torch.arange(low, min(low + chunk * stride, 1 << 31), stride, device=device).to(
            torch.int32
        )
        x = words.view(torch.float32)
        wrong += int((~same_words(join(*split(x)), x) & ~x.isnan()).sum())
    return wrong


# -- report


def report(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    compiles = args.compile and missing_compiler(device) is None
    names = [name for name in VARIANTS if name != "split_compiled" or compiles]
    size = SIZES[device.type]
    rounds, warm_up = (100, 20) if device.type == "cuda" else (args.rounds, 2)
    found = losses(names, args.seeds, args.steps, device)
    timed = times(names, size, rounds, warm_up, device)
    for name in names:
        found[name] |= kept_bytes(name, size, device) | timed[name]
    exact = {"split": master_mismatches(False, device), "words": word_mismatches(device)}
    if compiles:
        exact["split_compiled"] = master_mismatches(True, device)
    return {
        "variants": found,
        "master_mismatches": sum(exact.values()),
        "mismatches": exact,
        "conditions": conditions()
        | {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
            "compiled": missing_compiler(device) or ("yes" if compiles else "not asked for"),
            "seeds": args.seeds,
            "steps": args.steps,
            "parameters_timed": size.blocks * size.width * (size.width + 1),
            "rows_timed": size.rows,
            "rounds": rounds,
        },
    }


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__, whole=True)
    parser.add_argument(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto: a GPU if there is one",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--steps", type=int, default=600, help="of fine-tuning; the base is trained twice as long"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="timed steps per variant on a CPU (a GPU takes 100)"
    )
    parser.add_argument(
        "--no-compile", dest="compile", action="store_false", help="leave the compiled step out"
    )
    args = parser.parse_args(arguments)
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: torch finds no CUDA device here")
    there = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(there if args.device == "auto" else args.device)
    result = report(args, device)
    if args.json:
        print(json.dumps(result))
        return
    print(
        f"{'':<16}{'B/param':>8}{'optim ms':>10}{'step ms':>9}{'val loss':>10}{'moved':>8}   minus "
        "fp32"
    )
    for name, r in result["variants"].items():
        apart = " ".join(f"{x:+.5f}" for x in r["val_loss_minus_fp32"])
        print(
            f"{name:<16}{r['bytes_per_param']:>8.2f}{r['step_ms']:>10.2f}{r['whole_step_ms']:>9.1f}"
            f"{r['val_loss']:>10.5f}{r['weights_moved']:>8.1%}   {apart}"
        )
    print(f"bits that differ: {result['mismatches']}\n{json.dumps(result['conditions'])}")


if __name__ == "__main__":
    main()
