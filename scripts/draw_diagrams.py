"""Diagrams of docs/: `python scripts/draw_diagrams.py`.

It writes docs/img/diagrams/NAME.svg. `sample_time`, `memory` and `delay` have their numbers from
lab/results/diagrams, `resume` from the settings of a run. Colors follow `prefers-color-scheme`.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from html import escape
from pathlib import Path
from typing import Any

from understudy.config.train import TrainConfig
from understudy_kit.config.on_resume import Fixed, OnResume

ROOT = Path(__file__).resolve().parents[1]
NUMBERS = ROOT / "lab/results/diagrams"
PICTURES = ROOT / "docs/img/diagrams"
LIGHT = ("#2f6fd6", "#e08a2e", "#4c9a52", "#9b59b6", "#c0392b", "#7f8c8d")
DARK = ("#5596f7", "#f0a04b", "#57b364", "#b47fd0", "#e06c5f", "#9da7b1")
SHARDS = 8
"""Processes of the picture of meshes."""
UNCHANGED = (OnResume.SAME_DATA, OnResume.SAME_FRAMES, OnResume.SAME_WEIGHTS, OnResume.SKIPPED)
"""Settings that may change where files, frames and weights stay the same."""
WIDTH = 520
LEFT = 12


def style() -> str:
    """Return the style sheet: texts, and the fills and strokes of six series."""
    light = [f".s{i} {{ fill: {c}; }} .l{i} {{ stroke: {c}; }}" for i, c in enumerate(LIGHT)]
    dark = [f".s{i} {{ fill: {c}; }} .l{i} {{ stroke: {c}; }}" for i, c in enumerate(DARK)]
    return "\n".join(
        [
            "text { font: 12px system-ui, sans-serif; fill: #1f2328; }",
            ".title { font-weight: 600; font-size: 14px; } .head { font-weight: 600; }",
            ".note { fill: #59636e; } .page { fill: #ffffff; } .axis { stroke: #9aa4af; }",
            ".line { fill: none; stroke-width: 2; } .empty { fill: #eff1f4; }",
            *light,
            "@media (prefers-color-scheme: dark) {",
            "text { fill: #e6edf3; } .note { fill: #9da7b1; } .page { fill: #0d1117; }",
            ".empty { fill: #1b212a; } .axis { stroke: #6c7783; }",
            *dark,
            "}",
        ]
    )


def text(x: float, y: float, words: str, kind: str = "") -> str:
    """Draw a text from x on."""
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Draw a rectangle."""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="2"/>'
    )


