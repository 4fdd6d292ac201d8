"""From the arguments of `Order.from_datasets` to the frozen settings of every source and the slots of the mixture."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from os import PathLike
from typing import Any, Protocol

import numpy as np

from understudy.order.defaults import Choice, choose, choose_slots
from understudy.order.layout import Layout, check_segments, fingerprint, make_layout
from understudy.order.mixture.mixture import check_weights, far_off, share_slots
from understudy.order.mixture.rounds import lane_counts
from understudy.order.random.keys import ORDER_VERSION
from understudy.order.spec import EXACT_VERSION, UNIT, SourceSpec

_EXACTLY = 1e-9  # off by no more than a part so small, shares are met

MODES = {
    "clips": (),
    "uniform": ("clip", "lanes", "inside"),
    "episodes": ("clip",),
    "sequential": ("clip", "lanes", "inside"),
}
"""The modes, and which settings have no meaning in them."""


class Frames(Protocol):
    """What the order must know of a source, and all it may know."""

    @property
    def name(self) -> str:
        """A name of its own among the sources of a run."""

    @property
    def segments(self) -> np.ndarray:
        """int64 (K, 3): rows [episode, start, stop), the selected frames in storage order."""

    @property
    def gop(self) -> int:
        """Pictures from one key frame to the next (1: every picture can be read alone)."""

    @property
    def reach(self) -> tuple[int, int]:
        """Pictures that a sample's windows reach back and ahead, both >= 0."""


def listed(sources: Any) -> list[Any]:
    """The sources as a list; one alone, which has `segments`, is a list of one.

    Raises ValueError that names what was given where it, or one of its elements, is no dataset.
    """
    if hasattr(sources, "segments"):
        return [sources]
    several = isinstance(sources, Iterable) and not isinstance(sources, (str, bytes, Mapping))
    found = list(sources) if several else [sources]
    if not found:
        raise ValueError("no sources: give at least one dataset")
    for number, source in enumerate(found):
        if not hasattr(source, "segments"):
            what = f"source {number}" if several else "what was given"
            value = f" {str(source)[:80]!r}" if isinstance(source, (str, bytes, PathLike, int)) else ""
            raise ValueError(
                f"{what} is a {type(source).__name__}{value}, which has no `segments`: give a dataset, such as "
                "EpisodeDataset(path), or a list of them"
            )
    return found


