"""Our order and five others with about as many frames in flight: shuffle quality and cost.

    python lab/benchmarks/order_compare.py [PATH ...] [--frames-in-flight N] [--gop N] ...

Flags are those of `understudy order explain`, and `--num-workers`. Without datasets the lengths are
synthetic, like DROID's. The positions to audit are bounded; `order_audit.py` documents the figures.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Annotated

import numpy as np

import order_baselines
from order_audit import WINDOWS, Audit, as_read, audit
from understudy_base import Progress
from understudy_data.load.explain import ExplainedOrder, LengthTable
from understudy_data.order import Order
from understudy_kit import Interval, complete
from understudy_kit.config.flags import read_flags
from understudy_tools.cli.order import ExplainConfig, explained, order_options

MOST = 1 << 22
"""Most positions to audit, and most positions before them, which bounds memory and time. An order
that holds more than a quarter of this many frames has not settled, and the text notes it.
"""

FEW = 1 << 20
"""Positions to audit if they suffice, or if no affordable number would: one or two seconds of CPU
time per order.
"""

WIDEST = 64
"""Batches of the widest window."""


@dataclass(frozen=True)
class CompareConfig(ExplainConfig):
    """Compare orders over datasets, or over a synthetic table of episode lengths like DROID's."""

    num_workers: Annotated[int, Interval(ge=1, le=1 << 12)] = 8
    """Loader workers per rank, for the orders that depend on them."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = super().problems()
        if self.batch_size * WIDEST > MOST:
            errors.append(
                f"batch_size: {WIDEST} batches of {self.batch_size} exceed {MOST:,} positions"
            )
        return errors


@dataclass(frozen=True)
class Side:
    """One order of the comparison: its name, its reader and its figures, or the reason why it has
    none.
    """

    name: str
    read: order_baselines.Read | None
    figures: Audit | None
    missing: str = ""


@dataclass(frozen=True)
class Comparison:
    """Our order and the others."""

    order: Order
    lengths: np.ndarray
    start: int
    """First audited position, at which every order has settled."""
    sides: tuple[Side, ...]
    settled: bool
    """Whether the audited positions cover several turnovers of the frames held."""


def compare(
    tables: Sequence[LengthTable], config: CompareConfig, order: Order | None = None
) -> Comparison:
    """Audit our order over the tables, and five others holding about as many frames as ours has in
    flight.

    Progress is shown on stderr.
    """
    order = order or ExplainedOrder.of_lengths(tables, **order_options(config)).order
    clips, lengths = as_read(order)
    uniform, _ = as_read(
        Order.from_datasets(
            tables,
            weights=config.weights or None,
            batch_size=config.batch_size,
            seed=config.seed,
            mode="uniform",
        )
    )
    # A source in uniform order is held whole; otherwise V lanes hold a clip of S each.
    held = sum(
        s.frames if s.clip == 1 else min(s.frames, s.clip * s.lanes) for s in order.spec.sources
    )
    episodes = _whole(held / float(lengths.mean()), config.batch_size, lengths.size)
    pool = max(1, episodes // (config.world_size * config.num_workers))
    # The initial state of a pool is lost after about two turnovers; the audit must cover several
    # more.
    start = min(3 * held, MOST) // config.batch_size * config.batch_size
    settled = 4 * held <= MOST
    enough = max(min(2048 * config.batch_size, FEW), 4 * held) if settled else FEW
    span = max(WIDEST * config.batch_size, min(enough, MOST))
    last = start + span
    options = {
        "batch": config.batch_size,
        "ranks": config.world_size,
        "workers": config.num_workers,
        "positions": last,
    }
    makers: dict[str, Callable[[], order_baselines.Read]] = {
        "clips": lambda: clips,
        "uniform": lambda: uniform,
        "episode lanes": lambda: order_baselines.episode_lanes(lengths, episodes, config.seed),
        "block shuffle": lambda: order_baselines.block(lengths, held, config.seed),
        "worker pool": lambda: order_baselines.worker_pool(
            lengths, **options, pool=pool, seed=config.seed
        ),
        "episode stream": lambda: order_baselines.episode_stream(
            lengths, **options, seed=config.seed
        ),
    }
    sides = []
    with Progress(len(makers), "orders", "order") as progress:
        for name, make in makers.items():
            try:
                read = make()
                figures = audit(
                    read,
                    lengths,
                    config.batch_size,
                    name=name,
                    world_size=config.world_size,
                    start=start,
                    span=span,
                    gop=np.repeat(
                        [table.gop for table in tables], [table.lengths.size for table in tables]
                    ),
                    reach=config.reach,
                    fps=tables[0].fps,
                )
            except ValueError as error:  # fewer episodes than workers; a clip longer than the audit
                sides.append(Side(name, None, None, str(error)))
            else:
                sides.append(Side(name, read, figures))
            progress.update()
    return Comparison(order, lengths, start, tuple(sides), settled)


def _whole(fitting: float, batch: int, most: int) -> int:
    """Round to whole episodes, to a multiple of the batch if possible, so that a lane has one
    rank.
    """
    episodes = max(1, min(round(fitting), most))
    return episodes // batch * batch or episodes


def render(tables: Sequence[LengthTable], comparison: Comparison, config: CompareConfig) -> str:
    """Render the table of the orders, with its explanation."""
    lines = [*_rows(comparison), ""]
    lines += [f"omitted: {side.missing}" for side in comparison.sides if side.missing]
    low, high = next(side.figures.stretch for side in comparison.sides if side.figures)
    if not comparison.settled:
        lines.append(
            f"{high - low:,} positions were audited, too few for orders with this many frames in "
            "flight to settle: their figures are approximate."
        )
    frames = sum(int(table.lengths.sum()) for table in tables)
    batches = WINDOWS[-1]
    if (epochs := batches * config.batch_size / frames) > 1:
        lines.append(
            f"{batches} batches are {epochs:,.3g} epochs of {frames:,} frames: no order has a "
            "smaller deff than that"
        )
    notes = (
        f"Counted over positions {low:,} to {high:,}; global batch {config.batch_size}, "
        f"{config.world_size} ranks, {config.num_workers} workers each. deff: variance of the mean "
        "over that many batches, divided by that of independent draws. Its model: two frames of "
        "one episode correlate by 0.3 + 0.3 exp(-distance / 30 frames), frames of two episodes do "
        "not. All other figures are counted. A piece is opened, read and closed as a whole: a "
        "clip, an episode or a single frame."
    )
    return "\n".join([*lines, fill(f"{notes} Terms: docs/glossary.md.", 118)])


def _rows(comparison: Comparison) -> list[str]:
    """Rows of the table, one per figure, with one column per order."""
    shown = [(side.name, side.figures) for side in comparison.sides if side.figures]
    rows: dict[str, Callable[[Audit], str]] = {
        "episodes in a batch": lambda a: f"{a.distinct_episodes:.1f}",
        "deff over 1 batch": lambda a: f"{a.deff[0]:.2f}",
        "         8 batches": lambda a: f"{a.deff[1]:.2f}",
        "        64 batches": lambda a: f"{a.deff[2]:.1f}",
        "pieces open, most": lambda a: f"{a.open_max}",
        "frames in flight": lambda a: f"{a.frames_in_flight:,}",
        "opened in a step, mean": lambda a: f"{a.touches_mean:.2f}",
        "                  most": lambda a: f"{a.touches_peak}",
        "ranks that open a piece": lambda a: f"{a.opens_per_piece:.2f}",
        "decoded per sample": lambda a: f"{a.amplification:.2f}",
        "episode again after": lambda a: _seconds(a.revisit_seconds),
    }
    width = max(map(len, rows))
    columns = [max(len(name), 9) for name, _ in shown]
    head = " " * width + "".join(
        f"  {name:>{w}}" for (name, _), w in zip(shown, columns, strict=True)
    )
    body = [
        f"{label:<{width}}"
        + "".join(f"  {cell(a):>{w}}" for (_, a), w in zip(shown, columns, strict=True))
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


def main(words: list[str]) -> None:
    config = complete(read_flags(CompareConfig, words, {}))
    own = explained(config)
    comparison = compare(own.tables, config, own.order)
    print(
        "\n".join(
            [
                *map(str, own.tables),
                "",
                comparison.order.explain(),
                "",
                render(own.tables, comparison, config),
            ]
        )
    )


if __name__ == "__main__":
    main(sys.argv[1:])
