"""Heat-map of the validation loss of every group over the steps, in plain HTML.

The color of a cell is the distance of its loss to the lowest loss of its own group, so that easy and hard groups are
comparable. The number in the cell is the loss. Beside the cells is the rise since the lowest loss.
"""

from collections.abc import Mapping, Sequence
from html import escape
from math import inf, log2
from typing import Any

Records = Sequence[Mapping[str, Any]]

MISSING = object()
COLUMNS, ROWS = 12, 40
WORSE = 0.05
"""Rise above a group's lowest loss that is marked."""
DEEPEST = 4.0
"""Factor above the lowest loss of the full color."""

STYLE = """<style>
.heat { overflow-x: auto; } .heat table { border-collapse: separate; border-spacing: 2px; font-size: 12.5px; }
.heat td, .heat th { border: 0; padding: 3px 6px; white-space: nowrap; } .heat td.cell { text-align: right;
  border-radius: 3px; min-width: 46px; } .heat td.best { outline: 1.5px solid var(--ink); outline-offset: -1.5px; }
.heat th { text-align: right; font-weight: 500; } .heat th[scope=row] { color: var(--ink); font-weight: 400; }
.heat tr > :first-child { text-align: left; max-width: 340px;
  overflow: hidden; text-overflow: ellipsis; }
</style>"""


def heatmap(val: Records) -> str:
    """Render the heat-map of a run's validation records, oldest first; "" if no record has groups.

    Rows are sources and their tasks (tasks alone for a single source), those with a marked rise first, at most `ROWS`.
    Columns are validations, thinned evenly to `COLUMNS`, the last one included.
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
    words += f" more than {100 * WORSE:.0f} % above the lowest loss of the group, which is framed. Deeper colors are"
    words += f" further above it; the deepest is {DEEPEST:g} times it."
    left = f'<p class="soft">and {len(order) - ROWS} more groups</p>' if len(order) > ROWS else ""
    table = f'<table><tr><th scope="col">step</th>{head}<td></td></tr>{"".join(rows)}</table>'
    return f'{STYLE}<p class="soft">{words}</p><div class="heat">{table}</div>{left}'


def groups_of(record: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Name -> entry of the groups of one validation: tasks, with their sources if there are several."""
    groups = record.get("groups", [])
    if len({group["source"] for group in groups}) > 1:
        return {f"{group['source']} · {group['task']}": group for group in groups}
    return dict(record.get("tasks", {}))


def since_lowest(line: Sequence[Any]) -> tuple[float, int]:
    """Rise of a group's last loss above its lowest, as a share of the lowest, and the index of the lowest.

    In `line`, None is a loss that was not finite, and MISSING an absent one. The rise is infinite if the last loss is
    not finite and another one is.
    """
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
        note = f'<span class="bad">▲ worse: {by} step {steps[which]:,}</span>'
    elif rise > 0:
        note = f'<span class="soft">+{100 * rise:.1f} % since step {steps[which]:,}</span>'
    else:
        note = '<span class="soft">at its lowest</span>' if which == len(line) - 1 else ""
    name = escape(group) or "(no text)"
    return f'<tr><th scope="row" title="{escape(group, quote=True)}">{name}</th>{cells}<td>{note}</td></tr>'


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
    """At most COLUMNS of the indices below `count`, evenly spaced, with the first and the last."""
    if count <= COLUMNS:
        return list(range(count))
    return [round(k * (count - 1) / (COLUMNS - 1)) for k in range(COLUMNS)]
