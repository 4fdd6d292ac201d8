"""Bars of docs/measured.md: `python scripts/draw_measured.py`.

It writes docs/img/measured/NAME.svg from lab/results/NAME.json. A file has groups of bars, and each
group what it was measured with: date, machine, versions, data, command and source. A group has a
scale of its own, unless the file asks for a shared one. Colors follow `prefers-color-scheme`.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "lab/results"
PICTURES = ROOT / "docs/img/measured"
STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #1f2328; }
  .title { font-weight: 600; font-size: 14px; }
  .group { font-weight: 600; }
  .name, .note { fill: #59636e; }
  .ours-name { font-weight: 600; fill: #1f2328; }
  .page { fill: #ffffff; }
  .track { fill: #eff1f4; }
  .ours { fill: #2f6fd6; }
  .limit { fill: #4c9a52; }
  .other { fill: #9aa4af; }
  .range { stroke: #1f2328; stroke-width: 1.5; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .name, .note { fill: #9da7b1; }
    .ours-name { fill: #e6edf3; }
    .page { fill: #0d1117; }
    .track { fill: #1b212a; }
    .ours { fill: #5596f7; }
    .limit { fill: #57b364; }
    .other { fill: #6c7783; }
    .range { stroke: #e6edf3; }
  }
"""
WIDTH = 380
LEFT = 12
NAMES = 158
"""Width of the names of bars."""
BARS = 146
"""Length of the longest bar."""
ROW = 21
GAP = 14
"""Space above a group."""
Bar = Mapping[str, Any]


def find_results() -> list[Path]:
    """Return the files of results, by name."""
    return sorted(RESULTS.glob("*.json"))


def picture_of(results: Path) -> Path:
    """Return the picture of a file of results."""
    return PICTURES / f"{results.stem}.svg"


def label(bar: Bar) -> str:
    """Return the text behind a bar: its `text`, or its value."""
    return str(bar.get("text", f"{bar['value']:g}"))


def longest(bars: Sequence[Bar]) -> float:
    """Return the largest value of bars, with the upper ends of their ranges."""
    return max(float(bar.get("high", bar["value"])) for bar in bars)


def draw(results: Mapping[str, Any]) -> str:
    """Return the picture of one file of results."""
    groups = results["groups"]
    every_bar = [bar for group in groups for bar in group["bars"]]
    rows = [text(LEFT, 24, results["title"], "title")]
    y = 34
    if results["unit"]:
        rows.append(text(LEFT, y + 8, results["unit"], "note"))
        y += 12
    for group in groups:
        bars = every_bar if results.get("scale") == "shared" else group["bars"]
        y += GAP
        rows.append(text(LEFT, y + 9, group["name"], "group"))
        y += 16
        for bar in group["bars"]:
            rows.append(draw_bar(y, bar, longest(bars)))
            y += ROW
    height = y + 12
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="520" role="img" aria-label="{escape(results["title"])}">',
            f"<style>{STYLE}</style>",
            '<rect class="page" width="100%" height="100%" rx="8"/>',
            *rows,
            "</svg>\n",
        ]
    )


def draw_bar(y: int, bar: Bar, most: float) -> str:
    """Draw a row: name, track, bar, range and value."""
    start = LEFT + NAMES
    length = max(1.0, BARS * bar["value"] / most)
    name = "name ours-name" if bar["kind"] == "ours" else "name"
    parts = [
        text(LEFT, y + 13, bar["name"], name),
        f'<rect class="track" x="{start}" y="{y + 3}" width="{BARS}" height="13" rx="2"/>',
        f'<rect class="{bar["kind"]}" x="{start}" y="{y + 3}" width="{length:.1f}" height="13" '
        'rx="2"/>',
    ]
    if bar.get("high", bar["value"]) > bar.get("low", bar["value"]):
        low = start + BARS * bar["low"] / most
        high = start + BARS * bar["high"] / most
        parts.append(f'<path class="range" d="M{low:.1f} {y + 9.5}H{high:.1f}"/>')
    parts.append(text(start + BARS + 6, y + 13, label(bar), "value"))
    return "".join(parts)


def text(x: int, y: int, words: str, kind: str) -> str:
    """Draw a text."""
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


def main() -> int:
    """Write all pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in find_results():
        picture_of(path).write_text(draw(json.loads(path.read_text())), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
