"""The pi0.5 and pi0 network: a pure function of images, tokens, state, noise and time.

    images -> vision encoder -> projector -+
    prompt -> embedding * sqrt(width) -----+-> language tower --- keys, values of each layer
                                                                            |
    noisy actions, flow time, (pi0: state) -------------> action expert <---+  -> velocity

`common/towers.py` has the table of attention. Time 1 is noise and time 0 the actions
(`common/flow_matching.py`). Masked images and tokens are neither encoded nor read, for any content.
Source: Physical Intelligence 2025, "pi0.5: a Vision-Language-Action Model with Open-World
Generalization", and its released code.

Vision encoder: SigLIP (Zhai et al. 2023, "Sigmoid Loss for Language Image Pre-Training"): an image,
a row of tokens.

The patch convolution and the table of positions compute in float32, whatever the precision of the
rest, as in the released JAX code. The parameter names are the same as in the released files.

With past frames the encoder is that of MEM (2026, arXiv 2603.03596), with the same weights. In
every `temporal_every`-th layer each patch also attends to itself in earlier frames, with the
queries and keys of the layer:

    u  = h + e(t)                   t <= 0: seconds from the present, e(0) = 0;
                                    q, k, v are those of u
    v' = attend(q, k, v)            of each patch, over the frames up to each one's own
    h  = h + out(attend(q, k, v'))  of each frame, over its patches

The present frame alone has tokens for later layers, so its features are as long as those of one
image. A single frame takes the plain path, to the bit. A present frame whose whole past is masked
has the bits of a batch of as many images: its only key has the weight 1. A batch of fewer images
rounds matrix products differently in some shapes.
"""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import check_shape, host_values, to_device
from understudy.policies.common.flow_matching import euler, noisy_actions, time_features, velocity
from understudy.policies.common.layers import Conv2d, Embedding, Linear
from understudy.policies.common.towers import (
    ONE_BLOCK,
    AdaRMSNorm,
    Blocks,
    Cache,
    Packing,
    PairLayer,
    Plan,
    RMSNorm,
    attend,
    key_mask,
    packed_plan,
    padded_plan,
)
from understudy.policies.pi05.config import Sizes, VisionSizes

EPS = 1e-6


class Frames(NamedTuple):
    """Times and marks of the frames of videos."""

    times: Sequence[float]
    """Seconds from the present, ascending; the last is 0, the present."""
    valid: Tensor | None = None
    """bool [..., T], False where the episode has no such frame; None: all are valid. The present is
    always valid.
    """
    encoding: Tensor | None = None
    """`time_encoding` of `times` on the device; None: computed on the host and copied."""


class Past(NamedTuple):
    """Frames of videos, as a temporal layer takes them."""

    encoding: Tensor
    """[T, 1, width], e(t)."""
    mask: Tensor
    """bool [M or 1, 1, T, T], True where a frame sees a frame."""


class LayerNorm(nn.LayerNorm):
    """Layer norm in float32, in its input's dtype; scale and bias are rounded to it first, as in
    `RMSNorm`.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalize [..., width]."""
        scale, bias = (parameter.to(input.dtype).float() for parameter in (self.weight, self.bias))
        return F.layer_norm(input.float(), self.normalized_shape, scale, bias, self.eps).to(
            input.dtype
        )


