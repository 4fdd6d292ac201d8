"""Pairs of Gemma towers that attend to each other, layer by layer; attention between segments of
tokens.

`PairLayer` is the unit of activation checkpointing, compilation and sharding. Its tower layers have
the parameter names of the released files. Sources: Gemma team 2024, "Gemma: Open Models Based on
Gemini Research and Technology"; Black et al. 2024, "pi0", appendix B; Physical Intelligence 2025,
"pi0.5", for the adaptive norm.

A sequence is [prefix | tail | suffix]: images and prompt; text to predict; state and actions.

    queries      keys: prefix  response  FAST    suffix
    prefix             x
    response           x       causal
    FAST               x       x         causal
    suffix             x       x                 x

Each row is one call of `attend`. The prefix is bidirectional, and so is the suffix, but for its
blocks: the state token of pi0 does not see the actions. A mask hides keys only, never queries: the
result of a padded token is read by no other token, and no softmax has zero keys. Without padding
there is no mask at all, so that a GPU takes its fastest kernel.

A batch may also be packed: the tower computes the tokens that count and no others, and each call is
one of `attend_segments`.

Tokens of all samples are in one row, [N, heads, head_dim], without padding. There are two
back-ends:

    dense    pads each segment to the longest and masks keys; any device, and the reference
    varlen   `torch.nn.attention.varlen`, on GPUs with bfloat16 or float16: no padding
"""

from collections.abc import Sequence
from functools import cache
from inspect import signature
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import host_values, to_device
from understudy.policies.common.layers import Linear
from understudy.policies.common.settings import TowerSizes


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
    """Make the layout of one call; all tensors are int64 on the host, so that a GPU is not waited
    for.

    Args:
        queries: tokens that ask, one segment after the other.
        query_lengths: [J], queries of each segment; 0 is allowed.
        keys: tokens that they see.
        key_lengths: [J], keys of each segment, 1 or more.
        device: device of the result.
        causal: the last query of a segment sees all of its keys, the one before it all but the
            last, and so on.
        varlen: lay out for the varlen back-end.
    """
    layout: Padded | Offsets
    longest = int(query_lengths.max()), int(key_lengths.max())
    if varlen:
        ends = [F.pad(lengths.cumsum(0), (1, 0)).int() for lengths in (query_lengths, key_lengths)]
        layout = Offsets(to_device(ends[0], device), to_device(ends[1], device), longest, causal)
    else:
        count = len(query_lengths)
        wide, high = longest
        numbers = torch.arange(count)
        mask = torch.arange(high) < key_lengths[:, None, None]  # [J, 1, K]
        if causal:
            # [J, Q, 1]
            last = torch.arange(wide)[:, None] + (key_lengths - query_lengths)[:, None, None]
            mask = mask & (torch.arange(high) <= last)
        needed_mask = None if bool(mask.all()) else to_device(mask[:, None], device)
        layout = Padded(
            (count, wide, high),
            to_device(join_ranges(numbers * wide, query_lengths), device),
            to_device(join_ranges(numbers * high, key_lengths), device),
            needed_mask,
        )
    return Segments(to_device(queries, device), to_device(keys, device), layout)


def attend_segments(q: Tensor, k: Tensor, v: Tensor, segments: Segments) -> Tensor:
    """Average the values of each segment by the softmax of q k^T / sqrt(head_dim).

    Args:
        q: [N, heads, head_dim].
        k: [M, kv_heads, head_dim]; `kv_heads` divides `heads`, and consecutive query heads share
            one.
        v: as k.
        segments: the segments.

    Returns:
        [queries, heads * head_dim], in the sequence of `at.queries`.
    """
    q = q[segments.queries]
    k = k[segments.keys]
    v = v[segments.keys]
    if isinstance(segments.layout, Padded):
        values = _dense(q, k, v, segments.layout)
    else:
        values = _varlen(q, k, v, segments.layout)
    return values.flatten(1)


