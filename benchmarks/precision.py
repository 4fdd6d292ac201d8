"""Six ways to hold a model's numbers: bytes, time, and what they cost in loss.

    python benchmarks/precision.py [--json] [--seeds 3] [--steps 600] [--compile]

A small flow-matching network is trained in float32, then fine-tuned on a shifted task at the rate of a large policy,
once per variant with the same data and noise; `weights_moved` is the share of live weights that differ from the start.
Time is the optimizer's step alone on a larger set of tensors, variants interleaved back and forth, the median.
`master_mismatches` counts bits of split AdamW's masters that differ from float32 AdamW's after 1,000 steps.
Runs on a GPU where there is one. On a CPU the times order nothing that matters for a GPU, and no speed is claimed.
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from understudy import MasterWeights
from understudy.train.adamw import Float32AdamW

OBSERVED, ACTION, WIDTH = 16, 8, 256
FINE_TUNE_LR = 2.5e-5


def fused(params: Any, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(params, fused=True, weight_decay=0.0, **options)


@dataclass(frozen=True)
class Variant:
    weights: torch.dtype
    build: Callable[[list[tuple[str, nn.Parameter]], dict[str, Tensor], float], Any]
    """(named parameters, float32 values before the cast, learning rate) -> optimizer."""
    autocast: bool = False


VARIANTS = {
    "fp32": Variant(torch.float32, lambda named, _, lr: fused(named, lr=lr)),
    "autocast": Variant(torch.float32, lambda named, _, lr: fused(named, lr=lr), autocast=True),
    "split": Variant(torch.bfloat16, lambda named, m, lr: Float32AdamW(named, lr, weight_decay=0.0, masters=m)),
    "split_compiled": Variant(
        torch.bfloat16, lambda named, m, lr: Float32AdamW(named, lr, weight_decay=0.0, masters=m, compiled=True)
    ),
    "masters": Variant(torch.bfloat16, lambda named, m, lr: MasterWeights(fused(named, lr=lr), masters=m)),
    "bf16": Variant(torch.bfloat16, lambda named, _, lr: fused(named, lr=lr)),
}


class Linear(nn.Linear):
    """The weight's dtype is storage, the input's is arithmetic."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def network(seed: int, device: torch.device) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = [OBSERVED + ACTION + 1, WIDTH, WIDTH, WIDTH, ACTION]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [Linear(inputs, outputs), nn.GELU()]
    return nn.Sequential(*layers[:-1]).to(device)


def loss(model: nn.Module, step: int, shift: float, autocast: bool, device: torch.device) -> Tensor:
    """Flow matching of actions sin(W obs + shift), batch 128; all draws from `step` alone."""
    generator = torch.Generator().manual_seed(step)
    observed = torch.randn(128, OBSERVED, generator=generator)
    mix = torch.randn(OBSERVED, ACTION, generator=torch.Generator().manual_seed(0)) / 4
    action = torch.sin(observed @ mix + shift)
    noise, t = torch.randn(128, ACTION, generator=generator), torch.rand(128, 1, generator=generator)
    x = torch.cat([observed, t * action + (1 - t) * noise, t], dim=1)
    with torch.autocast(device.type, torch.bfloat16, enabled=autocast):
        velocity = model(x.to(device, torch.float32 if autocast else torch.bfloat16))
    return (velocity.float() - (action - noise).to(device)).square().mean()


def train(model: nn.Module, optimizer: Any, steps: int, shift: float, variant: Variant, device: torch.device) -> float:
    """Train, and return the mean loss over 20 batches that no training sees."""
    for step in range(steps):
        optimizer.zero_grad()
        loss(model, step, shift, variant.autocast, device).backward()
        optimizer.step()
    with torch.no_grad():
        return statistics.fmean(float(loss(model, 10**6 + k, shift, variant.autocast, device)) for k in range(20))


def fine_tuned(name: str, seed: int, base: dict[str, Tensor], steps: int, device: torch.device) -> tuple[float, float]:
    """(validation loss, share of live weights that moved)."""
    variant = VARIANTS[name]
    model = network(seed, device)
    model.load_state_dict(base)
    model.to(variant.weights)
    start = [p.detach().clone() for p in model.parameters()]
    value = train(model, variant.build(list(model.named_parameters()), base, FINE_TUNE_LR), steps, 0.3, variant, device)
    moved = [(p != q).flatten() for p, q in zip(model.parameters(), start)]
    return value, float(torch.cat(moved).float().mean())


