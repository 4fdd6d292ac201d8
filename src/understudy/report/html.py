"""Self-contained HTML pages, which open offline, follow the reader's light or dark setting and can be printed.

Images are data URIs. Charts are inline SVG whose text and axes have the page's color. A wide chart is drawn a second
time for narrow screens, where its text would otherwise be too small. Pages contain no script; `view` has its own page.
"""

import base64
import io
import itertools
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from understudy.optional_packages import optional_imports

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Readable on white and on near-black (colors of Okabe & Ito, slightly lighter or darker).
COLORS = ("#2f7fd8", "#e0762b", "#2aa36f", "#c0569f", "#b08a00", "#56a8d8", "#d04a4a", "#8a7fd0")

_INK = "#010203"  # matplotlib's drawing color, which the page replaces by its text color
_NUMBER = r"(not finite|–|[±+−-]? ?[\d,]*\.?\d+(e[+-]?\d+)?( ?(%|ms|s|GB|GiB|MB|MiB))?)?"
_salt = itertools.count()
_MARK = '<meta name="generator" content="understudy">'

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1b1f24; --soft: #56606b; --line: #dfe3e8;
  --accent: #2f7fd8; --link: #1f62ad; --good: #17734c; --bad: #b3312f; }
@media (prefers-color-scheme: dark) { :root { --ground: #14171a; --card: #1d2125; --ink: #e4e7ea; --soft: #a3adb8;
  --line: #30363c; --link: #7fb6f2; --good: #4fc792; --bad: #ff8f87; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.45;
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", "Liberation Sans", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 40px 0 12px; letter-spacing: -0.005em; scroll-margin-top: 12px; }
h3 { font-size: 15px; margin: 0 0 6px; font-weight: 600; overflow-wrap: anywhere; }
p { margin: 6px 0 12px; max-width: 75ch; } p, li { overflow-wrap: anywhere; } .soft, small { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; margin: 12px 0 0; } a { color: var(--link); }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; border-radius: 3px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px;
  overflow-x: auto; }
main > :is(.card, .grid) + :is(.card, .grid) { margin-top: 14px; }
.grid { display: grid; gap: 14px; } .two { grid-template-columns: repeat(auto-fill, minmax(420px, 1fr)); }
.tiles { grid-template-columns: repeat(auto-fit, minmax(138px, 1fr)); margin-top: 20px; }
.samples { grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); }
.dims { grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 10px 16px; }
.tile b { display: block; font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; }
.tile span { color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; height: auto; max-width: 100%; }
.narrow-only { display: none; } .narrow-only svg { max-width: 560px; }
img { display: block; max-width: 100%; border-radius: 6px; }
img.pixels { image-rendering: pixelated; }
.row { display: flex; gap: 10px; align-items: flex-start; flex-wrap: wrap; }
.film { display: grid; grid-template-columns: repeat(auto-fit, minmax(72px, 1fr)); gap: 8px; margin: 6px 0 12px; }
.film.many { grid-template-columns: repeat(auto-fill, minmax(100px, 1fr)); }
figure { margin: 0; max-width: 240px; }
figcaption { color: var(--soft); font-size: 12px; margin-top: 2px; }
.film img { width: 100%; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: 6px 14px 6px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: 13px; } tr:last-child > * { border-bottom: 0; }
td.number, th.number { text-align: right; } td.long, th.long { min-width: 22ch; } td.short { white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); }
pre { margin: 0; font: 12.5px/1.5 ui-monospace, "SFMono-Regular", "DejaVu Sans Mono", monospace; white-space: pre-wrap;
  overflow-wrap: anywhere; }
details > summary { cursor: pointer; font-weight: 600; } details[open] > summary { margin-bottom: 10px; }
.views > .view { display: none; } .views > label { margin-right: 14px; font-size: 13px; }
.views > input:nth-of-type(1):checked ~ .view:nth-of-type(1),
.views > input:nth-of-type(2):checked ~ .view:nth-of-type(2) { display: block; }
.bar { position: relative; height: 10px; border-radius: 5px; background: var(--line); min-width: 90px;
  margin-top: 6px; }
.bar i { position: absolute; top: 0; bottom: 0; border-radius: 5px; background: var(--accent); opacity: 0.35; }
.bar b { position: absolute; top: -2px; bottom: -2px; width: 3px; background: var(--accent); border-radius: 2px; }
.dim { min-width: 0; } .dim b { display: block; font-size: 12.5px; font-weight: 600; overflow-wrap: anywhere; }
.curves { grid-template-columns: repeat(auto-fill, minmax(min(100%, 340px), 1fr)); gap: 14px 20px; }
.dim svg { height: 44px; } .curves .dim svg { height: 120px; } .dim span { color: var(--soft); font-size: 12px; }
.gap { height: 18px; }
.key { display: inline-block; width: 18px; height: 3px; border-radius: 2px; vertical-align: middle;
  margin: 0 6px; }
