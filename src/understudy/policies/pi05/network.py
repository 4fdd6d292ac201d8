"""The pi0.5 and pi0 network: a pure function of images, tokens, state, noise and time.

    images -> vision encoder -> projector -+
    prompt -> embedding * sqrt(width) -----+-> language tower --- keys, values of each layer
                                                                            |
    noisy actions, flow time, (pi0: state) -------------> action expert <---+  -> velocity

`common/towers/attention.py` has the table of attention. Time 1 is noise and time 0 the actions
(`common/flow_matching.py`). Masked images and tokens are neither encoded nor read, for any content. Source: Physical
Intelligence 2025, "pi0.5: a Vision-Language-Action Model with Open-World Generalization", and its released code.
"""

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import check_shape, host_values, to_device
from understudy.policies.common.flow_matching import euler, noisy_actions, time_features, velocity
from understudy.policies.common.layers import Embedding, Linear, rows, zero_init
from understudy.policies.common.towers.attention import Packing, Plan, key_mask, packed_plan, padded_plan
from understudy.policies.common.towers.gemma import AdaRMSNorm, Cache, PairLayer, RMSNorm
from understudy.policies.pi05.observation import Observation, States, Tail
from understudy.policies.pi05.siglip import Frames, VisionEncoder
from understudy.policies.pi05.sizes import Sizes


