"""From what was found for each held-out sample to a figure per norm head, source and task, with its standard error.

A loss is the sum over a group's samples divided by the number of their elements, never a mean of means; sums are
`math.fsum`, rounded once, so that neither the sequence of samples nor who computed them matters. A group without an
element is absent. Frames of an episode resemble each other, so a standard error counts episodes: with the residual
u_e = sum over the loss's terms of w (S_e - R C_e) / C of episode e (S_e its sum, C_e its count; R = S / C the group's),

    se^2 = m / (m - 1) * sum over the m episodes of u_e^2,

the linearised variance of a ratio of cluster totals (Cochran 1977, "Sampling Techniques", sections 2.11 and 9A.2: the
ratio estimator, clusters sampled with replacement). One episode tells nothing of its spread: None.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import numpy as np
import torch

from understudy.config.train import TrainConfig
from understudy.errors import ConfigError
from understudy.load.eval.validation_data import HeldOut
from understudy.policies.common.flow_matching import spread_times
from understudy.policies.common.modes import FLOW, TRAINS

KINDS = ("head", "source", "task")
PLAIN = ("loss", "macro", "weighted", "open_loop")


@dataclass(frozen=True)
class TermFound:
    """What one loss term came to: float64, by sample of the line."""

    sums: np.ndarray
    """(N,)"""
    counts: np.ndarray
    """(N,)"""
    draws: np.ndarray
    """(D, N), the part of `sums` of each draw; draw d has the d-th of D equally likely intervals of flow time."""


def grouped(
    found: Mapping[str, TermFound], weights: Mapping[str, float], held: HeldOut, tasks: Sequence[str]
) -> dict[str, Any]:
    """The losses of a validation.

    Args:
        found: by term. weights: of the terms in the loss.
        tasks: of each sample of the line.
    Returns:
        Of all samples `loss` (NaN where there is no element), `se`, `samples`, `episodes`, `elements` (micro: each
        element counts the same); the same
        per group in `heads`, `sources` and `tasks`, by name, and in `groups`, a list with all three names; with several
        terms each also has `terms`: {term: {loss, elements}}. `macro` is the mean of the tasks' losses, `macros` that
        over each kind of group; `weighted` is sum w_k loss_k / sum w_k over the norm heads that have a loss, w_k the
        mixture weights of their sources (absent where these are 0). `time`: loss per interval of flow time, whose mean
        is `loss`.
    """
    names = sorted(set(tasks))
    numbers = {name: number for number, name in enumerate(names)}
    task = np.fromiter((numbers[name] for name in tasks), np.int64, len(tasks))
    head, clusters = held.head_of[held.source], (held.source << 32) + held.episode

    def entries(labels: np.ndarray, name: Callable[[int], str]) -> dict[str, dict[str, Any]]:
        made = {name(label): _entry(found, weights, at, clusters) for label, at in _parts(labels)}
        return {each: entry for each, entry in sorted(made.items()) if entry is not None}

    everything = _entry(found, weights, np.arange(len(held)), clusters)
    heads = entries(head, lambda h: held.heads[h])
    kinds: dict[str, dict[str, dict[str, Any]]] = {
        "heads": heads,
        "sources": entries(held.source, lambda s: held.names[s]),
        "tasks": entries(task, lambda t: names[t]),
    }
    # The head of a sample follows from its source.
    groups = [
        {"head": held.heads[head[at[0]]], "source": held.names[held.source[at[0]]], "task": names[task[at[0]]]} | e
        for _, at in _parts(held.source * len(names) + task)
        if (e := _entry(found, weights, at, clusters)) is not None
    ]
    groups.sort(key=lambda g: (g["head"], g["source"], g["task"]))
    macros = {kind: _mean([e["loss"] for e in of_kind.values()]) for kind, of_kind in kinds.items()}
    macros["groups"] = _mean([group["loss"] for group in groups])
    nothing = {"loss": math.nan, "se": None, "samples": 0, "episodes": 0, "elements": 0}
    result = {**(everything or nothing), "macro": macros["tasks"]}
    # A head that weighs nothing is left out and not multiplied by 0: its loss may be no number.
    known = dict(zip(held.heads, held.head_weights))
    if shares := {name: known[name] for name in heads if known[name] > 0}:
        total = math.fsum(share * heads[name]["loss"] for name, share in shares.items())
        result["weighted"] = total / math.fsum(shares.values())
    return result | {"macros": macros, **kinds, "groups": groups, "time": _over_time(found, weights)}


def by_dimension(sums: np.ndarray, counts: np.ndarray, numbers: np.ndarray, joints: Sequence[str]) -> dict[str, float]:
    """Loss per dimension of the action: joint -> mean, of the samples `numbers`; float64 (A, N) each. Dimensions behind
    those that have names, and dimensions without an element, are absent."""
    found = {}
    for joint, of_sum, of_count in zip(joints, sums[:, numbers], counts[:, numbers]):
        if count := math.fsum(of_count):
            found[joint] = math.fsum(of_sum) / count
    return found


def figures(record: Mapping[str, Any]) -> dict[str, float]:
    """Each figure of a validation by which the best checkpoint may be chosen, by name (`keep_best`), of its record."""
    found = {name: record.get(name) for name in PLAIN[:3]}
    for kind in KINDS:
        found |= {f"{kind}:{name}": entry["loss"] for name, entry in record.get(f"{kind}s", {}).items()}
    found["open_loop"] = record.get("open_loop", {}).get("normalised")
    return {name: value for name, value in found.items() if value is not None}


def check_figure(config: TrainConfig, held: HeldOut) -> None:
    """Raise ConfigError, with what there is, unless a validation of these frames has the figure of `keep_best`."""
    name = config.keep_best
    kind, colon, own = name.partition(":")
    if name in ("none", *PLAIN):
        if name == "open_loop" and FLOW not in TRAINS[config.judged_mode()]:
            raise ConfigError("keep_best: open_loop: no actions are learnt (mode), so none are compared")
        if name == "open_loop" and not config.val_open_loop:
            raise ConfigError("keep_best: open_loop: it is not measured; set val_open_loop, say to 10")
        return
    known: dict[str, list[str]] = {
        "head": sorted({held.heads[head] for head in held.head_of}),
        "source": list(held.names),
        "task": sorted(_tasks(held)),
    }
    if not colon or kind not in known:
        kinds = ", ".join([*PLAIN, *(f"{each}:NAME" for each in known)])
        raise ConfigError(f"keep_best: {name}: {_near(name, PLAIN)}it is one of none, {kinds}")
    if own not in known[kind]:
        listed = ", ".join(known[kind][:8]) + (", …" if len(known[kind]) > 8 else "")
        raise ConfigError(
            f"keep_best: {name}: no {kind} of this name is held out; {_near(own, known[kind])}there are: {listed}"
        )


# -- inside -----------------------------------------------------------------------------------------------------------


def _entry(
    found: Mapping[str, TermFound], weights: Mapping[str, float], at: np.ndarray, clusters: np.ndarray
) -> dict[str, Any] | None:
    """The figures of the samples `at`; None when they have no element."""
    episodes, which = np.unique(clusters[at], return_inverse=True)
    residual, terms = np.zeros(len(episodes)), {}
    parts = []
    for term, weight in weights.items():
        sums, counts = found[term].sums[at], found[term].counts[at]
        total, count = math.fsum(sums), math.fsum(counts)
        if count == 0:
            continue
        parts.append(weight * total / count)
        terms[term] = {"loss": total / count, "elements": int(count)}
        with np.errstate(invalid="ignore"):  # inf - inf: then the error is no number either
            left = np.bincount(which, weights=sums) - total / count * np.bincount(which, weights=counts)
            residual += weight * left / count
    if not terms:
        return None
    m = len(episodes)
    se = math.sqrt(m / (m - 1) * math.fsum(residual * residual)) if m > 1 else None
    elements = sum(term["elements"] for term in terms.values())
    entry: dict[str, Any] = {"loss": math.fsum(parts), "se": se, "samples": len(at), "episodes": m}
    entry["elements"] = elements
    return entry | ({"terms": terms} if len(weights) > 1 else {})


def _over_time(found: Mapping[str, TermFound], weights: Mapping[str, float]) -> list[dict[str, float]]:
    """[{from, to, loss}] per draw."""
    draws = len(next(iter(found.values())).draws)
    edges = [*spread_times(torch.zeros(1, draws, dtype=torch.float64))[0].tolist(), 1.0]
    losses = [0.0] * draws
    for term, weight in weights.items():
        if count := math.fsum(found[term].counts):
            losses = [old + weight * math.fsum(s) * draws / count for old, s in zip(losses, found[term].draws)]
    return [{"from": low, "to": high, "loss": loss} for low, high, loss in zip(edges, edges[1:], losses)]


def _parts(labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(label, its samples in the sequence of the line) for each label int64 (N,)."""
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, starts[1:])))


def _mean(losses: Sequence[float]) -> float:
    return math.fsum(losses) / len(losses) if losses else math.nan  # 0 would be taken for the best that there can be


def _tasks(held: HeldOut) -> set[str]:
    """Texts of the tasks that the metadata names for the judged episodes; of their datasets, where it names none."""
    found: set[str] = set()
    for number, data in enumerate(held.datasets):
        table, texts = data.catalog.episodes, data.catalog.tasks
        for row in table.rows_of(np.unique(held.episode[held.source == number])).tolist():
            named = [int(task) for task in table.tasks_of(row)]
            found |= {texts[task] for task in named} if named and min(named) >= 0 else set(texts)
    return found


def _near(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1)
    return f"did you mean {close[0]!r}? " if close else ""
