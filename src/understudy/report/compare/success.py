"""Success of rollouts in several runs, with Wilson intervals and the intervals of differences."""

from collections.abc import Mapping, Sequence
from typing import Any

from understudy.report.compare.intervals import success_difference
from understudy.report.compare.runs import Run
from understudy.rollout.result import wilson_interval

SETTINGS = ("seed", "execute", "steps")
"""Settings of a result that change success, besides its environment."""


def success_rates(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Compare success per task and over all tasks, for each environment.

    Returns:
        One entry a kind of rollout: {"title", "notes": settings that differ, "tasks": {task: {"rates": {letter:
        {"successes", "episodes", "low", "high"}}, "differences": {letter: {"difference", "interval"}}}}}. `tasks` ends
        with "all". Differences are to the first run that has the task; over all tasks only where both have the same
        tasks.
    """
    kinds: dict[str, dict[str, dict[str, Any]]] = {}
    for run in runs:
        for title, result in _results(run).items():
            kinds.setdefault(title, {})[run.letter] = result
    return [_entry(title, results, runs) for title, results in kinds.items()]


def _results(run: Run) -> dict[str, dict[str, Any]]:
    """Title -> {"tasks", "success", "settings"} of the rollouts of a run, the latest of those during training."""
    found: dict[str, dict[str, Any]] = {}
    for record in run.rollout:  # ascending steps: the latest of each environment remains
        settings = {"weights of step": record["step"]}
        found[f"{record['world']}, during training"] = {**_counts(record), "settings": settings}
    for result in run.results:
        title = f"{result['world']}, `understudy rollout`" + (", swapped text" if result["swap_text"] else "")
        settings = {name: str(result[name]) for name in SETTINGS if name in result}
        if title not in found:
            found[title] = {**_counts(result), "settings": settings}
            continue
        before, now = found[title], _counts(result)  # another seed: other episodes
        for task, (successes, episodes) in now["tasks"].items():
            old = before["tasks"].get(task, (0, 0))
            before["tasks"][task] = (old[0] + successes, old[1] + episodes)
        before["success"] = tuple(map(sum, zip(before["success"], now["success"])))
        for name, value in settings.items():
            if value not in (known := before["settings"].get(name, "")).split(" and "):
                before["settings"][name] = f"{known} and {value}"
    return found


def _counts(result: Mapping[str, Any]) -> dict[str, Any]:
    def pair(rate: Mapping[str, Any]) -> tuple[int, int]:
        return rate["successes"], rate["episodes"]

    return {"tasks": {task: pair(rate) for task, rate in result["tasks"].items()}, "success": pair(result["success"])}


def _entry(title: str, results: Mapping[str, Mapping[str, Any]], runs: Sequence[Run]) -> dict[str, Any]:
    tasks = sorted({task for result in results.values() for task in result["tasks"]})
    rows = {task: {letter: r["tasks"][task] for letter, r in results.items() if task in r["tasks"]} for task in tasks}
    found = {task: _compare(counts) for task, counts in rows.items()}
    everything = _compare({letter: result["success"] for letter, result in results.items()})
    first = next(run.letter for run in runs if run.letter in results)
    for letter in list(everything["differences"]):
        if set(results[letter]["tasks"]) != set(results[first]["tasks"]):
            del everything["differences"][letter]
    notes = []
    for name in dict.fromkeys(name for result in results.values() for name in result["settings"]):
        values = {letter: result["settings"].get(name, "") for letter, result in results.items()}
        if len(set(values.values())) > 1:
            notes.append(f"{name}: " + ", ".join(f"{letter} {value}" for letter, value in values.items()))
    return {"title": title, "notes": notes, "tasks": {**found, "all": everything} if "all" not in found else found}


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
