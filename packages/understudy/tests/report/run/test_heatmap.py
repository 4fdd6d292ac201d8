"""The heat-map of validation groups and the text tables."""

import re
from math import inf
from typing import Any

import pytest

from understudy.report.run import validation
from understudy.report.run.tables import format_validation
from understudy.report.run.validation import heatmap, render_validation
from understudy.testing.pages import html_of

ENTRY = {"loss": 1.0, "se": None, "samples": 3, "episodes": 1, "elements": 9}


def record(step: int, **losses: float | None) -> dict[str, Any]:
    """A validation of sources `one` and `two` with a task each; the names before the underscore are
    the sources.
    """
    groups = [
        {
            "head": "arm",
            "source": name.split("_")[0],
            "task": name.split("_")[1],
            "loss": loss,
            "se": 0.1,
        }
        | {"samples": 3, "episodes": 2, "elements": 9}
        for name, loss in losses.items()
    ]
    kinds = {
        kind: {g[kind[:-1]]: ENTRY | {"loss": g["loss"]} for g in groups}
        for kind in ("heads", "sources", "tasks")
    }
    means = {
        "loss": 1.0,
        "se": 0.2,
        "samples": 6,
        "episodes": 3,
        "elements": 18,
        "macro": 1.0,
        "weighted": 1.0,
    }
    return {
        "kind": "val",
        "step": step,
        **means,
        "macros": {"sources": 1.0},
        "groups": groups,
        **kinds,
        "time": [],
    }


def rows_of(val: list[dict[str, Any]]) -> dict[str, str]:
    rows = re.findall(r"<tr><td[^>]*>(.*?)</td>(.*?)</tr>", html_of(heatmap(val)), re.DOTALL)
    return {name: re.sub("<[^>]+>", " ", rest) for name, rest in rows}


def test_heatmap_marks_risen_groups_and_lists_them_first() -> None:
    val = [
        record(10, one_a=2.0, two_b=1.0),
        record(20, one_a=1.0, two_b=2.0),
        record(30, one_a=0.5, two_b=3.0),
    ]
    html = html_of(heatmap(val))
    rows = rows_of(val)
    assert list(rows) == ["two · b", "one · a"]
    assert "▲ worse: +200 % since step 10" in rows["two · b"]
    assert "at its lowest" in rows["one · a"]
    assert "▲" not in rows["one · a"]
    assert "1 of 2 groups is more than 5 % above" in html
    assert html.count(" cell best") == 2
    assert [cell for cell in rows["one · a"].split() if cell[0].isdigit()] == ["2", "1", "0.5"]


@pytest.mark.parametrize(
    ("line", "rise", "which"),
    [
        ([3.0, 2.0, 1.0], 0.0, 2),
        ([1.0, 2.0], 1.0, 0),
        ([2.0, 1.0, None], inf, 1),
        ([None, 1.0, 1.5], 0.5, 1),
        ([None, None], 0.0, -1),
        ([1.0, validation.MISSING], 0.0, 0),
        ([2.0, 0.0, validation.MISSING], 0.0, 1),
        ([0.0, 1.0], 0.0, 0),
    ],
)
def test_since_lowest(line: list[Any], rise: float, which: int) -> None:
    assert validation.since_lowest(line) == (rise, which)


def test_heatmap_of_non_finite_losses_and_missing_groups() -> None:
    val = [record(1, one_a=1.0, two_b=1.0), record(2, one_a=None, two_b=1.0, **{"two_<i>": 4.0})]
    html = html_of(heatmap(val))
    rows = rows_of(val)
    assert "worse: not finite, lowest at step 1" in rows["one · a"]
    assert "NaN" in rows["one · a"]
    assert "<i>" not in html
    assert "two · &lt;i&gt;" in html
    assert heatmap([]) is None


def test_heatmap_thins_steps_and_groups() -> None:
    val = [
        record(step, **{f"s{i}_t": 1.0 + (i == 50) * step for i in range(60)})
        for step in range(1, 30)
    ]
    html = html_of(heatmap(val))
    steps = [int(step) for step in re.findall(r'<th scope="col"[^>]*>(\d+)</th>', html)]
    assert (len(steps), steps[0], steps[-1]) == (12, 1, 29)
    assert "and 20 more groups" in html
    assert next(iter(rows_of(val))) == "s50 · t"


def test_heatmap_of_older_records_has_a_row_per_task() -> None:
    old = [
        {"kind": "val", "step": s, "loss": 1, "macro": 1, "tasks": {"x": {"loss": s, "samples": 2}}}
        for s in (1, 2)
    ]
    assert list(rows_of(old)) == ["x"]
    assert "2 samples" in html_of(*render_validation(old))
    single = [record(s, one_a=1.0, one_b=2.0) for s in (1, 2)]
    assert list(rows_of(single)) == ["a", "b"]


def test_format_validation_has_each_group() -> None:
    text = format_validation(record(5, one_a=0.25, two_b=None) | {"step": 5})
    assert re.search(r"a +0\.25 +3 +1", text)
    assert re.search(r"two +not finite", text)
    assert re.search(r"all samples +1 +± 0\.2 +6 +3", text)
    assert text.startswith("step 5, validation loss\n")
    both = record(5, one_a=0.25) | {
        "step": 5,
        "terms": {"flow": {"loss": 0.25}, "dynamics": {"loss": 0.5}},
    }
    assert format_validation(both).startswith(
        "step 5, validation loss of flow and dynamics, in mode policy\n"
    )
    assert format_validation(both, "forward_dynamics").startswith(
        "step 5, validation loss of dynamics, in mode forward_dynamics\n"
    )


def test_format_validation_puts_a_name_on_one_line() -> None:
    text = format_validation({**record(1, one_a=1.0), "tasks": {"a\n\x1b[31mb " + "c" * 99: ENTRY}})
    (line,) = [line for line in text.splitlines() if "ccc" in line]
    assert line.startswith("  a [31mb ccc")
    assert "…" in line
    assert "\x1b" not in text


def test_render_validation_of_thousands_of_tasks_is_small() -> None:
    tasks = {f"task {number}": ENTRY for number in range(2000)}
    page = html_of(
        *render_validation([{**record(step), "tasks": tasks, "groups": []} for step in (1, 2, 3)])
    )
    assert "task 1999" in page
    assert len(page) < 1_000_000