@media print { body { background: none; } .card { break-inside: avoid; } nav { display: none; } }
@media (max-width: 900px) { .wide-only { display: none; } .narrow-only { display: block; } }
@media (max-width: 520px) { .dims { grid-template-columns: 1fr 1fr; } .dim b { font-size: 12px; }
  .bar { display: none; }
  main { padding: 20px 10px; } .card { padding: 12px 9px; } .two { grid-template-columns: 1fr; }
  th, td { padding-right: 10px; } td.long, th.long { min-width: 18ch; } }
"""
"""Style sheet of all pages."""


def page(title: str, *parts: str) -> str:
    """Render a whole page from HTML parts and a plain-text title.

    Links to its sections follow the first part, the heading.
    """
    first, *rest = [part for part in parts if part]
    titles = [title for part in rest for title in re.findall(r'<h2 id="[^"]*">.*?</h2>', part)]
    links = "".join(re.sub(r'<h2 id="([^"]*)">(.*?)</h2>', r'<a href="#\1">\2</a>', title) for title in titles)
    nav = f'<nav aria-label="sections">{links}</nav>' if len(titles) > 1 else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{_MARK}"
        f"<title>{escape(title)}</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join([first, nav, *rest])
        + "\n</main></body></html>\n"
    )


def refuse_foreign(path: Path) -> None:
    """Raise ConfigError if `path` exists and is no page of understudy."""
    from understudy.errors import ConfigError

    if not path.exists():
        return
    head = path.open("rb").read(2048) if path.is_file() else b""
    if _MARK.encode() not in head and STYLE[:60].encode() not in head:  # older pages have no mark
        raise ConfigError(f"{path}: exists and is no page of understudy; name another file, or move this one")


def write_page(path: Path, text: str) -> None:
    """Write a page, replacing an earlier one.

    Raises:
        ConfigError: Another file exists there.
    """
    from understudy.atomic import write_text

    refuse_foreign(path)
    write_text(path, text)


def section(title: str, *parts: str, note: str = "") -> str:
    """Render a heading, a note and parts; "" without parts."""
    body = "\n".join(part for part in parts if part)
    if not body:
        return ""
    anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    return f'<h2 id="{anchor}">{escape(title)}</h2>' + (f'<p class="soft">{escape(note)}</p>' if note else "") + body


def card(*parts: str) -> str:
    """Render a card with the given parts."""
    return f'<div class="card">{"".join(parts)}</div>'


def grid(cards: Sequence[str], kind: str) -> str:
    """Render cards in a grid; `kind` is a class of the style: two, tiles, samples, dims, curves."""
    return f'<div class="grid {kind}">{"".join(cards)}</div>' if cards else ""


def tiles(values: Sequence[tuple[str, str]]) -> str:
    """Render headline figures: (value, label)."""
    cards = [f'<div class="card tile"><b>{escape(v)}</b><span>{escape(label)}</span></div>' for v, label in values]
    return grid(cards, "tiles")


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Render a table. Text is escaped, except for `Raw`; numbers, also formatted ones, are right-aligned.

    Columns of long texts keep a readable width, and the card scrolls.
    """

    def cell(tag: str, value: Any, kind: str) -> str:
        text = value if isinstance(value, Raw) else escape(str(value))
        style = f' class="{kind}"' if kind else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{style}>{text}</{tag}>"

    def kind(column: int) -> str:
        values = [row[column] for row in rows]
        if any(values) and all(_is_number(value) for value in values):
            return "number"
        longest = max((len(str(value)) for value in values if not isinstance(value, Raw)), default=0)
        return "long" if longest > 24 else "short" if longest else ""

    kinds = [kind(i) for i in range(len(head))]
    lines = ["".join(cell("th", name, kind) for name, kind in zip(head, kinds))] if any(head) else []
    lines += ["".join(cell("td", value, kind) for value, kind in zip(row, kinds)) for row in rows]
    return "<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>"


def _is_number(value: Any) -> bool:
    """Whether a cell belongs to a column of numbers: a number, one with a sign, a unit or none, or an empty cell."""
    return isinstance(value, int | float) or re.fullmatch(_NUMBER, str(value)) is not None


class Raw(str):
    """HTML in a table cell, not escaped."""


def interval_bar(low: float, middle: float, high: float) -> Raw:
    """Render a share in [0, 1] with its confidence interval as a bar."""
    band = f'<i style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%"></i>'
    return Raw(f'<div class="bar">{band}<b style="left:calc({100 * middle:.1f}% - 1px)"></b></div>')


def image(pixels: np.ndarray, width: int, alt: str = "", *, magnify: bool | None = None) -> str:
    """Render uint8 [H, W, 3] as an image `width` CSS pixels wide.

    Images up to 128 pixels wide are magnified without blur, unless `magnify` is given.
    """
    from PIL import Image

    buffer = io.BytesIO()
    small = pixels.shape[1] <= 128 if magnify is None else magnify
    encoded = Image.fromarray(np.ascontiguousarray(pixels))
    if small:
        encoded.save(buffer, "PNG", optimize=True)
    else:
        encoded.save(buffer, "JPEG", quality=85)
    kind = "png" if small else "jpeg"
    data = base64.b64encode(buffer.getvalue()).decode()
    pixelated = ' class="pixels"' if small else ""
    return f'<img{pixelated} width="{width}" alt="{escape(alt, quote=True)}" src="data:image/{kind};base64,{data}">'


