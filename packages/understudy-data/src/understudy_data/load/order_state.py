"""State dicts of loaders and samplers: a position, and the order that it belongs to."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

from understudy_base import ConfigError
from understudy_data.order import Frames, Order, Spec, compare

_SHARE = 0.01  # shares of a source that count as equal: slots are whole


def order_state(order: Order, position: int) -> dict[str, Any]:
    """State dict {"position", "order"}: where to resume, and the order as JSON text."""
    return {"position": position, "order": order.to_json()}


def position_in(state: Mapping[str, Any], order: Order) -> int:
    """Position in a state dict of `order_state`.

    Raises:
        ConfigError: not such a state, or the state of another order; names both orders and each
            difference.
    """
    saved, position = _read(state)
    if differences := [
        str(difference) for difference in compare(saved, order.spec) if difference.changes_order
    ]:
        raise ConfigError(
            f"the state belongs to order {saved.fingerprint[:12]}, not to this order "
            f"{order.spec.fingerprint[:12]}: "
            + "; ".join(differences)
            + " (to continue the saved order, give order=Order.from_json(state['order'], datasets))"
        )
    return position


def adopt_order(state: Mapping[str, Any], chosen: Order, datasets: Sequence[Frames]) -> Order:
    """The order of a state, in place of one that was chosen for this memory and these ranks.

    Returns `chosen` where the state differs from it in anything else than clips, lanes and their
    slots.
    """
    saved, _ = _read(state)
    if len(saved.sources) != len(chosen.spec.sources):
        return chosen
    if any(
        abs(mine - theirs) > _SHARE for mine, theirs in zip(_shares(chosen.spec), _shares(saved))
    ):
        return chosen
    settings = ("clip", "lanes", "shuffle", "inside", "cut")
    sources = []
    for mine, theirs in zip(chosen.spec.sources, saved.sources):
        adopted = {name: getattr(theirs, name) for name in settings}
        sources.append(replace(mine, **adopted))
    same = replace(
        chosen.spec, sources=tuple(sources), schedule=saved.schedule, version=saved.version
    )
    if any(difference.changes_order for difference in compare(saved, same)):
        return chosen
    return Order.from_json(same, datasets)


def _shares(spec: Spec) -> list[float]:
    last = spec.schedule[-1]
    return [count / last.total for count in last.slots]


def _read(state: Mapping[str, Any]) -> tuple[Spec, int]:
    """Order and position of a state, checked."""
    position: Any = state.get("position")
    text: Any = state.get("order")
    whole = isinstance(position, Integral) and not isinstance(position, bool) and int(position) >= 0
    if set(state) != {"position", "order"} or not whole or not isinstance(text, str):
        raise ConfigError(
            f"{str(dict(state))[:80]}: need a dict of position (a whole number from 0) and order "
            "(a text), as state_dict() returns it"
        )
    return Spec.from_json(text), int(position)
