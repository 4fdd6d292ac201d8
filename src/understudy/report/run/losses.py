"""Section of the report on losses: curves over the steps, of each term, and a table per source and task mode."""

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.report import charts, html
from understudy.report.run.tables import several_terms
from understudy.train.track.metrics_file import STEPS, mean_loss

Records = Sequence[Mapping[str, Any]]


def render_losses(train: Records, val: Records) -> str:
    """Render the cards of the losses of a run, records oldest first."""
    if not train:
        return html.card('<p class="soft">No step has been logged yet.</p>')
    parts = [html.card("<h3>Loss</h3>", charts.loss(train, val))]
    terms = several_terms({"terms": dict.fromkeys(name for r in train[-STEPS:] for name in r.get("terms", ()))})
    curves = [html.card(f"<h3>{name}</h3>", charts.term(train, val, name)) for name in terms]
    return "".join([*parts, html.grid(curves, "two"), _groups(train[-STEPS:], val[-1] if val else {})])


def _groups(train: Records, last: Mapping[str, Any]) -> str:
    """Render the mean loss of each term per source and task mode beside that of the latest validation."""
    rows, terms = [], list(dict.fromkeys(name for record in train for name in record.get("terms", ())))
    for kind, label in {"sources": "source", "modes": "task mode"}.items():
        for name in dict.fromkeys(name for record in train for name in record.get(kind, ())):
            steps = [record[kind][name] for record in train if name in record.get(kind, {})]
            validation = last.get(kind, {}).get(name, {}).get("terms", {})
            cells = [_cell(mean_loss(steps, term)) for term in terms]
            cells += [_cell(validation.get(term, {}).get("loss")) for term in terms]
            rows.append([label, name, *cells])
    if not rows:
        return ""
    head = ["group", "name", *(f"{term}, training" for term in terms), *(f"{term}, validation" for term in terms)]
    note = f"Means over the last {len(train)} steps, without the weights of the terms."
    title = f"<h3>Loss terms per group</h3><p class='soft'>{note}</p>"
    return html.card(title, html.table(head, rows))


def _cell(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.4g}"
