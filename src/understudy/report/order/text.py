"""Text of `order explain`: each dataset in a line, the table of the orders, and its explanation."""

from collections.abc import Callable, Sequence
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from understudy.load.choose_order import OrderChoice
    from understudy.order.audit.audit import Audit
    from understudy.report.order.explain import Comparison, ExplainConfig, Table


def describe(table: "Table") -> str:
    """Describe a dataset in one line."""
    total, mean = int(table.lengths.sum()), float(table.lengths.mean())
    size = f"{table.lengths.size:,} episodes, {total:,} frames, {mean:.0f} per episode"
    return f"{table.name}: {size}, a key frame every {table.gop}"


def render_choice(choice: "OrderChoice", tables: Sequence["Table"], config: "ExplainConfig") -> str:
    """Render the candidates of a choice, one in a row, the chosen one marked."""
    import numpy as np

    from understudy.load.choose_order import WINDOWS
    from understudy.order.audit.design_effect import expected_uniform

    lengths = np.concatenate([table.lengths for table in tables])
    total = int(lengths.sum())
    uniform = [expected_uniform(lengths, min(total, count * config.batch_size)) for count in WINDOWS]
    width = max(len(str(candidate)) for candidate in choice.candidates)
    lines = [f"  {'':{width}}  {'CPU':>6}  {'memory':>8}  deff over 1, 8 and 64 batches"]
    for candidate in choice.candidates:
        effects = "  ".join(f"{base + more:6.2f}" for base, more in zip(uniform, candidate.correlation))
        mark = ">" if candidate is choice.chosen else " "
        memory = f"{candidate.plan.bytes / 1e9:.2f} GB"
        lines.append(f"{mark} {candidate!s:{width}}  {candidate.cost:6.2f}  {memory:>8}  {effects}")
    notes = (
        f"Chosen for {config.memory} of memory in each of {config.world_size} ranks. CPU: multiple of decoding each "
        "image in a row, the mean of an epoch in which nothing is decoded yet. Of the orders up to 1.25, the one with "
        "the least deff over 8 batches is taken. deff is an estimate here; the next table is audited."
    )
    return "\n".join([*lines, "", fill(notes, 118), *([fill(choice.advice, 118)] if choice.advice else []), ""])


def render(tables: Sequence["Table"], comparison: "Comparison", config: "ExplainConfig") -> str:
    """Render the table of the orders, with its explanation."""
    from understudy.order.audit.audit import WINDOWS

    lines = [*_rows(comparison), ""]
    lines += [f"omitted: {side.missing}" for side in comparison.sides if side.missing]
    low, high = next(side.figures.stretch for side in comparison.sides if side.figures)
    if not comparison.settled:
        lines.append(
            f"{high - low:,} positions were audited, too few for orders with this many frames in flight to settle: "
            "their figures are approximate."
        )
    frames, batches = sum(int(table.lengths.sum()) for table in tables), WINDOWS[-1]
    if (epochs := batches * config.batch_size / frames) > 1:
        lines.append(
            f"{batches} batches are {epochs:,.3g} epochs of {frames:,} frames: no order has a smaller deff than that"
        )
    notes = (
        f"Counted over positions {low:,} to {high:,}; global batch {config.batch_size}, {config.world_size} ranks, "
        f"{config.num_workers} workers each. deff: variance of the mean over that many batches, divided by that of "
        "independent draws. Its model: two frames of one episode correlate by 0.3 + 0.3 exp(-distance / 30 frames), "
        "frames of two episodes do not. All other figures are counted. A piece is opened, read and closed as a whole: "
        "a clip, an episode or a single frame."
    )
    return "\n".join([*lines, fill(f"{notes} Terms: docs/glossary.md.", 118)])


def _rows(comparison: "Comparison") -> list[str]:
    """Rows of the table, one per figure, with one column per order."""
    shown = [(side.name, side.figures) for side in comparison.sides if side.figures]
    rows: dict[str, Callable[[Audit], str]] = {
        "episodes in a batch": lambda a: f"{a.distinct_episodes:.1f}",
        "deff over 1 batch": lambda a: f"{a.deff[0]:.2f}",
        "         8 batches": lambda a: f"{a.deff[1]:.2f}",
        "        64 batches": lambda a: f"{a.deff[2]:.1f}",
        "pieces open, mean": lambda a: f"{a.open_mean:.0f}",
        "             most": lambda a: f"{a.open_max}",
        "frames in flight": lambda a: f"{a.frames_in_flight:,}",
        "megabytes in flight": lambda a: f"{a.bytes_in_flight / 1e6:,.0f}",
        "opened in a step, mean": lambda a: f"{a.touches_mean:.2f}",
        "                  most": lambda a: f"{a.touches_peak}",
        "ranks that open a piece": lambda a: f"{a.opens_per_piece:.2f}",
        "decoded per sample": lambda a: f"{a.amplification:.2f}",
        "episode again after": lambda a: _seconds(a.revisit_seconds),
    }
    width = max(map(len, rows))
    columns = [max(len(name), 9) for name, _ in shown]
    head = " " * width + "".join(f"  {name:>{w}}" for (name, _), w in zip(shown, columns, strict=True))
    body = [
        f"{label:<{width}}" + "".join(f"  {cell(a):>{w}}" for (_, a), w in zip(shown, columns, strict=True))
        for label, cell in rows.items()
    ]
    return [head, *body]


def _seconds(value: float) -> str:
    """Format seconds of recorded data in the largest fitting unit."""
    if value == float("inf"):
        return "beyond"
    if value < 90:
        return f"{value:.2g} s" if value < 1 else f"{value:.1f} s"
    return f"{value / 60:.1f} min" if value < 5400 else f"{value / 3600:.1f} h"
