"""Gemma layers of the language tower and the action expert, both towers of a layer in one module.

`PairLayer` is the unit of activation checkpointing, compilation and sharding. Its tower layers have the parameter names
of the released files. Sources: Gemma team 2024, "Gemma: Open Models Based on Gemini Research and Technology"; Black et
al. 2024, "pi0", appendix B; Physical Intelligence 2025, "pi0.5", for the adaptive norm.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.common.layers import Linear
from understudy.policies.common.towers.attention import Plan, Rotary, attend, rotate
from understudy.policies.common.towers.segments import attend_segments
from understudy.policies.common.towers.tower_sizes import TowerSizes

EPS = 1e-6

Cache = tuple[Tensor, Tensor]
"""Rotated keys and values of a layer of the language tower, [B, kv_heads, S, head_dim] each."""


class RMSNorm(nn.Module):
    """x / rms(x) * (1 + weight) in float32; the weight is stored minus 1, as in Gemma.

    The weight is first rounded to x's dtype, as every weight of a layer: so bfloat16 computes the same with float32
    weights in one process, with those that FSDP2 gathers in bfloat16, and with split ones.
    """

    def __init__(self, width: int) -> None:
        """Build the norm of vectors of `width`."""
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, None]:
        """Normalize [..., width] in float32, in x's dtype; there is no gate."""
        return (_rms(x) * (1 + self.weight.to(x.dtype).float())).to(x.dtype), None


