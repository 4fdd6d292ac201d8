"""Types of values by name."""

from collections.abc import Mapping, Sequence
from typing import Any

Batch = Mapping[str, Any]
"""Values of several samples by key: tensors whose first dimension are the samples, and lists."""
Record = Mapping[str, Any]
"""Values by name, as an object of JSON: settings, facts, a line of `metrics.jsonl`."""
Records = Sequence[Record]
