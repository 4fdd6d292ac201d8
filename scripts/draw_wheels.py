"""Picture of the distributions and their imports: `python scripts/draw_wheels.py`.

It writes docs/img/wheels.svg from scripts/seams.py: a box for each distribution, and an arrow for
each seam. The boxes lie in a column, so that each arrow leads down. All arrows to a box share a
line, which has the number of names where an arrow joins it. Colors follow `prefers-color-scheme`.
"""

import sys
import tokenize
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from seams import ARROWS, ROOT, find_crossings, find_modules, names_by_seam

PICTURE = ROOT / "docs/img/wheels.svg"
PERSONS = {
    "lerobot_service": "keeps LeRobot's client",
    "robot": "evaluates and deploys",
    "zoo": "comes from LeRobot",
    "understudy": "trains robot policies",
    "tools": "curates recorded data",
    "client": "runs one robot",
    "kit": "comes with others",
    "data": "writes training loops",
    "base": "comes with others",
    "conformance": "tests other loaders",
}
"""Distribution -> its person in three words, from the top to the bottom of the picture."""
COLORS = {
    "robot": "#8957e5",
    "understudy": "#cf6a1c",
    "client": "#1f9ab0",
    "kit": "#b8860b",
    "data": "#2f81f7",
    "base": "#7d8590",
}
"""Distribution with arrows to it -> color of its line, visible on white and on black."""
COUNTED = (tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING)
STYLE = """
  text { font: 14px system-ui, sans-serif; fill: #1f2328; }
  .name { font-weight: 600; font-size: 15px; }
  .names { font-size: 13px; text-anchor: middle; }
  .size { text-anchor: end; }
  .exit { stroke: #c4cad1; stroke-width: 2; }
  .note { font-size: 13px; fill: #59636e; }
  .page, .pill { fill: #ffffff; }
  .box { fill: #f6f8fa; }
  .torch { fill: #ffe9d6; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; }
    .note { fill: #9198a1; }
    .page, .pill { fill: #0d1117; }
    .exit { stroke: #3d444d; }
    .box { fill: #1c2128; }
    .torch { fill: #4a2a12; }
  }
"""
WIDTH = 574
BOX = 264
"""Width of a box."""
ROW = 62
"""Distance of two boxes."""
HEIGHT = 48
"""Height of a box."""
LEFT = 14
TOP = 14
FIRST_LINE = LEFT + BOX + 42
LINES_APART = 46
OUT = 15
IN = 33
"""Height of the arrows from a box, and of that to it, below its upper edge."""


def count_tokens(files: Iterator[Path]) -> int:
    """Count the tokens of Python files, without comments and layout."""
    total = 0
    for path in files:
        with path.open("rb") as file:
            total += sum(token.type in COUNTED for token in tokenize.tokenize(file.readline))
    return total


def measure_sizes() -> dict[str, int]:
    """Return the tokens of each distribution; its stubs and `testing` are left out."""
    sizes = {}
    for wheel, files in find_modules().items():
        sizes[wheel] = count_tokens(path for path in files.values() if path.suffix == ".py")
    return sizes


def find_torch_users() -> set[str]:
    """Return the distributions that are installed with torch."""
    needs: dict[str, set[str]] = {}
    for wheel in ARROWS:
        project = tomllib.loads((ROOT / "packages" / folder(wheel) / "pyproject.toml").read_text())
        needs[wheel] = {line.split(">")[0].strip() for line in project["project"]["dependencies"]}
    users = {wheel for wheel in ARROWS if "torch" in needs[wheel]}
    for wheel, allowed in ARROWS.items():  # an earlier row of the table imports no later one
        if allowed & users:
            users.add(wheel)
    return users


def folder(wheel: str) -> str:
    """Return the name of a distribution, and of its folder."""
    if wheel == "understudy":
        return wheel
    return "understudy-" + wheel.replace("_", "-")


