"""Figure of an order beside others: noise, cost, and the episode at each position. Needs matplotlib."""

from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.report.style import BLUE, GRAY, GREEN, ORANGE, VIOLET, new_figure

if TYPE_CHECKING:
    from understudy.report.order.explain import Comparison, Side

BATCHES = 16  # of the lower row
_COLORS = {
    "clips": GREEN,
    "uniform": GRAY,
    "episode lanes": BLUE,
    "block shuffle": VIOLET,
    "worker pool": ORANGE,
    "episode stream": "#c0392b",
}


def draw(comparison: "Comparison", path: str) -> None:
    """Draw the comparison to a .png, .svg or .pdf file."""
    sides = [side for side in comparison.sides if side.figures]
    with new_figure(path, 11, 6.4, dpi=110) as figure:
        halves: Any = figure.subfigures(2, 1, height_ratios=[1.15, 1])
        upper, lower = halves
        noise, cost = upper.subplots(1, 2, width_ratios=[1.7, 1])
        _draw_noise(noise, sides)
        _draw_cost(cost, sides)
        lower.suptitle(
            f"Episode at each position: {BATCHES} batches, episodes numbered by first appearance "
            "(higher: more distinct episodes)",
            x=0.008,
            ha="left",
            fontsize=10,
            fontweight="bold",
        )
        for axes, side in zip(lower.subplots(1, len(sides), sharey=True, squeeze=False)[0], sides, strict=True):
            _draw_episodes(axes, side, comparison.start, comparison.order.batch_size)
        low, high = axes.get_ylim()  # shared: the tallest panel's
        axes.set_ylim(min(low, 0), high * 1.04)


def _draw_noise(axes: Any, sides: "list[Side]") -> None:
    """Draw deff over 1, 8 and 64 batches as bars, on a log scale that starts at independent draws."""
    axes.set_title("Noise of the mean gradient, in units of independent draws (deff)")
    width = 0.8 / len(sides)
    for k, side in enumerate(sides):
        assert side.figures is not None
        at = np.arange(3) + (k - (len(sides) - 1) / 2) * width
        values = np.maximum(side.figures.deff, 1.0)
        axes.bar(at, values - 0.93, width * 0.92, bottom=0.93, color=_COLORS[side.name], label=side.name)
        for x, value in zip(at, values, strict=True):
            text = f"{value:.2f}" if value < 2 else f"{value:.1f}" if value < 10 else f"{value:.0f}"
            axes.text(x, value * 1.05, text, ha="center", va="bottom", fontsize=7.5, color=_COLORS[side.name])
    axes.set_yscale("log")
    axes.set_yticks([1, 3, 10, 30, 100, 1000], ["1", "3", "10", "30", "100", "1000"])
    axes.set_ylim(0.93, max(max(s.figures.deff) for s in sides if s.figures) * 1.7)
    axes.minorticks_off()
    axes.set_xticks(range(3), ["1 batch", "8 batches", "64 batches"])
    axes.tick_params(axis="x", length=0)
    axes.legend(frameon=False, loc="upper left", fontsize=8.5)


def _draw_cost(axes: Any, sides: "list[Side]") -> None:
    """Draw pieces opened per step against noise over 8 batches; area is memory. Colors as in the bars' legend."""
    axes.set_title("… and its cost for the disk")
    shown = [(side.name, side.figures) for side in sides if side.figures]
    most = max(a.frames_in_flight for _, a in shown)
    opened = [max(a.touches_mean, 1e-3) for _, a in shown]  # a log scale has no 0
    for (name, a), x in zip(shown, opened):
        axes.scatter(x, a.deff[1], s=14 + 600 * a.frames_in_flight / most, color=_COLORS[name], alpha=0.3, linewidths=0)
        axes.scatter(x, a.deff[1], s=14, color=_COLORS[name])
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(min(0.3, min(opened) / 3), max(700, 3 * max(opened)))
    axes.set_yticks([1, 2, 5, 10, 20, 100, 1000], ["1", "2", "5", "10", "20", "100", "1000"])
    axes.set_ylim(0.8, max(a.deff[1] for _, a in shown) * 3)  # after the ticks, which would widen it
    low, high = axes.get_xlim()
    ticks = [10.0**power for power in range(-3, 5) if low <= 10.0**power <= high]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("opened per step (area: frames in memory)")
    axes.set_ylabel("deff over 8 batches")


def _draw_episodes(axes: Any, side: "Side", start: int, batch: int) -> None:
    """Draw episodes, numbered by first appearance, against positions; independent draws form a diagonal."""
    assert side.read is not None
    positions = np.arange(BATCHES * batch)
    episode, _, _ = side.read(start + positions)
    _, first, which = np.unique(episode, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[which]
    axes.set_title(side.name, color=_COLORS[side.name])
    axes.plot(positions / batch, number, ".", markersize=1.1, color=_COLORS[side.name], rasterized=True)
    axes.set_xlim(0, BATCHES)
    axes.set_xticks([0, BATCHES // 2, BATCHES])
    axes.set_xlabel("batches")
    # The text is on the left if the dots reach the right-hand corner.
    x, end = (0.05, "left") if first.size > 0.6 * positions.size else (0.97, "right")
    at, text = (x * BATCHES, first.size), f"{first.size:,} episodes"
    offset = {"xytext": (0, 4), "textcoords": "offset points"}
    axes.annotate(text, at, **offset, ha=end, va="bottom", fontsize=8, color=_COLORS[side.name])
