"""Attention between segments of tokens, and rotary positions.

A sequence is [prefix | tail | suffix]: images and prompt; text to predict; state and actions.

    queries      keys: prefix  response  FAST    suffix
    prefix             x
    response           x       causal
    FAST               x       x         causal
    suffix             x       x                 x

Each row is one call of `attend`. The prefix is bidirectional, and so is the suffix. (The state token of pi0 does not
see the actions.) A mask hides keys only, never queries: the result of a padded token is read by no other token, and no
softmax has zero keys. Without padding there is no mask at all, so that a GPU takes its fastest kernel.

A batch may also be packed: the tower computes the tokens that count and no others, and each call is one of
`attend_segments` (`towers/segments.py`).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from understudy.policies.batch import host_values, to_device
from understudy.policies.common.towers.segments import Segments, join_ranges, make_segments, takes_varlen

THETA = 10_000.0
"""Base of the rotary periods (Su et al. 2021, "RoFormer", and Gemma)."""


class Packing(NamedTuple):
    """Tokens of prefix and tail of a batch without padding, sample after sample; int64 on the host."""

    slots: Tensor
    """[N], place of each token in the padded batch [B * S]."""
    prefix: Tensor
    """[B], tokens of the prefix of each sample."""
    response: Tensor
    """[B], tokens of its tail that the suffix sees."""
    tail: Tensor
    """[B], tokens of its tail."""


class PackedCalls(NamedTuple):
    """Segments of the calls of a layer over packed tokens."""

    tower: tuple[Segments, ...]
    """Of the prefix, and of the tail where there is one."""
    order: Tensor
    """int64 [N], place of each token in the joined results of `tower`."""
    suffix: Segments | None
    """Keys are counted in the packed tokens, followed by those of the suffix; None: no suffix."""


class Rotary(NamedTuple):
    """Rotations of a sequence of tokens. `cos` and `sin`: float32 [B, 1, T, head_dim / 2]."""

    cos: Tensor
    sin: Tensor


class Plan(NamedTuple):
    """Positions and masks of a forward pass, equal for all layers. N is the number of action chunks of a sample."""

    tower: Rotary | None
    """Of the prefix and the tail; None where a cache replaces them."""
    prefix_mask: Tensor | None
    """bool [B, 1, 1, P], keys of the prefix; None: all are valid."""
    tail_mask: Tensor | None
    """bool [B, 1, L, P + L], queries of the tail; None: there is no tail."""
    suffix: Rotary | None
    """Of the suffix, [B * N, ...]; None: there is none."""
    suffix_mask: Tensor | None
    """bool [B * N, 1, 1 or T, seen + T], keys of the suffix's queries; None: all are valid."""
    prefix: int
    """Tokens of the prefix (P); those behind are the tail. 0: the tail continues a cache that has the prefix."""
    seen: int
    """Tokens of prefix and tail that the suffix sees."""
    candidates: int
    """N."""
    insulate: bool
    """Whether the gradient of the suffix stops at the keys and values of the tower."""
    packed: PackedCalls | None = None
    """Segments of the calls, in place of the masks: the tower computes tokens [1, N, width] without padding."""


