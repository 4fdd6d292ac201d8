"""One self-contained HTML page: opens offline, follows the reader's light or dark setting, prints.

Pictures are data URIs, charts inline SVG whose text and axes take the page's colour. Not here: what a page says
(`report.py`, `inspect.py`).
"""

import base64
import io
import itertools
import warnings
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.extras import required

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Readable on white and on near-black alike (colours of Okabe & Ito, made a little lighter or darker for that).
COLOURS = ("#2f7fd8", "#e0762b", "#2aa36f", "#c0569f", "#b08a00", "#56a8d8", "#d04a4a", "#8a7fd0")

_INK = "#010203"  # matplotlib draws with this; the page swaps it for its own text colour
_salt = itertools.count()
_MARK = '<meta name="generator" content="understudy">'

_STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #5d6773; --line: #dfe3e8;
  --accent: #2f7fd8; --good: #2aa36f; --bad: #d04a4a; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --card: #1d2125; --ink: #e4e7ea; --soft: #98a2ad;
  --line: #30363c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.45;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 12px; letter-spacing: -0.005em; }
h3 { font-size: 15px; margin: 0 0 6px; font-weight: 600; }
p { margin: 6px 0 12px; max-width: 75ch; } .soft, small { color: var(--soft); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
  overflow-x: auto; }
.grid { display: grid; gap: 14px; } .two { grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); }
.tiles { grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); margin-top: 20px; }
.samples { grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); }
.tile b { display: block; font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; height: auto; max-width: 100%; }
img { display: block; max-width: 100%; border-radius: 6px; }
img.pixels { image-rendering: pixelated; }
.row { display: flex; gap: 10px; align-items: flex-start; flex-wrap: wrap; } .row > .fill { flex: 1; min-width: 110px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: 13px; } tr:last-child td { border-bottom: 0; }
td.number, th.number { text-align: right; }
.good { color: var(--good); } .bad { color: var(--bad); }
pre { margin: 0; font: 12.5px/1.5 ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
details > summary { cursor: pointer; font-weight: 600; } details[open] > summary { margin-bottom: 10px; }
.bar { position: relative; height: 10px; border-radius: 5px; background: var(--line); min-width: 160px;
  margin-top: 6px; }
.bar i { position: absolute; top: 0; bottom: 0; border-radius: 5px; background: var(--accent); opacity: 0.35; }
.bar b { position: absolute; top: -2px; bottom: -2px; width: 3px; background: var(--accent); border-radius: 2px; }
@media print { body { background: none; } .card { break-inside: avoid; } }
@media (max-width: 520px) { main { padding: 20px 12px; } .two { grid-template-columns: 1fr; } }
"""


def page(title: str, *parts: str) -> str:
    """A whole page from parts that are HTML already; the title is plain text."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{_MARK}"
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body><main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main></body></html>\n"
    )


def refuse_foreign(path: Path) -> None:
    """Raise ConfigError where a page would be written over anything but a page of understudy's."""
    from understudy.train.settings import ConfigError

    if not path.exists():
        return
    head = path.open("rb").read(2048) if path.is_file() else b""
    if _MARK.encode() not in head and _STYLE[:60].encode() not in head:  # older pages have no mark
        raise ConfigError(f"{path}: is there and no page of understudy's; name another file, or move it away")


def write_page(path: Path, text: str) -> None:
    """Write a page, or write it anew. Raises ConfigError where something else is there."""
    from understudy.train.rundir import write_whole

    refuse_foreign(path)
    write_whole(path, text)


def section(title: str, *parts: str, note: str = "") -> str:
    """A heading with what belongs to it; nothing at all when there is nothing below it."""
    body = "\n".join(part for part in parts if part)
    if not body:
        return ""
    return f"<h2>{escape(title)}</h2>" + (f'<p class="soft">{escape(note)}</p>' if note else "") + body


def card(*parts: str) -> str:
    return f'<div class="card">{"".join(parts)}</div>'


def grid(cards: Sequence[str], kind: str) -> str:
    """`kind` is one of the style's grids: two, tiles, samples."""
    return f'<div class="grid {kind}">{"".join(cards)}</div>' if cards else ""


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Headline figures: (value, what it is)."""
    return grid(
        [f'<div class="card tile"><b>{escape(v)}</b><span>{escape(w)}</span></div>' for v, w in values], "tiles"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Cells that are text are escaped, `Raw` ones are not; numbers stand on the right."""

    def cell(tag: str, value: Any, number: bool) -> str:
        text = value if isinstance(value, Raw) else escape(str(value))
        return f"<{tag}{' class=number' if number else ''}>{text}</{tag}>"

    numeric = [bool(rows) and all(isinstance(row[i], int | float) for row in rows) for i in range(len(head))]
    lines = ["".join(cell("th", name, right) for name, right in zip(head, numeric))]
    lines += ["".join(cell("td", value, right) for value, right in zip(row, numeric)) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


class Raw(str):
    """Text that is HTML already."""


def interval_bar(low: float, middle: float, high: float) -> Raw:
    """A share in [0, 1] with its confidence interval, drawn."""
    band = f'<i style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></i>'
    return Raw(f'<div class="bar">{band}<b style="left:calc({100 * middle:.1f}% - 1px)"></b></div>')


def picture(pixels: np.ndarray, width: int, alt: str = "", *, magnify: bool | None = None) -> str:
    """uint8 [H, W, 3] as an image `width` CSS pixels wide; small ones (or as told) are magnified without blur."""
    from PIL import Image

    buffer = io.BytesIO()
    small = pixels.shape[1] <= 128 if magnify is None else magnify
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if small:
        image.save(buffer, "PNG", optimize=True)
    else:
        image.save(buffer, "JPEG", quality=85)
    kind = "png" if small else "jpeg"
    data = base64.b64encode(buffer.getvalue()).decode()
    pixelated = ' class="pixels"' if small else ""
    return f'<img{pixelated} width="{width}" alt="{escape(alt, quote=True)}" src="data:image/{kind};base64,{data}">'


def axes(width: float = 5.4, height: float = 2.4) -> "tuple[Figure, Axes]":
    """An empty chart in the page's style, inches at 72 per inch; draw on it and hand it to `svg`."""
    with required():
        import matplotlib
        from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(width, height), layout="constrained")
        chart = figure.add_subplot()
        for side, spine in chart.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK)
            spine.set_alpha(0.35)
        chart.tick_params(colors=_INK, length=3, width=0.6)
        chart.grid(True, color=_INK, alpha=0.12, linewidth=0.6)
        chart.set_axisbelow(True)
        chart.set_prop_cycle(color=list(COLOURS))
        for label in (chart.xaxis.label, chart.yaxis.label):
            label.set_color(_INK)
    return figure, chart


def svg(figure: "Figure", alt: str) -> str:
    """The figure as inline SVG: transparent, ink in the page's text colour, no identifier shared with another one."""
    with required():
        import matplotlib

    for chart in figure.axes:
        legend = chart.get_legend()
        if legend is not None:
            legend.set_frame_on(False)
            for label in legend.get_texts():
                label.set_color(_INK)
                label.set_parse_math(False)  # a task may cost $5
    buffer = io.StringIO()
    # Text stays text (selectable, small); the salt keeps clip paths of several charts on a page apart.
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"chart {next(_salt)}"}),
        warnings.catch_warnings(action="ignore", category=UserWarning),  # no glyph here: the reader's fonts draw it
    ):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(alt, quote=True)}"', 1)
