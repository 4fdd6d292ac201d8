"""Types of values by name, and such values for JSON."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

Batch = Mapping[str, Any]
"""Values of several samples by key: tensors whose first dimension are the samples, and lists."""
Record = Mapping[str, Any]
"""Values by name, as an object of JSON: settings, facts, a line of `metrics.jsonl`."""
Records = Sequence[Record]


def finite(value: Any) -> Any:
    """Convert a record for JSON: a number that is not finite becomes None, at every depth."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