class Pi0Network(nn.Module):
    """Vision encoder, language tower and action expert, with fresh weights from torch's generator.

    `Pi0Network(sizes, dtype)` computes in `dtype`; the norms, the patches, the rotations and everything between noisy
    actions and the expert compute in float32. It may be built under `torch.device("meta")`.
    """

    def __init__(self, sizes: Sizes, dtype: torch.dtype = torch.float32, state_history: bool = False) -> None:
        """Build the network of these dimensions, with a projection of past states if `state_history`."""
        super().__init__()
        self.sizes, self.dtype = sizes, dtype
        vlm, expert = sizes.vlm, sizes.expert
        self.vision = VisionEncoder(sizes.vision)
        self.projector = Linear(sizes.vision.width, vlm.width)
        self.embedding = Embedding(sizes.vocab, vlm.width)
        nn.init.normal_(self.embedding.weight, std=vlm.width**-0.5)
        self.layers = nn.ModuleList(PairLayer(vlm, expert, sizes.adaptive) for _ in range(vlm.depth))
        self.vlm_norm = RMSNorm(vlm.width)
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
        if state_history:
            self.proprio_history_proj = Linear(sizes.dim, vlm.width)
        for module in self.modules():
            if isinstance(module, AdaRMSNorm):  # a fresh expert is the identity in all its layers, as in the paper
                zero_init(module.dense)

    # -- interface ------------------------------------------------------------------------------------------------

    def image_features(self, images: Tensor, frames: Frames | None = None) -> Tensor:
        """Encode images, float32 [B, cameras, 3, image, image] in -1..1, as [B, cameras, tokens, width].

        With `frames`, whose marks are [B, cameras, T], the images are videos [B, cameras, T, 3, image, image].
        """
        self._check_images(images, frames)
        return self._encode(images.flatten(0, 1), _join(frames)).unflatten(0, images.shape[:2])

    def prefix(
        self, images: Tensor, image_masks: Tensor | None, tokens: Tensor, token_masks: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Embed images and prompt.

        Args:
            images: float32 [B, cameras, 3, image, image] in -1..1.
            image_masks: bool [B, cameras], False where a sample lacks the camera; None: it has all. A mask on the CPU
                spares a GPU a wait.
            tokens: int64 [B, L].
            token_masks: bool [B, L], False where there is padding; None: there is none.

        Returns:
            Embeddings [B, P, width], 0 for missing cameras, and marks bool [B, P]; P = cameras * tokens + L.
        """
        found = self.observe(images, image_masks, tokens, token_masks)
        return found.embeddings, found.valid

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
            delay: int64 [B], leading actions of each sample that are given without noise, at time 0 (training-time
                real-time chunking, Black et al. 2025); their loss is 0. None: none.

        Returns:
            float32 [B, chunk, dim].
        """
        observed = self.observe(images, image_masks, tokens, token_masks)
        times = time[:, None].expand(actions.shape[:2])
        clean = None
        if delay is not None:
            clean = torch.arange(actions.shape[1], device=delay.device) < delay[:, None]  # [B, chunk]
            times = torch.where(clean, 0.0, times)
        noisy = noisy_actions(actions[:, :, None], noise[:, :, None], times).squeeze(2)
        predicted, _ = self.compute(observed, noisy[:, None], time[:, None] if clean is None else times[:, None], state)
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
            noise: float32 [B, chunk, dim]; or [B, N, chunk, dim] for N candidates that share one cache.
            steps: Euler steps, at least 1.

        Returns:
            float32, in the shape of `noise`: normalized actions.
        """
        observed = self.observe(images, image_masks, tokens, token_masks)
        candidates = noise.shape[1] if noise.ndim == 4 else 1
        return euler(self.field(observed, state, candidates), noise.reshape(-1, *noise.shape[-2:]), steps).view_as(
            noise
        )

    # -- parts ----------------------------------------------------------------------------------------------------

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
            insulate: whether the gradient of the velocity stops at the tower's keys and values (Driess et al. 2025,
                "Knowledge Insulating Vision-Language-Action Models").
            hidden: whether to compute the tower's last layer and norm.
            packing: the tokens of prefix and tail that the tower computes; None: all, masked where they do not count.

        Returns:
            The velocity, float32 [B, N, chunk, dim], and the tower's tokens [B, P + L, width], 0 where packing left
            them out; None where not asked.
        """
        suffix = condition = None
        count = 0
        if noisy is not None:
            assert time is not None
            count = noisy.shape[1]
            suffix, condition = self._suffix(noisy.flatten(0, 1), time.flatten(0, 1), state, count)
        plan = self._plan(observed, suffix, count, insulate, packing)
        padded = observed.embeddings
        tokens: Tensor | None = padded
        slots = None if packing is None else to_device(packing.slots, padded.device)
        if slots is not None:
            tokens = padded.flatten(0, 1)[slots][None]
        for number, layer in enumerate(self.layers):
            last = number == len(self.layers) - 1
            tokens, suffix, _ = layer(tokens, suffix, plan, condition, keys_only=last and not hidden)
        found = None if suffix is None or noisy is None else self._velocity(suffix, condition, noisy)
        if tokens is None or not hidden:
            return found, None
        tokens = self.vlm_norm(tokens)[0]
        if slots is not None:
            tokens = torch.zeros_like(padded).flatten(0, 1).index_copy(0, slots, tokens[0]).view_as(padded)
        return found, tokens

    def integrate(self, observed: Observation, state: Tensor | None, noise: Tensor, steps: int = 10) -> Tensor:
        """Sample actions of an embedded batch; see `sample`."""
        candidates = noise.shape[1] if noise.ndim == 4 else 1
        start = noise.reshape(-1, *noise.shape[-2:])
        return euler(self.field(observed, state, candidates), start, steps).view_as(noise)

    def field(
        self, observed: Observation, state: Tensor | None = None, candidates: int = 1
    ) -> Callable[[Tensor, Tensor], Tensor]:
        """Run the tower, keep its keys and values, and return the velocity as a function that runs the expert alone.

        Args:
            observed: prefix (and response).
            state: of pi0.
            candidates: N, chunks of each sample.

        Returns:
            (x [B * N, chunk, dim], time [B * N] or [B * N, chunk]) -> velocity, float32 in the shape of x. The chunks
            of a sample are consecutive.
        """
        plan = self._plan(observed, None, candidates, False, None)
        tokens: Tensor | None = observed.embeddings
        caches: list[Cache | None] = []
        for number, layer in enumerate(self.layers):
            tokens, _, cache = layer(tokens, None, plan, keys_only=number == len(self.layers) - 1)
            caches.append(cache)

        def velocity_at(x: Tensor, time: Tensor) -> Tensor:
            suffix, condition = self._suffix(x, time, state, candidates)
            steps = self._plan(observed, suffix, candidates, False, None)._replace(tower=None)
            for layer, cache in zip(self.layers, caches):
                _, suffix, _ = layer(None, suffix, steps, condition, cache)
            return self._velocity(suffix, condition, x)

        return velocity_at

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
        (batch, cameras), count = images.shape[:2], self.sizes.vision.tokens
        self._check_images(images, frames)
        check_shape("tokens", tokens, (batch, None))
        for name, given, length in (("image", image_masks, cameras), ("token", token_masks, tokens.shape[1])):
            if given is not None:
                check_shape(f"{name}_masks", given, (batch, length))
        seen = self._present(images.flatten(0, 1), image_masks, _join(frames)).view(
            batch, cameras * count, self.sizes.vlm.width
        )
        text = self._embed(tokens if token_masks is None else torch.where(token_masks, tokens, 0))
        shown = None if image_masks is None else to_device(image_masks, tokens.device).repeat_interleave(count, dim=1)
        parts, marks = [seen, text], [shown, token_masks]
        if states is not None:
            known = torch.where(states.valid[..., None], states.values, 0.0)
            parts.insert(1, rows(self.proprio_history_proj, known.float()).to(self.dtype))
            marks.insert(1, states.valid)
        lengths = tuple(part.shape[1] for part in parts)
        mask = key_mask(*marks, lengths=lengths, batch=batch, device=tokens.device)
        valid = torch.ones(batch, sum(lengths), dtype=torch.bool, device=tokens.device)
        return Observation(
            torch.cat(parts, dim=1), valid if mask is None else mask[:, 0, 0], sum(lengths), 0, mask is None
        )

    def with_tail(self, observed: Observation, tail: Tail) -> Observation:
        """Append text to predict to a prefix."""
        tokens = self._embed(torch.where(tail.masks, tail.tokens, 0))
        return observed._replace(
            embeddings=torch.cat([observed.embeddings, tokens], dim=1),
            valid=torch.cat([observed.valid, tail.masks], dim=1),
            response=tail.response,
        )

    def _check_images(self, images: Tensor, frames: Frames | None) -> None:
        side, times = self.sizes.vision.image, () if frames is None else (len(frames.times),)
        check_shape("images", images, (None, None, *times, 3, side, side))
        if frames is not None and frames.valid is not None:
            check_shape("valid frames", frames.valid, tuple(images.shape[:3]))

    def _present(self, images: Tensor, masks: Tensor | None, frames: Frames | None) -> Tensor:
        """Encode the images [M, ...] that a mask [B, cameras] marks: [M, tokens, width], 0 for the others."""
        if not len(images):  # a policy without cameras
            return images.new_zeros(0, self.sizes.vision.tokens, self.sizes.vlm.width, dtype=self.dtype)
        if masks is None:
            return self._encode(images, frames)
        with host_values():
            where = to_device(masks.flatten().nonzero()[:, 0], images.device)
        count = len(where)
        # Without any image one black image is encoded and dropped: every rank uses the same weights in each step.
        shown = images[where] if count else images.new_zeros(1, *images.shape[1:])
        if frames is not None and frames.valid is not None:
            frames = frames._replace(valid=frames.valid[where] if count else None)
        found = self._encode(shown, frames)[:count]
        return found.new_zeros(len(images), *found.shape[1:]).index_copy(0, where, found)

    def _encode(self, images: Tensor, frames: Frames | None) -> Tensor:
        found: Tensor = self.projector(self.vision(images, self.dtype, frames))
        return found

    def _embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens [B, L] as [B, L, width]; Gemma scales them by the root of the width."""
        return (self.embedding(tokens).to(self.dtype).float() * math.sqrt(self.sizes.vlm.width)).to(self.dtype)

    def _plan(
        self, observed: Observation, suffix: Tensor | None, candidates: int, insulate: bool, packing: Packing | None
    ) -> Plan:
        length = None if suffix is None else suffix.shape[1]
        rest = (length, candidates, not self.sizes.adaptive, insulate, self.sizes.vlm.head_dim)
        if packing is not None:
            return packed_plan(packing, *rest, observed.valid.device, self.dtype)
        return padded_plan(observed.valid, observed.full, observed.prefix, observed.response, *rest)

    def _suffix(self, x: Tensor, time: Tensor, state: Tensor | None, candidates: int) -> tuple[Tensor, Tensor | None]:
        """Embed noisy actions [B * N, chunk, dim]: tokens [B * N, T, width], and the condition of adaptive norms."""
        check_shape("noisy actions", x, (len(time), None, self.sizes.dim))
        action = rows(self.action_in_proj, x.float())
        spread = time_features(time, self.sizes.expert.width)  # [B * N, width] or [B * N, chunk, width]
        if self.sizes.adaptive:
            condition = F.silu(rows(self.time_mlp_out, F.silu(rows(self.time_mlp_in, spread))))
            return action.to(self.dtype), condition
        if state is None:
            raise ValueError("state is None: a pi0 network (adaptive=False) needs the state [B, dim]")
        beside = torch.cat([action, spread[:, None].expand_as(action) if spread.ndim == 2 else spread], dim=2)
        mixed = rows(self.action_time_mlp_out, F.silu(rows(self.action_time_mlp_in, beside)))
        first = self.state_proj(state.float()).repeat_interleave(candidates, dim=0)[:, None]
        return torch.cat([first, mixed], dim=1).to(self.dtype), None

    def _velocity(self, suffix: Tensor, condition: Tensor | None, like: Tensor) -> Tensor:
        """Read the velocity, float32 in the shape of `like`, from the expert's last tokens."""
        actions = suffix[:, -like.shape[-2] :]
        return rows(self.action_out_proj, self.expert_norm(actions, condition)[0].float()).view_as(like)


def _join(frames: Frames | None) -> Frames | None:
    """Join batch and cameras of the marks, as of the images."""
    return frames if frames is None or frames.valid is None else frames._replace(valid=frames.valid.flatten(0, 1))