def _dense(q: Tensor, k: Tensor, v: Tensor, layout: Padded) -> Tensor:
    count, wide, high = layout.shape
    shared = q.shape[1] // k.shape[1]

    def padded(x: Tensor, slots: Tensor, length: int) -> Tensor:
        result = x.new_zeros(count * length, *x.shape[1:]).index_copy(0, slots, x)
        return result.unflatten(0, (count, length)).transpose(1, 2)

    keys, values = (
        padded(x, layout.key_slots, high).repeat_interleave(shared, dim=1) for x in (k, v)
    )
    result = F.scaled_dot_product_attention(
        padded(q, layout.query_slots, wide), keys, values, attn_mask=layout.mask
    )
    return result.transpose(1, 2).flatten(0, 1)[layout.query_slots]


def _varlen(q: Tensor, k: Tensor, v: Tensor, layout: Offsets) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    window = (-1, 0) if layout.causal else (-1, -1)
    result = varlen_attn(
        q, k, v, layout.queries, layout.keys, *layout.longest, window_size=window, enable_gqa=True
    )
    assert isinstance(result, Tensor)
    return result


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


THETA = 10_000.0
"""Base of the rotary periods (Su et al. 2021, "RoFormer", and Gemma)."""


Blocks = Sequence[tuple[int, int]]
"""Blocks of a suffix: first token of each, and the first token of the suffix that it sees. It sees
up to its end.
"""
ONE_BLOCK: Blocks = ((0, 0),)
"""A suffix whose tokens see each other."""


class Packing(NamedTuple):
    """Tokens of prefix and tail of a batch without padding, sample after sample; int64 on the
    host.
    """

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
    """Positions and masks of a forward pass, equal for all layers. N is the number of action chunks
    of a sample.
    """

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
    """Tokens of the prefix (P); those behind are the tail. 0: the tail continues a cache that has
    the prefix.
    """
    seen: int
    """Tokens of prefix and tail that the suffix sees."""
    candidates: int
    """N."""
    insulate: bool
    """Whether the gradient of the suffix stops at the keys and values of the tower."""
    packed: PackedCalls | None = None
    """Segments of the calls, in place of the masks: the tower computes tokens [1, N, width] without
    padding.
    """
    groups: tuple[int, ...] = ()
    """Numbers of consecutive tokens of the suffix that share a condition; (): the condition says
    it.
    """


def rotary(positions: Tensor, head_dim: int) -> Rotary:
    """Compute the rotations of positions, int64 [B, T]: angle i is position * THETA^(-2 i /
    head_dim), in float32.

    They are computed where they are used. A buffer of frequencies would be cast with the module: in
    bfloat16 the angle of position 500 is off by up to 0.7 rad.
    """
    exponents = torch.arange(0, head_dim, 2, device=positions.device).float() / head_dim
    # [B, 1, T, head_dim / 2]
    angles = positions.float()[:, None, :, None] * (1.0 / THETA**exponents)
    return Rotary(angles.cos(), angles.sin())