def stepping(name: str, device: torch.device) -> tuple[Any, float]:
    """An optimizer over 8 x 1 M parameters with gradients, and the bytes that it keeps per parameter between steps."""
    variant = VARIANTS[name]
    values = {f"w{i}": torch.randn(1024, 1024, device=device) for i in range(8)}
    named = [(k, nn.Parameter(v.to(variant.weights))) for k, v in values.items()]
    optimizer = variant.build(named, values, 1e-4)
    for _, p in named:
        p.grad = torch.randn_like(p)
    optimizer.step()
    kept = [t for _, p in named for t in (p, p.grad, *optimizer.state[p].values())]
    if isinstance(optimizer, MasterWeights):
        kept += [optimizer.master(p) for _, p in named]
    return optimizer, sum(t.numel() * t.element_size() for t in kept) / sum(p.numel() for _, p in named)


def step_times(optimizers: dict[str, Any], rounds: int, device: torch.device) -> dict[str, float]:
    """Median milliseconds of a step, the variants taken in turn, forwards and backwards."""
    taken: dict[str, list[float]] = {name: [] for name in optimizers}
    order = list(optimizers)
    for k in range(rounds + 2):  # two rounds to warm up
        for name in order if k % 2 else order[::-1]:
            if device.type == "cuda":
                torch.cuda.synchronize()
            begin = time.perf_counter()
            optimizers[name].step()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken[name].append(1000 * (time.perf_counter() - begin))
    return {name: statistics.median(times[2:]) for name, times in taken.items()}


def master_mismatches(device: torch.device, steps: int = 1000) -> int:
    generator = torch.Generator(device).manual_seed(0)
    start = torch.randn(200, 172, device=device, generator=generator) * 0.02
    truth, live = nn.Parameter(start.clone()), nn.Parameter(start.bfloat16())
    theirs = torch.optim.AdamW([truth], lr=1e-3, fused=True)
    ours = Float32AdamW([("w", live)], lr=1e-3, masters={"w": start})
    for step in range(steps):
        size = 10 ** (step % 7 - 4)
        live.grad = (torch.randn(start.shape, device=device, generator=generator) * size).bfloat16()
        truth.grad = live.grad.float()
        theirs.step()
        ours.step()
    return int((ours.master(live).view(torch.int32) != truth.detach().view(torch.int32)).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=600, help="of fine-tuning; the base is trained twice as long")
    parser.add_argument("--rounds", type=int, default=20, help="timed steps per variant")
    parser.add_argument("--compile", action="store_true", help="the compiled split step on a CPU too (slow to build)")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    names = [name for name in VARIANTS if name != "split_compiled" or args.compile or device.type == "cuda"]

    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    tuned: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for seed in range(args.seeds):
        model = network(seed, device)
        train(model, fused(model.parameters(), lr=1e-3), 2 * args.steps, 0.0, VARIANTS["fp32"], device)
        base = {name: p.detach().clone() for name, p in model.named_parameters()}
        for name in names:
            tuned[name].append(fine_tuned(name, seed, base, args.steps, device))
    optimizers = {}
    for name in names:
        optimizers[name], results[name]["bytes_per_param"] = stepping(name, device)
        losses, moved = zip(*tuned[name])
        results[name]["val_loss"], results[name]["weights_moved"] = statistics.fmean(losses), statistics.fmean(moved)
        results[name]["val_loss_minus_fp32"] = [a[0] - b[0] for a, b in zip(tuned[name], tuned["fp32"])]
    for name, milliseconds in step_times(optimizers, args.rounds, device).items():
        results[name]["step_ms"] = milliseconds
    report: dict[str, Any] = {
        "variants": results,
        "master_mismatches": master_mismatches(device),
        "conditions": {
            "device": torch.cuda.get_device_name() if device.type == "cuda" else platform.machine(),
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
            "seeds": args.seeds,
            "steps": args.steps,
            "lr": FINE_TUNE_LR,
            "parameters_trained": sum(p.numel() for p in network(0, device).parameters()),
            "parameters_timed": 8 * 2**20,
        },
    }
    if args.json:
        print(json.dumps(report))
        return
    print(f"{'':<16}{'B/param':>8}{'step ms':>9}{'val loss':>10}{'moved':>8}   minus fp32, per seed")
    for name, r in results.items():
        apart = " ".join(f"{x:+.5f}" for x in r["val_loss_minus_fp32"])
        print(
            f"{name:<16}{r['bytes_per_param']:>8.2f}{r['step_ms']:>9.2f}{r['val_loss']:>10.5f}"
            f"{r['weights_moved']:>8.1%}   {apart}"
        )
    print(f"master bits that differ after 1,000 steps: {report['master_mismatches']}")
    print(", ".join(f"{k} {v}" for k, v in report["conditions"].items()))


if __name__ == "__main__":
    main()
