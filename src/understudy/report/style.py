"""What the pictures of `bench` and `order` share: their looks, and how they are written. Needs matplotlib."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from understudy.extras import optional_imports

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GREEN = "#0b6e4f"  # what is ours
GREY = "#8d99ae"  # what it is measured against
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
    "svg.hashsalt": "understudy",  # the same picture twice is the same file
}


def foreign(path: str | None) -> list[str]:
    """One line where something else than a picture drawn by matplotlib would be written over."""
    if not path or not Path(path).exists():
        return []
    if Path(path).is_file() and b"atplotlib" in Path(path).read_bytes():
        return []
    return [f"picture: {path} is there and was not drawn by this; name another file, or move it away"]


@contextmanager
def picture(path: str, width: float, height: float, dpi: int) -> Iterator["Figure"]:
    """An empty figure, in inches, which is written to a .png, .svg or .pdf file when it has been drawn on."""
    with optional_imports():
        import matplotlib
        from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")  # not pyplot's: needs no display, is not kept
        yield figure
        figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.endswith(".svg") else None)
