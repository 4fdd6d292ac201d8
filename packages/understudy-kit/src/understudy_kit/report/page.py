"""Self-contained HTML pages from plain data. They open offline, follow a light or dark setting, and
can be printed.

A page is a list of sections, a section a list of blocks: cards, tables, films, charts. A block is a
dictionary of JSON values. `static/page.html` (Jinja2) renders all of them and escapes every text;
`static/curves.js` draws the charts. Images are data URIs. Without JavaScript, a page has everything
but its curves.
"""

import base64
import io
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from understudy_kit.report.curves import COLORS, Curve

FOLDED = 40
"""Most rows of a table that is not folded."""
NARROW = 44
"""Most characters of a row that a telephone shows beside each other; wider tables are stacked."""
STATIC = Path(__file__).with_name("static")
_MARK = Markup('<meta name="generator" content="understudy page">')
"""Element of the head by which `refuse_foreign` recognizes a page."""

_BAR = 14
"""Characters in the width of a bar."""
_NUMBER = re.compile(
    r"(not finite|–|[±+−-]? ?[\d,]*\.?\d+(e[+-]?\d+)?( ?(%|ms|s|GB|GiB|MB|MiB))?)?"
)


class Block(dict[str, Any]):
    """Part of a page: a kind of `static/page.html` and its values.

    Each kind has a constructor, whose name is that of no value: the template reads `block.style`.
    """

    @staticmethod
    def section(title: str, *blocks: "Block | None", note: str = "") -> "Block":
        """Make a section with a heading that the page links to; empty blocks are left out."""
        anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        return Block(title=title, anchor=anchor, note=note, blocks=_filled(blocks))

    @staticmethod
    def card(
        title: str, *blocks: "Block | None", note: str = "", style: str = "", anchor: str = ""
    ) -> "Block":
        """Make a card with a title ("" for none), a note and blocks; `style` "bad" marks the
        title, `links` lead to its `anchor`.
        """
        card = Block(kind="card", title=title, note=note, style=style, anchor=anchor)
        card["blocks"] = _filled(blocks)
        return card

    @staticmethod
    def paragraph(line: str, style: str = "soft") -> "Block":
        """Make a paragraph; `style` is "soft", "bad", "verdict" or "code"."""
        return Block(kind="text", text=line, style=style)

    @staticmethod
    def listing(lines: Sequence[str], style: str = "") -> "Block | None":
        """Make a list of lines; None without any."""
        return Block(kind="list", lines=list(lines), style=style) if lines else None

    @staticmethod
    def links(places: Mapping[str, str]) -> "Block | None":
        """Make a line of links to cards of the page, text -> anchor; None without any."""
        return Block(kind="links", places=dict(places)) if places else None

    @staticmethod
    def key(curves: Sequence[Curve]) -> "Block":
        """Make one legend for several charts with the same `curves`, which are `bare`."""
        return Block(kind="key", entries=[Block.swatch(of["name"], of["color"]) for of in curves])

    @staticmethod
    def grid(blocks: Sequence["Block | None"], style: str = "two") -> "Block | None":
        """Place blocks in a grid, or in a line with the style "row"; None without any.

        `style` is "two" for the half of a page each, "joints", "samples" and "small" for less.
        """
        shown = _filled(blocks)
        return Block(kind="grid", style=style, blocks=shown) if shown else None

    @staticmethod
    def fold(title: str, *blocks: "Block | None", is_open: bool = False) -> "Block":
        """Fold blocks below a title."""
        return Block(kind="fold", title=title, open=is_open, blocks=_filled(blocks))

    @staticmethod
    def code(content: str) -> "Block":
        """Make preformatted text."""
        return Block(kind="code", text=content)

    @staticmethod
    def tiles(figures: Sequence[tuple[str, str]]) -> "Block":
        """Make headline figures, (value, label) each."""
        return Block(kind="tiles", figures=[list(figure) for figure in figures])

    # -- tables and their cells --------------------------------------------------------------------

    @staticmethod
    def table(head: Sequence[str], rows: Sequence[Sequence[Any]], unit: str = "") -> "Block":
        """Make a table. Columns of numbers, also formatted ones, are aligned to the right.

        Args:
            head: Names of the columns; no head is shown if all are "".
            rows: Cells: text, number, or a block of `interval_bar`, `styled` or `swatch`.
            unit: Name of the rows; more than `FOLDED` of them are folded below it. "" never folds.
        """
        columns = []
        characters = 0
        for column in range(len(head)):
            cells = [row[column] for row in rows]
            columns.append(_alignment(cells))
            texts = [head[column], *map(_text_of_cell, cells)]
            widths = [_BAR for cell in cells if isinstance(cell, dict) and "bar" in cell]
            characters += 2 + max([len(str(text)) for text in texts] + widths)
        block = Block(kind="table", head=list(head), rows=[list(row) for row in rows])
        block.update(columns=columns, stacked=len(head) > 2 and any(head) and characters > NARROW)
        if unit and len(rows) > FOLDED:
            return Block.fold(f"{len(rows)} {unit}", block)
        return block

    @staticmethod
    def table_card(
        title: str,
        head: Sequence[str],
        rows: Sequence[Sequence[Any]],
        unit: str = "",
        note: str = "",
    ) -> "Block | None":
        """Make a card with a table; None without rows."""
        return Block.card(title, Block.table(head, rows, unit), note=note) if rows else None

    @staticmethod
    def interval_bar(low: float, middle: float | None, high: float) -> "Block":
        """Make a cell with a bar from `low` to `high`, shares in [0, 1], and a mark at `middle`."""
        shares = (low, high - low, middle or 0.0)
        return Block(bar=[f"{100 * share:.1f}" for share in shares], mark=middle is not None)

    @staticmethod
    def styled(content: str, style: str, **extra: Any) -> "Block":
        """Make a cell of a class of the style sheet; `extra` has `hint`, and `depth` in [0, 1] for
        a colored ground.
        """
        return Block(text=content, style=style, **extra)

    @staticmethod
    def swatch(content: str, color: int | str) -> "Block":
        """Make a cell with a line in the color of a curve, or of an index in `COLORS`, before its
        text.
        """
        drawn_color = COLORS[color % len(COLORS)] if isinstance(color, int) else color
        return Block(text=content, color=drawn_color)

    # -- images ------------------------------------------------------------------------------------

    @staticmethod
    def image(pixels: np.ndarray, alt: str, width: int = 0) -> "Block":
        """Make an image of uint8 [H, W, 3], `width` CSS pixels wide (0: its own); small ones are
        magnified without blur.
        """
        from PIL import Image

        is_small = pixels.shape[1] <= 128
        buffer = io.BytesIO()
        options: dict[str, Any] = {"optimize": True} if is_small else {"quality": 85}
        form = "png" if is_small else "jpeg"
        Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, form.upper(), **options)
        shown_width = width or pixels.shape[1]
        return Block.encoded_image(buffer.getvalue(), form, alt, shown_width, is_small)

    @staticmethod
    def encoded_image(content: bytes, media: str, alt: str, width: int, is_small: bool) -> "Block":
        """Make an image of an encoded file of type `image/<media>`."""
        source = f"data:image/{media};base64,{base64.b64encode(content).decode()}"
        return Block(kind="image", source=source, alt=alt, width=width, small=is_small, caption="")

    @staticmethod
    def film(images: Sequence[np.ndarray], captions: Sequence[str], alt: str) -> "Block":
        """Place images uint8 [H, W, 3] next to each other with captions; they wrap on narrow
        screens.
        """
        frames = [
            Block.image(pixels, f"{alt}, {caption}") | {"caption": caption}
            for pixels, caption in zip(images, captions, strict=True)
        ]
        return Block(kind="film", frames=frames)

    # -- charts ------------------------------------------------------------------------------------

    @staticmethod
    def chart(
        label: str,
        axes: str | Sequence[str],
        unit: str,
        curves: Iterable[Curve],
        *,
        log: bool | None = None,
        zero: bool = True,
        cut: bool = False,
        bare: bool = False,
        height: int = 230,
    ) -> "Block | None":
        """Make a chart; None if no curve has a value.

        Args:
            label: Alternative text.
            axes: Names of the horizontal axes with their units; each curve has positions on all of
                them.
            unit: Name of the vertical axis.
            curves: The curves, also those without a value, which are left out.
            log: Whether the vertical axis begins as logarithmic; None offers no logarithmic axis.
            zero: Whether a linear axis includes 0.
            cut: Whether a linear axis ends where a few large values would flatten the rest; the
                chart notes it.
            bare: Whether the chart has a line of values under the pointer in place of the legend.
            height: CSS pixels.
        """
        drawn = [curve for curve in curves if curve.has_value]
        if not drawn:
            return None
        names = [axes] if isinstance(axes, str) else list(axes)
        block = Block(kind="chart", label=label, axes=names, unit=unit, lines=drawn)
        block.update(log=log, zero=zero, cut=cut, bare=bare, height=height)
        return block

    @staticmethod
    def histogram(
        label: str, values: np.ndarray, unit: str, counted: str, bins: int = 24, height: int = 130
    ) -> "Block":
        """Make a histogram of values (N,) in equal intervals of their range; a text where they
        have none.
        """
        finite = values[np.isfinite(values)].astype(np.float64)
        if not finite.size:
            return Block.paragraph("no finite value")
        if finite.min() == finite.max():
            return Block.paragraph(f"always {finite.min():.3g}")
        scale = max(1.0, abs(float(finite.min())), abs(float(finite.max())))
        counts, edges = np.histogram(finite / scale, bins)
        bars = Curve.from_edges(counted, (edges * scale).tolist(), counts.tolist(), filled=True)
        block = Block.chart(label, unit, counted, [bars], bare=True, height=height)
        assert block is not None
        return block