@dataclass(frozen=True)
class Wish:
    """What was asked for, as in `Order.from_datasets`; ValueError for a value that no order has."""

    mode: str
    batch: int
    in_flight: int
    clip: int | None = None
    lanes: int | None = None
    inside: str = "sequential"

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode {self.mode!r}: choose one of {', '.join(MODES)}")
        for name, value in (
            ("batch_size", self.batch),
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
                raise ValueError(f"{name} {value!r}: mode {self.mode!r} takes none; leave it out, or use mode 'clips'")


def whole(name: str, value: Any) -> int:
    """`value` as a plain int, which JSON can hold; ValueError for what is none (2.5, "8"). numpy's integers are."""
    try:
        return index(value)
    except TypeError:
        raise ValueError(f"{name} {value!r}: need a whole number") from None


@dataclass(frozen=True)
class Planned:
    """One source, checked and settled: its part of the spec, its layout, and why it was settled so."""

    spec: SourceSpec
    layout: Layout
    why: tuple[str, ...]


def plan(sources: Sequence[Frames], shares: Sequence[float], wish: Wish) -> tuple[list[Planned], tuple[int, ...], int]:
    """Settle each source, what each has in a round of the mixture, and the version of the order.

    In a mixture a source of many lanes gets as many as it has slots: a lane then always comes up in the same slot,
    hence on the same rank. Where whole slots cannot meet the shares they are divided (`order/mixture/exact.py`).
    """
    if len(sources) == 1:
        return [plan_source(sources[0], 1.0, wish)], (1,), ORDER_VERSION
    total = sum(shares)
    planned = [plan_source(source, share / total, wish) for source, share in zip(sources, shares)]
    batch, wanted = 1 if wish.lanes else wish.batch, wish.lanes or _lanes_wanted(planned, shares, wish)
    slots, version = choose_slots(shares, batch, wanted), ORDER_VERSION
    counts: Sequence[int] = slots
    laned = [one.spec.lanes > 1 for one in planned]
    if far_off(slots, shares, _EXACTLY):
        slots, version = share_slots(shares, max(1, -(-wanted // batch)) * batch * UNIT), EXACT_VERSION
        counts, laned = lane_counts(slots), [one.spec.clip > 1 for one in planned]
    fitted = [
        plan_source(source, share / total, wish, lanes=count) if in_lanes else one
        for source, share, one, count, in_lanes in zip(sources, shares, planned, counts, laned)
    ]
    return fitted, slots, version


def _lanes_wanted(planned: Sequence[Planned], shares: Sequence[float], wish: Wish) -> int:
    """Slots of a period in which the sources that have lanes keep about as many as they would choose."""
    in_lanes = [(one.spec.lanes, share) for one, share in zip(planned, shares) if one.spec.lanes > 1]
    if not in_lanes:
        return 16 * wish.batch  # slots cost nothing here, and more of them come nearer to the weights
    return round(sum(lanes for lanes, _ in in_lanes) * sum(shares) / sum(share for _, share in in_lanes))


def plan_source(source: Frames, share: float, wish: Wish, lanes: int | None = None) -> Planned:
    """Settle a source that has `share` (0 to 1) of the samples; `lanes` fixes its lanes."""
    rows, frames = check_segments(source.segments, source.name)
    gop, reach = int(source.gop), (int(source.reach[0]), int(source.reach[1]))
    if gop < 1 or min(reach) < 0:
        raise ValueError(f"source {source.name!r}: gop {gop} must be at least 1, reach {reach} not negative")
    batch = max(1, round(wish.batch * share))
    if lanes is None and wish.lanes is not None:
        lanes = max(1, round(wish.lanes * share))
    if wish.mode in ("sequential", "uniform"):
        choice = Choice(1, 1, "plain", (f"{wish.mode}: asked for",))
    elif wish.mode == "episodes":
        longest = int((rows[:, 2] - rows[:, 1]).max())
        choice = Choice(longest, lanes or batch, "plain", (f"runs of {longest} frames, its longest segment",))
    elif wish.clip is not None:
        choice = Choice(wish.clip, lanes or batch, "plain", (f"clips of {wish.clip}: asked for",))
    else:
        in_flight = max(1, round(wish.in_flight * share))
        choice = choose(frames, gop, reach, batch=batch, in_flight=in_flight, lanes=lanes)
    spec = SourceSpec(
        name=source.name,
        data=fingerprint(rows),
        segments=len(rows),
        frames=frames,
        clip=choice.clip,
        lanes=min(choice.lanes, frames),
        shuffle=wish.mode != "sequential",
        inside=wish.inside if choice.clip > 1 else "sequential",
        cut=choice.cut,
    )
    return Planned(spec, layout_of(spec, rows), choice.why)


def layout_of(spec: SourceSpec, rows: np.ndarray) -> Layout:
    """The layout that a source's spec asks for."""
    return make_layout(rows, spec.clip if spec.cut == "keyframe" else 0)


def shares_of(
    sources: Sequence[Frames],
    weights: Sequence[float] | Mapping[str, float] | None,
    temperature: float | None,
) -> list[float]:
    """The weight of each source, on any scale: as given, or frames ** temperature (1: one epoch of each)."""
    names = [source.name for source in sources]
    if weights is None:
        power = 1.0 if temperature is None else float(temperature)
        if not abs(power) <= 16:
            raise ValueError(f"temperature {temperature}: need a number between -16 and 16, 1 for one epoch of each")
        return [float(check_segments(source.segments, source.name)[1]) ** power for source in sources]
    if temperature is not None:
        raise ValueError("weights and temperature are two ways to say the same: give one")
    if isinstance(weights, Mapping):
        if set(weights) != set(names):
            raise ValueError(f"weights name {sorted(weights)}, sources are {sorted(names)}: name each source once")
        weights = [weights[name] for name in names]
    return check_weights(weights, names)
