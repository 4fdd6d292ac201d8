"""Settings, versions and datasets that differ between runs, and the reasons why losses are not comparable."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from understudy.config.schema import differences
from understudy.report.compare.runs import Run
from understudy.train.data.run_data import VALIDATION_EPISODES

VALIDATED = (VALIDATION_EPISODES, "lengths of the episodes", "tasks")
"""Entries of a dataset's fingerprint that determine its validation frames."""


def differing_settings(runs: Sequence[Run]) -> dict[str, dict[str, Any]]:
    """Return flag -> {letter: value} of the settings in which any run differs from another; None where one is absent.

    The output directory is left out. A setting in a list has the name of a settings file, since it has no flag.
    """
    first = runs[0]
    found: dict[str, dict[str, Any]] = {}
    for run in runs[1:]:
        for path, (one, other) in differences(first.config, run.config).items():
            if path != "output_dir":
                values = found.setdefault(path, {each.letter: one for each in runs})
                values[run.letter] = other
    return {_flag(path): values for path, values in found.items()}


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
    found = []
    for run in runs[1:]:
        first = runs[0]
        pair = [first.letter, run.letter]
        names = sorted({*_sources(first), *_sources(run)})
        for name in names:
            one, other = (_validated(each).get(name) for each in (first, run))
            if one is None or other is None:
                absent = run.letter if other is None else first.letter
                why = f"{absent} has no validation episodes of it"
                found.append(_reason(pair, [name], "validation sets", why))
            elif one != other:
                parts = ", ".join(key for key in VALIDATED if one.get(key) != other.get(key))
                found.append(_reason(pair, [name], "validation sets", f"other {parts}"))
        for title, of in _MEANINGS.items():
            one, other = of(first), of(run)
            if one != other and None not in (one, other):
                found.append(_reason(pair, names, title, _contrast(pair, one, other)))
        both = [name for name in names if name in _sources(first) and name in _sources(run)]
        scaled = [name for name in both if _normalization(first, name) != _normalization(run, name)]
        if scaled:
            found.append(_reason(pair, scaled, "normalization of actions", "a loss has the units of its run"))
    return found


def comparable_sources(reasons: Sequence[Mapping[str, Any]], letter: str, names: Sequence[str]) -> list[str]:
    """Return those of the datasets `names` of whose losses no reason of `losses_differ` concerns the run `letter`."""
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


def _differing(known: Mapping[str, Mapping[str, Any]], show: Callable[[Any], str]) -> dict[str, dict[str, str]]:
    keys = list(dict.fromkeys(key for own in known.values() for key in own))
    rows = {key: {letter: show(own[key]) if key in own else "" for letter, own in known.items()} for key in keys}
    return {key: row for key, row in rows.items() if len(set(row.values())) > 1}


def _short(value: Any) -> str:
    from hashlib import sha256

    if not isinstance(value, list):
        return str(value)
    return f"{len(value)} files, {sha256(repr(value).encode()).hexdigest()[:12]}"


def _sources(run: Run) -> dict[str, Mapping[str, Any]]:
    """Entry of each source in order.json, by name."""
    return {source["name"]: source for source in run.record.get("sources", ())}


def _properties(run: Run) -> dict[str, Any]:
    """Fingerprint of the datasets and files of a run, each name with its source."""
    names = list(_sources(run))
    prefix = f"{names[0]}: " if len(names) == 1 else ""
    files = run.record.get("files") or {}
    known = {**run.record["dataset"], **files}
    return {f"{prefix}{key}": value for key, value in known.items() if "a sample of the " not in key}


def _validated(run: Run) -> dict[str, dict[str, Any]]:
    """Properties `VALIDATED` of each source with validation episodes."""
    known = _properties(run)
    found = {name: {key: known.get(f"{name}: {key}") for key in VALIDATED} for name in _sources(run)}
    validated = {name for record in run.val for name in record.get("sources", {})}
    return {name: own for name, own in found.items() if not run.val or name in validated}


def _reason(pair: list[str], sources: Sequence[str], name: str, why: str) -> dict[str, Any]:
    return {"runs": pair, "sources": list(sources), "property": name, "why": why}


def _contrast(pair: Sequence[str], one: Any, other: Any) -> str:
    return f"{pair[0]}: {one}, {pair[1]}: {other}"


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
"""Properties, besides the samples, that a loss depends on; None where a run does not have it."""


def _normalization(run: Run, source: str) -> tuple[Any, ...]:
    """Numbers that the actions of a source are normalized by, rounded to the precision of a float32."""
    units = run.record["normalisation"]
    heads = units.get("heads", [""])
    head = head_of(run, source)
    row = heads.index(head) if head in heads else 0
    rows = [units.get("action", {}).get(key, []) for key in ("offset", "spread")] + [units.get("delta", [])]
    return tuple(tuple(float(np.float32(value)) for value in table[row]) if row < len(table) else () for table in rows)