def rotary(positions: Tensor, head_dim: int) -> Rotary:
    """Compute the rotations of positions, int64 [B, T]: angle i is position * THETA^(-2 i / head_dim), in float32.

    They are computed where they are used. A buffer of frequencies would be cast with the module: in bfloat16 the angle
    of position 500 is off by up to 0.7 rad.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    angles = positions.float()[:, None, :, None] * (1.0 / THETA**exponents)  # [B, 1, T, head_dim / 2]
    return Rotary(angles.cos(), angles.sin())


def rotate(x: Tensor, at: Rotary) -> Tensor:
    """Rotate x [B, heads, T, head_dim], its first half against its second; computed in float32, in x's dtype."""
    one, two = x.float().chunk(2, dim=-1)
    return torch.cat([one * at.cos - two * at.sin, two * at.cos + one * at.sin], dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average the values v by the softmax of q k^T / sqrt(head_dim).

    Args:
        q: [B, heads, T, head_dim].
        k: [B, kv_heads, S, head_dim]; `kv_heads` divides `heads`, and consecutive query heads share one.
        v: as k.
        mask: bool, broadcastable to [B, heads, T, S]: True where a query sees a key. None: each sees all.

    Returns:
        [B, T, heads * head_dim].
    """
    batch, heads, length, _ = q.shape
    found = F.scaled_dot_product_attention(q, _per_head(k, heads), _per_head(v, heads), attn_mask=mask)
    return found.transpose(1, 2).reshape(batch, length, -1)


def _per_head(x: Tensor, heads: int) -> Tensor:
    """Repeat [B, kv_heads, S, D] for each query head without a copy where there is one, [B, heads, S, D].

    Not `enable_gqa`: with it and a mask, a GPU would take the slowest kernel.
    """
    batch, own, length, dim = x.shape
    return x[:, :, None].expand(batch, own, heads // own, length, dim).reshape(batch, heads, length, dim)


def key_mask(*valid: Tensor | None, lengths: tuple[int, ...], batch: int, device: torch.device) -> Tensor | None:
    """Join the marks of several segments into a mask of keys, bool [B, 1, 1, S].

    Args:
        valid: of each segment bool [B, length], None where all its tokens are valid.
        lengths: tokens of each segment.
        batch: B.
        device: of the mask.

    Returns:
        None where all segments are valid.
    """
    if all(marks is None for marks in valid):
        return None
    parts = [
        torch.ones(batch, length, dtype=torch.bool, device=device) if marks is None else marks
        for marks, length in zip(valid, lengths)
    ]
    return torch.cat(parts, dim=1)[:, None, None]


def padded_plan(
    valid: Tensor,
    full: bool,
    prefix: int,
    response: int,
    suffix: int | None,
    candidates: int,
    state_token: bool,
    insulate: bool,
    head_dim: int,
) -> Plan:
    """Positions and masks; a position is the number of valid tokens before it that its token may see.

    Args:
        valid: bool [B, P + L].
        full: whether every token of the prefix is known to be valid.
        prefix: P.
        response: tokens of the tail that the suffix sees.
        suffix: T, its tokens; None: there is none.
        candidates: N, chunks of actions of each sample.
        state_token: whether the suffix begins with a token that does not see the actions.
        insulate: see `Plan`.
        head_dim: of the attention.
    """
    batch, length = valid.shape
    device = valid.device
    front = None if full else valid[:, None, None, :prefix]
    tail_mask = None
    if length > prefix:
        order = torch.arange(length, device=device)
        tail_mask = valid[:, None, None] & (order <= order[prefix:, None])  # [B, 1, L, P + L]
    suffix_mask = at = None
    seen = prefix + response
    if suffix is not None:
        own = torch.arange(suffix, device=device)
        at = rotary(valid[:, :seen].sum(dim=1, keepdim=True) + own, head_dim)
        if not full or seen != prefix or state_token:
            sees = torch.ones(len(own), len(own), dtype=torch.bool, device=device)
            if state_token:
                sees[0, 1:] = False
            suffix_mask = torch.cat(
                [
                    valid[:, None, None, :seen].expand(batch, 1, len(own), seen),
                    sees.expand(batch, 1, len(own), len(own)),
                ],
                dim=3,
            )
        if candidates > 1:
            at = type(at)(*(each.repeat_interleave(candidates, dim=0) for each in at))
            suffix_mask = None if suffix_mask is None else suffix_mask.repeat_interleave(candidates, dim=0)
    positions = rotary(valid.cumsum(dim=1) - 1, head_dim)
    return Plan(positions, front, tail_mask, at, suffix_mask, prefix, seen, candidates, insulate)


@host_values()
def packed_plan(
    packing: Packing,
    suffix: int | None,
    candidates: int,
    state_token: bool,
    insulate: bool,
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Plan:
    """Positions and segments of packed tokens; see `padded_plan`. `device` and `dtype` are those of the attention."""
    prefix, tail, seen = packing.prefix, packing.tail, packing.prefix + packing.response
    lengths = prefix + tail
    starts, count = lengths.cumsum(0) - lengths, int(lengths.sum())
    varlen = takes_varlen(device, dtype)
    front, behind = join_ranges(starts, prefix), join_ranges(starts + prefix, tail)
    tower = [make_segments(front, prefix, front, prefix, device, varlen=varlen)]
    if len(behind):
        tower.append(make_segments(behind, tail, torch.arange(count), lengths, device, causal=True, varlen=varlen))
    at = calls = None
    if suffix is not None:
        rows = len(prefix) * candidates
        first, known = (each.repeat_interleave(candidates) for each in (starts, seen))
        at = rotary(to_device(known[:, None] + torch.arange(suffix), device), head_dim)
        own = count + suffix * torch.arange(rows)
        # Queries [low, high) of the suffix see its keys [0, high).
        spans = [(0, 1), (1, suffix)] if state_token else [(0, suffix)]
        highs = torch.tensor([high for _, high in spans])
        sizes = torch.tensor([high - low for low, high in spans]).repeat(rows)
        parts = torch.stack([known[:, None].expand(rows, len(spans)), highs.expand(rows, len(spans))], dim=2)
        begins = torch.stack([first[:, None].expand(rows, len(spans)), own[:, None].expand(rows, len(spans))], dim=2)
        keys = join_ranges(begins.flatten(), parts.flatten())
        queries = torch.arange(rows * suffix)
        calls = make_segments(queries, sizes, keys, parts.sum(dim=2).flatten(), device, varlen=varlen)
    positions = rotary(to_device(join_ranges(torch.zeros_like(starts), lengths), device)[None], head_dim)
    order = to_device(torch.cat([front, behind]).argsort(), device)
    packed = PackedCalls(tuple(tower), order, calls)
    return Plan(positions, None, None, at, None, count, count, 1, insulate, packed)
