"""Figure of a bench: samples per second of each loader and limit, and CPU time of a sample. Needs matplotlib."""

from typing import Any

from understudy.report.style import BLUE, GRAY, GREEN, ORANGE, VIOLET, new_figure

_COLORS = {
    "understudy": GREEN,
    "decode limit": GRAY,
    "bare codec": "#c3cad6",
    "shuffled": "#dde2ea",
    "LeRobot": ORANGE,
}
_WORK = {"fetch": VIOLET, "decode": BLUE, "convert": "#56a8d8", "assemble": "#b08a00"}


def draw(found: dict[str, Any], path: str) -> None:
    """Draw the measurement to a .png, .svg or .pdf file."""
    sides = {"understudy": found}
    if found["limit"]:
        sides["decode limit"] = found["limit"]
    if found["codec_limit"]:
        sides["bare codec"] = found["codec_limit"]
    if found["shuffled_limit"]:
        sides["shuffled"] = found["shuffled_limit"]
    if found["lerobot"] and "missing" not in found["lerobot"]:
        sides["LeRobot"] = found["lerobot"]
    with new_figure(path, 9.5, 1.6 + 0.45 * len(sides), dpi=130) as figure:
        at = found["conditions"]
        figure.suptitle(
            f"{found['path']}, batches of {found['batch']}; {at['cpu']}, {at['cores']} cores"
            + (f"\nnot to be quoted: {found['doubt']}" if found["doubt"] else ""),
            fontsize=9,
            x=0.01,
            ha="left",
        )
        rates, costs = figure.subplots(1, 2, sharey=True)
        names = list(sides)[::-1]  # bars are stacked upwards, ours at the top
        both = ((rates, "samples_per_s", "Samples per second"), (costs, "cpu_ms_per_sample", "CPU ms per sample"))
        for axes, figure_name, title in both:
            values = [float(sides[name][figure_name]) for name in names]
            axes.set_title(title)
            if axes is costs:  # our bar is split by the threads' working time
                left = 0.0
                for part, share in found["work"].items():
                    axes.barh(names[-1:], [values[-1] * share], left=left, color=_WORK[part], height=0.6, label=part)
                    left += values[-1] * share
                axes.barh(names[:-1], values[:-1], color=[_COLORS[name] for name in names[:-1]], height=0.6)
                axes.legend(frameon=False, ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12))
            else:
                axes.barh(names, values, color=[_COLORS[name] for name in names], height=0.6)
            for at, value in enumerate(values):
                text = f" {value:,.0f}" if value >= 100 else f" {value:.3g}"
                axes.text(value, at, text, va="center", ha="left")
            axes.set_xlim(0, max(values) * 1.15)
            axes.tick_params(axis="y", length=0)
