"""Other weights of the sources from a position on: a new entry of the schedule."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from understudy.order.defaults import choose_slots, default_in_flight
from understudy.order.make_spec import Frames, OrderRequest, ResolvedSource, as_int, check_source, resolve_source
from understudy.order.mixture.rounds import count_lanes
from understudy.order.mixture.shares import check_weights, share_slots
from understudy.order.spec import EXACT_VERSION, UNIT, Entry, Spec


def reweigh(
    spec: Spec, position: int, weights: Mapping[str, float], add: Sequence[Frames], frames_in_flight: int | None
) -> tuple[Spec, list[ResolvedSource]]:
    """Return the spec with the new entry, and the added sources. For the arguments see `Order.with_weights`.

    Raises:
        ValueError: `position` is not behind the last entry of the schedule, or a name is unknown.
    """
    position, last = as_int("position", position), spec.schedule[-1].position
    if position <= last:
        raise ValueError(f"position {position}: the schedule already has an entry at {last}; change after it")
    names = [s.name for s in spec.sources] + [source.name for source in add]
    for name in [*weights, *(source.name for source in add)]:
        if name not in names or name not in weights:
            raise ValueError(f"source {name!r}: weights must name each added source and only known ones: {names}")
    named = [name for name in names if name in weights]
    if not named:
        raise ValueError(f"weights name no source: name at least one of {names}")
    values = check_weights([weights[name] for name in named], named)
    most = max(spec.round, 16 * spec.batch)
    slots = choose_slots(values, spec.batch, most)
    if spec.version == EXACT_VERSION:
        slots = share_slots(values, -(-most // spec.batch) * spec.batch * UNIT)
    by_name = dict(zip(named, slots))
    entry = Entry(position, tuple(by_name.get(name, 0) for name in names))
    in_flight = default_in_flight(spec.batch) if frames_in_flight is None else frames_in_flight
    request, total = OrderRequest("clips", spec.batch, in_flight), sum(slots)
    lanes = dict(zip(named, count_lanes(slots))) if spec.version == EXACT_VERSION else {}
    added = [resolve_source(check_source(new), by_name[new.name] / total, request, lanes.get(new.name)) for new in add]
    sources = (*spec.sources, *(part.spec for part in added))
    return replace(spec, sources=sources, schedule=(*spec.schedule, entry)), added
