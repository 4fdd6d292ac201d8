"""Spec: everything that must be saved to restore an order, and the effects of differences between
two of them.

A spec is frozen, versioned JSON, a few hundred bytes for any amount of data: per source a
fingerprint of the selected segments and the chosen settings, and the schedule of the mixture. A
checkpoint stores it with one integer, the position. On resume `compare` lists each difference
before the first step.

An order in words.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from understudy_data.order.random import ORDER_VERSION, check_seed

EXACT_VERSION = 2
"""Version of an order with divided slots, for exact shares (`order/shared_slots.py`); otherwise
as version 1.
"""

UNIT = 1 << 20
"""Parts of a slot in such an order."""


@dataclass(frozen=True)
class SourceSpec:
    """Order of one source: its frames, and the way they are read.

    `data` is the fingerprint of its segments, `segments` and `frames` their counts. `clip` = S,
    `lanes` = V. `shuffle` False is storage order; `inside` is "sequential" or "permuted"; `cut` is
    "plain" or "keyframe".
    """

    name: str
    data: str
    segments: int
    frames: int
    clip: int
    lanes: int
    shuffle: bool
    inside: str
    cut: str

    def __post_init__(self) -> None:
        for field in ("frames", "clip", "lanes"):
            if getattr(self, field) < 1:
                raise ValueError(
                    f"source {self.name!r}: {field} is {getattr(self, field)}, need at least 1"
                )
        if self.inside not in ("sequential", "permuted"):
            raise ValueError(
                f"source {self.name!r}: inside is {self.inside!r}, need 'sequential' or 'permuted'"
            )
        if self.cut not in ("plain", "keyframe"):
            raise ValueError(
                f"source {self.name!r}: cut is {self.cut!r}, need 'plain' or 'keyframe'"
            )


@dataclass(frozen=True)
class Entry:
    """Shares from `position` on: source d has `slots[d]` of every sum(slots) samples (0: it does
    not take part).

    In an order of version 2 they are parts of slots, `UNIT` to each.
    """

    position: int
    slots: tuple[int, ...]

    @cached_property
    def total(self) -> int:
        """Sum of the slots."""
        return sum(self.slots)


@dataclass(frozen=True)
class Spec:
    """Everything that the order depends on, and `batch`, the global batch size, which does not
    change it.
    """

    seed: int
    batch: int
    sources: tuple[SourceSpec, ...]
    schedule: tuple[Entry, ...]
    version: int = ORDER_VERSION

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.version not in (ORDER_VERSION, EXACT_VERSION):
            versions = f"{ORDER_VERSION} and {EXACT_VERSION}"
            raise ValueError(
                f"order version {self.version}: this release makes orders of versions {versions} "
                "only"
            )
        if self.batch < 1:
            raise ValueError(f"global batch size {self.batch}: need at least 1 sample")
        if not self.sources:
            raise ValueError("no sources: an order needs at least one")
        _check_names([source.name for source in self.sources])
        positions = [entry.position for entry in self.schedule]
        if not positions or positions[0] != 0 or any(a >= b for a, b in pairwise(positions)):
            raise ValueError(f"schedule positions {positions}: they must start at 0 and rise")
        for entry in self.schedule:
            if (
                len(entry.slots) > len(self.sources)
                or min(entry.slots, default=0) < 0
                or sum(entry.slots) < 1
            ):
                raise ValueError(
                    f"schedule entry at {entry.position}: {len(entry.slots)} shares, none may be "
                    "negative"
                )
            if self.version == EXACT_VERSION and sum(entry.slots) % UNIT:
                raise ValueError(
                    f"schedule entry at {entry.position}: {sum(entry.slots)} parts are no whole "
                    "slots"
                )

    @property
    def round(self) -> int:
        """Slots of a round of the mixture at the end of the schedule."""
        unit = UNIT if self.version == EXACT_VERSION else 1
        return sum(self.schedule[-1].slots) // unit

    @property
    def fingerprint(self) -> str:
        """32 hex digits of the order: where they are equal, every position holds the same sample.

        The same frames in other segments, or the same order by other settings, have other digits.
        """
        order = asdict(self)
        del order["batch"]
        for source in order["sources"]:
            del source["name"]
        return hashlib.blake2b(
            json.dumps(order, sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    def merged(self, of: Sequence[int], count: int) -> "Spec":
        """Return the spec in which some sources are parts of others: their slots are added up.

        Args:
            of: number of the source to which each source belongs.
            count: sources that are no part of another one; they come first.
        """
        schedule = []
        for entry in self.schedule:
            slots = [0] * count
            for number, share in zip(of, entry.slots):
                slots[number] += share
            schedule.append(Entry(entry.position, tuple(slots)))
        return replace(self, sources=self.sources[:count], schedule=tuple(schedule))

    def to_json(self) -> str:
        """Spec as JSON text; `Spec.from_json` restores an equal spec."""
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: "str | dict[str, Any]") -> "Spec":
        """Restore a spec from `to_json` (text, or the parsed object).

        Raises:
            ValueError: a missing or unknown key, or a value of another type; names it.
        """
        data = json.loads(text) if isinstance(text, str) else text
        _check_keys(cls, data, "order spec")
        sources = tuple(
            _make(SourceSpec, source, "order spec, source") for source in data["sources"]
        )
        schedule = []
        for entry in data["schedule"]:
            _check_keys(Entry, entry, "order spec, schedule entry")
            _check_types(int, [entry["position"], *entry["slots"]], "order spec, schedule entry")
            schedule.append(Entry(entry["position"], tuple(entry["slots"])))
        _check_types(int, [data[name] for name in ("seed", "batch", "version")], "order spec")
        return cls(data["seed"], data["batch"], sources, tuple(schedule), data["version"])


@dataclass(frozen=True)
class Difference:
    """One difference between two specs: its name, old and new value, and its effect on the
    order.
    """

    what: str
    old: object
    new: object
    effect: str
    changes_order: bool

    def __str__(self) -> str:
        return f"{self.what}: {self.old} -> {self.new}: {self.effect}"


def compare(old: Spec, new: Spec) -> list[Difference]:
    """Differences between the order that a run was started with and the one that it would continue
    with.
    """
    differences: list[Difference] = []

    def note(
        label: str, before: object, after: object, effect: str, changes_order: bool = True
    ) -> None:
        if before != after:
            differences.append(Difference(label, before, after, effect, changes_order))

    note(
        "order version",
        old.version,
        new.version,
        "shares are met in another way; positions hold other samples",
    )
    note(
        "seed",
        old.seed,
        new.seed,
        "every position holds another sample, and every draw inside a sample differs",
    )
    note(
        "batch",
        old.batch,
        new.batch,
        "the order stays; steps start at other positions (continue from the saved position, not "
        "from step x batch size), and lanes change ranks once",
        changes_order=False,
    )
    for number in range(max(len(old.sources), len(new.sources))):
        a = old.sources[number] if number < len(old.sources) else None
        b = new.sources[number] if number < len(new.sources) else None
        if a is None or b is None:
            joined = a is None
            joins = [
                entry.position
                for entry in new.schedule
                if len(entry.slots) > number and entry.slots[number]
            ]
            effect = "the shares of all sources change"
            if joined and joins and joins[0]:
                effect = f"it joins at position {joins[0]}"
            source = a or b
            name = source.name if source else ""
            note(f"source {number}", a and name, b and name, effect)
            continue
        _compare_source(number, a, b, note)
    _compare_schedule(old, new, note)
    return differences


def _compare_source(number: int, a: SourceSpec, b: SourceSpec, note: Any) -> None:
    label = f"source {number} ({a.name})"
    note(
        f"{label} name",
        a.name,
        b.name,
        "the order stays: names are not part of it",
        changes_order=False,
    )
    if a.data != b.data:
        before, after = (
            f"{s.frames} frames in {s.segments} segments [{s.data[:8]}]" for s in (a, b)
        )
        effect = (
            "its frames are others or in another order: positions hold other samples, and the "
            "current epoch will repeat some frames and miss others; give the source a new name and "
            "a schedule entry, or start anew"
        )
        note(f"{label} selected frames", before, after, effect)
    shuffled = (
        "its frames come in another order; the current epoch will repeat some and miss others"
    )
    for field, words in (
        ("clip", "frames per clip"),
        ("lanes", "lanes"),
        ("shuffle", "shuffling"),
        ("inside", "order inside a clip"),
        ("cut", "where clips are cut"),
    ):
        note(f"{label} {words}", getattr(a, field), getattr(b, field), shuffled)


def _compare_schedule(old: Spec, new: Spec, note: Any) -> None:
    for number in range(max(len(old.schedule), len(new.schedule))):
        a = old.schedule[number] if number < len(old.schedule) else None
        b = new.schedule[number] if number < len(new.schedule) else None
        if a is None or b is None:
            entry = a or b
            assert entry is not None
            effect = f"other shares from position {entry.position} on; nothing before it changes"
            note("schedule", a and _shares(a, old), b and _shares(b, new), effect)
        elif (a.position, _without_tail(a)) != (b.position, _without_tail(b)):
            position = min(a.position, b.position)
            effect = (
                f"sources have other shares from position {position} on; each is still read "
                "once per its own epoch"
            )
            note("schedule", _shares(a, old), _shares(b, new), effect)


def _without_tail(entry: Entry) -> tuple[int, ...]:
    """Slots without the zeros of sources that join later."""
    used = [d for d, count in enumerate(entry.slots) if count]
    return entry.slots[: used[-1] + 1]


def _shares(entry: Entry, spec: Spec) -> str:
    if spec.version == EXACT_VERSION:
        total = sum(entry.slots)
        parts = ", ".join(
            f"{s.name} {count / total:.4%}" for s, count in zip(spec.sources, entry.slots) if count
        )
        return f"from {entry.position}: {parts}"
    shares = ", ".join(f"{s.name} {count}" for s, count in zip(spec.sources, entry.slots) if count)
    return f"from {entry.position}: {shares} of {sum(entry.slots)}"


def _check_keys(kind: type, data: Any, where: str) -> None:
    if not isinstance(data, dict):
        raise ValueError(
            f"{where}: {str(data)[:80]!r} is no JSON object; give the text of `to_json`"
        )
    names = {field.name for field in fields(kind)}
    missing = sorted(names - set(data))
    unknown = sorted(set(data) - names)
    if missing or unknown:
        raise ValueError(
            f"{where}: missing {missing}, unknown {unknown}; it was written by another release or "
            "edited"
        )


def _make(kind: Any, data: dict[str, Any], where: str) -> Any:
    _check_keys(kind, data, where)
    for field in fields(kind):
        _check_types(field.type, [data[field.name]], f"{where}, {field.name}")
    return kind(**data)


def _check_types(kind: Any, values: Sequence[Any], where: str) -> None:
    """Refuse a value of another type: a rounded or quoted number would be another order."""
    for value in values:
        if type(value) is not kind:
            raise ValueError(
                f"{where}: {value!r} is {type(value).__name__}, need {kind.__name__}; it was edited"
            )


def _check_names(names: Sequence[str]) -> None:
    """Refuse a name given twice."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two sources are named {name!r}: give each its own name")
        seen.add(name)


