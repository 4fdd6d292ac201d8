"""The numbers by which a run normalises: statistics of its training frames, pooled per norm head.

A dimension of the action that is learnt as a difference to the state is normalised by the statistics of action[t + k] -
state[t] over all frames t and all steps k of their windows that are no padding; every other dimension by those of one
value per frame. Nothing of what is held out has a say. Not here: reading rows (`source_statistics.py`), pooling
(`summary.py`), the formula (`policies/affine.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np
from tqdm import tqdm

from understudy.data.errors import DatasetError
from understudy.data.normalize import Mode, Statistics, offset_and_spread
from understudy.data.samples import EpisodeDataset
from understudy.data.source_statistics import ACTION, DELTA, STATE, frames, pairs, summarise, widths
from understudy.data.stats_cache import kept
from understudy.data.summary import Summary, pooled, stride_of


@dataclass(frozen=True)
class Member:
    """One source of a head.

    Attributes:
        data: its training part, in standard keys; its segments say which frames count.
        head: the head it is normalised by (see `heads.py`).
        delta: dimensions of the action that are learnt as difference to the state's dimension of the same number.
        recorded: statistics to use instead of computing them, by key; those of the action are of what is learnt, so of
            differences in the dimensions of `delta`. Its rows are not read.
    """

    data: EpisodeDataset
    head: str
    delta: tuple[int, ...] = ()
    recorded: Mapping[str, Statistics] | None = None


def normalisation(
    members: Sequence[Member],
    mode: Mode,
    chunk: int,
    cache: Path | None = None,
    held_out: Sequence[EpisodeDataset] = (),
) -> dict[str, Any]:
    """A policy's normalisation, as plain lists that JSON keeps:

        {"heads": [H names, sorted],
         "action": {"offset": [H][A], "spread": [H][A]}, "observation.state": the same (absent where no source has it),
         "delta": [H][A] bools, "dims": {"action": [H], "observation.state": [H]}}

    A and S are the widest of the heads; behind a head's own width (`dims`) offset and spread are 0. The sequence of
    `members` changes no bit.

    Args:
        chunk: frames of the action's window.
        cache: folder that keeps what was computed of each source (see `stats_cache.py`); None keeps nothing.
        held_out: parts that are read for their errors alone: one NaN there is the loss of them all.

    Raises:
        DatasetError: a value is not finite, sources of one head differ in width or `delta`, a dimension of `delta` is
            not in both action and state, or recorded statistics lack what `mode` needs.
    """
    if not members:
        raise ValueError("there is no source to normalise")
    if mode not in get_args(Mode):
        raise ValueError(f"mode={mode!r}: must be one of {', '.join(get_args(Mode))}")
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: must be at least 1")
    heads = {head: [m for m in members if m.head == head] for head in sorted({m.head for m in members})}
    dims = {head: _agreed(head, of_head) for head, of_head in heads.items()}
    reading = [member.data for member in members if member.recorded is None]
    total = sum(frames(data) for data in (*held_out, *reading))
    with tqdm(total=total, desc="statistics", unit="frame", unit_scale=True, disable=None) as bar:
        for data in held_out:
            _summary(data, (), chunk, dict.fromkeys((ACTION, STATE), 0), cache, bar)
        found = {head: _statistics(of_head, chunk, cache, bar) for head, of_head in heads.items()}
    columns = [key for key in (ACTION, STATE) if any(key in dim for dim in dims.values())]
    masked = {head: tuple(sorted(of_head[0].delta)) for head, of_head in heads.items()}
    maps = {key: [_map(head, key, dims[head], found[head], masked[head], mode) for head in heads] for key in columns}
    width = {key: max(len(each["offset"]) for each in maps[key]) for key in columns}
    out: dict[str, Any] = {"heads": list(heads)}
    for key in columns:
        padded = {name: [_padded(each[name], width[key]) for each in maps[key]] for name in ("offset", "spread")}
        out[key] = {name: [row.tolist() for row in rows] for name, rows in padded.items()}
    out["delta"] = [np.isin(np.arange(width[ACTION]), mask).tolist() for mask in masked.values()]
    out["dims"] = {key: [dims[head].get(key, 0) for head in heads] for key in columns}
    return out


def _agreed(head: str, members: Sequence[Member]) -> dict[str, int]:
    """The widths that all members of a head have. Raises DatasetError where they differ, in `delta` too."""
    first = members[0]
    dims = widths(first.data)
    for member in members:
        own = widths(member.data)
        for key in (ACTION, STATE):
            if own.get(key, 0) != dims.get(key, 0):
                said = [f"{m.data.name!r} has {w.get(key, 0) or 'no'}" for m, w in ((first, dims), (member, own))]
                raise DatasetError(
                    f"head {head!r}: {' and '.join(said)} dimensions of {key!r}",
                    fix="give them different robot types or control modes, or map their keys (names) to the same thing",
                )
        if sorted(member.delta) != sorted(first.delta):
            said = [f"{m.data.name!r} has {list(m.delta)}" for m in (first, member)]
            what = f"head {head!r}: {' and '.join(said)} as differences to the state (delta)"
            raise DatasetError(what, fix="give both the same delta, or different control modes")
        for dim in member.delta:
            short = [key for key in (ACTION, STATE) if not 0 <= dim < own.get(key, 0)]
            if short:
                what = f"delta names dimension {dim}, {short[0]!r} has {own.get(short[0], 0)}"
                raise DatasetError(what, where=member.data.name, fix="name dimensions that action and state both have")
        for key in own if member.recorded is not None else ():
            wide = len(member.recorded[key].mean) if member.recorded and key in member.recorded else 0
            if wide != own[key]:
                what = f"the recorded statistics have {wide or 'no'} dimensions of {key!r}, the dataset {own[key]}"
                raise DatasetError(what, where=member.data.name, fix="name those of this robot, or have them computed")
    return dims


def _statistics(members: Sequence[Member], chunk: int, cache: Path | None, bar: tqdm) -> dict[str, Statistics]:
    """Of one head, by `ACTION`, `STATE` and `DELTA`."""
    delta = tuple(sorted(members[0].delta))
    recorded = [_by_column(member.recorded, delta) for member in members if member.recorded is not None]
    if len(recorded) == len(members) and all(_same(each, recorded[0]) for each in recorded):
        return recorded[0]  # its quantiles, too, which several that differ do not have in common
    reading = [member.data for member in members if member.recorded is None]
    rows = stride_of(sum(map(frames, reading)))
    strides = {ACTION: rows, STATE: rows, DELTA: stride_of(sum(pairs(data, chunk) for data in reading), chunk)}
    parts = [_summary(data, delta, chunk, strides, cache, bar) for data in reading]
    parts += [{key: _without_rows(s) for key, s in each.items()} for each in recorded]
    return {key: pooled([part[key] for part in parts]) for key in parts[0]}


def _summary(
    data: EpisodeDataset,
    delta: tuple[int, ...],
    chunk: int,
    strides: Mapping[str, int],
    cache: Path | None,
    bar: tqdm,
) -> dict[str, Summary]:
    """Of one source, and the bar moved on by its frames whether they are read or not."""
    begun = bar.n
    found = kept(cache, data, delta, chunk, strides, partial(summarise, data, delta, chunk, strides, bar.update))
    bar.update(begun + frames(data) - bar.n)
    return found


def _by_column(recorded: Mapping[str, Statistics], delta: tuple[int, ...]) -> dict[str, Statistics]:
    """Statistics computed elsewhere under the names of `summarise`."""
    found = {key: recorded[key] for key in (ACTION, STATE) if key in recorded}
    if delta:
        figures = {name: value[list(delta)] for name, value in vars(recorded[ACTION]).items() if name != "count"}
        found[DELTA] = Statistics(recorded[ACTION].count, **figures)
    return found


def _same(a: Mapping[str, Statistics], b: Mapping[str, Statistics]) -> bool:
    return a.keys() == b.keys() and all(
        np.array_equal(value, vars(b[key])[name], equal_nan=True)
        for key, s in a.items()
        for name, value in vars(s).items()
    )


def _without_rows(s: Statistics) -> Summary:
    return Summary(s.count, s.mean, s.std, s.min, s.max, np.empty((0, len(s.mean))), 0)


def _map(
    head: str, key: str, dims: Mapping[str, int], found: Mapping[str, Statistics], delta: tuple[int, ...], mode: Mode
) -> dict[str, np.ndarray]:
    """Offset and spread of one key under one head, float32 [dims[key]]; [0] where the head's sources do not have it."""
    if key not in dims:
        return {"offset": np.zeros(0, np.float32), "spread": np.zeros(0, np.float32)}
    maps = offset_and_spread(found[key], mode)
    if key == ACTION and delta:
        for name, learnt in offset_and_spread(found[DELTA], mode).items():
            maps[name][list(delta)] = learnt
    bad = ~np.isfinite(maps["offset"]) | ~np.isfinite(maps["spread"])
    if bad.any():
        what = f"head {head!r}: {key}[{int(bad.argmax())}] has no figures for {mode!r}"
        what += ": recorded statistics lack them, or differ between sources and cannot be put together"
        raise DatasetError(what, fix="have them computed, give all sources of the head the same file, or another mode")
    return maps


def _padded(values: np.ndarray, width: int) -> np.ndarray:
    return np.pad(values, (0, width - len(values)))
