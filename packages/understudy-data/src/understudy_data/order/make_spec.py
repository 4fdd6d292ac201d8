"""From the arguments of `Order.from_datasets` to the frozen settings of every source and the slots
of the mixture.

Other weights of the sources from a position on: a new entry of the schedule.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import index
from os import PathLike
from typing import Any, Protocol

import numpy as np

from understudy_data.order.defaults import ClipChoice, choose_clips, choose_slots, default_in_flight
from understudy_data.order.frame_numbering import (
    Layout,
    Share,
    at_once,
    check_segments,
    fingerprint,
    make_layout,
)
from understudy_data.order.random import ORDER_VERSION
from understudy_data.order.shared_slots import count_lanes
from understudy_data.order.shares import are_met, check_weights, share_slots
from understudy_data.order.spec import EXACT_VERSION, UNIT, Entry, SourceSpec, Spec

_EXACT = 1e-9  # relative error of a share up to which it counts as met

MODES = {
    "clips": (),
    "uniform": ("clip", "lanes", "inside"),
    "episodes": ("clip",),
    "sequential": ("clip", "lanes", "inside"),
}
"""The modes, and the settings that have no meaning in them."""


class Frames(Protocol):
    """A source of frames: all that the order may know of a dataset.

    Where frames come several times in an epoch, the source also has `epoch_segments`, used instead
    of `segments`: rows of the same form, of which later ones repeat frames of earlier ones. A
    source that has `share` keeps tables of the order for the other processes of its host.
    """

    @property
    def name(self) -> str:
        """Name, unique among the sources of a run."""

    @property
    def segments(self) -> np.ndarray:
        """Selected frames in storage order: int64 (K, 3), rows [episode, start, stop)."""

    @property
    def gop(self) -> int:
        """Frames from one key frame to the next (1: every frame can be decoded alone)."""

    @property
    def reach(self) -> tuple[int, int]:
        """Frames that a sample's windows reach back and ahead, both >= 0."""


def epoch_segments(source: Frames) -> np.ndarray:
    """Segments of an epoch of a source: int64 (K, 3), rows [episode, start, stop)."""
    segments: np.ndarray = getattr(source, "epoch_segments", source.segments)
    return segments


def as_list(sources: Any) -> list[Any]:
    """The sources as a list; a single one, which has `segments`, is a list of one.

    Raises:
        ValueError: the argument, or one of its elements, is no dataset; names it.
    """
    if hasattr(sources, "segments"):
        return [sources]
    several = isinstance(sources, Iterable) and not isinstance(sources, (str, bytes, Mapping))
    listed = list(sources) if several else [sources]
    if not listed:
        raise ValueError("no sources: give at least one dataset")
    for number, source in enumerate(listed):
        if not hasattr(source, "segments"):
            label = f"source {number}" if several else "the argument"
            value = (
                f" {str(source)[:80]!r}" if isinstance(source, (str, bytes, PathLike, int)) else ""
            )
            raise ValueError(
                f"{label} is a {type(source).__name__}{value}, which has no `segments`: give a "
                "dataset, such as EpisodeDataset(path), or a list of them"
            )
    return listed


