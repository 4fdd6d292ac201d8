"""Inputs of the language tower: text, past states, and the embedded prefix and tail of a batch."""

from typing import NamedTuple

from torch import Tensor


class Tail(NamedTuple):
    """Text behind the prompt, which the tower predicts token by token."""

    tokens: Tensor
    """int64 [B, L]."""
    masks: Tensor
    """bool [B, L], True for tokens that count."""
    response: int
    """Leading tokens that the expert sees; those behind are action tokens, which it does not."""


class States(NamedTuple):
    """States of a sample over time, for the language tower."""

    values: Tensor
    """float32 [B, T, dim], normalized."""
    valid: Tensor
    """bool [B, T]."""


class Observation(NamedTuple):
    """Embedded prefix and tail of a batch, before the first layer."""

    embeddings: Tensor
    """[B, P + L, width]."""
    valid: Tensor
    """bool [B, P + L]."""
    prefix: int
    """P."""
    response: int
    """Tokens of the tail that the expert sees."""
    full: bool
    """Whether every token of the prefix is known to be valid."""
