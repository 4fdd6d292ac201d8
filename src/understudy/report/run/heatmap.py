"""Held-out loss of every group over the steps, as a heat-map in plain HTML: what each group was at its best, and what
has become worse since, in words beside the colours.

A cell's colour is how far the loss lies above the lowest that its own group ever had, so that easy groups and hard ones
can be read alike; the figure in it is the loss.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import inf, log2
from typing import Any

Records = Sequence[Mapping[str, Any]]

MISSING = object()
COLUMNS, ROWS = 12, 40
WORSE = 0.05
"""Rise above a group's lowest loss from which on it is marked."""
DEEPEST = 4.0
"""Factor above the lowest loss at which the colour is full."""

STYLE = """<style>
.heat { overflow-x: auto; } .heat table { border-collapse: separate; border-spacing: 2px; font-size: 12.5px; }
.heat td, .heat th { border: 0; padding: 3px 6px; white-space: nowrap; } .heat td.cell { text-align: right;
  border-radius: 3px; min-width: 46px; } .heat td.best { outline: 1.5px solid var(--ink); outline-offset: -1.5px; }
.heat th { text-align: right; font-weight: 500; } .heat th[scope=row] { color: var(--ink); font-weight: 400; }
.heat tr > :first-child { text-align: left; max-width: 340px;
  overflow: hidden; text-overflow: ellipsis; }
</style>"""


def heatmap(val: Records) -> str:
    """The heat-map of the groups in the records of a run's validations, oldest first; "" where none has any.

    Rows are sources and their tasks (the tasks alone, of a single source), those that have become worse first; of very
    many only the first. Columns are validations, thinned evenly, the last one always there.
    """
    found = [{name: entry["loss"] for name, entry in groups_of(record).items()} for record in val]
    lines = {group: [losses.get(group, MISSING) for losses in found] for group in sorted({g for f in found for g in f})}
    if not lines:
        return ""
    rises = {group: since_lowest(line)[0] for group, line in lines.items()}
    order = sorted(lines, key=lambda group: -rises[group] if rises[group] > WORSE else 0.0)
    shown = _thinned(len(val))
    head = "".join(f'<th scope="col">{step:,}</th>' for step in (val[i]["step"] for i in shown))
    rows = [_row(group, lines[group], [record["step"] for record in val], shown) for group in order[:ROWS]]
    worse = sum(rise > WORSE for rise in rises.values())
    words = f"{worse} of {len(order)} groups {'are' if worse > 1 else 'is'}" if worse else "No group is"
    words += f" more than {100 * WORSE:.0f} % above the lowest loss of the group. Framed: that lowest one. The deeper"
    words += f" the colour, the further above it; full at {DEEPEST:g} times."
    left = f'<p class="soft">and {len(order) - ROWS} more groups</p>' if len(order) > ROWS else ""
    table = f'<table><tr><th scope="col">step</th>{head}<td></td></tr>{"".join(rows)}</table>'
    return f'{STYLE}<p class="soft">{words}</p><div class="heat">{table}</div>{left}'


def groups_of(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name -> entry of the groups of one validation: tasks, with their sources where there are several."""
    groups = record.get("groups", [])
    if len({group["source"] for group in groups}) > 1:
        return {f"{group['source']} · {group['task']}": group for group in groups}
    return dict(record.get("tasks", {}))


def since_lowest(line: Sequence[Any]) -> tuple[float, int]:
    """(rise of the last loss above the lowest, as a share of that; which is the lowest) of a group's losses, in which
    None was not finite and MISSING not there. The rise is infinite where the last one is not finite and another was."""
    known = [(loss, i) for i, loss in enumerate(line) if loss is not None and loss is not MISSING]
    if not known:
        return 0.0, -1
    lowest, which = min(known)
    if line[-1] is MISSING:
        return 0.0, which
    if line[-1] is None:
        return inf, which
    return (line[-1] / lowest - 1 if lowest > 0 else 0.0), which


# -- inside -----------------------------------------------------------------------------------------------------------


def _row(group: str, line: Sequence[Any], steps: Sequence[int], shown: Sequence[int]) -> str:
    rise, which = since_lowest(line)
    cells = "".join(_cell(line[i], line[which] if which >= 0 else None, i == which) for i in shown)
    if rise > WORSE:
        by = "not finite, lowest at" if rise == inf else f"+{100 * rise:.0f} % since"
        told = f'<span class="bad">▲ worse: {by} step {steps[which]:,}</span>'
    elif rise > 0:
        told = f'<span class="soft">+{100 * rise:.1f} % since step {steps[which]:,}</span>'
    else:
        told = '<span class="soft">at its lowest</span>' if which == len(line) - 1 else ""
    name = escape(group) or "(no text)"
    return f'<tr><th scope="row" title="{escape(group, quote=True)}">{name}</th>{cells}<td>{told}</td></tr>'


def _cell(loss: Any, lowest: float | None, best: bool) -> str:
    if loss is MISSING:
        return "<td></td>"
    if loss is None:
        return '<td class="cell bad" title="not finite">NaN</td>'
    above = log2(loss / lowest) / log2(DEEPEST) if lowest else 0.0
    depth = 0.06 + 0.64 * min(1.0, max(0.0, above))
    kind = "cell best" if best else "cell"
    return f'<td class="{kind}" style="background:rgba(224,118,43,{depth:.2f})">{loss:.3g}</td>'


def _thinned(count: int) -> list[int]:
    """At most COLUMNS of `count` numbers, evenly, with the first and the last."""
    if count <= COLUMNS:
        return list(range(count))
    return [round(k * (count - 1) / (COLUMNS - 1)) for k in range(COLUMNS)]
