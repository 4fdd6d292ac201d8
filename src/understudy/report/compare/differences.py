"""Settings, versions and datasets that differ between runs, and the reasons why losses are not comparable."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from understudy.config.schema import differences
from understudy.records import Record
from understudy.report.compare.runs import Run
from understudy.train.data.run_data import VALIDATION_EPISODES

VALIDATED = (VALIDATION_EPISODES, "lengths of the episodes", "tasks")
"""Entries of a dataset's fingerprint that determine its validation frames."""


def differing_settings(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return flag -> {letter: value} of the settings in which any run differs from another; None where one is absent.

    The output directory is left out. A setting in a list has the name of a settings file, since it has no flag.
    """
    first = runs[0]
    settings: dict[str, dict[str, Any]] = {}
    for run in runs[1:]:
        for path, (value, other) in differences(first.config, run.config).items():
            if path != "output_dir":
                values = settings.setdefault(path, dict.fromkeys((run.letter for run in runs), value))
                values[run.letter] = other
    return {_flag(path): values for path, values in settings.items()}


def differing_versions(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Return package -> {letter: version at the latest checkpoint} where versions differ; without one it is absent."""
    return _differing({run.letter: run.versions for run in runs if run.versions}, str)


def differing_datasets(runs: Sequence[Run]) -> dict[str, dict[str, str]]:
    """Return property -> {letter: value} of the fingerprints of datasets and files where they differ.

    A property has the name of its source. Lists of digests are shortened to their number and a digest of them.
    """
    return _differing({run.letter: _properties(run) for run in runs}, _short)


def losses_differ(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return the reasons why losses of later runs are not comparable with the first one's.

    Returns:
        [{"runs": [letter, letter], "sources": names of the datasets it concerns, "property", "why"}], empty if losses
        mean the same.
    """
    first, *others = runs
    return [reason for run in others for reason in _reasons(first, run)]


def _reasons(first: Run, run: Run) -> list[dict[str, Any]]:
    def reason(sources: Sequence[str], name: str, why: str) -> dict[str, Any]:
        return {"runs": [first.letter, run.letter], "sources": list(sources), "property": name, "why": why}

    reasons = []
    names = sorted({*_sources(first), *_sources(run)})
    validated, others = _validated(first), _validated(run)
    for name in names:
        if name not in validated or name not in others:
            absent = run.letter if name not in others else first.letter
            reasons.append(reason([name], "validation sets", f"{absent} has no validation episodes of it"))
        elif validated[name] != others[name]:
            parts = ", ".join(key for key in VALIDATED if validated[name].get(key) != others[name].get(key))
            reasons.append(reason([name], "validation sets", f"other {parts}"))
    for title, meaning in _MEANINGS.items():
        value, other = meaning(first), meaning(run)
        if value != other and None not in (value, other):
            reasons.append(reason(names, title, f"{first.letter}: {value}, {run.letter}: {other}"))
    both = [name for name in names if name in _sources(first) and name in _sources(run)]
    if scaled := [name for name in both if _normalization(first, name) != _normalization(run, name)]:
        reasons.append(reason(scaled, "normalization of actions", "a loss has the units of its run"))
    return reasons


def comparable_sources(reasons: Sequence[Record], letter: str, names: Sequence[str]) -> list[str]:
    """Return the datasets of `names` whose losses no reason of `losses_differ` concerns for the run `letter`."""
    concerned = {name for reason in reasons if letter in reason["runs"] for name in reason["sources"]}
    return [name for name in names if name not in concerned]


def head_of(run: Run, source: str) -> str:
    """Return the norm head of a source, `robot::control mode`; "" for an unknown one."""
    return str(_sources(run).get(source, {}).get("head", ""))


# -- inside -----------------------------------------------------------------------------------------------------------


def _flag(path: str) -> str:
    parts = path.split(".")
    if any(part.isdigit() for part in parts):
        return "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts).removeprefix(".")
    return "--" + path.replace("_", "-")


def _differing(facts: Mapping[str, Record], show: Callable[[Any], str]) -> dict[str, dict[str, str]]:
    keys = list(dict.fromkeys(key for values in facts.values() for key in values))
    rows = {key: {run: show(values[key]) if key in values else "" for run, values in facts.items()} for key in keys}
    return {key: row for key, row in rows.items() if len(set(row.values())) > 1}


def _short(value: Any) -> str:
    from hashlib import sha256

    if not isinstance(value, list):
        return str(value)
    return f"{len(value)} files, {sha256(repr(value).encode()).hexdigest()[:12]}"


def _sources(run: Run) -> dict[str, Record]:
    """Entry of each source in order.json, by name."""
    return {source["name"]: source for source in run.record.get("sources", ())}


def _properties(run: Run) -> dict[str, Any]:
    """Fingerprint of the datasets and files of a run, each name with its source."""
    names = list(_sources(run))
    prefix = f"{names[0]}: " if len(names) == 1 else ""
    files = run.record.get("files") or {}
    facts = {**run.record["dataset"], **files}
    return {f"{prefix}{key}": value for key, value in facts.items() if "a sample of the " not in key}


def _validated(run: Run) -> dict[str, dict[str, Any]]:
    """Properties `VALIDATED` of each source with validation episodes."""
    properties = _properties(run)
    facts = {name: {key: properties.get(f"{name}: {key}") for key in VALIDATED} for name in _sources(run)}
    validated = {name for record in run.val for name in record.get("sources", {})}
    return {name: values for name, values in facts.items() if not run.val or name in validated}


def _sampled(run: Run) -> str | None:
    """Number of validation frames, where it is a sample of them; None without a validation."""
    if not run.val:
        return None
    last = run.val[-1]
    frames, total = last.get("samples", 0), last.get("held_out", 0)
    return f"{frames:,} of {total:,} frames" if frames < total else "all frames"


def _terms(run: Run) -> str | None:
    """Names of the loss terms of its validations; None without a validation."""
    return (", ".join(run.val[-1].get("terms", ())) or "one term") if run.val else None


_MEANINGS: dict[str, Callable[[Run], Any]] = {
    "--policy.type": lambda run: run.record["policy"].get("type", "flow"),
    "--data.chunk-size": lambda run: run.config.data.chunk_size,
    "task mode of validations": lambda run: run.config.val_mode(),
    "loss terms": _terms,
    "--data.frame-weights": lambda run: run.config.data.frame_weights,
    "--optim.loss-weights": lambda run: dict(run.config.optim.loss_weights),
    "sample of the validation frames": _sampled,
}
"""Properties, as well as the samples, that a loss depends on; None where a run does not have it."""


def _normalization(run: Run, source: str) -> tuple[Any, ...]:
    """Numbers that the actions of a source are normalized by, rounded to the precision of a float32."""
    units = run.record["normalisation"]
    heads = units.get("heads", [""])
    head = head_of(run, source)
    row = heads.index(head) if head in heads else 0
    rows = [units.get("action", {}).get(key, []) for key in ("offset", "spread")] + [units.get("delta", [])]
    return tuple(tuple(float(np.float32(value)) for value in table[row]) if row < len(table) else () for table in rows)
