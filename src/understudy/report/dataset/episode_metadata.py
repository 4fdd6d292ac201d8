"""Metadata of episodes: the names that conditions (`where`) may use, and their values."""

from collections import Counter
from math import isfinite
from typing import Any

from understudy.data.format.catalog import Catalog

MOST = 8
"""Distinct values that are listed; of more numbers the range is, of more texts the most frequent ones."""


def describe_metadata(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Return for each name "missing" (episodes), "distinct", and "values" with their episodes, or "min" and "max"."""
    return {name: _describe(own, len(catalog.episodes)) for name, own in catalog.episode_metadata().items()}


def _describe(values: dict[int, Any], episodes: int) -> dict[str, Any]:
    known = [value for value in values.values() if not (isinstance(value, float) and not isfinite(value))]
    facts: dict[str, Any] = {"missing": episodes - len(known)}
    counts = Counter(value if isinstance(value, (bool, int, float, str)) else str(value)[:80] for value in known)
    facts["distinct"] = len(counts)
    if len(counts) > MOST and all(isinstance(value, (int, float)) for value in counts):
        return facts | {"min": min(counts), "max": max(counts)}
    shown = counts.most_common(MOST)
    numbers = all(isinstance(value, (int, float)) for value in counts)
    return facts | {"values": [[value, count] for value, count in (sorted(shown) if numbers else shown)]}


def format_metadata(facts: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Format each name with its values: [[name, values], ...]."""
    return [[name, _format(own)] for name, own in facts.items()]


def _format(own: dict[str, Any]) -> str:
    if "min" in own:
        parts = [f"{_value(own['min'])} to {_value(own['max'])}"]
    else:
        parts = [f"{_value(value)} ({count:,})" for value, count in own["values"]]
        if own["distinct"] > len(parts):
            parts.append(f"{own['distinct'] - len(parts):,} others")
    if own["missing"]:
        parts.append(f"missing in {own['missing']:,}")
    return ", ".join(parts) or "no value"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value if len(value) <= 60 else value[:57] + "..."}"'
    return f"{value:,.6g}" if isinstance(value, float) else str(value)
