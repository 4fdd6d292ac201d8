"""Validation losses of each dataset in several runs: the last and the lowest, with intervals and differences."""

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.report.compare.differences import comparable_sources, head_of
from understudy.report.compare.intervals import loss_interval
from understudy.report.compare.paired import paired_difference
from understudy.report.compare.runs import Run
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.episode_sums import EpisodeSums

ALL = "all"
"""Name of the group of all samples."""
WHICH = ("last", "lowest")


def validation_losses(runs: Sequence[Run], reasons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Compare the validation losses of all samples, and of each dataset where a run has several.

    Args:
        runs: the runs; differences are to the first one.
        reasons: of `losses_differ`.

    Returns:
        One entry a group: {"group", "head": norm head, "losses": {letter: {"last", "lowest": {"step", "loss",
        "interval", "samples", "episodes"}}}, "differences": {letter: {"last", "lowest": {"difference", "interval"}}}}.
        The difference is that of the first run's loss and the other one's. Its interval is paired; it is None where the
        sums of episodes are absent, or the samples differ. A run without a validation of the group is absent, and so
        is a difference where losses are not comparable.
    """
    names = sorted({name for run in runs for record in run.val for name in record.get("sources", {})})
    groups = [ALL, *(names if len(names) > 1 else [])]
    found = []
    for group in groups:
        losses = {run.letter: own for run in runs if (own := _losses(run, group))}
        entry: dict[str, Any] = {"group": group, "head": _heads(runs, names if group == ALL else [group])}
        entry |= {"losses": losses, "differences": {}}
        for run in runs[1:]:
            wanted = [group] if group != ALL else names
            same = comparable_sources([r for r in reasons if runs[0].letter in r["runs"]], run.letter, wanted) == wanted
            if same and runs[0].letter in losses and run.letter in losses:
                first, other = losses[runs[0].letter], losses[run.letter]
                entry["differences"][run.letter] = {
                    which: _difference((runs[0], first[which]), (run, other[which]), group) for which in WHICH
                }
        found.append(entry)
    return [entry for entry in found if entry["losses"]]


def _heads(runs: Sequence[Run], sources: Sequence[str]) -> str:
    heads = {head for run in runs for source in sources if (head := head_of(run, source))}
    return ", ".join(sorted(heads))


def _losses(run: Run, group: str) -> dict[str, Any]:
    """Last and lowest validation of a group; empty without one."""
    found = [(record["step"], _entry(record, group)) for record in run.val]
    known = [(step, entry) for step, entry in found if entry is not None]
    if not known:
        return {}
    finite = [(step, entry) for step, entry in known if entry["loss"] is not None]
    lowest = min(finite, key=lambda pair: (pair[1]["loss"], pair[0])) if finite else known[-1]
    return {"last": _figures(*known[-1]), "lowest": _figures(*lowest)}


def _entry(record: Mapping[str, Any], group: str) -> Mapping[str, Any] | None:
    return record if group == ALL else record.get("sources", {}).get(group)


def _figures(step: int, entry: Mapping[str, Any]) -> dict[str, Any]:
    episodes = entry.get("episodes", 0)
    interval = loss_interval(entry["loss"], entry.get("se"), episodes)
    shown = {"step": step, "loss": entry["loss"], "interval": interval}
    return shown | {"samples": entry.get("samples", 0), "episodes": episodes}


def _difference(
    first: tuple[Run, Mapping[str, Any]], second: tuple[Run, Mapping[str, Any]], group: str
) -> dict[str, Any]:
    losses = [figures["loss"] for _, figures in (first, second)]
    if None in losses:
        return {"difference": None, "interval": None}
    source = None if group == ALL else group
    sums = [_sums(run, figures, source) for run, figures in (first, second)]
    if sums[0] is not None and sums[1] is not None and (found := paired_difference(sums[0], sums[1], source)):
        return {"difference": found[0], "interval": found[1]}
    return {"difference": losses[0] - losses[1], "interval": None}


def _sums(run: Run, figures: Mapping[str, Any], source: str | None) -> EpisodeSums | None:
    """Sums of the episodes of a validation; None without a file of this very validation."""
    sums = EpisodeSums.read(RunDir(run.root).episode_losses(figures["step"]))
    # A file may be of a step that was trained again with other settings.
    return sums if sums is not None and sums.is_of(figures["loss"], source) else None
