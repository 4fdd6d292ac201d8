"""Gain of computing the valid tokens of a batch alone, on a mixture of robots with one, two and three cameras.

    python benchmarks/tokens.py [--json] [--rounds 5] [--width 256]

A pi0.5 network with the token counts of the released one (256 per image, 50 actions) and smaller layers takes a batch
of six samples: one, two or three cameras, with texts of 10 or 200 tokens.

    padded    three images and 200 text tokens for each sample, the missing ones black: as openpi, LeRobot and OpenTau
              compute it
    trimmed   as a run without budget computes it: present images alone are encoded, and in the language tower each
              sample has the cameras and the length of the longest
    packed    as a run with `max_num_tokens` computes it: no padding

Operations of forward and backward are counted by torch's FlopCounterMode. Times are CPU seconds of this process,
medians of alternating runs. The losses of `trimmed` and `packed` are compared in every round. `valid_share` is the
share of tokens in `padded` that count.
"""

import argparse
import json
import os
import platform
import statistics
import time
from dataclasses import asdict
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from understudy.policies.common.towers.tower_sizes import TowerSizes
from understudy.policies.draws import make_draws
from understudy.policies.losses import scalar
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.extents import EXTENTS, extents
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.sizes import Sizes, VisionSizes
from understudy.train.profiling.flops import count_flops

CAMERAS = tuple(f"observation.images.{name}" for name in ("front", "left_wrist", "right_wrist"))
TEXTS = (10, 200)
CHUNK, DIM, VOCAB = 50, 7, 1000
KINDS = ("padded", "trimmed", "packed")


def make_policy(width: int, image: int = 224) -> Pi05Policy:
    """Build a network whose parts have about the shares of the released one; `width`: of the language tower."""
    heads = {"num_heads": 8, "num_kv_heads": 1, "head_dim": width // 8}
    sizes = Sizes(
        vision=VisionSizes(width=width * 9 // 16, depth=3, mlp=width * 2, heads=2, patch=14, image=image),
        vlm=TowerSizes(width=width, depth=2, mlp_dim=8 * width, **heads),
        expert=TowerSizes(width=width // 2, depth=2, mlp_dim=2 * width, **heads),
        vocab=VOCAB,
        chunk=CHUNK,
        dim=32,
    )
    config = Pi05PolicyConfig(
        action_dim=DIM, state_dim=DIM, cameras=CAMERAS, chunk=CHUNK, dimensions=asdict(sizes), prompt_tokens=TEXTS[-1]
    )
    units = {"offset": [0.0] * DIM, "spread": [1.0] * DIM}
    torch.manual_seed(0)
    policy = Pi05Policy(config, {"action": units, "observation.state": units})
    with torch.no_grad():  # a fresh expert is the identity, which would hide differences
        for parameter in policy.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return policy


def make_batch(image: int = 224) -> dict[str, Any]:
    """Generate a prepared batch: every number of cameras with every length of text."""
    generator = torch.Generator().manual_seed(0)
    kinds = [(cameras, length) for cameras in range(1, len(CAMERAS) + 1) for length in TEXTS]
    rows, lengths = len(kinds), torch.tensor([length for _, length in kinds])
    batch: dict[str, Any] = {
        camera: torch.randint(0, 256, (rows, 3, image, image), dtype=torch.uint8, generator=generator)
        for camera in CAMERAS
    }
    for number, camera in enumerate(CAMERAS):
        batch[f"{camera}_is_missing"] = torch.tensor([number >= cameras for cameras, _ in kinds])
    batch |= {
        "prompt_tokens": torch.randint(3, VOCAB, (rows, max(TEXTS)), generator=generator),
        "prompt_is_pad": torch.arange(max(TEXTS)) >= lengths[:, None],
        "action": torch.randn(rows, CHUNK, DIM, generator=generator),
        "action_is_pad": torch.zeros(rows, CHUNK, dtype=torch.bool),
    }
    return batch | {EXTENTS: extents(batch, CAMERAS)}


def measure(policy: Pi05Policy, batch: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Count operations, and time all three ways in turns."""
    rows = len(batch["action"])
    draws = make_draws(policy.random_spec("train"), 0, range(rows))
    black = {key: value for key, value in batch.items() if not key.endswith("_is_missing")}
    for camera in CAMERAS:
        black[camera] = torch.where(batch[f"{camera}_is_missing"][:, None, None, None], 0, batch[camera])
    # A mask over the missing images would cost no operations.
    black |= {EXTENTS: extents(black, CAMERAS)}

    def step(kind: str) -> float:
        policy.packs = kind == "packed"
        policy.zero_grad()
        loss = scalar(policy.losses(black if kind == "padded" else batch, draws))
        loss.backward()
        return loss.item()

    flops = {kind: count_flops(lambda kind=kind: step(kind), policy) / rows for kind in KINDS}  # type: ignore[misc]
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        losses = {}
        for kind in KINDS:
            start = time.process_time()
            losses[kind] = step(kind)
            times[kind].append(time.process_time() - start)
        if abs(losses["packed"] - losses["trimmed"]) > 1e-5 * abs(losses["trimmed"]):
            raise RuntimeError(f"losses differ: {losses}")
    median = {kind: statistics.median(own) for kind, own in times.items()}
    policy.packs = False
    return {
        **{f"{kind}_flops_per_sample": round(own) for kind, own in flops.items()},
        "cpu_ratio": median["padded"] / median["packed"],
        "valid_share": sum(policy.tokens(batch)) / policy.processed_tokens(black),
        "flops_ratio": flops["padded"] / flops["packed"],
        "over_trimmed": {
            "flops_ratio": flops["trimmed"] / flops["packed"],
            "cpu_ratio": median["trimmed"] / median["packed"],
        },
        "cpu_s": median,
        "conditions": {"rounds": rounds, "samples": rows, "torch": torch.__version__, "machine": platform.machine()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--width", type=int, default=256)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(make_policy(options.width), make_batch(), options.rounds)
    if options.json:
        print(json.dumps(found))
        return
    for kind in KINDS:
        print(
            f"{kind}: {found[f'{kind}_flops_per_sample'] / 1e9:.2f} GFLOP per sample, {found['cpu_s'][kind]:.2f} s CPU"
        )
    less = found["over_trimmed"]
    print(f"valid tokens {found['valid_share']:.1%}")
    print(f"padded over packed: operations {found['flops_ratio']:.2f}, CPU time {found['cpu_ratio']:.2f}")
    print(f"trimmed over packed: operations {less['flops_ratio']:.2f}, CPU time {less['cpu_ratio']:.2f}")


if __name__ == "__main__":
    main()