@dataclass(frozen=True)
class OrderRequest:
    """The settings of a new order, as in `Order.from_datasets`.

    Raises:
        ValueError: a value that no order has.
    """

    mode: str
    batch_size: int
    in_flight: int
    clip: int | None = None
    lanes: int | None = None
    inside: str = "sequential"
    spread: int | None = None
    """Lanes over all sources, as a choice of `load/choose_order.py`: rounded to whole batches in a
    mixture.
    """
    uniform: frozenset[int] = frozenset()
    """Sources, by number, that it shuffles one by one."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r}: choose one of {', '.join(MODES)}")
        for name, value in (
            ("batch_size", self.batch_size),
            ("frames_in_flight", self.in_flight),
            ("clip", self.clip),
            ("lanes", self.lanes),
        ):
            if value is not None and value < 1:
                raise ValueError(f"{name} {value}: need at least 1")
        if self.inside not in ("sequential", "permuted"):
            raise ValueError(f"inside {self.inside!r}: choose sequential or permuted")
        for name in MODES[self.mode]:
            if (value := getattr(self, name)) not in (None, "sequential"):
                raise ValueError(
                    f"{name} {value!r}: mode {self.mode!r} takes none; leave it out, or use mode "
                    "'clips'"
                )


def as_int(name: str, value: Any) -> int:
    """A whole number (also numpy's) as a plain int, which JSON can hold.

    Raises:
        ValueError: no whole number (2.5, "8", True).
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return index(value)
    except TypeError:
        raise ValueError(f"{name} {value!r}: need a whole number") from None


@dataclass(frozen=True)
class CheckedSource:
    """One source, checked: its rows [episode, start, stop) int64 (K, 3), and the facts that its
    order depends on.
    """

    name: str
    rows: np.ndarray
    frames: int
    fingerprint: str
    gop: int
    reach: tuple[int, int]
    share: Share = at_once


def check_source(source: Frames) -> CheckedSource:
    """Check a source.

    Raises:
        ValueError: see `check_segments`; a GOP below 1, or a negative reach.
    """
    rows, frames, digest = measure_source(source)
    gop = int(source.gop)
    reach = (int(source.reach[0]), int(source.reach[1]))
    if gop < 1 or min(reach) < 0:
        raise ValueError(
            f"source {source.name!r}: gop {gop} must be at least 1, reach {reach} not negative"
        )
    return CheckedSource(
        source.name, rows, frames, digest, gop, reach, getattr(source, "share", at_once)
    )


def measure_source(source: Frames) -> tuple[np.ndarray, int, str]:
    """Rows [episode, start, stop) of a source, int64 (K, 3), their number of frames, and their
    fingerprint.

    Raises:
        ValueError: see `check_segments`.
    """
    rows = epoch_segments(source)
    if not hasattr(source, "share"):
        rows, frames = check_segments(rows, source.name)
        return rows, frames, fingerprint(rows)
    return rows, *source.share(partial(_measure, rows, source.name), rows)


def _measure(rows: np.ndarray, name: str) -> tuple[int, str]:
    return check_segments(rows, name)[1], fingerprint(rows)


@dataclass(frozen=True)
class ResolvedSource:
    """One source, resolved: its part of the spec, and the reasons."""

    source: CheckedSource
    spec: SourceSpec
    reasons: tuple[str, ...]

    @property
    def layout(self) -> Layout:
        """Layout of its segments."""
        return source_layout(self.spec, self.source.rows, self.source.share)


@dataclass(frozen=True)
class Settings:
    """Settings of all sources of an order. Sources that are alike share theirs."""

    parts: tuple[SourceSpec, ...]
    """Distinct ones, each with the name and the data of the first source that has it."""
    reasons: tuple[tuple[str, ...], ...]
    """Of each part."""
    part_of: tuple[int, ...]
    """Number of the part of each source. All sources of a part have equal slots."""
    slots: tuple[int, ...]
    """Of each source, in a round of the mixture."""
    version: int
    """Of the order."""

    @property
    def round(self) -> int:
        """Slots of a round of the mixture."""
        unit = UNIT if self.version == EXACT_VERSION else 1
        return sum(self.slots) // unit

    def resolve(self, sources: Sequence[CheckedSource]) -> list[ResolvedSource]:
        """Each source with its part of the spec."""
        resolved = []
        for source, number in zip(sources, self.part_of):
            part = self.parts[number]
            spec = SourceSpec(
                name=source.name,
                data=source.fingerprint,
                segments=len(source.rows),
                frames=part.frames,
                clip=part.clip,
                lanes=part.lanes,
                shuffle=part.shuffle,
                inside=part.inside,
                cut=part.cut,
            )
            resolved.append(ResolvedSource(source, spec, self.reasons[number]))
        return resolved


def number_equal(keys: Iterable[Hashable]) -> tuple[list[int], list[int]]:
    """Number equal keys alike, in the sequence of their first ones.

    Returns:
        (the number of each key, the index of the first key of each number).
    """
    number: dict[Hashable, int] = {}
    firsts: list[int] = []
    number_of: list[int] = []
    for index_, key in enumerate(keys):
        found = number.setdefault(key, len(firsts))
        if found == len(firsts):
            firsts.append(index_)
        number_of.append(found)
    return number_of, firsts


def number_sources(
    sources: Sequence[CheckedSource], weights: Sequence[float], request: OrderRequest
) -> list[int]:
    """Number sources alike where `choose_settings` cannot tell them apart."""
    longest = [0] * len(sources)
    if request.mode == "episodes":
        longest = [_longest(source) for source in sources]
    facts = [(source.frames, source.gop, source.reach) for source in sources]
    return number_equal(zip(facts, weights, longest))[0]


def choose_settings(
    sources: Sequence[CheckedSource],
    weights: Sequence[float],
    request: OrderRequest,
    kinds: Sequence[int],
) -> Settings:
    """Choose clips and lanes of every source, its slots in a round of the mixture, and the version
    of the order.

    In a mixture a source of many lanes gets as many lanes as slots: a lane then always comes up in
    the same slot, hence on the same rank. Slots are divided where whole ones cannot meet the shares
    (`order/shared_slots.py`).

    Args:
        sources: checked ones.
        weights: of each source, on any scale.
        request: settings of the order.
        kinds: a number for each source. Those of one number are alike (`number_sources`).
    """
    total = sum(weights)

    def resolve(d: int, lanes: int | None = None) -> ResolvedSource:
        return resolve_source(sources[d], weights[d] / total, request, lanes, number=d)

    is_uniform = [d in request.uniform for d in range(len(sources))]
    group_of, firsts = number_equal(zip(kinds, is_uniform))
    groups = [resolve(d) for d in firsts]
    if len(sources) == 1:
        return Settings((groups[0].spec,), (groups[0].reasons,), (0,), (1,), ORDER_VERSION)
    lanes = (
        request.lanes
        or request.spread
        or _slots([groups[number].spec for number in group_of], weights, request)
    )
    batch_size = 1 if request.lanes else request.batch_size
    slots = choose_slots(weights, batch_size, lanes, [source.name for source in sources])
    version = ORDER_VERSION
    counts: Sequence[int] = slots
    in_lanes = [group.spec.lanes > 1 for group in groups]
    if not are_met(slots, weights, _EXACT):
        slots = share_slots(weights, max(1, -(-lanes // batch_size)) * batch_size * UNIT)
        version = EXACT_VERSION
        counts = count_lanes(slots)
        in_lanes = [group.spec.clip > 1 for group in groups]
    part_of, firsts = number_equal(zip(group_of, slots, counts))
    parts = []
    for d in firsts:
        group = group_of[d]
        part = resolve(d, counts[d]) if in_lanes[group] else groups[group]
        parts.append(part)
    specs = tuple(part.spec for part in parts)
    reasons = tuple(part.reasons for part in parts)
    return Settings(specs, reasons, tuple(part_of), slots, version)


def resolve_order(
    sources: Sequence[CheckedSource], weights: Sequence[float], request: OrderRequest
) -> tuple[list[ResolvedSource], tuple[int, ...], int]:
    """Resolve every source, its slots in a round of the mixture, and the version of the order:
    `choose_settings`.
    """
    settings = choose_settings(sources, weights, request, number_sources(sources, weights, request))
    return settings.resolve(sources), settings.slots, settings.version


def _slots(specs: Sequence[SourceSpec], weights: Sequence[float], request: OrderRequest) -> int:
    """Slots of a round in which the sources with lanes keep about as many as they would choose."""
    laned = [(spec.lanes, weight) for spec, weight in zip(specs, weights) if spec.lanes > 1]
    if not laned:
        # slots cost nothing here, and more of them come nearer to the weights
        return 16 * request.batch_size
    return round(
        sum(lanes for lanes, _ in laned) * sum(weights) / sum(weight for _, weight in laned)
    )


def _longest(source: CheckedSource) -> int:
    """Frames of the longest segment."""
    return int((source.rows[:, 2] - source.rows[:, 1]).max())


def resolve_source(
    source: CheckedSource,
    share: float,
    request: OrderRequest,
    lanes: int | None = None,
    number: int = -1,
) -> ResolvedSource:
    """Resolve source `number`, which has `share` (0 to 1) of the samples; `lanes` fixes its
    lanes.
    """
    frames = source.frames
    batch_size = max(1, round(request.batch_size * share))
    if lanes is None and (total := request.lanes or request.spread) is not None:
        lanes = max(1, round(total * share))
    if request.mode in ("sequential", "uniform"):
        choice = ClipChoice(1, 1, "plain", (f"{request.mode}: requested",))
    elif number in request.uniform:
        choice = ClipChoice(1, 1, "plain", ("uniform shuffle",))
    elif request.mode == "episodes":
        longest = _longest(source)
        choice = ClipChoice(
            longest,
            lanes or batch_size,
            "plain",
            (f"runs of {longest} frames, its longest segment",),
        )
    elif request.clip is not None:
        choice = ClipChoice(
            request.clip, lanes or batch_size, "plain", (f"clips of {request.clip}: requested",)
        )
    else:
        in_flight = max(1, round(request.in_flight * share))
        choice = choose_clips(
            frames,
            source.gop,
            source.reach,
            batch_size=batch_size,
            in_flight=in_flight,
            lanes=lanes,
        )
    inside = request.inside if choice.clip > 1 else "sequential"
    spec = SourceSpec(
        name=source.name,
        data=source.fingerprint,
        segments=len(source.rows),
        frames=frames,
        clip=choice.clip,
        lanes=min(choice.lanes, frames),
        shuffle=request.mode != "sequential",
        inside=inside,
        cut=choice.cut,
    )
    return ResolvedSource(source, spec, choice.reasons)


def source_layout(spec: SourceSpec, rows: np.ndarray, share: Share = at_once) -> Layout:
    """Layout of a source's segments."""
    stretch = spec.clip if spec.cut == "keyframe" else 0
    return make_layout(rows, stretch, share)


def _pass_length(source: Frames) -> float:
    """Samples of one pass: an epoch of fractional frame weights has several."""
    frames = measure_source(source)[1]
    weighted = getattr(source, "frame_weights", None)
    return frames / weighted.facts.passes if weighted is not None else float(frames)


def resolve_weights(
    sources: Sequence[Frames],
    weights: Sequence[float] | Mapping[str, float] | None,
    temperature: float | None,
) -> list[float]:
    """Weight of each source, on any scale: as given, or frames ** temperature (1: one epoch of
    each).
    """
    names = [source.name for source in sources]
    if weights is None:
        power = 1.0 if temperature is None else float(temperature)
        if not abs(power) <= 16:
            raise ValueError(
                f"temperature {temperature}: need a number between -16 and 16, 1 for one epoch of "
                "each"
            )
        return [_pass_length(source) ** power for source in sources]
    if temperature is not None:
        raise ValueError("weights and temperature exclude each other: give one")
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ValueError(
                f"weights name {sorted(weights)}, sources are {sorted(names)}: name each source "
                "once"
            )
        weights = [weights[name] for name in names]
    return check_weights(weights, names)


def reweigh(
    spec: Spec,
    position: int,
    weights: Mapping[str, float],
    add: Sequence[Frames],
    frames_in_flight: int | None,
    mode: str = "clips",
) -> tuple[Spec, list[ResolvedSource]]:
    """Return the spec with the new entry, and the added sources. For the arguments see
    `Order.with_weights`.

    Raises:
        ValueError: `position` is not behind the last entry of the schedule, or a name is unknown.
    """
    position = as_int("position", position)
    last = spec.schedule[-1].position
    if position <= last:
        raise ValueError(
            f"position {position}: the schedule already has an entry at {last}; change after it"
        )
    names = [s.name for s in spec.sources] + [source.name for source in add]
    for name in [*weights, *(source.name for source in add)]:
        if name not in names or name not in weights:
            raise ValueError(
                f"source {name!r}: weights must name each added source and only known ones: {names}"
            )
    named = [name for name in names if name in weights]
    if not named:
        raise ValueError(f"weights name no source: name at least one of {names}")
    values = check_weights([weights[name] for name in named], named)
    most = max(spec.round, 16 * spec.batch)
    if add:  # a small source has 32 slots, so that its share is met within 2 %
        most = max(most, min(round(32 * sum(values) / min(values)), 1 << 16))
    slots = choose_slots(values, spec.batch, most, named)
    if spec.version == EXACT_VERSION:
        slots = share_slots(values, -(-most // spec.batch) * spec.batch * UNIT)
    by_name = dict(zip(named, slots))
    entry = Entry(position, tuple(by_name.get(name, 0) for name in names))
    in_flight = default_in_flight(spec.batch) if frames_in_flight is None else frames_in_flight
    request = OrderRequest(mode, spec.batch, in_flight)
    total = sum(slots)
    lanes = dict(zip(named, count_lanes(slots))) if spec.version == EXACT_VERSION else {}
    added = [
        resolve_source(check_source(new), by_name[new.name] / total, request, lanes.get(new.name))
        for new in add
    ]
    sources = (*spec.sources, *(part.spec for part in added))
    return replace(spec, sources=sources, schedule=(*spec.schedule, entry)), added
