"""`understudy plan CONFIG`: memory, arithmetic and steps per hour of a run, and its largest
micro-batch on a card.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from understudy.config.train import TrainConfig
from understudy.train.profiling.data_sheets import TERAFLOPS, peak_flops
from understudy_base import parse_bytes
from understudy_kit import Interval

if TYPE_CHECKING:
    from understudy.train.profiling.plan import Plan

NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "average": "average of the weights (EMA)",
    "inputs": "inputs of a micro-batch, images included",
    "activations": "activations, kept by forward for backward",
    "rest": "temporary, less parts that never coincide",
    "peak": "peak, the sum of these",
}
SHORTEST_STEP = 0.02
"""Seconds of arithmetic of a step below which the launches of its kernels take as long."""
FLOPS_NOTE = "forward and backward, without recomputation"


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """Predict the memory of a run with these settings per GPU. Nothing is trained, and no GPU is
    needed.

    The step of the run is executed on shapes without values, with its sharding, precision and
    activation checkpointing. The arithmetic is that of a GPU, or with `--device cpu` that of a CPU.
    """

    world_size: Annotated[int, Interval(ge=1, le=2**20)] = 1
    """Processes of the run, one for each GPU."""
    gpu_memory: tuple[str, ...] = ()
    """Memory of a card, such as 80GB, or of several: adds whether the run fits, and the largest
    micro-batch. The exit code is 1 if the run exceeds each of them.
    """
    gpu: tuple[str, ...] = ("RTX 4090", "A100", "H100")
    """Names of graphics cards, as in "H100 PCIe". The plan adds the steps per hour on each, by its
    data sheet.
    """
    mfu: Annotated[float, Interval(gt=0, le=1)] = 0.35
    """Share of the arithmetic of the data sheet that a step reaches. The pi0.5 of 3 billion
    parameters reaches 0.31 to 0.38 on an H200. Small networks, and steps that wait for their data,
    reach far less.
    """
    json: bool = False
    """Print one JSON object instead of the table."""

    def problems(self) -> list[str]:
        """Return broken rules between fields, one line each."""
        errors = super().problems()
        for size in self.gpu_memory:
            try:
                parse_bytes(size)
            except ValueError as error:
                errors.append(f"gpu_memory: {error}")
            else:
                if size.strip()[-1].isdigit():
                    errors.append(
                        f"gpu_memory: {size!r} has no unit; give one, as in {size.strip()}GB"
                    )
        names = ", ".join(TERAFLOPS)
        errors += [
            f"gpu: no data sheet of {name!r} is here; there are {names}"
            for name in self.gpu
            if name not in TERAFLOPS
        ]
        return errors


def plan(config: PlanConfig) -> int:
    """Print the plan; return 1 where the run exceeds the card."""
    from understudy.train.profiling import plan as planning

    device = "cpu" if config.device == "cpu" else "cuda"
    estimate = planning.plan(
        config, config.world_size, device, [parse_bytes(size) for size in config.gpu_memory]
    )
    if config.json:
        print(
            json.dumps(
                estimate.plain()
                | {"mfu": config.mfu, "steps_per_hour": steps_per_hour(config, estimate)}
            )
        )
    else:
        print(format_plan(estimate, config.gpu_memory))
        print("\n" + format_speeds(config, estimate))
    return (
        0
        if not estimate.cards
        or estimate.memory["peak"] <= max(card.limit for card in estimate.cards)
        else 1
    )


def step_seconds(config: PlanConfig, costs: "Plan") -> dict[str, float | None]:
    """Return the seconds of a step by name of a card; None where its data sheet lacks the
    arithmetic of the run.
    """
    speeds = {name: peak_flops(name, costs.arithmetic) for name in config.gpu}
    return {
        name: speed and costs.step_seconds(config.mfu * speed) for name, speed in speeds.items()
    }


def steps_per_hour(config: PlanConfig, costs: "Plan") -> dict[str, float | None]:
    """Return the steps per hour by name of a card; None where arithmetic does not decide them, or
    is unknown.
    """
    times = step_seconds(config, costs)
    rates: dict[str, float | None] = {}
    for name, time in times.items():
        rates[name] = 3600 / time if time and time >= SHORTEST_STEP else None
    return rates


def format_speeds(config: PlanConfig, costs: "Plan") -> str:
    """Format the steps per hour for a terminal."""
    cards = "card" if costs.conditions["ranks"] == 1 else f"{costs.conditions['ranks']} cards"
    basis = f"{config.mfu:.0%} of the {costs.arithmetic} arithmetic of the data sheet (--mfu)"
    lines = [f"{cards:<12}{'steps/hour':>12}  at {basis}, without waiting for data"]
    for name, time in step_seconds(config, costs).items():
        if time is None:
            lines.append(f"{name:<12}{'':>12}  its data sheet has no {costs.arithmetic}")
        elif time < SHORTEST_STEP:
            note = (
                f"{1000 * time:.1f} ms of arithmetic: the host decides; measure with "
                "`understudy profile`"
            )
            lines.append(f"{name:<12}{'':>12}  {note}")
        else:
            hours = config.steps * time / 3600
            note = (
                f"{config.batch_size / time:,.1f} samples/s; {config.steps:,} steps take "
                f"{hours:,.1f} hours"
            )
            lines.append(f"{name:<12}{3600 / time:>12,.0f}  {note}")
    return "\n".join(lines)


def format_plan(costs: "Plan", cards: Sequence[str]) -> str:
    """Format a plan for a terminal; `cards` are the names of `found.cards`."""
    from understudy.train.profiling.plan import MOST

    c = costs.conditions
    width = max(map(len, NAMES.values())) + 2
    ranks = "1 rank"
    if c["ranks"] > 1:
        ranks = f"{c['ranks']} ranks ({c['ranks'] // c['shards']} replicas of {c['shards']} shards)"
    words = [f"{costs.parameters:,} parameters, {costs.trained:,} trained", c["precision"]]
    if c["attention"] != "sdpa":
        words.append(f"attention {c['attention']}")
    words += [
        f"activation checkpointing {c['activation_checkpoint']}",
        ranks,
        f"micro-batch {costs.micro_batch_size}",
        f"arithmetic of a {c['device']} device",
    ]
    lines = [", ".join(words), "", f"{'memory per rank':<{width}}{'MiB':>12}"]
    sizes = costs.memory | {"inputs": costs.inputs}
    sizes["rest"] = 2 * sizes["peak"] - sum(sizes.values())
    notes = {"inputs": f"cameras: {', '.join(c['cameras']) or 'none'}"}
    if not sizes["average"]:
        notes["average"] = f"off; --optim.ema.decay adds {costs.average_if_kept / 2**20:,.2f}"
    lines += [
        f"{text:<{width}}{sizes[name] / 2**20:>12,.2f}  {notes.get(name, '')}"
        for name, text in NAMES.items()
    ]
    lines += ["", f"{'by --activation-checkpoint':<{width}}{'activations':>12}{'peak':>12}"]
    lines += [
        f"{mode:<{width}}{size / 2**20:>12,.2f}{costs.peaks[mode] / 2**20:>12,.2f}"
        for mode, size in costs.activations.items()
    ]
    lines += ["", f"{'on disk':<{width}}{'MiB':>12}"]
    lines.append(
        f"{'a checkpoint':<{width}}{costs.checkpoint / 2**20:>12,.2f}  weights, moments and average"
    )
    note = "without moments" if costs.best else "none is kept"
    lines.append(f"{'weights of the best validation':<{width}}{costs.best / 2**20:>12,.2f}  {note}")
    lines += ["", f"{'bytes per trained parameter':<{width}}{costs.bytes_per_parameter:>12.2f}"]
    lines.append(
        f"{'model GFLOP per sample':<{width}}{costs.flops_per_sample / 1e9:>12,.2f}  {FLOPS_NOTE}"
    )
    if costs.tokens_per_sample is not None:
        lines.append(f"{'tokens per sample':<{width}}{costs.tokens_per_sample:>12,}")
    if costs.longest_prompt is not None:
        longest, most, setting = costs.longest_prompt
        note = f"of policy.{setting} {most:,}"
        if longest > most:
            note += ", the rest is cut"
        lines.append(f"{'length of the longest prompt':<{width}}{longest:>12,}  {note}")
    if costs.cards:
        lines += ["", f"{'card':<{width}}{'usable MiB':>12}{'the run':>14}  largest micro-batch"]
    for name, card in zip(cards, costs.cards):
        fits = "fits" if costs.memory["peak"] <= card.limit else "does not fit"
        more = " or more" if card.largest_micro_batch == max(MOST, costs.micro_batch_size) else ""
        lines.append(
            f"{name:<{width}}{card.limit / 2**20:>12,.2f}{fits:>14}  "
            f"{card.largest_micro_batch:,}{more}"
        )
    return "\n".join(map(str.rstrip, lines))
