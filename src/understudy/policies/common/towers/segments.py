"""Attention between segments of flat tokens: the queries of a segment see the keys of the same segment and no others.

Tokens of all samples are in one row, [N, heads, head_dim], without padding. There are two back-ends:

    dense    pads each segment to the longest and masks keys; any device, and the reference
    varlen   `torch.nn.attention.varlen`, on GPUs with bfloat16 or float16: no padding
"""

from functools import cache
from inspect import signature
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.policies.batch import to_device


class Padded(NamedTuple):
    """Layout of the dense back-end; J segments of at most Q queries and K keys."""

    shape: tuple[int, int, int]
    """J, Q and K."""
    query_slots: Tensor
    """int64, place of each query in the padded [J * Q]."""
    key_slots: Tensor
    """int64, place of each key in the padded [J * K]."""
    mask: Tensor | None
    """bool [J, 1, 1 or Q, K], True where a query sees a key; None: all."""


class Offsets(NamedTuple):
    """Layout of the varlen back-end."""

    queries: Tensor
    """int32 [J + 1], first query of each segment, and their number."""
    keys: Tensor
    """int32 [J + 1], the same of the keys."""
    longest: tuple[int, int]
    """Most queries and most keys of a segment."""
    causal: bool


class Segments(NamedTuple):
    """One call of attention: queries and keys of each segment, taken out of rows of tokens."""

    queries: Tensor
    """int64, the queries of all segments, one segment after the other."""
    keys: Tensor
    """int64, their keys."""
    layout: Padded | Offsets


def join_ranges(starts: Tensor, lengths: Tensor) -> Tensor:
    """Join the ranges [start, start + length), int64 [sum of lengths]."""
    before = lengths.cumsum(0) - lengths
    return torch.repeat_interleave(starts - before, lengths) + torch.arange(int(lengths.sum()))


def make_segments(
    queries: Tensor,
    query_lengths: Tensor,
    keys: Tensor,
    key_lengths: Tensor,
    device: torch.device,
    causal: bool = False,
    varlen: bool = False,
) -> Segments:
    """Make the layout of one call; all tensors are int64 on the host, so that a GPU is not waited for.

    Args:
        queries: tokens that ask, one segment after the other.
        query_lengths: [J], queries of each segment; 0 is allowed.
        keys: tokens that they see.
        key_lengths: [J], keys of each segment, 1 or more.
        device: of the result.
        causal: the last query of a segment sees all of its keys, the one before it all but the last, and so on.
        varlen: lay out for the varlen back-end.
    """
    layout: Padded | Offsets
    longest = int(query_lengths.max()), int(key_lengths.max())
    if varlen:
        ends = [F.pad(lengths.cumsum(0), (1, 0)).int() for lengths in (query_lengths, key_lengths)]
        layout = Offsets(to_device(ends[0], device), to_device(ends[1], device), longest, causal)
    else:
        count, (wide, high) = len(query_lengths), longest
        numbers = torch.arange(count)
        mask = torch.arange(high) < key_lengths[:, None, None]  # [J, 1, K]
        if causal:
            last = torch.arange(wide)[:, None] + (key_lengths - query_lengths)[:, None, None]  # [J, Q, 1]
            mask = mask & (torch.arange(high) <= last)
        layout = Padded(
            (count, wide, high),
            to_device(join_ranges(numbers * wide, query_lengths), device),
            to_device(join_ranges(numbers * high, key_lengths), device),
            None if bool(mask.all()) else to_device(mask[:, None], device),
        )
    return Segments(to_device(queries, device), to_device(keys, device), layout)


def attend_segments(q: Tensor, k: Tensor, v: Tensor, at: Segments) -> Tensor:
    """Average the values of each segment by the softmax of q k^T / sqrt(head_dim).

    Args:
        q: [N, heads, head_dim].
        k: [M, kv_heads, head_dim]; `kv_heads` divides `heads`, and consecutive query heads share one.
        v: as k.
        at: the segments.

    Returns:
        [queries, heads * head_dim], in the sequence of `at.queries`.
    """
    q, k, v = q[at.queries], k[at.keys], v[at.keys]
    return (_dense(q, k, v, at.layout) if isinstance(at.layout, Padded) else _varlen(q, k, v, at.layout)).flatten(1)


def _dense(q: Tensor, k: Tensor, v: Tensor, at: Padded) -> Tensor:
    count, wide, high = at.shape
    shared = q.shape[1] // k.shape[1]

    def padded(x: Tensor, slots: Tensor, length: int) -> Tensor:
        found = x.new_zeros(count * length, *x.shape[1:]).index_copy(0, slots, x)
        return found.unflatten(0, (count, length)).transpose(1, 2)

    keys, values = (padded(x, at.key_slots, high).repeat_interleave(shared, dim=1) for x in (k, v))
    found = F.scaled_dot_product_attention(padded(q, at.query_slots, wide), keys, values, attn_mask=at.mask)
    return found.transpose(1, 2).flatten(0, 1)[at.query_slots]


def _varlen(q: Tensor, k: Tensor, v: Tensor, at: Offsets) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if at.causal else (-1, -1)
    found = varlen_attn(q, k, v, at.queries, at.keys, *at.longest, window_size=window, enable_gqa=True)
    assert isinstance(found, Tensor)
    return found


def takes_varlen(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the varlen back-end computes in `dtype` on `device` with this torch."""
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16) and _has_varlen()


@cache
def _has_varlen() -> bool:
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"window_size", "enable_gqa"} <= set(signature(varlen_attn).parameters)