def rotate(x: Tensor, rotation: Rotary) -> Tensor:
    """Rotate x [B, heads, T, head_dim], its first half against its second; computed in float32, in
    x's dtype.
    """
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat(
        [
            first * rotation.cos - second * rotation.sin,
            second * rotation.cos + first * rotation.sin,
        ],
        dim=-1,
    ).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Average the values v by the softmax of q k^T / sqrt(head_dim).

    Args:
        q: [B, heads, T, head_dim].
        k: [B, kv_heads, S, head_dim]; `kv_heads` divides `heads`, and consecutive query heads share
            one.
        v: as k.
        mask: bool, broadcastable to [B, heads, T, S]: True where a query sees a key. None: each
            sees all.

    Returns:
        [B, T, heads * head_dim].
    """
    batch, heads, length, _ = q.shape
    values = F.scaled_dot_product_attention(
        q, _per_head(k, heads), _per_head(v, heads), attn_mask=mask
    )
    return values.transpose(1, 2).reshape(batch, length, -1)


def _per_head(x: Tensor, heads: int) -> Tensor:
    """Repeat [B, kv_heads, S, D] for each query head without a copy where there is one, [B, heads,
    S, D].

    Not `enable_gqa`: with it and a mask, a GPU would take the slowest kernel.
    """
    batch, kv_heads, length, dim = x.shape
    return (
        x[:, :, None]
        .expand(batch, kv_heads, heads // kv_heads, length, dim)
        .reshape(batch, heads, length, dim)
    )


def key_mask(
    *valid: Tensor | None, lengths: tuple[int, ...], batch: int, device: torch.device
) -> Tensor | None:
    """Join the marks of several segments into a mask of keys, bool [B, 1, 1, S].

    Args:
        valid: marks of each segment, bool [B, length], None where all its tokens are valid.
        lengths: tokens of each segment.
        batch: B.
        device: device of the mask.

    Returns:
        None where all segments are valid.
    """
    if all(marks is None for marks in valid):
        return None
    parts = []
    for marks, length in zip(valid, lengths):
        if marks is None:
            marks = torch.ones(batch, length, dtype=torch.bool, device=device)
        parts.append(marks)
    return torch.cat(parts, dim=1)[:, None, None]


def padded_plan(
    valid: Tensor,
    full: bool,
    prefix: int,
    response: int,
    suffix: int | None,
    candidates: int,
    blocks: Blocks,
    insulate: bool,
    head_dim: int,
) -> Plan:
    """Positions and masks; a position is the number of valid tokens before it that its token may
    see.

    Args:
        valid: bool [B, P + L].
        full: whether every token of the prefix is known to be valid.
        prefix: P.
        response: tokens of the tail that the suffix sees.
        suffix: T, its tokens; None: there is none.
        candidates: N, chunks of actions of each sample.
        blocks: blocks of the suffix.
        insulate: see `Plan`.
        head_dim: head dim of the attention.
    """
    batch, length = valid.shape
    device = valid.device
    front = None if full else valid[:, None, None, :prefix]
    tail_mask = None
    if length > prefix:
        order = torch.arange(length, device=device)
        tail_mask = valid[:, None, None] & (order <= order[prefix:, None])  # [B, 1, L, P + L]
    suffix_mask = suffix_rotary = None
    seen = prefix + response
    if suffix is not None:
        places = _places(blocks, suffix, device)
        suffix_rotary = rotary(valid[:, :seen].sum(dim=1, keepdim=True) + places, head_dim)
        if not full or seen != prefix or len(blocks) > 1:
            sees = torch.zeros(len(places), len(places), dtype=torch.bool, device=device)
            for low, high, first in _spans(blocks, suffix):
                sees[low:high, first:high].fill_(True)
            suffix_mask = torch.cat(
                [
                    valid[:, None, None, :seen].expand(batch, 1, len(places), seen),
                    sees.expand(batch, 1, len(places), len(places)),
                ],
                dim=3,
            )
        if candidates > 1:
            suffix_rotary = type(suffix_rotary)(
                *(angles.repeat_interleave(candidates, dim=0) for angles in suffix_rotary)
            )
            if suffix_mask is not None:
                suffix_mask = suffix_mask.repeat_interleave(candidates, dim=0)
    positions = rotary(valid.cumsum(dim=1) - 1, head_dim)
    return Plan(
        positions, front, tail_mask, suffix_rotary, suffix_mask, prefix, seen, candidates, insulate
    )


def _spans(blocks: Blocks, length: int) -> list[tuple[int, int, int]]:
    """(low, high, first) of each block: queries [low, high) of the suffix see its keys [first,
    high).
    """
    ends = [*(low for low, _ in blocks[1:]), length]
    return [(low, high, first) for (low, first), high in zip(blocks, ends, strict=True)]


def _places(blocks: Blocks, length: int, device: torch.device) -> Tensor:
    """Places of the tokens of a suffix, counted from the first one that each sees, int64 [length].

    So a block that sees no other one has the places that it has alone.
    """
    spans = _spans(blocks, length)
    return torch.cat(
        [torch.arange(low - first, high - first, device=device) for low, high, first in spans]
    )


@host_values()
def packed_plan(
    packing: Packing,
    suffix: int | None,
    candidates: int,
    blocks: Blocks,
    insulate: bool,
    head_dim: int,
    device: torch.device,
    dtype: torch.dtype,
) -> Plan:
    """Positions and segments of packed tokens; see `padded_plan`. `device` and `dtype` belong to
    the attention.
    """
    prefix = packing.prefix
    tail = packing.tail
    seen = packing.prefix + packing.response
    lengths = prefix + tail
    starts = lengths.cumsum(0) - lengths
    count = int(lengths.sum())
    varlen = takes_varlen(device, dtype)
    front = join_ranges(starts, prefix)
    behind = join_ranges(starts + prefix, tail)
    tower = [make_segments(front, prefix, front, prefix, device, varlen=varlen)]
    if len(behind):
        tower.append(
            make_segments(
                behind, tail, torch.arange(count), lengths, device, causal=True, varlen=varlen
            )
        )
    suffix_rotary = calls = None
    if suffix is not None:
        rows = len(prefix) * candidates
        first, num_seen = (numbers.repeat_interleave(candidates) for numbers in (starts, seen))
        suffix_rotary = rotary(
            to_device(num_seen[:, None] + _places(blocks, suffix, num_seen.device), device),
            head_dim,
        )
        own_starts = count + suffix * torch.arange(rows)
        lows, highs, keys_from = torch.tensor(_spans(blocks, suffix)).T
        sizes = (highs - lows).repeat(rows)
        shape = (rows, len(blocks))
        parts = torch.stack(
            [num_seen[:, None].expand(shape), (highs - keys_from).expand(shape)], dim=2
        )
        begins = torch.stack([first[:, None].expand(shape), own_starts[:, None] + keys_from], dim=2)
        keys = join_ranges(begins.flatten(), parts.flatten())
        queries = torch.arange(rows * suffix)
        calls = make_segments(
            queries, sizes, keys, parts.sum(dim=2).flatten(), device, varlen=varlen
        )
    positions = rotary(
        to_device(join_ranges(torch.zeros_like(starts), lengths), device)[None], head_dim
    )
    order = to_device(torch.cat([front, behind]).argsort(), device)
    packed = PackedCalls(tuple(tower), order, calls)
    return Plan(positions, None, None, suffix_rotary, None, count, count, 1, insulate, packed)


EPS = 1e-6

Cache = tuple[Tensor, Tensor]
"""Rotated keys and values of a layer of the language tower, [B, kv_heads, S, head_dim] each."""


class RMSNorm(nn.Module):
    """x / rms(x) * (1 + weight) in float32; the weight is stored minus 1, as in Gemma.

    The weight is first rounded to x's dtype, as every weight of a layer: so bfloat16 computes the
    same with float32 weights in one process, with those that FSDP2 gathers in bfloat16, and with
    split ones.
    """

    def __init__(self, width: int) -> None:
        """Build the norm of vectors of `width`."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(
        self, x: Tensor, condition: Tensor | None = None, groups: Sequence[int] = ()
    ) -> tuple[Tensor, None]:
        """Normalize [..., width] in float32, in x's dtype; there is no gate."""
        return (_rms(x) * (1 + self.weight.to(x.dtype).float())).to(x.dtype), None


