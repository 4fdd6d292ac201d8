"""Style and writing of the figures of `bench` and `order`. Needs matplotlib."""

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


def check_figure_path(path: str | None) -> list[str]:
    """List the reasons why no figure can be written to `path`, one line each; none for no path."""
    if not path:
        return []
    file, found = Path(path), []
    if not file.absolute().parent.is_dir():
        found.append(f"figure: {file.parent} is no folder; create it first")
    if not path.endswith((".png", ".svg", ".pdf")):
        found.append(f"figure: {path!r} must end in .png, .svg or .pdf")
    if file.exists() and not (file.is_file() and b"atplotlib" in file.read_bytes()):
        found.append(f"figure: {path} exists and is no figure of matplotlib; name another file, or move this one")
    return found


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
