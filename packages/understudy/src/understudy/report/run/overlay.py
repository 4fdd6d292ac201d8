"""Other runs on the page of a run: their curves over its own, a sentence, and a table of groups.

A group is the validation loss of all samples, that of a source, or the success in an environment.
Losses have a paired interval where both runs validated the same samples and a loss means the same
in both.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from understudy.config.train import TrainConfig
from understudy.report.intervals import paired_difference, success_difference
from understudy.report.run.tables import aligned
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.episode_sums import read_validated
from understudy_base import Record, Records
from understudy_kit import Block, Curve, flat, plain

HEAD = ("runs", "group", "first", "other", "difference", "95 % interval")
LOSS = "validation loss"


@dataclass(frozen=True)
class Run:
    """Files of a run, read for a comparison. Nothing is locked or written: an active run
    continues.
    """

    letter: str
    """A, B, …: its name in tables and legends."""
    root: Path
    config: TrainConfig
    record: Record
    """Content of order.json."""
    logs: Mapping[str, Records]
    """Records of metrics.jsonl by kind, oldest first: train, speed, val, rollout."""
    results: Sequence[Record]
    """Results of `understudy rollout`."""


def compare(runs: Sequence[Run]) -> dict[str, Any]:
    """Compare each run with the first one; the result has only types of JSON.

    Returns:
        {"runs": {letter: folder}, "sentence", "groups": [{"runs": "B − A", "group", "first",
        "other": figures as text, "difference", "interval": [low, high], "reason": why the interval
        is None, "better": letter, or "" where that is not decided}], "settings": {dotted path:
        value in each run} where they differ}.
    """
    first, *others = runs
    groups: list[Record] = []
    for run in others:
        groups += _losses(first, run)
        groups += _success(first, run)
    leaves = [flat(plain(run.config)) for run in runs]
    different = {}
    for path in dict.fromkeys(chain(*leaves)):
        values = [settings.get(path) for settings in leaves]
        if path != "output_dir" and any(value != values[0] for value in values):
            different[path] = values
    return {
        "runs": {run.letter: str(run.root) for run in runs},
        "sentence": _describe(groups),
        "groups": groups,
        "settings": different,
    }


def _losses(first: Run, run: Run) -> Iterator[dict[str, Any]]:
    validated = {
        entry.letter: read_validated(RunDir(entry.root), entry.logs["val"])
        for entry in (first, run)
    }
    present = [entry for entry in validated.values() if entry]
    if len(present) < 2:
        lacking = " and ".join(letter for letter, entry in validated.items() if not entry)
        yield _row(
            first, run, LOSS, ("–", "–"), None, f"no losses of validation episodes in {lacking}"
        )
        return
    (step, sums), (other_step, other) = present
    meaning = _meaning(run)
    unlike = [name for name, value in _meaning(first).items() if value != meaning[name]]
    sources = sums.names if len(sums.names) > 1 else ()
    for source in [None, *sources]:
        figures = (
            f"{sums.loss(source):.4f}, step {step:,}",
            f"{other.loss(source):.4f}, step {other_step:,}",
        )
        paired = None if unlike else paired_difference(other, sums, source)
        if paired:
            reason = "one episode has no interval"
        else:
            reason = f"other {', '.join(unlike) or 'validation samples'}"
        group = f"{LOSS} of {source}" if source else LOSS
        yield _row(first, run, group, figures, paired, reason)


def _meaning(run: Run) -> dict[str, Any]:
    """Properties, as well as the samples and the terms, that a loss depends on."""
    units = run.record["normalisation"]
    action = {name: np.float32(rows).tolist() for name, rows in units.get("action", {}).items()}
    return {
        "--policy.type": run.config.policy.type,
        "--data.chunk-size": run.config.data.chunk_size,
        "task mode of validations": run.config.modes.val_mode(),
        "normalization of actions": (units.get("heads"), units.get("delta"), action),
    }


def _success(first: Run, run: Run) -> Iterator[dict[str, Any]]:
    rates = _rates(first)
    others = _rates(run)
    for key in filter(others.__contains__, rates):
        hits, episodes = rates[key]
        other_hits, other_episodes = others[key]
        figures = f"{hits}/{episodes}", f"{other_hits}/{other_episodes}"
        yield _row(first, run, key[0], figures, success_difference(others[key], rates[key]), "")


def _rates(run: Run) -> dict[tuple[str, str], tuple[int, int]]:
    """(Environment, tasks and conditions) -> successes and episodes of all seeds."""
    successes = Counter[tuple[str, str]]()
    episodes = Counter[tuple[str, str]]()
    for result in run.results:
        name = f"success, {result['world']}"
        if result["swap_text"]:
            name += ", swapped text"
        key = name, repr((sorted(result["tasks"]), sorted(result.get("protocol", {}).items())))
        successes[key] += result["success"]["successes"]
        episodes[key] += result["success"]["episodes"]
    return {key: (successes[key], count) for key, count in episodes.items() if count}


def _row(
    first: Run,
    run: Run,
    group: str,
    figures: tuple[str, str],
    compared: tuple[float, list[float] | None] | None,
    reason: str,
) -> dict[str, Any]:
    difference, interval = compared or (None, None)
    better = ""
    if interval and not interval[0] <= 0 <= interval[1]:
        is_less = interval[1] < 0
        better = run.letter if is_less == group.startswith(LOSS) else first.letter
    names = f"{run.letter} − {first.letter}"
    result = {
        "runs": names,
        "group": group,
        "first": figures[0],
        "other": figures[1],
        "difference": difference,
    }
    reason_of_none = "" if interval else reason
    return result | {"interval": interval, "reason": reason_of_none, "better": better}


def _describe(groups: Sequence[Record]) -> str:
    """Return one sentence: which run is better in the loss of all samples and in success, and by
    how much.
    """
    clauses = []
    for row in groups:
        if not row["group"].startswith(f"{LOSS} of "):
            verdict = "it cannot be decided which is better"
            if row["better"]:
                verdict = f"{row['better']} is better"
            difference, interval = cells(row)[-2:]
            clauses.append(
                f"{row['group']}: {verdict} ({row['runs']} = {difference}, 95 % interval "
                f"{interval})"
            )
    sentence = "; ".join(clauses)
    return f"{sentence[:1].upper()}{sentence[1:]}."


def cells(row: Record) -> list[str]:
    """Return a row of the table of groups as text, in the columns of `HEAD`."""
    difference = "–" if row["difference"] is None else f"{row['difference']:+.4f}"
    if row["interval"]:
        interval = "{:+.4f} to {:+.4f}".format(*row["interval"])
    else:
        interval = f"none: {row['reason']}"
    return [row["runs"], row["group"], row["first"], row["other"], difference, interval]


def format_comparison(compared: Record) -> str:
    """Format the names, the sentence and the table of groups for a terminal."""
    names = [f"{letter}: {root}" for letter, root in compared["runs"].items()]
    return "\n".join(
        [*names, compared["sentence"], aligned(HEAD, list(map(cells, compared["groups"])))]
    )


def draw_over(sections: Sequence[Block | None], others: Sequence[Sequence[Block | None]]) -> None:
    """Draw the curves of other runs into the charts over steps; a run has one color, and its letter
    in the legend.
    """
    charts = {chart["label"]: chart for chart in _charts(sections)}
    lines = {label: list[Curve]() for label in charts}
    for index, blocks in enumerate([sections, *others]):
        for chart in _charts(blocks):
            if chart["label"] not in charts:
                continue
            for curve in chart["lines"]:
                name = f"{chr(ord('A') + index)} {curve['name']}"
                lines[chart["label"]].append(curve.relabel(name, index))
    for label, chart in charts.items():
        chart["lines"] = lines[label]


def _charts(blocks: Sequence[Block | None]) -> Iterator[Block]:
    for block in blocks:
        if not block:
            continue
        if block.get("axes") == ["step"]:
            yield block
        yield from _charts(block.get("blocks", ()))