def draw(sizes: dict[str, int]) -> str:
    """Return the picture, with the tokens of each distribution."""
    seams = names_by_seam(find_crossings(find_modules()))
    rows = {wheel: number for number, wheel in enumerate(PERSONS)}
    tops = {wheel: TOP + ROW * number for wheel, number in rows.items()}
    lines = {wheel: FIRST_LINE + LINES_APART * number for number, wheel in enumerate(COLORS)}
    bottom = TOP + ROW * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 66}" width="760" '
        'role="img" aria-label="Distributions, and the names that they take from each other">',
        f"<style>{STYLE}</style>",
        '<rect class="page" width="100%" height="100%" rx="8"/>',
    ]
    for other, x in lines.items():
        first = min(tops[wheel] for wheel, taken in seams if taken == other) + OUT
        parts.append(draw_line(x, first, tops[other] + IN, COLORS[other]))
    for wheel, top in tops.items():
        ends = [lines[other] for taker, other in seams if taker == wheel]
        if ends:
            parts.append(draw_exit(max(ends), top + OUT))
    for wheel, other in sorted(seams):
        names = len(seams[wheel, other])
        arrow = draw_names(lines[other], tops[wheel] + OUT, names, COLORS[other])
        parts.append(f'<g id="arrow-{wheel}-{other}">{arrow}</g>')
    users = find_torch_users()
    for wheel, top in tops.items():
        box = draw_box(wheel, top, sizes[wheel], wheel in users)
        parts.append(f'<g id="box-{wheel}">{box}</g>')
    parts += draw_notes(bottom)
    return "\n".join([*parts, "</svg>\n"])


def draw_line(x: int, first: int, last: int, color: str) -> str:
    """Draw the line of all arrows to a box, with its head."""
    end = LEFT + BOX
    return (
        f'<path d="M{x} {first}V{last}H{end + 8}" fill="none" stroke="{color}" stroke-width="2"/>'
        f'<path d="M{end + 1} {last}l9 -5v10z" fill="{color}"/>'
    )


def draw_exit(x: int, y: int) -> str:
    """Draw the line from a box to the lines of its targets."""
    return f'<path class="exit" d="M{LEFT + BOX + 1} {y}H{x}"/>'


def draw_names(x: int, y: int, names: int, color: str) -> str:
    """Draw the number of names where an arrow joins the line of its target."""
    return (
        f'<rect class="pill" x="{x - 17}" y="{y - 11}" width="34" height="22" rx="11" '
        f'stroke="{color}" stroke-width="2"/>'
        f'<text class="names" x="{x}" y="{y + 5}">{names}</text>'
    )


def draw_box(wheel: str, top: int, tokens: int, with_torch: bool) -> str:
    """Draw a distribution with its name, size and person."""
    color = COLORS.get(wheel, COLORS["base"])
    kind = "box torch" if with_torch else "box"
    size = f"{max(1, round(tokens / 1000))}k"
    return (
        f'<rect class="{kind}" x="{LEFT}" y="{top}" width="{BOX}" height="{HEIGHT}" rx="6" '
        f'stroke="{color}" stroke-width="2"/>'
        f'<text class="name" x="{LEFT + 12}" y="{top + 20}">{folder(wheel)}</text>'
        f'<text class="size" x="{LEFT + BOX - 12}" y="{top + 39}">{size}</text>'
        f'<text class="note" x="{LEFT + 12}" y="{top + 39}">{PERSONS[wheel]}</text>'
    )


def draw_notes(bottom: int) -> list[str]:
    """Draw the legend, with the version and the day of the picture."""
    version = (ROOT / "packages/understudy-base/src/understudy_base/_version.py").read_text()
    number = version.split('"')[1]
    day = datetime.now(UTC).date()
    notes = (
        "On a line: names that cross the seam. Filled: installed with torch.",
        "In a box: thousands of tokens of Python without testing, and the user.",
        f"Drawn by scripts/draw_wheels.py for version {number} on {day}.",
    )
    parts = []
    for row, note in enumerate(notes):
        y = bottom + 14 + 19 * row
        parts.append(f'<text class="note" x="{LEFT}" y="{y}">{note}</text>')
    return parts


def main() -> int:
    """Write the picture."""
    PICTURE.write_text(draw(measure_sizes()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