Blocks = list[Block | None]
"""Parts of a page; None is left out."""


def render_page(
    title: str,
    heading: str,
    sections: Sequence[Block],
    *,
    top: Sequence[Block] = (),
) -> str:
    """Render a page.

    Args:
        title: Title of the window.
        heading: First heading.
        sections: Results of `Block.section`; those without blocks are left out.
        top: Blocks between the heading and the first section.
    """
    charts: list[Block] = []

    def place(chart: Block) -> Markup:
        charts.append(chart)
        return Markup('<div class="curves" data-chart="{}"></div>').format(len(charts) - 1)

    shown = [section for section in sections if section["blocks"]]
    content = {"title": title, "heading": heading, "top": top, "sections": shown, "mark": _MARK}
    return render_file(STATIC / "page.html", **content, charts=charts, place=place)


def render_file(path: Path, **content: Any) -> str:
    """Render a template with escaped values; it may include those of `static`, too.

    Args:
        path: of the template.
        content: values by name.
    """
    return _environment(path.parent).get_template(path.name).render(content)


def refuse_foreign(path: Path) -> None:
    """Raise ConfigError if `path` exists and is not a page of understudy."""
    from understudy_base import ConfigError

    if path.exists() and not (path.is_file() and _MARK.encode() in path.read_bytes()[:2048]):
        raise ConfigError(
            f"{path}: exists and is not a page of understudy; name another file, or move this one"
        )


