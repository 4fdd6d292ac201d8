"""Validation losses, worst validation episodes and success of rollouts in several runs, next to each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from understudy.records import Record
from understudy.report.compare.differences import comparable_sources, head_of
from understudy.report.compare.intervals import loss_interval, paired_difference, success_difference
from understudy.report.compare.runs import Run
from understudy.rollout.intervals import wilson_interval
from understudy.rollout.result import PROMPT
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.validation.episode_sums import EpisodeSums, read_validated

ALL = "all"
"""Name of the group of all samples."""
VALIDATIONS = ("last", "lowest")
SAMPLED = ("seed", "weights of step", PROMPT)
"""Facts of a rollout that may differ in a comparison: other scenes of one distribution, other weights, or another
prompt, which is a part of the policy."""

# -- validation losses ------------------------------------------------------------------------------------------------


def validation_losses(runs: Sequence[Run], reasons: Sequence[Record]) -> list[dict[str, Any]]:
    """Compare the validation losses of all samples, and of each dataset where a run has several.

    Args:
        runs: The runs; differences are to the first one.
        reasons: Result of `losses_differ`.

    Returns:
        One entry a group: {"group", "head": norm head, "losses": {letter: {"last", "lowest": {"step", "loss",
        "interval", "samples", "episodes"}}}, "differences": {letter: {"last", "lowest": {"difference", "interval"}}}}.
        The difference is the first run's loss minus the other one's. Its interval is paired; it is None where the
        sums of episodes are absent, or the samples differ. A run without a validation of the group is absent, and so
        is a difference where losses are not comparable.
    """
    names = sorted({name for run in runs for record in run.val for name in record.get("sources", {})})
    groups = [ALL, *(names if len(names) > 1 else [])]
    entries = []
    for group in groups:
        losses = {run.letter: figures for run in runs if (figures := _losses(run, group))}
        entry: dict[str, Any] = {"group": group, "head": _heads(runs, names if group == ALL else [group])}
        entry |= {"losses": losses, "differences": {}}
        for run in runs[1:]:
            sources = [group] if group != ALL else names
            concerned = [reason for reason in reasons if runs[0].letter in reason["runs"]]
            is_comparable = comparable_sources(concerned, run.letter, sources) == sources
            if is_comparable and runs[0].letter in losses and run.letter in losses:
                first, other = losses[runs[0].letter], losses[run.letter]
                entry["differences"][run.letter] = {
                    kind: _difference((runs[0], first[kind]), (run, other[kind]), group) for kind in VALIDATIONS
                }
        entries.append(entry)
    return [entry for entry in entries if entry["losses"]]


def _heads(runs: Sequence[Run], sources: Sequence[str]) -> str:
    heads = {head for run in runs for source in sources if (head := head_of(run, source))}
    return ", ".join(sorted(heads))


def _losses(run: Run, group: str) -> dict[str, Any]:
    """Last and lowest validation of a group; empty without one."""
    records = [(r["step"], r if group == ALL else r.get("sources", {}).get(group)) for r in run.val]
    entries = [(step, entry) for step, entry in records if entry is not None]
    if not entries:
        return {}
    finite = [(step, entry) for step, entry in entries if entry["loss"] is not None]
    lowest = min(finite, key=lambda pair: (pair[1]["loss"], pair[0])) if finite else entries[-1]
    return {"last": _figures(*entries[-1]), "lowest": _figures(*lowest)}


def _figures(step: int, entry: Record) -> dict[str, Any]:
    episodes = entry.get("episodes", 0)
    interval = loss_interval(entry["loss"], entry.get("se"), episodes)
    loss = {"step": step, "loss": entry["loss"], "interval": interval}
    return loss | {"samples": entry.get("samples", 0), "episodes": episodes}


def _difference(first: tuple[Run, Record], second: tuple[Run, Record], group: str) -> dict[str, Any]:
    losses = [figures["loss"] for _, figures in (first, second)]
    if None in losses:
        return {"difference": None, "interval": None}
    source = None if group == ALL else group
    sums = [_sums(run, figures, source) for run, figures in (first, second)]
    if sums[0] is not None and sums[1] is not None and (paired := paired_difference(sums[0], sums[1], source)):
        return {"difference": paired[0], "interval": paired[1]}
    return {"difference": losses[0] - losses[1], "interval": None}


def _sums(run: Run, figures: Record, source: str | None) -> EpisodeSums | None:
    """Sums of the episodes of a validation; None without a file of this very validation."""
    sums = EpisodeSums.read(RunDir(run.root).episode_losses(figures["step"]))
    # A file may be of a step that was trained again with other settings.
    return sums if sums is not None and sums.is_of(figures["loss"], source) else None


# -- worst episodes ----------------------------------------------------------------------------------------------------


def worst_episodes(runs: Sequence[Run], count: int) -> list[dict[str, Any]]:
    """Return the `count` episodes with the largest loss of each run, with their losses in all runs.

    A run's losses are from its latest validation that kept them.

    Returns:
        [{"source", "episode", "losses": {letter: loss, NaN where it was not finite}, "steps": {letter: step}}], the
        largest loss of any run first. A run that did not evaluate the episode is absent.
    """
    losses: dict[tuple[str, int], dict[str, float]] = {}
    validations: dict[str, tuple[int, EpisodeSums]] = {}
    for run in runs:
        if (validated := read_validated(RunDir(run.root), run.val)) is not None:
            validations[run.letter] = validated
            losses |= {_key(validated[1], index): {} for index in validated[1].largest(count).tolist()}
    for letter, (_, sums) in validations.items():
        values = sums.losses()
        for index in sums.largest(len(sums.episode)).tolist():
            if (key := _key(sums, index)) in losses:
                losses[key][letter] = float(values[index])
    entries = [
        {"source": key[0], "episode": key[1], "losses": row, "steps": {name: validations[name][0] for name in row}}
        for key, row in losses.items()
    ]
    return sorted(entries, key=lambda entry: (-_largest(entry), entry["source"], entry["episode"]))


def _key(sums: EpisodeSums, index: int) -> tuple[str, int]:
    return sums.names[sums.source[index]], int(sums.episode[index])


def _largest(entry: dict[str, Any]) -> float:
    return max(loss if np.isfinite(loss) else np.inf for loss in entry["losses"].values())


# -- success -----------------------------------------------------------------------------------------------------------


def success_rates(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Compare success per task and over all tasks, for each environment.

    Returns:
        One entry for each kind of rollout: {"title", "notes": facts that differ, "not comparable": {letter: conditions
        that differ from the first run's}, "tasks": {task: {"rates": {letter: {"successes", "episodes", "low", "high"}},
        "differences": {letter: {"difference", "interval"}}}}}. `tasks` ends with "all". Differences are
        to the first run that has the task, if the conditions are equal; over all tasks only where both have the same
        tasks.
    """
    kinds: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        for title, result in _results(run).items():
            kinds.setdefault(title, {})[run.letter] = result
    return [_entry(title, results, runs) for title, results in kinds.items()]