class AdaRMSNorm(nn.Module):
    """x / rms(x) * (1 + scale) + shift, both linear in a condition, and a gate for the residual branch (pi0.5)."""

    def __init__(self, width: int, shared: Sequence[int] = ()) -> None:
        """Build the norm of vectors of `width`, for conditions of as many numbers.

        Args:
            width: of a token.
            shared: numbers of consecutive tokens with one condition; (): the condition says it.
        """
        super().__init__()
        self.shared = tuple(shared)
        self.dense = Linear(width, 3 * width)

    def forward(self, x: Tensor, condition: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Normalize x.

        Args:
            x: [B, T, width].
            condition: [B, width], one for all tokens, or [B, T, width]; with `shared` [B, len(shared), width].

        Returns:
            In x's dtype: the result [B, T, width], and the gate [B, 1 or T, width].
        """
        assert condition is not None
        found = self.dense(condition.to(x.dtype))
        if self.shared:  # a product per group and not per token
            found = torch.cat([part.expand(-1, n, -1) for part, n in zip(found.split(1, dim=1), self.shared)], dim=1)
        scale, shift, gate = (found[:, None] if condition.ndim == 2 else found).chunk(3, dim=-1)
        return (_rms(x) * (1 + scale.float()) + shift.float()).to(x.dtype), gate


def _rms(x: Tensor) -> Tensor:
    """Divide by the root mean square of the last dimension, float32."""
    return F.rms_norm(x.float(), x.shape[-1:], eps=EPS)


def _add(x: Tensor, change: Tensor, gate: Tensor | None) -> Tensor:
    """Add a residual branch, through its gate where it has one."""
    return x + (change if gate is None else change * gate)


class Attention(nn.Module):
    """Projections of attention with `num_kv_heads` shared heads of keys and values, without biases."""

    def __init__(self, sizes: TowerSizes) -> None:
        """Build the projections."""
        super().__init__()
        self.head_dim = sizes.head_dim
        queries, keys = sizes.num_heads * sizes.head_dim, sizes.num_kv_heads * sizes.head_dim
        self.q_proj = Linear(sizes.width, queries, bias=False)
        self.k_proj = Linear(sizes.width, keys, bias=False)
        self.v_proj = Linear(sizes.width, keys, bias=False)
        self.o_proj = Linear(queries, sizes.width, bias=False)

    def queries(self, x: Tensor, at: Rotary) -> Tensor:
        """Project x [B, T, width] to rotated queries [B, heads, T, head_dim]."""
        return rotate(self._heads(self.q_proj(x)), at)

    def keys_values(self, x: Tensor, at: Rotary) -> Cache:
        """Project x [B, T, width] to rotated keys, and values, [B, kv_heads, T, head_dim] each."""
        return rotate(self._heads(self.k_proj(x)), at), self._heads(self.v_proj(x))

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
        found: Tensor = self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))
        return found


class TowerLayer(nn.Module):
    """One layer of a tower; `PairLayer` computes with it."""

    def __init__(self, sizes: TowerSizes, adaptive: bool, shared: Sequence[int] = ()) -> None:
        """Build the layer, with adaptive norms (`shared` is theirs) or plain ones."""
        super().__init__()
        self.input_layernorm = AdaRMSNorm(sizes.width, shared) if adaptive else RMSNorm(sizes.width)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = AdaRMSNorm(sizes.width, shared) if adaptive else RMSNorm(sizes.width)
        self.mlp = Mlp(sizes)

    def finish(self, x: Tensor, attended: Tensor, gate: Tensor | None, condition: Tensor | None = None) -> Tensor:
        """Compute the layer behind its attention: both residual branches of x [B, T, width].

        Args:
            x: input of the layer.
            attended: [B, T, heads * head_dim], result of the attention.
            gate: of the attention's branch.
            condition: of the adaptive norm.
        """
        x = _add(x, self.self_attn.o_proj(attended), gate)
        y, gate = self.post_attention_layernorm(x, condition)
        return _add(x, self.mlp(y), gate)


class PairLayer(nn.Module):
    """One layer of both towers. The expert's queries also see the keys and values of the language tower."""

    def __init__(self, vlm: TowerSizes, expert: TowerSizes, adaptive: bool, shared: Sequence[int] = ()) -> None:
        """Build the layers of both towers; the expert's norms are `adaptive` in pi0.5 (`shared`: see `AdaRMSNorm`)."""
        super().__init__()
        self.vlm = TowerLayer(vlm, adaptive=False)
        self.expert = TowerLayer(expert, adaptive, shared)

    def drop_unread(self) -> None:
        """Remove the weights of the language tower behind its keys and values; calls then need `keys_only`.

        Nothing reads them in the last layer of a network without a text head. Released files have them, so pi0.5 keeps
        them.
        """
        del self.vlm.self_attn.q_proj, self.vlm.self_attn.o_proj, self.vlm.post_attention_layernorm, self.vlm.mlp

    def forward(
        self,
        tokens: Tensor | None,
        actions: Tensor | None,
        plan: Plan,
        condition: Tensor | None = None,
        cache: Cache | None = None,
        keys_only: bool = False,
    ) -> tuple[Tensor | None, Tensor | None, Cache | None]:
        """Compute the layer.

        Args:
            tokens: prefix and tail, [B, P + L, width]; None: `cache` replaces them.
            actions: suffix of each chunk, [B * N, T, expert width]; None: fill the cache alone.
            plan: positions and masks.
            condition: of the expert's adaptive norms, as these take it.
            cache: of an earlier call with `tokens`; with `tokens` these continue it, each behind all of the cache.
            keys_only: leave out all results of the tower but keys and values. (Nothing reads its last layer's.)

        Returns:
            `tokens` and `actions` behind the layer (None where not computed), and without `actions` the cache. (With
            them nothing reads it, and FSDP2 wants no views among the results of a sharded module.)
        """
        if tokens is not None:
            assert plan.tower is not None
            tokens, cache = self._tower(tokens, plan.tower, plan, keys_only, cache)
        assert cache is not None
        if actions is not None:
            assert plan.suffix is not None
            if condition is not None:
                # Both norms of a layer read it, in all layers: the view adds up the gradients per layer. Autograd would
                # add them in another sequence in a sharded layer, which rounds differently.
                condition = condition.view_as(condition)
            actions = self._expert(actions, plan.suffix, plan, condition, cache)
        return tokens, actions, cache if actions is None else None

    def _tower(
        self, x: Tensor, at: Rotary, plan: Plan, keys_only: bool, past: Cache | None
    ) -> tuple[Tensor | None, Cache]:
        y, _ = self.vlm.input_layernorm(x)
        k, v = self.vlm.self_attn.keys_values(y, at)
        if past is not None:
            k, v = torch.cat([past[0], k], dim=2), torch.cat([past[1], v], dim=2)
        if keys_only:
            return None, (k, v)
        q = self.vlm.self_attn.queries(y, at)
        if plan.packed is not None:
            packed = [attend_segments(_row(q), _row(k), _row(v), each) for each in plan.packed.tower]
            return self.vlm.finish(x, torch.cat(packed)[plan.packed.order][None], None), (k, v)
        front, parts = slice(None, plan.prefix), []
        if plan.prefix:
            parts.append(attend(q[:, :, front], k[:, :, front], v[:, :, front], plan.prefix_mask))
        if plan.tail_mask is not None:
            parts.append(attend(q[:, :, plan.prefix :], k, v, plan.tail_mask))
        return self.vlm.finish(x, torch.cat(parts, dim=1) if len(parts) > 1 else parts[0], None), (k, v)

    def _expert(self, x: Tensor, at: Rotary, plan: Plan, condition: Tensor | None, cache: Cache) -> Tensor:
        y, gate = self.expert.input_layernorm(x, condition)
        k, v = self.expert.self_attn.keys_values(y, at)
        keys, values = (_for_suffix(each, plan) for each in cache)
        q = self.expert.self_attn.queries(y, at)
        if plan.packed is not None:
            assert plan.packed.suffix is not None
            keys, values = (torch.cat([_row(one), _row(two)]) for one, two in ((keys, k), (values, v)))
            found = attend_segments(_row(q), keys, values, plan.packed.suffix).view(*x.shape[:2], -1)
        else:
            found = attend(q, torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2), plan.suffix_mask)
        return self.expert.finish(x, found, gate, condition)


def _row(x: Tensor) -> Tensor:
    """Join the tokens of all samples: [B, H, T, D] to [B * T, H, D]."""
    return x.transpose(1, 2).flatten(0, 1)


def _for_suffix(x: Tensor, plan: Plan) -> Tensor:
    """Keys or values of the tower [B, H, S, D] as the suffix sees them: [B * N, H, seen, D]."""
    x = x[:, :, : plan.seen]
    if plan.insulate:
        x = x.detach()
    return x if plan.candidates == 1 else x.repeat_interleave(plan.candidates, dim=0)