def as_gray(depth: np.ndarray) -> np.ndarray:
    """Convert depth images to uint8 of the same shape: near is dark, black is nothing measured."""
    good = np.isfinite(depth) & (depth > 0)
    low, high = (float(depth[good].min()), float(depth[good].max())) if good.any() else (0.0, 0.0)
    scaled = np.where(good, depth, low).astype(np.float64) - low
    return np.where(good, 40 + 215 * scaled / max(high - low, 1e-9), 0).astype(np.uint8)


def film(images: Sequence[np.ndarray], captions: Sequence[str], alt: str) -> str:
    """Render images uint8 [H, W, 3] side by side with captions; they wrap on narrow screens."""
    cells = []
    for pixels, caption in zip(images, captions, strict=True):
        shown = image(pixels, pixels.shape[1], f"{alt}, {caption}")
        cells.append(f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>")
    return f'<div class="film{" many" if len(cells) > 12 else ""}">{"".join(cells)}</div>'


def views(name: str, choices: Sequence[tuple[str, str]]) -> str:
    """Render two alternative views, (label, HTML) each, with a switch. `name` is unique on the page."""
    inputs = "".join(
        f'<input type="radio" name="{name}" id="{name}-{i}"{" checked" if i == 0 else ""}>'
        f' <label for="{name}-{i}">{escape(label)}</label>'
        for i, (label, _) in enumerate(choices)
    )
    bodies = "".join(f'<div class="view">{body}</div>' for _, body in choices)
    return f'<div class="views">{inputs}{bodies}</div>'


def chart(draw: "Callable[[Axes], None]", alt: str, *, height: float = 2.2, wide: bool = False) -> str:
    """Render a chart as inline SVG whose text stays readable on a narrow screen.

    Args:
        draw: Draws on the axes.
        alt: Alternative text.
        height: Inches, at 72 per inch.
        wide: Whether the chart has the whole width of the page instead of half.
    """

    def render(width: float, height: float) -> str:
        figure, axes_ = axes(width, height)
        draw(axes_)
        return svg(figure, alt)

    if not wide:
        return render(4.6, height)
    narrow = render(4.6, max(2.2, height))
    return f'<div class="wide-only">{render(11.2, height)}</div><div class="narrow-only">{narrow}</div>'


def axes(width: float, height: float, size: float = 9) -> "tuple[Figure, Axes]":
    """Make an empty chart in the page's style for `svg`; sizes in inches, at 72 per inch."""
    with optional_imports():
        import matplotlib
        from matplotlib.figure import Figure

    with matplotlib.rc_context({"font.size": size}):
        figure = Figure(figsize=(width, height), layout="constrained")
        chart = figure.add_subplot()
        for side, spine in chart.spines.items():
            spine.set_visible(side in ("left", "bottom"))
            spine.set_color(_INK)
            spine.set_alpha(0.35)
        chart.tick_params(which="both", colors=_INK, length=3, width=0.6, labelsize=size)
        chart.grid(True, color=_INK, alpha=0.12, linewidth=0.6)
        chart.set_axisbelow(True)
        chart.set_prop_cycle(color=list(COLORS))
        for label in (chart.xaxis.label, chart.yaxis.label):
            label.set_color(_INK)
    return figure, chart


def log_scale(chart: "Axes") -> None:
    """Set a logarithmic vertical axis with plain numbers, since exponents are unreadable on a narrow screen."""
    from matplotlib.ticker import LogFormatter

    class Plain(LogFormatter):
        def _num_to_string(self, x: float, vmin: float, vmax: float) -> str:
            return f"{x:g}"

    chart.set_yscale("log")
    chart.yaxis.set_major_formatter(Plain())
    chart.yaxis.set_minor_formatter(Plain(labelOnlyBase=False, minor_thresholds=(1.2, 0.4)))


def svg(figure: "Figure", alt: str) -> str:
    """Convert a figure to inline SVG: transparent, in the page's text color, without shared identifiers."""
    with optional_imports():
        import matplotlib

    for chart in figure.axes:
        legend = chart.get_legend()
        if legend is not None:
            legend.set_frame_on(False)
            for label in legend.get_texts():
                label.set_color(_INK)
                label.set_parse_math(False)  # a task may contain "$"
    buffer = io.StringIO()
    # Text stays text (selectable, small); the salt makes the clip paths of several charts distinct.
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": f"chart {next(_salt)}"}),
        warnings.catch_warnings(action="ignore", category=UserWarning),  # missing glyphs: the reader's fonts have them
    ):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :].replace(_INK, "currentColor")
    text = re.sub(r'<g id="[^"]*"', "<g", text)  # all charts use the same group ids; no element refers to them
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(alt, quote=True)}"', 1)