def page(title: str, height: float, parts: Sequence[str], width: int = WIDTH) -> str:
    """Return an SVG file."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" '
            f'width="{width}" role="img" aria-label="{escape(title)}">',
            f"<style>{style()}</style>",
            '<rect class="page" width="100%" height="100%" rx="8"/>',
            text(LEFT, 24, title, "title"),
            *parts,
            "</svg>\n",
        ]
    )


def draw_stack(numbers: Mapping[str, Any]) -> str:
    """Draw bars of parts, one below the other, on one scale, with the value of each part."""
    bars = numbers["bars"]
    names = numbers["parts"]
    longest = max(sum(bar["values"]) for bar in bars)
    scale = (WIDTH - 2 * LEFT - 60) / longest
    parts = [text(LEFT, 42, numbers["unit"], "note")]
    y = 62.0
    for bar in bars:
        parts.append(text(LEFT, y, bar["name"], "head"))
        x = float(LEFT)
        for series, value in enumerate(bar["values"]):
            parts.append(box(x, y + 7, value * scale, 18, f"s{series}"))
            x += value * scale
        parts.append(text(x + 6, y + 20, f"{sum(bar['values']):.4g}"))
        y += 48
    x = float(LEFT)
    for series, name in enumerate(names):
        values = ", ".join(f"{bar['values'][series]:g}" for bar in bars)
        label = f"{name} ({values})"
        if x + 20 + 6.4 * len(label) > WIDTH:
            x = float(LEFT)
            y += 20
        parts.append(box(x, y - 10, 10, 10, f"s{series}"))
        parts.append(text(x + 15, y, label))
        x += 32 + 6.4 * len(label)
    return page(numbers["title"], y + 16, parts)


def draw_lines(numbers: Mapping[str, Any]) -> str:
    """Draw a line for each series over one axis of steps, with its name at the right end."""
    steps = numbers["steps"]
    top = numbers["top"]
    right = WIDTH - 130
    bottom = 230

    def place(step: float, value: float) -> str:
        x = 44 + (right - 44) * step / steps[-1]
        y = bottom - (bottom - 60) * value / top
        return f"{x:.1f} {y:.1f}"

    parts = [text(LEFT, 42, numbers["unit"], "note")]
    for tick in numbers["ticks"]:
        y = place(0, tick).split()[1]
        parts.append(f'<path class="axis" d="M44 {y}H{right}" stroke-width="0.5"/>')
        parts.append(text(18, float(y) + 4, f"{tick}", "note"))
    for step in steps:
        parts.append(text(float(place(step, 0).split()[0]) - 3, bottom + 16, f"{step}", "note"))
    parts.append(text(44, bottom + 34, numbers["axis"], "note"))
    ends = sorted(enumerate(numbers["series"]), key=lambda item: -item[1]["values"][-1])
    last_y = 0.0
    for series, line in ends:
        points = [place(step, value) for step, value in zip(steps, line["values"])]
        parts.append(f'<path class="line l{series}" d="M{" L".join(points)}"/>')
        last_y = max(float(points[-1].split()[1]) + 4, last_y + 15)
        parts.append(box(right + 8, last_y - 9, 8, 8, f"s{series}"))
        parts.append(text(right + 20, last_y, line["name"]))
    return page(numbers["title"], max(bottom + 46, last_y + 14), parts)


def draw_mesh() -> str:
    """Draw what each of eight processes holds of the weights in three meshes."""
    meshes = [
        (1, "(8, 1) DDP: each has all", "--launch 8"),
        (8, "(1, 8) FSDP2: each has an eighth", "--parallel.dp-shard 8"),
        (4, "(2, 4) HSDP: each has a quarter, twice", "--parallel.dp-shard 4"),
    ]
    parts = [text(LEFT, 42, "a column is a process, a colored part what it holds", "note")]
    y = 66.0
    for shards, name, flag in meshes:
        parts.append(text(LEFT, y, name, "head"))
        parts.append(text(330, y, flag, "note"))
        for process in range(SHARDS):
            x = LEFT + process * 60
            parts.append(box(x, y + 8, 46, 48, "empty"))
            height = 48 / shards
            shard = process % shards
            group = process // shards if shards < SHARDS else 0
            color = 0 if shards == 1 else group
            parts.append(box(x, y + 8 + shard * height, 46, height, f"s{color}"))
        y += 84
    return page("Weights, gradients and moments on eight processes", y - 10, parts)


def walk(config: type, prefix: str = "") -> list[str]:
    """Return the dotted paths of the settings of a dataclass, groups followed."""
    paths: list[str] = []
    for name, value in vars(config()).items():
        if is_dataclass(value) and not isinstance(value, type):
            paths += walk(type(value), f"{prefix}{name}.")
        else:
            paths.append(prefix + name)
    return paths


def resume_columns() -> dict[str, list[str]]:
    """Return settings of a run by what their change at a resume does: free, from here, refused."""
    config = TrainConfig()
    columns: dict[str, list[str]] = {"free": [], "from here on": [], "refused": []}
    for path in walk(TrainConfig):
        marker = OnResume.find_marker(config, path)
        if isinstance(marker, Fixed):
            columns["refused"].append(path)
        elif marker == OnResume.COMPUTED or "from here on" in getattr(marker, "consequence", ""):
            columns["from here on"].append(path)
        elif marker in UNCHANGED:
            columns["free"].append(f"{path} *")
        elif isinstance(marker, OnResume):
            columns["free"].append(path)
    return columns


def draw_resume() -> str:
    """Draw three columns of settings by what their change at a resume does."""
    heads = {
        "free": ("no other samples", 2),
        "from here on": ("from here on", 1),
        "refused": ("refused: another run", 4),
    }
    columns = resume_columns()
    parts = []
    depth = 0
    for column, (kind, paths) in enumerate(columns.items()):
        head, color = heads[kind]
        x = LEFT + column * 200
        parts.append(box(x, 36, 192, 22, f"s{color}"))
        parts.append(
            f'<text class="head" x="{x + 8}" y="51" style="fill:#ffffff">{escape(head)}</text>'
        )
        divided: set[str] = set()
        for other_kind, other_paths in columns.items():
            if other_kind != kind:
                divided |= {path.rpartition(".")[0] for path in other_paths}
        names = shorten(paths, divided)
        depth = max(depth, len(names))
        for row, name in enumerate(names):
            parts.append(text(x + 4, 76 + 16 * row, name))
    note = "* where the files and the selected frames stay the same"
    parts.append(text(LEFT, 80 + 16 * depth, note, "note"))
    return page("What a resume may change", 94 + 16 * depth, parts, width=616)


def shorten(paths: Sequence[str], divided: set[str]) -> list[str]:
    """Return one line per setting, or per group of three and more whose settings are all here.

    Args:
        paths: dotted paths of settings.
        divided: groups of which other columns have settings, too.
    """
    groups: dict[str, list[str]] = {}
    for path in paths:
        group, _, name = path.rpartition(".")
        groups.setdefault(group, []).append(name)
    lines: list[str] = []
    for group, names in groups.items():
        if group and len(names) >= 3 and group not in divided:
            lines.append(f"{group}.*")
        else:
            lines += [f"{group}.{name}" if group else name for name in names]
    return sorted(lines)


def read(name: str) -> dict[str, Any]:
    """Return the numbers of a picture."""
    numbers = json.loads((NUMBERS / f"{name}.json").read_text(encoding="utf-8"))
    assert isinstance(numbers, dict)
    return numbers


DIAGRAMS: dict[str, Callable[[], str]] = {
    "sample_time": lambda: draw_stack(read("sample_time")),
    "memory": lambda: draw_stack(read("memory")),
    "delay": lambda: draw_lines(read("delay")),
    "mesh": draw_mesh,
    "resume": draw_resume,
}
"""Name of a picture -> function that draws it."""


def main() -> int:
    """Write all pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (PICTURES / f"{name}.svg").write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