def _results(run: Run) -> dict[str, dict[str, Any]]:
    """Title -> {"tasks", "success", "settings"} of the rollouts of a run, the latest of those during training."""
    results: dict[str, dict[str, Any]] = {}
    for record in run.rollout:  # ascending steps: the latest of each environment remains
        settings = {"weights of step": str(record["step"]), **record.get("protocol", {})}
        results[f"{record['world']}, during training"] = {**_counts(record), "settings": settings}
    for result in run.results:
        title = f"{result['world']}, `understudy rollout`" + (", swapped text" if result["swap_text"] else "")
        settings = {"seed": str(result["seed"]), **result.get("protocol", {})}
        if title not in results:
            results[title] = {**_counts(result), "settings": settings}
            continue
        pooled, counts = results[title], _counts(result)  # another seed: other episodes
        for task, (successes, episodes) in counts["tasks"].items():
            before = pooled["tasks"].get(task, (0, 0))
            pooled["tasks"][task] = (before[0] + successes, before[1] + episodes)
        pooled["success"] = tuple(map(sum, zip(pooled["success"], counts["success"])))
        for name, value in settings.items():
            if value not in (values := pooled["settings"].get(name, "")).split(" and "):
                pooled["settings"][name] = f"{values} and {value}"
    return results


def _counts(result: Record) -> dict[str, Any]:
    def pair(rate: Record) -> tuple[int, int]:
        return rate["successes"], rate["episodes"]

    return {"tasks": {task: pair(rate) for task, rate in result["tasks"].items()}, "success": pair(result["success"])}


def _entry(title: str, results: Mapping[str, Record], runs: Sequence[Run]) -> dict[str, Any]:
    tasks = sorted({task for result in results.values() for task in result["tasks"]})
    rows = {task: {letter: r["tasks"][task] for letter, r in results.items() if task in r["tasks"]} for task in tasks}
    compared = {task: _compare(counts) for task, counts in rows.items()}
    everything = _compare({letter: result["success"] for letter, result in results.items()})
    first = next(run.letter for run in runs if run.letter in results)
    unlike = {(a, b): _unlike(results[a], results[b]) for a in results for b in results}
    for task in [everything, *compared.values()]:
        pairs = task["differences"].items()
        task["differences"] = {letter: figures for letter, figures in pairs if not unlike[figures["to"], letter]}
    for letter in list(everything["differences"]):
        if set(results[letter]["tasks"]) != set(results[first]["tasks"]):
            del everything["differences"][letter]
    notes = []
    for name in dict.fromkeys(name for result in results.values() for name in result["settings"]):
        values = {letter: result["settings"].get(name, "none") for letter, result in results.items()}
        if len(set(values.values())) > 1:
            notes.append(f"{name}: " + ", ".join(f"{letter} {value}" for letter, value in values.items()))
    compared.setdefault("all", everything)
    refused = {letter: unlike[first, letter] for letter in results if unlike[first, letter]}
    return {"title": title, "notes": notes, "not comparable": refused, "tasks": compared}


def _unlike(a: Record, b: Record) -> list[str]:
    """Names of the conditions in which two results differ."""
    names = dict.fromkeys([*a["settings"], *b["settings"]])
    return [name for name in names if name not in SAMPLED and a["settings"].get(name) != b["settings"].get(name)]


def _compare(counts: Mapping[str, tuple[int, int]]) -> dict[str, Any]:
    rates, differences = {}, {}
    first, *others = counts
    for letter, (successes, episodes) in counts.items():
        low, high = wilson_interval(successes, episodes)
        rates[letter] = {"successes": successes, "episodes": episodes, "low": low, "high": high}
    for letter in others:
        if counts[first][1] and counts[letter][1]:
            difference, interval = success_difference(counts[first], counts[letter])
            differences[letter] = {"to": first, "difference": difference, "interval": interval}
    return {"rates": rates, "differences": differences}
