"""State dicts of loaders and samplers: a position, and the order that it belongs to."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from understudy.errors import ConfigError
from understudy.order import Order, Spec, compare


def order_state(order: Order, position: int) -> dict[str, Any]:
    """State dict {"position", "order"}: where to resume, and the order as JSON text."""
    return {"position": position, "order": order.to_json()}


def position_in(state: Mapping[str, Any], order: Order) -> int:
    """Position in a state dict of `order_state`.

    Raises:
        ConfigError: not such a state, or the state of another order; names both orders and each difference.
    """
    position: Any = state.get("position")
    text: Any = state.get("order")
    whole = isinstance(position, Integral) and not isinstance(position, bool) and int(position) >= 0
    if set(state) != {"position", "order"} or not whole or not isinstance(text, str):
        raise ConfigError(
            f"{str(dict(state))[:80]}: need a dict of position (a whole number from 0) and order (a text), as "
            "state_dict() returns it"
        )
    saved = Spec.from_json(text)
    if differences := [str(found) for found in compare(saved, order.spec) if found.changes_order]:
        raise ConfigError(
            f"the state belongs to order {saved.fingerprint[:12]}, not to this order {order.spec.fingerprint[:12]}: "
            + "; ".join(differences)
            + " (to continue the saved order, give order=Order.from_json(state['order'], datasets))"
        )
    return int(position)
