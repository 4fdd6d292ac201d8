"""Types of settings: the values at their bounds, and those next to them."""

from math import inf, nan
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from understudy_kit.config import declare


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (declare.Natural, [0, 1], [-1]),
        (declare.Processes, [1, 2**20], [0, 2**20 + 1]),
        (declare.Fraction, [0.0, 0.999999], [-1e-9, 1.0, nan]),
        (declare.Positive, [1e-300, inf], [0.0, -1.0]),
        (declare.Scale, [1e-300, 1e300], [0.0, inf, nan]),
        (declare.Ids, [(), (0, 5)], [(-1,)]),
    ],
)
def test_a_type_takes_its_bounds_and_nothing_beyond(
    kind: Any, taken: list[Any], refused: list[Any]
) -> None:
    adapter = TypeAdapter(kind)
    for value in taken:
        assert adapter.validate_python(value) == value
    for value in refused:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)