def in_words(
    spec: Spec, reasons: Sequence[Sequence[str]], off: Sequence[tuple[int, float, float]]
) -> str:
    """Describe an order, a line per fact.

    Args:
        spec: of the order.
        reasons: for the settings of each source; empty for a saved order.
        off: (source, its share, the requested share) of sources that miss it.
    """
    lines = [f"order {spec.fingerprint[:12]}, seed {spec.seed}, global batch {spec.batch}"]
    for d, source in enumerate(spec.sources):
        lines.append(
            f"{source.name}: {source.frames} frames in {source.segments} segments; "
            f"{_source_in_words(source)}"
        )
        if d < len(reasons):
            lines += [f"  - {reason}" for reason in reasons[d]]
    for entry in spec.schedule:
        total = sum(entry.slots)
        named = [(s.name, count) for s, count in zip(spec.sources, entry.slots) if count]
        if len(spec.sources) > 1:
            shares = []
            for name, count in named[:20]:
                of_total = "" if spec.version == EXACT_VERSION else f" ({count} of {total})"
                shares.append(f"{name} {count / total:.2%}{of_total}")
            more = f" and {len(named) - 20} more" if len(named) > 20 else ""
            lines.append(f"from position {entry.position}: {', '.join(shares)}{more}")
    if off:
        d, share, target = off[0]
        others = f", and {len(off) - 1} more are off by over 1 %" if len(off) > 1 else ""
        met = f"shares are met to the nearest of {sum(spec.schedule[-1].slots)} slots"
        lines.append(
            f"{met}: {spec.sources[d].name} has {share:.4%}, requested were {target:.4%}{others}"
        )
    return "\n".join(lines)


def _source_in_words(source: SourceSpec) -> str:
    if not source.shuffle:
        return "read in storage order"
    if source.clip == 1:
        in_lanes = f" in {source.lanes} lanes" if source.lanes > 1 else ""
        return f"shuffled frame by frame{in_lanes}"
    cut = ", cut at key frames" if source.cut == "keyframe" else ""
    return f"{source.lanes} lanes of clips of {source.clip}{cut}, {source.inside} inside a clip"