class Attention(nn.Module):
    """Self-attention of all tokens of an image, with biases; before it, of each token over the
    frames of a video.
    """

    def __init__(self, width: int, heads: int) -> None:
        """Build the projections."""
        super().__init__()
        self.heads = heads
        self.q_proj = Linear(width, width)
        self.k_proj = Linear(width, width)
        self.v_proj = Linear(width, width)
        self.out_proj = Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Map tokens [M, n, width] to [M, n, width].

        Args:
            x: the tokens; with `mask` [M * T, n, width], T consecutive frames of each video.
            mask: bool [M or 1, 1, T, T], see `Past`. None: images.
        """
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        if mask is not None:
            v = attend_over_time(q, k, v, mask)
        result: Tensor = self.out_proj(attend(q, k, v))
        return result


def attend_over_time(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Average the values of each patch over the frames of its video.

    Args:
        q: [M * T, heads, n, head_dim].
        k: as q.
        v: as q.
        mask: bool [M or 1, 1, T, T]: True where a frame sees a frame.

    Returns:
        Values, in the shape of v.
    """
    count = mask.shape[-1]
    heads, patches = q.shape[1:3]

    # [M, heads * n, T, head_dim]: the mask needs no copy for each patch
    def by_patch(x: Tensor) -> Tensor:
        return x.unflatten(0, (-1, count)).permute(0, 2, 3, 1, 4).flatten(1, 2)

    values = F.scaled_dot_product_attention(by_patch(q), by_patch(k), by_patch(v), attn_mask=mask)
    return values.unflatten(1, (heads, patches)).permute(0, 3, 1, 2, 4).flatten(0, 1)