class AdaRMSNorm(nn.Module):
    """x / rms(x) * (1 + scale) + shift, both linear in a condition, and a gate for the residual
    branch (pi0.5).
    """

    def __init__(self, width: int) -> None:
        """Build the norm of vectors of `width`, for conditions of as many numbers."""
        super().__init__()
        self.dense = Linear(width, 3 * width)

    def forward(
        self, x: Tensor, condition: Tensor | None = None, groups: Sequence[int] = ()
    ) -> tuple[Tensor, Tensor]:
        """Normalize x.

        Args:
            x: [B, T, width].
            condition: [B, width], one for all tokens, or [B, T, width]; with `groups` [B,
                len(groups), width].
            groups: see `Plan`.

        Returns:
            In x's dtype: the result [B, T, width], and the gate [B, 1 or T, width].
        """
        assert condition is not None
        modulation = self.dense(condition.to(x.dtype))
        if groups:  # a product per group and not per token
            parts = zip(modulation.split(1, dim=1), groups, strict=True)
            modulation = torch.cat([part.expand(-1, count, -1) for part, count in parts], dim=1)
        if condition.ndim == 2:
            modulation = modulation[:, None]
        scale, shift, gate = modulation.chunk(3, dim=-1)
        return (_rms(x) * (1 + scale.float()) + shift.float()).to(x.dtype), gate


