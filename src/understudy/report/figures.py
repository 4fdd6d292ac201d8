"""Figures of `bench` as PNG, SVG or PDF files. Needs matplotlib (extra `report`)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.optional_packages import optional_imports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEN = "#0b6e4f"  # ours
GRAY = "#8d99ae"  # the reference
ORANGE = "#d98a29"
BLUE = "#3a6ea5"
VIOLET = "#7b5ea7"

_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "svg.hashsalt": "understudy",  # the same figure is the same file
}


_LOADERS = {
    "understudy": GREEN,
    "decode limit": GRAY,
    "bare codec": "#c3cad6",
}
_WORK = {"fetch": VIOLET, "decode": BLUE, "convert": "#56a8d8", "assemble": "#b08a00"}


def check_figure_path(path: str | None) -> list[str]:
    """List the reasons why no figure can be written to `path`, one line each; none for no path."""
    if not path:
        return []
    file, errors = Path(path), []
    if not file.absolute().parent.is_dir():
        errors.append(f"figure: {file.parent} is not a folder; create it first")
    if not path.endswith((".png", ".svg", ".pdf")):
        errors.append(f"figure: {path!r} must end in .png, .svg or .pdf")
    if file.exists() and not (file.is_file() and b"atplotlib" in file.read_bytes()):
        errors.append(f"figure: {path} exists and is not a figure of matplotlib; name another file, or move this one")
    return errors


@contextmanager
def new_figure(path: str, width: float, height: float, dpi: int) -> Iterator["Figure"]:
    """Make an empty figure of a size in inches; on exit it is written to a .png, .svg or .pdf file."""
    with optional_imports():
        import matplotlib
        from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")  # without pyplot: no display, no global state
        yield figure
        figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.endswith(".svg") else None)


def draw_bench(measured: dict[str, Any], path: str) -> None:
    """Draw the measurement to a .png, .svg or .pdf file."""
    sides = {"understudy": measured}
    if measured["limit"]:
        sides["decode limit"] = measured["limit"]
    if measured["codec_limit"]:
        sides["bare codec"] = measured["codec_limit"]
    with new_figure(path, 9.5, 1.6 + 0.45 * len(sides), dpi=130) as figure:
        conditions = measured["conditions"]
        figure.suptitle(
            f"{measured['path']}, batches of {measured['batch']}; {conditions['cpu']}, {conditions['cores']} cores"
            + (f"\nnot to be quoted: {measured['doubt']}" if measured["doubt"] else ""),
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
                for part, share in measured["work"].items():
                    axes.barh(names[-1:], [values[-1] * share], left=left, color=_WORK[part], height=0.6, label=part)
                    left += values[-1] * share
                axes.barh(names[:-1], values[:-1], color=[_LOADERS[name] for name in names[:-1]], height=0.6)
                axes.legend(frameon=False, ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12))
            else:
                axes.barh(names, values, color=[_LOADERS[name] for name in names], height=0.6)
            for place, value in enumerate(values):
                text = f" {value:,.0f}" if value >= 100 else f" {value:.3g}"
                axes.text(value, place, text, va="center", ha="left")
            axes.set_xlim(0, max(values) * 1.15)
            axes.tick_params(axis="y", length=0)