def write_page(path: Path, text: str, is_new: bool = False) -> None:
    """Write a page, replacing an earlier one unless it `is_new`.

    Raises:
        ConfigError: Another file exists there. FileExistsError: a new page appeared there
            meanwhile.
    """
    from understudy_base import write_text

    refuse_foreign(path)
    write_text(path, text, is_new=is_new)


def as_gray(depth: np.ndarray) -> np.ndarray:
    """Convert depth images to uint8 of the same shape: near is dark, black is nothing measured."""
    good = np.isfinite(depth) & (depth > 0)
    measured = depth[good]
    if not measured.size:
        return np.zeros(depth.shape, np.uint8)
    low = float(measured.min())
    span = max(float(measured.max()) - low, 1e-9)
    scaled = np.where(good, depth, low).astype(np.float64) - low
    return np.where(good, 40 + 215 * scaled / span, 0).astype(np.uint8)


def as_rgb(images: np.ndarray) -> np.ndarray:
    """Convert images (n, C, H, W) to uint8 (n, H, W, 3): one or two channels are grey, a fourth one
    is dropped.

    Depth is drawn from its nearest to its farthest value in these images.
    """
    if images.dtype != np.uint8:
        images = as_gray(images)
    channels = images[:, :3]
    if images.shape[1] < 3:
        channels = images[:, [0, 0, 0]]
    return np.ascontiguousarray(channels.transpose(0, 2, 3, 1))


# -- inside ----------------------------------------------------------------------------------------


@cache
def _environment(folder: Path) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([folder, STATIC]),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {
        "ensure_ascii": False,
        "allow_nan": False,
        "separators": (",", ":"),
    }
    for name in ("page.css", "curves.js"):
        environment.globals[name.replace(".", "_")] = Markup(
            (STATIC / name).read_text(encoding="utf-8")
        )
    return environment


def _filled(blocks: Sequence[Block | None]) -> list[Block]:
    return [block for block in blocks if block]


def _alignment(cells: Sequence[Any]) -> str:
    """Class of a column: numbers, long text that wraps, or short text that does not."""
    texts = [_text_of_cell(cell) for cell in cells]
    if any(text != "" for text in texts) and all(_NUMBER.fullmatch(str(text)) for text in texts):
        return "number"
    longest = max((len(str(text)) for text in texts), default=0)
    if longest > 24:
        return "long"
    return "short" if longest else ""


def _text_of_cell(cell: Any) -> Any:
    return cell.get("text", "") if isinstance(cell, dict) else cell
