"""`understudy plan CONFIG`: memory and arithmetic of a run from shapes alone, and its largest micro-batch on a card."""

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from understudy.bytesize import parse_bytes
from understudy.config.declare import Interval
from understudy.config.train import TrainConfig

if TYPE_CHECKING:
    from understudy.train.profiling.plan import Plan

NAMES = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer state": "optimizer state",
    "average": "average of the weights",
    "activations": "activations, kept by forward for backward",
    "peak": "peak, all together",
}
FLOPS_NOTE = "forward and backward, without recomputation"


@dataclass(frozen=True)
class PlanConfig(TrainConfig):
    """Predict the memory of a run with these settings per GPU. Nothing is trained, and no GPU is needed.

    The step of the run is executed on shapes without values, with its sharding, precision and activation checkpointing.
    The arithmetic is that of a GPU, or with `--device cpu` that of a CPU.
    """

    world_size: Annotated[int, Interval(ge=1, le=2**20)] = 1
    """Processes of the run, one for each GPU."""
    gpu_memory: str = ""
    """Memory of a card, such as 80GB: adds the largest micro-batch, and an error if the run exceeds it."""
    json: bool = False
    """Print one JSON object instead of the table."""

    def problems(self) -> list[str]:
        """Return broken rules between fields, one line each."""
        found = super().problems()
        if self.gpu_memory:
            try:
                parse_bytes(self.gpu_memory)
            except ValueError as error:
                found.append(f"gpu_memory: {error}")
        return found


def plan(config: PlanConfig) -> int:
    """Print the plan; return 1 where the run exceeds the card."""
    from understudy.train.profiling import plan as planning

    limit = parse_bytes(config.gpu_memory) if config.gpu_memory else None
    device = "cpu" if config.device == "cpu" else "cuda"
    found = planning.plan(config, config.world_size, device, limit)
    print(json.dumps(found.plain()) if config.json else format_plan(found))
    return 0 if found.limit is None or found.memory["peak"] <= found.limit else 1


def format_plan(found: "Plan") -> str:
    """Format a plan for a terminal."""
    from understudy.train.profiling.plan import MOST

    c, width = found.conditions, max(map(len, NAMES.values())) + 2
    ranks = f"{c['ranks']} ranks ({c['ranks'] // c['shards']} replicas of {c['shards']} shards)"
    words = [f"{found.parameters:,} parameters, {found.trained:,} trained", c["precision"]]
    words += [f"activation checkpointing {c['activation_checkpoint']}", ranks if c["ranks"] > 1 else "1 rank"]
    lines = [", ".join([*words, f"micro-batch {found.micro_batch_size}", f"arithmetic of a {c['device']} device"]), ""]
    lines.append(f"{'memory per rank':<{width}}{'MiB':>12}")
    lines += [f"{NAMES[name]:<{width}}{size / 2**20:>12,.2f}" for name, size in found.memory.items()]
    lines += ["", f"{'activations by checkpointing':<{width}}{'MiB':>12}"]
    lines += [f"{mode:<{width}}{size / 2**20:>12,.2f}" for mode, size in found.activations.items()]
    lines += ["", f"{'bytes per trained parameter':<{width}}{found.bytes_per_parameter:>12.2f}"]
    lines.append(f"{'model GFLOP per sample':<{width}}{found.flops_per_sample / 1e9:>12,.2f}  {FLOPS_NOTE}")
    if found.tokens_per_sample is not None:
        lines.append(f"{'tokens per sample':<{width}}{found.tokens_per_sample:>12,}")
    if found.longest_prompt is not None:
        longest, most, setting = found.longest_prompt
        note = f"of policy.{setting} {most:,}" + (", the rest is cut" if longest > most else "")
        lines.append(f"{'length of the longest prompt':<{width}}{longest:>12,}  {note}")
    if found.limit is not None:
        fits = "fits" if found.memory["peak"] <= found.limit else "does not fit"
        lines.append(f"{'usable memory of the card':<{width}}{found.limit / 2**20:>12,.2f}  the run {fits}")
        more = " or more" if found.largest_micro_batch == max(MOST, found.micro_batch_size) else ""
        lines.append(f"{'largest micro-batch':<{width}}{found.largest_micro_batch:>12,}{more}")
    return "\n".join(lines)
