"""Types of a run's settings: the values at their bounds, and those next to them."""

from math import inf
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from understudy.config import intervals


@pytest.mark.parametrize(
    ("kind", "taken", "refused"),
    [
        (intervals.Count, [1, 2**70], [0]),
        (intervals.Steps, [1, 10**12], [0, 10**12 + 1]),
        (intervals.Period, [0, 10**12], [-1, 10**12 + 1]),
        (intervals.Processes, [1, 2**20], [0, 2**20 + 1]),
        (intervals.Samples, [1, 2**24], [0, 2**24 + 1]),
        (intervals.Share, [0.0, 1.0], [-1e-9, 1.0000001]),
        (intervals.Factor, [0.0, 1e300], [-1e-9, inf]),
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