class Mlp(nn.Module):
    """fc2(gelu(fc1(x))), with the tanh form of gelu."""

    def __init__(self, width: int, hidden: int) -> None:
        """Build the layers."""
        super().__init__()
        self.fc1 = Linear(width, hidden)
        self.fc2 = Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., width] to [..., width]."""
        result: Tensor = self.fc2(F.gelu(self.fc1(x), approximate="tanh"))
        return result


class VisionLayer(nn.Module):
    """Pre-norm transformer layer; with `temporal` it also attends over the frames of videos."""

    def __init__(self, sizes: VisionSizes, temporal: bool) -> None:
        """Build the layer; `temporal` adds no weights."""
        super().__init__()
        self.temporal = temporal
        self.layer_norm1 = LayerNorm(sizes.width, eps=EPS)
        self.self_attn = Attention(sizes.width, sizes.heads)
        self.layer_norm2 = LayerNorm(sizes.width, eps=EPS)
        self.mlp = Mlp(sizes.width, sizes.mlp)

    def forward(self, x: Tensor, past: Past | None = None) -> Tensor:
        """Map tokens [M, n, width] to [M, n, width].

        Args:
            x: the tokens; with `past` [M * T, n, width], T consecutive frames of each video.
            past: the frames, for a temporal layer.
        """
        if past is None:
            x = x + self.self_attn(self.layer_norm1(x))
        else:
            dated = (x.unflatten(0, (-1, len(past.encoding))) + past.encoding).flatten(0, 1)
            x = x + self.self_attn(self.layer_norm1(dated), past.mask)
        result: Tensor = x + self.mlp(self.layer_norm2(x))
        return result


class VisionEncoder(nn.Module):
    """Patches, learned positions, layers and a last norm; no pooling."""

    def __init__(self, sizes: VisionSizes) -> None:
        """Build the encoder."""
        super().__init__()
        self.patch = Conv2d(3, sizes.width, sizes.patch, stride=sizes.patch)
        self.position = nn.Embedding(sizes.tokens, sizes.width)
        nn.init.normal_(self.position.weight, std=sizes.width**-0.5)
        temporal = sizes.temporal_layers
        self.layers = nn.ModuleList(
            VisionLayer(sizes, number in temporal) for number in range(sizes.depth)
        )
        self.norm = LayerNorm(sizes.width, eps=EPS)
        self.last_temporal = temporal[-1]

    def forward(self, images: Tensor, dtype: torch.dtype, frames: Frames | None = None) -> Tensor:
        """Encode images, or the present frame of videos with its past.

        Args:
            images: float32 [M, 3, image, image] in -1..1; with `frames` [M, T, 3, image, image],
                oldest frame first. Frames that are not valid may hold anything.
            dtype: dtype of the layers' arithmetic.
            frames: times, and marks [M, T].

        Returns:
            [M, n, width] in `dtype`, the tokens row by row.
        """
        past = None
        if frames is not None:
            past, images = self._past(images, dtype, frames)
        # [M * T, n, width], float32
        patches = self.patch(images.float()).flatten(2).transpose(1, 2)
        places = self.position(torch.arange(patches.shape[1], device=images.device)).float()
        x = (patches + places).to(dtype)
        for number, layer in enumerate(self.layers):
            x = layer(x, past) if past is not None and layer.temporal else layer(x)
            # nothing reads the past behind it
            if past is not None and number == self.last_temporal:
                x = x.unflatten(0, (-1, len(past.encoding)))[:, -1]
                past = None
        result: Tensor = self.norm(x)
        return result

    def _past(
        self, images: Tensor, dtype: torch.dtype, frames: Frames
    ) -> tuple[Past | None, Tensor]:
        """Mask the frames of videos [M, T, 3, image, image], and join them, [M * T, 3, image,
        image].
        """
        count = len(frames.times)
        check_shape("images", images, (None, count, *images.shape[2:]))
        if count == 1:
            return None, images[:, 0]
        order = torch.arange(count, device=images.device)
        mask = (order <= order[:, None])[None]  # [1, T, T]
        if frames.valid is not None:
            check_shape("valid frames", frames.valid, tuple(images.shape[:2]))
            valid = frames.valid | (order == count - 1)
            # A mask does not stop a NaN: the values of masked keys are multiplied by 0.
            images = torch.where(valid[:, :, None, None, None], images, 0.0)
            # A frame always sees itself, so that no softmax has zero keys.
            mask = mask & valid[:, None] | (order == order[:, None])
        encoding = frames.encoding
        if encoding is None:
            encoding = time_encoding(frames.times, self.norm.weight.shape[0])
            encoding = to_device(encoding.to(dtype), images.device)
        return Past(encoding.to(dtype)[:, None], mask[:, None]), images.flatten(0, 1)


def time_encoding(times: Sequence[float], width: int) -> Tensor:
    """Compute e(t) of times in seconds, float32 [T, width]: sin(t w), cos(t w) - 1 in turn, w =
    10000^(-2 i / width).

    e(0) is 0. The frequencies are from Vaswani et al. 2017, "Attention Is All You Need", computed
    in float64.
    """
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.tensor(times, dtype=torch.float64)[:, None] * frequencies
    return torch.stack([angles.sin(), angles.cos() - 1], dim=2).flatten(1)[:, :width].float()


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


class Suffix(NamedTuple):
    """Tokens of the expert, N rows of each sample, before the first layer."""

    tokens: Tensor
    """[B * N, T, expert width]; the rows of a sample are consecutive."""
    condition: Tensor | None
    """Condition of the adaptive norms, [B * N, width], of each token, or of each group."""
    candidates: int
    """N."""
    blocks: Blocks = ONE_BLOCK
    """Which of them see which."""
    groups: tuple[int, ...] = ()
    """Numbers of consecutive tokens that share a condition; (): the condition says it."""


class Pi0Network(nn.Module):
    """Vision encoder, language tower and action expert, with fresh weights from torch's generator.

    `Pi0Network(sizes, dtype)` computes in `dtype`; the norms, the patches, the rotations and
    everything between noisy actions and the expert compute in float32. It may be built under
    `torch.device("meta")`.
    """

    has_expert: ClassVar[bool] = True
    """Whether there is an action expert, with the layers of actions, state and flow time."""

    def __init__(
        self, sizes: Sizes, dtype: torch.dtype = torch.float32, state_history: bool = False
    ) -> None:
        """Build the network of these dimensions, with a projection of past states if
        `state_history`.
        """
        super().__init__()
        self.sizes = sizes
        self.dtype = dtype
        vlm = sizes.vlm
        expert = sizes.expert
        self.vision = VisionEncoder(sizes.vision)
        self.projector = Linear(sizes.vision.width, vlm.width)
        self.embedding = Embedding(sizes.vocab, vlm.width)
        nn.init.normal_(self.embedding.weight, std=vlm.width**-0.5)
        expert_sizes = expert if self.has_expert else None
        self.layers = nn.ModuleList(
            PairLayer(vlm, expert_sizes, sizes.adaptive) for _ in range(vlm.depth)
        )
        self.vlm_norm = RMSNorm(vlm.width)
        if self.has_expert:
            self._build_expert(sizes)
        if state_history:
            self.proprio_history_proj = Linear(sizes.dim, vlm.width)
        for module in self.modules():
            # a fresh expert is the identity in all its layers, as in the paper
            if isinstance(module, AdaRMSNorm):
                module.dense.zeroed()

    def _build_expert(self, sizes: Sizes) -> None:
        """Build the layers of the expert outside of `layers`."""
        expert = sizes.expert
        self.expert_norm = AdaRMSNorm(expert.width) if sizes.adaptive else RMSNorm(expert.width)
        self.action_in_proj = Linear(sizes.dim, expert.width)
        self.action_out_proj = Linear(expert.width, sizes.dim)
        if sizes.adaptive:
            self.time_mlp_in = Linear(expert.width, expert.width)
            self.time_mlp_out = Linear(expert.width, expert.width)
        else:
            self.state_proj = Linear(sizes.dim, expert.width)
            self.action_time_mlp_in = Linear(2 * expert.width, expert.width)
            self.action_time_mlp_out = Linear(expert.width, expert.width)

    # -- interface ---------------------------------------------------------------------------------

    def image_features(self, images: Tensor, frames: Frames | None = None) -> Tensor:
        """Encode images, float32 [B, cameras, 3, image, image] in -1..1, as [B, cameras, tokens,
        width].

        With `frames`, whose marks are [B, cameras, T], the images are videos [B, cameras, T, 3,
        image, image].
        """
        self._check_images(images, frames)
        return self._encode(images.flatten(0, 1), _join(frames)).unflatten(0, images.shape[:2])

    def prefix(
        self, images: Tensor, image_masks: Tensor | None, tokens: Tensor, token_masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Embed images and prompt.

        Args:
            images: float32 [B, cameras, 3, image, image] in -1..1.
            image_masks: bool [B, cameras], False where a sample lacks the camera; None: it has all.
                A mask on the CPU spares a GPU a wait.
            tokens: int64 [B, L].
            token_masks: bool [B, L], False where there is padding; None: there is none.

        Returns:
            Embeddings [B, P, width], 0 for missing cameras, and marks bool [B, P]; P = cameras *
            tokens + L.
        """
        observed = self.observe(images, image_masks, tokens, token_masks)
        return observed.embeddings, observed.valid

    def flow_loss(
        self,
        images: Tensor,
        image_masks: Tensor | None,
        tokens: Tensor,
        token_masks: Tensor | None,
        state: Tensor | None,
        actions: Tensor,
        noise: Tensor,
        time: Tensor,
        delay: Tensor | None = None,
    ) -> Tensor:
        """Compute the squared error of the velocity, per element.

        Args:
            images: see `prefix`, as are the next three.
            image_masks: cameras.
            tokens: prompt.
            token_masks: padding.
            state: float32 [B, dim], normalized; read by pi0 alone.
            actions: float32 [B, chunk, dim], normalized.
            noise: as `actions`.
            time: float32 [B] in 0..1.
            delay: int64 [B], leading actions of each sample that are given without noise, at time 0
                (training-time real-time chunking, Black et al. 2025); their loss is 0. None: none.

        Returns:
            float32 [B, chunk, dim].
        """
        observed = self.observe(images, image_masks, tokens, token_masks)
        times = time[:, None].expand(actions.shape[:2])
        clean = None
        if delay is not None:
            # [B, chunk]
            clean = torch.arange(actions.shape[1], device=delay.device) < delay[:, None]
            times = torch.where(clean, 0.0, times)
        noisy = noisy_actions(actions[:, :, None], noise[:, :, None], times).squeeze(2)
        times_of_compute = time if clean is None else times
        predicted, _ = self.compute(observed, noisy[:, None], times_of_compute[:, None], state)
        assert predicted is not None
        loss = (predicted[:, 0] - velocity(actions, noise)).square()
        return loss if clean is None else torch.where(clean[..., None], 0.0, loss)

    def sample(
        self,
        images: Tensor,
        image_masks: Tensor | None,
        tokens: Tensor,
        token_masks: Tensor | None,
        state: Tensor | None,
        noise: Tensor,
        steps: int = 10,
    ) -> Tensor:
        """Integrate the velocity from noise to actions in Euler steps; the prefix is computed once.

        Args:
            images: see `flow_loss`, as are the next four.
            image_masks: cameras.
            tokens: prompt.
            token_masks: padding.
            state: of pi0.
            noise: float32 [B, chunk, dim]; or [B, N, chunk, dim] for N candidates that share one
                cache.
            steps: Euler steps, at least 1.

        Returns:
            float32, in the shape of `noise`: normalized actions.
        """
        observed = self.observe(images, image_masks, tokens, token_masks)
        candidates = noise.shape[1] if noise.ndim == 4 else 1
        return euler(
            self.field(observed, state, candidates), noise.reshape(-1, *noise.shape[-2:]), steps
        ).view_as(noise)

    # -- parts -------------------------------------------------------------------------------------

    def compute(
        self,
        observed: Observation,
        noisy: Tensor | None,
        time: Tensor | None = None,
        state: Tensor | None = None,
        insulate: bool = False,
        hidden: bool = False,
        packing: Packing | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Run both towers once.

        Args:
            observed: prefix and tail.
            noisy: float32 [B, N, chunk, dim], N noisy chunks of each sample; None: no expert.
            time: float32 [B, N], or [B, N, chunk] of each action.
            state: float32 [B, dim], of pi0.
            insulate: whether the gradient of the velocity stops at the tower's keys and values
                (Driess et al. 2025, "Knowledge Insulating Vision-Language-Action Models").
            hidden: whether to compute the tower's last layer and norm.
            packing: the tokens of prefix and tail that the tower computes; None: all, masked where
                they do not count.

        Returns:
            The velocity, float32 [B, N, chunk, dim], and the tower's tokens [B, P + L, width], 0
            where packing left them out; None where not asked.
        """
        suffix = None
        if noisy is not None:
            assert time is not None
            suffix = self.suffix(noisy.flatten(0, 1), time.flatten(0, 1), state, noisy.shape[1])
        read, tokens = self.run(observed, suffix, insulate, hidden, packing)
        if read is None or noisy is None:
            return None, tokens
        return self.action_velocity(read, noisy), tokens

    def run(
        self,
        observed: Observation,
        suffix: Suffix | None,
        insulate: bool = False,
        hidden: bool = False,
        packing: Packing | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Run both towers once over any suffix; see `compute`.

        Returns:
            The normalized tokens of the suffix, float32 [B * N, T, expert width], and the tower's
            tokens.
        """
        plan = self._plan(observed, suffix, insulate, packing)
        padded = observed.embeddings
        tokens: Tensor | None = padded
        slots = None if packing is None else to_device(packing.slots, padded.device)
        if slots is not None:
            tokens = padded.flatten(0, 1)[slots][None]
        actions, condition = (None, None) if suffix is None else suffix[:2]
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            keys_only = last and not hidden
            if tokens is not None and insulate and not hidden:
                # No loss reaches the tower. FSDP2 would hand a gradient of 0 through each sharded
                # layer, by which the optimizer decays the weights on several processes alone.
                tokens = tokens.detach()
            tokens, actions, _ = layer(
                tokens, actions, plan, condition, keys_only=keys_only, keep_cache=False
            )
        read = None if actions is None or suffix is None else self._read(actions, suffix)
        if tokens is None or not hidden:
            return read, None
        tokens = self.vlm_norm(tokens)[0]
        if slots is not None:
            tokens = (
                torch.zeros_like(padded)
                .flatten(0, 1)
                .index_copy(0, slots, tokens[0])
                .view_as(padded)
            )
        return read, tokens

    def field(
        self, observed: Observation, state: Tensor | None = None, candidates: int = 1
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Run the tower, keep its keys and values, and return the velocity as a function that runs
        the expert alone.

        Args:
            observed: prefix (and response).
            state: of pi0.
            candidates: N, chunks of each sample.

        Returns:
            (x [B * N, chunk, dim], time [B * N] or [B * N, chunk]) -> velocity, float32 in the
            shape of x. The chunks of a sample are consecutive.
        """
        expert = self.expert_alone(observed)
        return lambda x, time: self.action_velocity(
            expert(self.suffix(x, time, state, candidates)), x
        )

    def expert_alone(self, observed: Observation) -> Callable[[Suffix], Tensor]:
        """Run the tower, keep its keys and values, and return the expert as a function; its result
        is that of `run`.
        """
        caches = self.caches(observed)
        return lambda suffix: self.run_expert(observed, caches, suffix)

    def caches(self, observed: Observation) -> list[Cache]:
        """Run the tower, and return the keys and values of each layer."""
        plan = self._plan(observed, None, False, None)
        tokens: Tensor | None = observed.embeddings
        caches: list[Cache] = []
        for number, layer in enumerate(self.layers):
            tokens, _, cache = layer(tokens, None, plan, keys_only=number == len(self.layers) - 1)
            caches.append(cache)
        return caches

    def run_expert(self, observed: Observation, caches: Sequence[Cache], suffix: Suffix) -> Tensor:
        """Run the expert over the tower's `caches`; the embeddings of `observed` are not read."""
        steps = self._plan(observed, suffix, False, None)._replace(tower=None)
        actions = suffix.tokens
        for layer, cache in zip(self.layers, caches):
            _, actions, _ = layer(None, actions, steps, suffix.condition, cache)
        return self._read(actions, suffix)

    def observe(
        self,
        images: Tensor,
        image_masks: Tensor | None,
        tokens: Tensor,
        token_masks: Tensor | None,
        frames: Frames | None = None,
        states: States | None = None,
    ) -> Observation:
        """Embed images, past states and prompt; see `prefix`, for `frames` see `image_features`."""
        batch, cameras = images.shape[:2]
        count = self.sizes.vision.tokens
        self._check_images(images, frames)
        check_shape("tokens", tokens, (batch, None))
        for name, marks_of_input, length in (
            ("image", image_masks, cameras),
            ("token", token_masks, tokens.shape[1]),
        ):
            if marks_of_input is not None:
                check_shape(f"{name}_masks", marks_of_input, (batch, length))
        seen = self._present(images.flatten(0, 1), image_masks, _join(frames)).view(
            batch, cameras * count, self.sizes.vlm.width
        )
        valid_tokens = tokens
        if token_masks is not None:
            valid_tokens = torch.where(token_masks, tokens, 0)
        text = self._embed(valid_tokens)
        shown = None
        if image_masks is not None:
            shown = to_device(image_masks, tokens.device).repeat_interleave(count, dim=1)
        parts = [seen, text]
        marks = [shown, token_masks]
        if states is not None:
            past = torch.where(states.valid[..., None], states.values, 0.0)
            parts.insert(1, self.proprio_history_proj.rows(past.float()).to(self.dtype))
            marks.insert(1, states.valid)
        lengths = tuple(part.shape[1] for part in parts)
        mask = key_mask(*marks, lengths=lengths, batch=batch, device=tokens.device)
        if mask is None:
            valid = torch.ones(batch, sum(lengths), dtype=torch.bool, device=tokens.device)
        else:
            valid = mask[:, 0, 0]
        return Observation(torch.cat(parts, dim=1), valid, sum(lengths), 0, mask is None)

    def with_tail(self, observed: Observation, tail: Tail) -> Observation:
        """Append text to predict to a prefix."""
        tokens = self._embed(torch.where(tail.masks, tail.tokens, 0))
        return observed._replace(
            embeddings=torch.cat([observed.embeddings, tokens], dim=1),
            valid=torch.cat([observed.valid, tail.masks], dim=1),
            response=tail.response,
        )

    def _check_images(self, images: Tensor, frames: Frames | None) -> None:
        side = self.sizes.vision.image
        times = () if frames is None else (len(frames.times),)
        check_shape("images", images, (None, None, *times, 3, side, side))
        if frames is not None and frames.valid is not None:
            check_shape("valid frames", frames.valid, tuple(images.shape[:3]))

    def _present(self, images: Tensor, masks: Tensor | None, frames: Frames | None) -> Tensor:
        """Encode the images [M, ...] that a mask [B, cameras] marks: [M, tokens, width], 0 for the
        others.
        """
        if not len(images):  # a policy without cameras
            return images.new_zeros(
                0, self.sizes.vision.tokens, self.sizes.vlm.width, dtype=self.dtype
            )
        if masks is None:
            return self._encode(images, frames)
        with host_values():
            where = to_device(masks.flatten().nonzero()[:, 0], images.device)
        count = len(where)
        # Without any image one black image is encoded and dropped: every rank uses the same weights
        # in each step.
        shown = images[where] if count else images.new_zeros(1, *images.shape[1:])
        if frames is not None and frames.valid is not None:
            valid_frames = frames.valid[where] if count else None
            frames = frames._replace(valid=valid_frames)
        features = self._encode(shown, frames)[:count]
        return features.new_zeros(len(images), *features.shape[1:]).index_copy(0, where, features)

    def _encode(self, images: Tensor, frames: Frames | None) -> Tensor:
        features: Tensor = self.projector(self.vision(images, self.dtype, frames))
        return features

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens [B, L] as [B, L, width]; Gemma scales them by the root of the width."""
        return (self.embedding(tokens).to(self.dtype).float() * math.sqrt(self.sizes.vlm.width)).to(
            self.dtype
        )

    def _plan(
        self, observed: Observation, suffix: Suffix | None, insulate: bool, packing: Packing | None
    ) -> Plan:
        length = None if suffix is None else suffix.tokens.shape[1]
        count, blocks, groups = (1, ONE_BLOCK, ()) if suffix is None else suffix[2:]
        rest = (length, count, blocks, insulate, self.sizes.vlm.head_dim)
        if packing is not None:
            plan = packed_plan(packing, *rest, observed.valid.device, self.dtype)
        else:
            plan = padded_plan(
                observed.valid, observed.full, observed.prefix, observed.response, *rest
            )
        return plan._replace(groups=groups)

    def condition(self, time: Tensor) -> Tensor:
        """Map flow times [...] to the condition of adaptive norms, float32 [..., expert width]."""
        spread = time_features(time, self.sizes.expert.width)
        return F.silu(self.time_mlp_out.rows(F.silu(self.time_mlp_in.rows(spread))))

    def suffix(
        self, x: Tensor, time: Tensor, state: Tensor | None = None, candidates: int = 1
    ) -> Suffix:
        """Embed noisy actions [B * N, chunk, dim] at times [B * N] or [B * N, chunk]; see
        `compute`.
        """
        check_shape("noisy actions", x, (len(time), None, self.sizes.dim))
        action = self.action_in_proj.rows(x.float())
        if self.sizes.adaptive:
            return Suffix(action.to(self.dtype), self.condition(time), candidates)
        # [B * N, width] or [B * N, chunk, width]
        spread = time_features(time, self.sizes.expert.width)
        if state is None:
            raise ValueError(
                "state is None: a pi0 network (adaptive=False) needs the state [B, dim]"
            )
        if spread.ndim == 2:
            spread = spread[:, None].expand_as(action)
        with_time = torch.cat([action, spread], dim=2)
        mixed = self.action_time_mlp_out.rows(F.silu(self.action_time_mlp_in.rows(with_time)))
        first = self.state_proj(state.float()).repeat_interleave(candidates, dim=0)[:, None]
        return Suffix(
            torch.cat([first, mixed], dim=1).to(self.dtype), None, candidates, ((0, 0), (1, 0))
        )

    def action_velocity(self, read: Tensor, like: Tensor) -> Tensor:
        """Compute the velocity, float32 in the shape of `like`, from the last tokens of `run`."""
        return self.action_out_proj.rows(read[:, -like.shape[-2] :]).view_as(like)

    def _read(self, actions: Tensor, suffix: Suffix) -> Tensor:
        return self.expert_norm(actions, suffix.condition, suffix.groups)[0].float()


def _join(frames: Frames | None) -> Frames | None:
    """Join batch and cameras of the marks, as of the images."""
    if frames is None or frames.valid is None:
        return frames
    return frames._replace(valid=frames.valid.flatten(0, 1))
