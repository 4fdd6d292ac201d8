"""Dimensions of a tower. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TowerSizes:
    """Dimensions of a Gemma tower (Gemma team 2024)."""

    width: int
    """Features per token."""
    depth: int
    """Layers."""
    mlp_dim: int
    """Hidden features of the MLP."""
    num_heads: int
    """Query heads."""
    num_kv_heads: int
    """Heads of keys and values; they divide `num_heads`."""
    head_dim: int
    """Features of a head; even."""
