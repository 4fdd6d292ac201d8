"""Section of the report on imagined futures: strips of images, and errors over the horizon beside a copy."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from understudy.report import html

NAMES = ("model", "copy")


def render_imagined(val: Sequence[Mapping[str, Any]], strips: Path) -> str:
    """Render the imagined futures of the latest validation; "" if the run has none.

    Args:
        val: validation records, oldest first.
        strips: PNG file with images, which may be absent.
    """
    latest = next((record for record in reversed(val) if record.get("imagined")), None)
    if latest is None:
        return ""
    figures, cards = latest["imagined"], []
    note = (
        f"{figures['frames']} validation frames at step {latest['step']:,}: the policy gets the recorded observation "
        "and the recorded actions. A copy of the present, nothing changes, is the reference."
    )
    if figures.get("images"):
        cards.append(html.card(f'<p class="soft">{note}</p>', _images(figures["images"])))
        note = ""
    if states := figures.get("states"):
        title = "<h3>Error of imagined states after each action, in normalized units</h3>"
        text = f'<p class="soft">{note}</p>' if note else ""
        cards.append(html.card(title, text, _state_chart(states)))
    if shown := _strips(strips):
        cards.append(html.card("<h3>Recorded and imagined images</h3>", shown))
    return "".join(cards)


def _images(table: Mapping[str, Any]) -> str:
    def cell(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    rows = [
        [ahead, pixels, *(cell(table[kind][name][k]) for name in NAMES)]
        for k, ahead in enumerate(table["ahead"])
        for kind, pixels in (("psnr", "all"), ("psnr_moved", "changing"))
    ]
    head = ["frames ahead", "pixels", "imagined, PSNR in dB", "copy"]
    return html.table(head, rows)


def _state_chart(states: Mapping[str, Sequence[float | None]]) -> str:
    """Draw the mean squared error after each action, of the model and of a copy."""

    def draw(axes: Any) -> None:
        for name, label in zip(NAMES, ("imagined", "copy of the present")):
            values = [np.nan if value is None else value for value in states[name]]
            axes.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=label)
        html.log_scale(axes)
        axes.set_xlabel("actions ahead")
        axes.set_ylabel("mean squared error")
        axes.legend()

    return html.chart(draw, "error of imagined states over the actions ahead", wide=True)


def _strips(path: Path) -> str:
    """Render the rows of images; "" if the file is absent or no image of this kind."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            content = json.loads(image.text["understudy"])  # type: ignore[attr-defined]
            pixels = np.asarray(image.convert("RGB"))
        rows, columns = content["rows"], content["columns"]
        bands = np.split(pixels, len(rows), axis=0)
        cells = [np.split(band, len(columns), axis=1) for band in bands]
    except (OSError, ValueError, KeyError, AttributeError, ZeroDivisionError):
        return ""
    return "".join(
        f"<p><small>{escape(text)}</small></p>{html.film(images, columns, text)}" for text, images in zip(rows, cells)
    )
