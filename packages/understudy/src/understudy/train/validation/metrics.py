"""Validation figures per norm head, source and task, with standard errors, from per-sample losses.

A loss is the sum over a group's samples divided by the number of their elements, never a mean of
means. Where frames have weights, each sample's sum and number are multiplied by its weight first.
Sums are `math.fsum`, rounded once, so they do not depend on the sequence of samples or on the
ranks. A group without an element is absent. Frames of an episode are correlated, so a standard
error counts episodes. With the residual u_e = sum over the loss's terms of w (S_e - R C_e) / C of
episode e (S_e its sum, C_e its count; R = S / C the group's),

    se^2 = m / (m - 1) * sum over the m episodes of u_e^2,

the linearised variance of a ratio of cluster totals (Cochran 1977, "Sampling Techniques", sections
2.11 and 9A.2: the ratio estimator, clusters sampled with replacement). It is None for a single
episode.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np

from understudy.config.samples import SampleSettings
from understudy.config.train import ValConfig
from understudy.policies.capabilities.returns import predicts_actions
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy_base import ConfigError, Record
from understudy_data import Instructions, ValidationData

KINDS = ("head", "source", "task")
PLAIN = ("loss", "macro", "weighted", "open_loop")
ALL = "all"
"""Name of the only group of a validation without losses per sample."""
EMPTY: Record = MappingProxyType(
    {"loss": math.nan, "se": None, "samples": 0, "episodes": 0, "elements": 0, "terms": {}}
)
"""Figures of no element."""


@dataclass(frozen=True)
class TermSums:
    """One loss term of each validation sample, float64."""

    sums: np.ndarray
    """(N,)"""
    counts: np.ndarray
    """(N,)"""
    draws: np.ndarray
    """(D, N): the part of each draw in `sums`; draw d lies in the d-th interval of flow time."""
    edges: tuple[float, ...] = ()
    """D + 1 flow times, ascending: the edges of these intervals; () for a term without a flow time.
    """

    @classmethod
    def from_rows(cls, rows: np.ndarray, edges: tuple[float, ...]) -> "TermSums":
        """Take the sums, the counts and the draws from rows, float64 (2 + D, N)."""
        return cls(rows[0], rows[1], rows[2:], edges)

    def weighted(self, weight: np.ndarray | None) -> "TermSums":
        """Return the sums and counts times the weight of each sample, float64 (N,)."""
        if weight is None:
            return self
        return TermSums(self.sums * weight, self.counts * weight, self.draws * weight, self.edges)


def group_losses(
    term_sums: Mapping[str, TermSums],
    weights: Mapping[str, float],
    validation: ValidationData,
    tasks: Sequence[str],
) -> dict[str, Any]:
    """Compute the losses of a validation.

    Args:
        term_sums: sums by loss term.
        weights: weight of each term in the loss.
        validation: the validation samples.
        tasks: task of each sample.

    Returns:
        Of all samples `loss` (NaN without an element), `se`, `samples`, `episodes`, `elements`
        (micro: each element counts the same), `terms`: {term: {loss, elements}}. With frame
        weights, `equal_frames` is the loss without them. The same per group in `heads`, `sources`
        and `tasks`, by name, and in `groups`, a list with all three. `loss` is a weighted sum over
        the terms that a group has, so those of groups with other terms are incomparable. `macro` is
        the mean of the tasks' losses, each term over the tasks that have it; `macros` that over
        each kind of group. `weighted` is sum w_k loss_k / sum w_k over the norm heads that have a
        loss, term by term, w_k the mixture weights of their sources (absent if these are 0). `time`
        is the loss per interval of flow time, [{from, to, loss}]; their mean is `loss`. Where terms
        have different intervals, each of those also has its `terms`, and `loss` is the sum of the
        means. Terms without a flow time are in the first.
    """
    names = sorted(set(tasks))
    numbers = {name: number for number, name in enumerate(names)}
    task = np.fromiter((numbers[name] for name in tasks), np.int64, len(tasks))
    source = validation.source
    clusters = (validation.source << 32) + validation.episode
    head = validation.head_of[source]
    plain = term_sums if validation.weight is not None else None
    sums = {term: of_term.weighted(validation.weight) for term, of_term in term_sums.items()}

    def entries(labels: np.ndarray) -> list[tuple[int, dict[str, Any]]]:
        """Figures of each group that has elements, with its first sample."""
        groups = [
            (rows[0], _entry(sums, weights, rows, clusters, plain))
            for _, rows in _split_by_label(labels)
        ]
        return [(first, entry) for first, entry in groups if entry is not None]

    names_of: dict[str, Callable[[int], str]] = {
        "head": lambda row: validation.heads[head[row]],
        "source": lambda row: validation.names[source[row]],
        "task": lambda row: names[task[row]],
    }
    kinds = {}
    for kind, labels in (("head", head), ("source", source), ("task", task)):
        name_of = names_of[kind]
        kinds[f"{kind}s"] = dict(sorted((name_of(row), entry) for row, entry in entries(labels)))
    # The head of a sample follows from its source.
    groups = []
    for row, entry in entries(source * len(names) + task):
        group: dict[str, Any] = {kind: name_of(row) for kind, name_of in names_of.items()}
        groups.append(group | entry)
    groups.sort(key=lambda group: (group["head"], group["source"], group["task"]))
    macros = {kind: _mean(list(of_kind.values()), weights) for kind, of_kind in kinds.items()}
    macros["groups"] = _mean(groups, weights)
    overall = _entry(sums, weights, np.arange(len(validation)), clusters, plain) or EMPTY
    result: dict[str, Any] = {**overall, "macro": macros["tasks"]}
    # A head of weight 0 is left out instead of multiplied: its loss may be NaN.
    head_weights = dict(zip(validation.heads, validation.head_weights))
    if shares := {name: head_weights[name] for name in kinds["heads"] if head_weights[name] > 0}:
        result["weighted"] = _mean(
            [kinds["heads"][name] for name in shares], weights, list(shares.values())
        )
    return result | {"macros": macros, **kinds, "groups": groups, "time": _over_time(sums, weights)}


def one_group(
    sums: Mapping[str, TermSums], weights: Mapping[str, float], validation: ValidationData
) -> dict[str, Any]:
    """Compute the losses of all samples, for a policy that returns one loss per batch
    (`scalar_losses`).

    Returns:
        As `group_losses`, with one group "all" of each kind and without standard errors; `scalar`
        is True.
    """
    clusters = (validation.source << 32) + validation.episode
    entry = _entry(sums, weights, np.arange(len(validation)), clusters, None) or EMPTY
    entry = {**entry, "se": None}
    kinds = ("heads", "sources", "tasks")
    macros = dict.fromkeys((*kinds, "groups"), entry["loss"])
    groups = {kind: {ALL: entry} for kind in kinds}
    return {
        **entry,
        "macro": entry["loss"],
        "macros": macros,
        **groups,
        "groups": [],
        "time": [],
        "scalar": True,
    }


def best_metrics(record: Record) -> dict[str, float]:
    """Return the figures of a validation record that can choose the best checkpoint (`keep_best`),
    by name.
    """
    figures = {name: record.get(name) for name in PLAIN[:3]}
    for kind in KINDS:
        figures |= {
            f"{kind}:{name}": entry["loss"] for name, entry in record.get(f"{kind}s", {}).items()
        }
    figures["open_loop"] = record.get("open_loop", {}).get("normalised")
    return {name: value for name, value in figures.items() if value is not None}


def check_keep_best(
    name: str, samples: SampleSettings, val: ValConfig, validation: ValidationData
) -> None:
    """Raise ConfigError, with the available figures, unless a validation of these frames has that
    of `keep_best`, which is `name`.
    """
    kind, colon, group = name.partition(":")
    if name in ("none", *PLAIN):
        if name == "open_loop" and not (
            predicts_actions(samples.policy)
            and LossTerm.FLOW in TaskMode.TRAINS[samples.modes.val_mode()]
        ):
            raise ConfigError(
                "checkpoint.keep_best: open_loop: no actions are trained (mode, policy.type), so "
                "none are compared"
            )
        if name == "open_loop" and not val.open_loop_every:
            raise ConfigError(
                "checkpoint.keep_best: open_loop: it is not measured; set val.open_loop_every, to "
                "10 for example"
            )
        return
    groups: dict[str, list[str]] = {
        "head": sorted({validation.heads[head] for head in validation.head_of}),
        "source": list(validation.names),
        "task": sorted(_tasks(validation)),
    }
    if not colon or kind not in groups:
        kinds = ", ".join([*PLAIN, *(f"{group_kind}:NAME" for group_kind in groups)])
        raise ConfigError(
            f"checkpoint.keep_best: {name}: {_suggest(name, PLAIN)}one of none, {kinds}"
        )
    if group not in groups[kind]:
        listed = ", ".join(groups[kind][:8])
        if len(groups[kind]) > 8:
            listed += ", …"
        raise ConfigError(
            f"checkpoint.keep_best: {name}: there is no validation data of this {kind}; "
            f"{_suggest(group, groups[kind])}available: {listed}"
        )


def notes_on_groups(result: Record) -> list[str]:
    """Return notes on the meaning of a validation's groups, none for groups that can be
    compared.
    """
    if result.get("scalar"):
        return [
            "the policy returns one loss per batch: no losses per source, task or episode, no "
            "standard errors"
        ]
    entries = chain.from_iterable(result.get(f"{kind}s", {}).values() for kind in KINDS)
    alike = {tuple(entry.get("terms", ())) for entry in entries}
    if len(alike) < 2:
        return []
    return [
        "groups with other loss terms: compare their terms, not their losses; means average each "
        "term by itself"
    ]


# -- inside ----------------------------------------------------------------------------------------


def _entry(
    sums: Mapping[str, TermSums],
    weights: Mapping[str, float],
    rows: np.ndarray,
    clusters: np.ndarray,
    plain: Mapping[str, TermSums] | None,
) -> dict[str, Any] | None:
    """Figures of the samples `rows`; None if they have no element. `plain`: the sums without frame
    weights, if any.
    """
    episodes, index = np.unique(clusters[rows], return_inverse=True)
    residual = np.zeros(len(episodes))
    terms = {}
    parts = []
    for term, weight in weights.items():
        losses = sums[term].sums[rows]
        counts = sums[term].counts[rows]
        total = math.fsum(losses)
        count = math.fsum(counts)
        if count == 0:
            continue
        parts.append(weight * total / count)
        elements = math.fsum((plain or sums)[term].counts[rows])
        terms[term] = {"loss": total / count, "elements": int(elements)}
        with np.errstate(invalid="ignore"):  # inf - inf: then the error is NaN, too
            left = np.bincount(index, weights=losses) - total / count * np.bincount(
                index, weights=counts
            )
            residual += weight * left / count
    if not terms:
        return None
    m = len(episodes)
    se = math.sqrt(m / (m - 1) * math.fsum(residual * residual)) if m > 1 else None
    entry: dict[str, Any] = {
        "loss": math.fsum(parts),
        "se": se,
        "samples": len(rows),
        "episodes": m,
    }
    entry["elements"] = sum(figures["elements"] for term, figures in terms.items() if weights[term])
    if plain is not None:
        entry["equal_frames"] = math.fsum(
            weights[term] * math.fsum(plain[term].sums[rows]) / math.fsum(plain[term].counts[rows])
            for term in terms
        )
    return entry | {"terms": terms}


def _over_time(sums: Mapping[str, TermSums], weights: Mapping[str, float]) -> list[dict[str, Any]]:
    """Loss per interval of flow time, of the terms with the same intervals together."""
    counts = {term: math.fsum(sums[term].counts) for term in weights}
    valid = [term for term in weights if counts[term]]
    edges_of = {
        term: sums[term].edges for term in sorted(valid, key=lambda term: not sums[term].edges)
    }
    first = next(iter(edges_of.values()), ())
    alike: dict[tuple[float, ...], list[str]] = {}
    for term, edges in edges_of.items():
        alike.setdefault(edges or first, []).append(term)
    bins = []
    for edges, terms in alike.items():
        losses = [0.0] * (len(edges) - 1)
        for term in terms:
            scale = weights[term] * len(losses) / counts[term]
            losses = [
                old + scale * math.fsum(s)
                for old, s in zip(losses, sums[term].draws, strict=bool(losses))
            ]
        extra = {"terms": terms} if len(alike) > 1 else {}
        bins += [
            {"from": low, "to": high, "loss": loss, **extra}
            for low, high, loss in zip(edges, edges[1:], losses)
        ]
    return bins


def _split_by_label(labels: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """(label, its samples, ascending) for each distinct label; labels int64 (N,)."""
    order = np.argsort(labels, kind="stable")
    values, starts = np.unique(labels[order], return_index=True)
    return list(zip(values.tolist(), np.split(order, starts[1:])))


def _mean(
    entries: Sequence[Record], weights: Mapping[str, float], shares: Sequence[float] | None = None
) -> float:
    """Average each term over the groups that have it, by their shares, and add the terms by their
    weights.
    """
    ones = [1.0] * len(entries)
    means = []
    for term, weight in weights.items():
        having = [
            (share, e["terms"][term]["loss"])
            for share, e in zip(shares or ones, entries)
            if term in e["terms"]
        ]
        if having:
            total = math.fsum(share * loss for share, loss in having)
            means.append(weight * total / math.fsum(share for share, _ in having))
    return math.fsum(means) if means else math.nan  # 0 would be the best possible loss


def _tasks(validation: ValidationData) -> set[str]:
    """Tasks of the validation episodes; all tasks of their datasets if the metadata names none for
    an episode.
    """
    names: set[str] = set()
    for number, data in enumerate(validation.datasets):
        table = data.catalog.episodes
        texts = data.catalog.tasks
        episodes = np.unique(validation.episode[validation.source == number])
        for row in table.rows_of(episodes).tolist():
            named = [int(task) for task in table.tasks_of(row)]
            if named and min(named) >= 0:
                names |= {texts[task] for task in named}
            else:
                names |= set(texts)
    separator = validation.task_separator
    return set(chain.from_iterable(map(Instructions(separator).split, names)))


def _suggest(name: str, names: Sequence[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]!r}? " if close else ""