def _rms(x: Tensor) -> Tensor:
    """Divide by the root mean square of the last dimension, float32."""
    return F.rms_norm(x.float(), x.shape[-1:], eps=EPS)


def _add(x: Tensor, change: Tensor, gate: Tensor | None) -> Tensor:
    """Add a residual branch, through its gate where it has one."""
    if gate is None:
        return x + change
    return x + change * gate


class Attention(nn.Module):
    """Projections of attention with `num_kv_heads` shared heads of keys and values, without
    biases.
    """

    def __init__(self, sizes: TowerSizes) -> None:
        """Build the projections."""
        super().__init__()
        self.head_dim = sizes.head_dim
        queries = sizes.num_heads * sizes.head_dim
        keys = sizes.num_kv_heads * sizes.head_dim
        self.q_proj = Linear(sizes.width, queries, bias=False)
        self.k_proj = Linear(sizes.width, keys, bias=False)
        self.v_proj = Linear(sizes.width, keys, bias=False)
        self.o_proj = Linear(queries, sizes.width, bias=False)

    def queries(self, x: Tensor, rotation: Rotary) -> Tensor:
        """Project x [B, T, width] to rotated queries [B, heads, T, head_dim]."""
        return rotate(self._heads(self.q_proj(x)), rotation)

    def keys_values(self, x: Tensor, rotation: Rotary) -> Cache:
        """Project x [B, T, width] to rotated keys, and values, [B, kv_heads, T, head_dim] each."""
        return rotate(self._heads(self.k_proj(x)), rotation), self._heads(self.v_proj(x))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class Mlp(nn.Module):
    """down(gelu(gate(x)) * up(x)), with the tanh form of gelu, without biases."""

    def __init__(self, sizes: TowerSizes) -> None:
        """Build the layers."""
        super().__init__()
        self.gate_proj = Linear(sizes.width, sizes.mlp_dim, bias=False)
        self.up_proj = Linear(sizes.width, sizes.mlp_dim, bias=False)
        self.down_proj = Linear(sizes.mlp_dim, sizes.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to [..., width]."""
        result: Tensor = self.down_proj(
            F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x)
        )
        return result


class TowerLayer(nn.Module):
    """One layer of a tower; `PairLayer` computes with it."""

    def __init__(self, sizes: TowerSizes, adaptive: bool) -> None:
        """Build the layer, with adaptive norms or plain ones."""
        super().__init__()
        norm = AdaRMSNorm if adaptive else RMSNorm
        self.input_layernorm = norm(sizes.width)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = norm(sizes.width)
        self.mlp = Mlp(sizes)

    def finish(
        self,
        x: Tensor,
        attended: Tensor,
        gate: Tensor | None,
        condition: Tensor | None = None,
        groups: Sequence[int] = (),
    ) -> Tensor:
        """Compute the layer behind its attention: both residual branches of x [B, T, width].

        Args:
            x: input of the layer.
            attended: [B, T, heads * head_dim], result of the attention.
            gate: gate of the attention's branch.
            condition: condition of the adaptive norm.
            groups: see `Plan`.
        """
        x = _add(x, self.self_attn.o_proj(attended), gate)
        y, gate = self.post_attention_layernorm(x, condition, groups)
        return _add(x, self.mlp(y), gate)


class PairLayer(nn.Module):
    """One layer of both towers. The expert's queries also see the keys and values of the language
    tower.
    """

    def __init__(self, vlm: TowerSizes, expert: TowerSizes | None, adaptive: bool) -> None:
        """Build the layers of both towers, or without `expert` of one; the expert's norms are
        `adaptive` in pi0.5.
        """
        super().__init__()
        self.vlm = TowerLayer(vlm, adaptive=False)
        if expert is not None:
            self.expert = TowerLayer(expert, adaptive)

    def forward(
        self,
        tokens: Tensor | None,
        actions: Tensor | None,
        plan: Plan,
        condition: Tensor | None = None,
        cache: Cache | None = None,
        keys_only: bool = False,
        keep_cache: bool = True,
    ) -> tuple[Tensor | None, Tensor | None, Cache | None]:
        """Compute the layer.

        Args:
            tokens: prefix and tail, [B, P + L, width]; None: `cache` replaces them.
            actions: suffix of each chunk, [B * N, T, expert width]; None: fill the cache alone.
            plan: positions and masks.
            condition: condition of the expert's adaptive norms, as these take it.
            cache: cache of an earlier call with `tokens`; with `tokens` these continue it.
            keys_only: leave out all results of the tower but keys and values. (Nothing reads its
                last layer's.)
            keep_cache: whether to return the cache of a call without `actions`. (FSDP2 wants no
                views among the results of a sharded module.)

        Returns:
            `tokens` and `actions` behind the layer (None where not computed), and without `actions`
            the cache.
        """
        if tokens is not None:
            assert plan.tower is not None
            tokens, cache = self._tower(tokens, plan.tower, plan, keys_only, cache)
        assert cache is not None
        if actions is not None:
            assert plan.suffix is not None
            if condition is not None:
                # Both norms of a layer read it, in all layers: the view adds up the gradients per
                # layer. Autograd would add them in another sequence in a sharded layer, which
                # rounds differently.
                condition = condition.view_as(condition)
            actions = self._expert(actions, plan.suffix, plan, condition, cache)
        kept_cache = cache if actions is None and keep_cache else None
        return tokens, actions, kept_cache

    def _tower(
        self, x: Tensor, rotation: Rotary, plan: Plan, keys_only: bool, past: Cache | None
    ) -> tuple[Tensor | None, Cache]:
        y, _ = self.vlm.input_layernorm(x)
        k, v = self.vlm.self_attn.keys_values(y, rotation)
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        if keys_only:
            return None, (k, v)
        q = self.vlm.self_attn.queries(y, rotation)
        if plan.packed is not None:
            packed = [
                attend_segments(_row(q), _row(k), _row(v), segments)
                for segments in plan.packed.tower
            ]
            return self.vlm.finish(x, torch.cat(packed)[plan.packed.order][None], None), (k, v)
        front = slice(None, plan.prefix)
        parts = []
        if plan.prefix:
            parts.append(attend(q[:, :, front], k[:, :, front], v[:, :, front], plan.prefix_mask))
        if plan.tail_mask is not None:
            parts.append(attend(q[:, :, plan.prefix :], k, v, plan.tail_mask))
        attended = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
        return self.vlm.finish(x, attended, None), (k, v)

    def _expert(
        self, x: Tensor, rotation: Rotary, plan: Plan, condition: Tensor | None, cache: Cache
    ) -> Tensor:
        y, gate = self.expert.input_layernorm(x, condition, plan.groups)
        k, v = self.expert.self_attn.keys_values(y, rotation)
        keys, values = (_for_suffix(cached, plan) for cached in cache)
        q = self.expert.self_attn.queries(y, rotation)
        if plan.packed is not None:
            assert plan.packed.suffix is not None
            keys, values = (
                torch.cat([_row(of_tower), _row(of_suffix)])
                for of_tower, of_suffix in ((keys, k), (values, v))
            )
            attended = attend_segments(_row(q), keys, values, plan.packed.suffix).view(
                *x.shape[:2], -1
            )
        else:
            attended = attend(
                q, torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2), plan.suffix_mask
            )
        return self.expert.finish(x, attended, gate, condition, plan.groups)


def _row(x: Tensor) -> Tensor:
    """Join the tokens of all samples: [B, H, T, D] to [B * T, H, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def _for_suffix(x: Tensor, plan: Plan) -> Tensor:
    """Keys or values of the tower [B, H, S, D] as the suffix sees them: [B * N, H, seen, D]."""
    x = x[:, :, : plan.seen]
    if plan.insulate:
        x = x.detach()
    return x if plan.candidates == 1 else x.repeat_interleave(plan.candidates, dim=0)
