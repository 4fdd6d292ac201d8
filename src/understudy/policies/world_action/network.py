"""Context tower and stream tower of the world-action model, in the layers of pi0.5 (`common/towers.py`).

    instruction, keypoints of the images, state -> one token -+
    patches of the present images ----------------------------+-> context tower --- keys, values of each layer
                                                                                              |
    noisy actions | noisy states | noisy patches of future images -> stream tower <-----------+ -> one head per stream

Each stream has its own flow time. The adaptive norms of its tokens read this time, the fused token and the whole chunks
of actions and states. A token of a future image also gets the present patch of its place. The head of the images
predicts the clean patches instead of the velocity: a patch has more numbers than a token, so that a token cannot hold
its noise (Li & He 2025, "Back to Basics: Let Denoising Generative Models Denoise"). It predicts new content and a mask
per pixel, which blends it into the present patch (Finn et al. 2016, "Unsupervised Learning for Physical Interaction
through Video Prediction"): most of a scene stays, and uncovered background is easy to draw.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import check_shape, value_of
from understudy.policies.common.encoders import ImageEncoder, TextEncoder, as_network_input
from understudy.policies.common.layers import Linear, sinusoids, zero_init
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.common.settings import DYNAMICS, FLOW, IMAGES, MODES, POLICY, TowerSizes
from understudy.policies.common.streams import Stream, read_stream, samples_given
from understudy.policies.common.towers import AdaRMSNorm, PairLayer, Plan, key_mask, rotary
from understudy.policies.world_action.config import WorldActionConfig


def to_patches(images: Tensor, side: int) -> Tensor:
    """Cut images [..., 3, H, W] into patches [..., P, 3 * side * side], row by row; `side` divides H and W."""
    rows = images.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))  # [..., 3, h, side, w, side]
    front = tuple(range(rows.ndim - 5))
    color, high, y, wide, x = range(rows.ndim - 5, rows.ndim)
    return rows.permute(*front, high, wide, color, y, x).flatten(-3).flatten(-3, -2)


def to_images(patches: Tensor, height: int, side: int) -> Tensor:
    """Join patches [..., P, 3 * side * side] to images [..., 3, height, W], the inverse of `to_patches`."""
    rows = patches.unflatten(-1, (3, side, side)).unflatten(-4, (height // side, -1))  # [..., h, w, 3, side, side]
    front = tuple(range(rows.ndim - 5))
    high, wide, color, y, x = range(rows.ndim - 5, rows.ndim)
    return rows.permute(*front, color, high, y, wide, x).flatten(-2).flatten(-3, -2)


CHANGE = 0.25
"""Unit of a change of a pixel in the stream of images; pixels are in -1..1."""


def stream_of(term: str, batch: Mapping[str, Any], config: WorldActionConfig, normalizer: Normalizer) -> Stream:
    """Read the target of a loss term from a training batch.

    Raises:
        ValueError: a missing key or a wrong shape, by name.
    """
    if term != IMAGES:
        return read_stream(term, batch, config, normalizer)
    clean, is_pad = _changes(batch, config)
    return Stream(torch.where(is_pad[..., None], 0.0, clean), is_pad, None, samples_given(term, batch, config))


def present(image: Tensor) -> Tensor:
    """The current image of a camera, uint8 [B, 3, H, W], of a window [B, 1 + K, 3, H, W] or of the image itself."""
    return image[:, 0] if image.ndim == 5 else image


def _changes(batch: Mapping[str, Any], config: WorldActionConfig) -> tuple[Tensor, Tensor]:
    """Changes of all cameras' future patches against the present ones [B, tokens, dim], and their padding."""
    changes, pads = [], []
    for camera in config.cameras:
        images, is_pad = value_of(batch, camera), value_of(batch, f"{camera}_is_pad")
        check_shape(camera, images, (None, 1 + config.imagined, 3, None, None))
        check_shape(f"{camera}_is_pad", is_pad, tuple(images.shape[:2]))
        is_pad = is_pad[:, 1:]
        lacks: Tensor | None = batch.get(f"{camera}_is_missing")
        if lacks is not None:
            is_pad = is_pad | lacks[:, None]
        pixels = as_network_input(images.flatten(0, 1), config.image_size, torch.float32).unflatten(0, images.shape[:2])
        patches = to_patches(pixels, config.future_patch)  # [B, 1 + K, P, dim]
        changes.append((patches[:, 1:] - patches[:, :1]) / CHANGE)
        pads.append(is_pad[..., None].expand(-1, -1, patches.shape[2]))
    return torch.stack(changes, dim=2).flatten(1, 3), torch.stack(pads, dim=2).flatten(1, 3)


def imagined_images(changes: Tensor, now: Sequence[Tensor], config: WorldActionConfig) -> Tensor:
    """Add predicted changes to the present images.

    Args:
        changes: float32 [B, tokens, dim], a sample of the stream of images.
        now: present images of each camera, uint8 [B, 3, H, W].
        config: config of the network.

    Returns:
        uint8 [B, K, cameras, 3, height, width] of the network's size.
    """
    height, width = config.image_size
    pixels = torch.stack([as_network_input(image, config.image_size, torch.float32) for image in now], dim=1)
    shape = (config.imagined, len(now), config.patches)
    change = to_images(changes.unflatten(1, shape) * CHANGE, height, config.future_patch)
    return (
        ((pixels[:, None] + change + 1) * 127.5)
        .round()
        .clamp(0, 255)
        .to(torch.uint8)
        .view(-1, *shape[:2], 3, height, width)
    )


def check_mode(mode: str, config: WorldActionConfig) -> None:
    """Raise ValueError for a mode that a network without a future does not have."""
    if mode not in MODES or (mode != POLICY and not config.future):
        names = ", ".join(MODES) if config.future else POLICY
        raise ValueError(f"mode {mode!r}: this policy has {names}; another `mode` of the run trains the future too")


TIME_FEATURES = 64
CLOSED = -2.0
"""Logit of a fresh mask: an imagined image starts near the present one."""


class Context(NamedTuple):
    """Embedded observation of a batch."""

    tokens: Tensor
    """[B, C, width]; the first is the fused one."""
    valid: Tensor | None
    """bool [B, C]; None where all are valid."""
    now: Tensor | None
    """float32 [B, cameras * P, 3 * side * side], present patches at the places of a future image, in -1..1; None
    without future images."""
    places: Tensor | None
    """[B, cameras * P, width], these patches embedded."""


class WorldActionNetwork(nn.Module):
    """The network as a function of normalized inputs."""

    config: WorldActionConfig

    def __init__(self, config: WorldActionConfig) -> None:
        """Build the network with fresh weights."""
        super().__init__()
        self.config = config
        width, cameras = config.width, len(config.cameras)
        self.text = TextEncoder(config.text_bytes, 64, width)
        self.vision = (
            ImageEncoder(cameras, config.image_size, config.channels, config.blocks, config.keypoints, condition=width)
            if cameras
            else None
        )
        self.fuse = Linear(cameras * 2 * config.keypoints + config.state_dim + width, width)
        self.fuse2 = Linear(width, width)
        if cameras:
            high, wide = (side // config.patch for side in config.image_size)
            self.patch_proj = Linear(3 * config.patch**2, width)
            self.patch_position = nn.Parameter(torch.randn(high * wide, width) * 0.02)
            self.camera = nn.Parameter(torch.randn(cameras, width) * 0.02)
        if config.imagined:
            self.place_proj = Linear(3 * config.future_patch**2, width)
        self.in_proj = nn.ModuleDict({name: Linear(dim, width) for name, (_, dim) in self.streams.items()})
        self.slots = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(count, width) * 0.5) for name, (count, _) in self.streams.items()}
        )
        self.time = nn.ModuleDict({name: Linear(TIME_FEATURES, width) for name in self.streams})
        chunks = {name: count * dim for name, (count, dim) in self.streams.items() if name != IMAGES}
        self.chunk_proj = nn.ModuleDict({name: Linear(numbers, width) for name, numbers in chunks.items()})
        sizes = TowerSizes(
            width=width,
            depth=config.layers,
            mlp_dim=2 * width,
            num_heads=config.heads,
            num_kv_heads=config.heads,
            head_dim=width // config.heads,
        )
        shared = [count for count, _ in self.streams.values()]  # the tokens of a stream share a flow time
        layers = [PairLayer(sizes, sizes, adaptive=True, shared=shared) for _ in range(config.layers)]
        layers[-1].drop_unread()
        self.layers = nn.ModuleList(layers)
        self.norm = AdaRMSNorm(width, shared)
        outputs = {name: dim for name, (_, dim) in self.streams.items()}
        if IMAGES in outputs:
            outputs[IMAGES] += config.future_patch**2  # the mask
        self.out_proj = nn.ModuleDict({name: zero_init(Linear(width, dim)) for name, dim in outputs.items()})
        for module in self.modules():
            if isinstance(module, AdaRMSNorm):  # fresh layers of the stream tower are the identity
                zero_init(module.dense)

    @property
    def streams(self) -> dict[str, tuple[int, int]]:
        """Stream -> its number of tokens and their width."""
        config = self.config
        streams = {FLOW: (config.chunk, config.action_dim)}
        if config.future:
            streams[DYNAMICS] = (config.chunk, config.state_dim)
        if config.imagined:
            count = config.imagined * len(config.cameras) * config.patches
            streams[IMAGES] = (count, 3 * config.future_patch**2)
        return streams

    def observe(
        self, texts: Sequence[str], images: Sequence[Tensor], missing: Sequence[Tensor | None], state: Tensor | None
    ) -> Context:
        """Embed an observation.

        Args:
            texts: B instructions.
            images: uint8 [B, 3, H, W] per camera.
            missing: bool [B] per camera, True where a sample lacks it; None: all samples have it.
            state: float32 [B, S], normalized; None: the robot has none.
        """
        config = self.config
        dtype = getattr(torch, config.compute)
        text = self.text(texts, dtype)
        parts = [text]
        if self.vision is not None:
            parts.append(self.vision(list(images), text, list(missing)).to(dtype))
        if state is not None:
            parts.append(state.to(dtype))
        fused = self.fuse2(F.gelu(self.fuse(torch.cat(parts, dim=1))))[:, None]
        if not images:
            return Context(fused, None, None, None)
        pixels = torch.stack([as_network_input(image, config.image_size, torch.float32) for image in images], dim=1)
        lacking = _stacked(missing, len(text), pixels.device)
        if lacking is not None:
            pixels = torch.where(lacking[:, :, None, None, None], 0.0, pixels)
        patches = self.patch_proj(to_patches(pixels, config.patch).to(dtype))  # [B, cameras, P, width]
        patches = patches + (self.patch_position + self.camera[:, None]).to(dtype)
        valid = None
        if lacking is not None:
            shown = (~lacking).repeat_interleave(patches.shape[2], dim=1)
            valid = torch.cat([torch.ones_like(shown[:, :1]), shown], dim=1)
        now = places = None
        if config.imagined:
            now = to_patches(pixels, config.future_patch).flatten(1, 2)
            places = self.place_proj(now.to(dtype))
        return Context(torch.cat([fused, patches.flatten(1, 2)], dim=1), valid, now, places)

    def predict(self, context: Context, points: Mapping[str, Tensor], times: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Predict each stream at points of its path.

        Args:
            context: of B samples.
            points: float32 [B, D, tokens, dim] of each stream.
            times: float32 [B, D] of each stream.

        Returns:
            float32 [B, D, tokens, dim] of each stream: velocities, and of the images clean patches.
        """
        dtype, draws = context.tokens.dtype, points[FLOW].shape[1]
        embedded = {
            name: self.in_proj[name](points[name].to(dtype)) + self.slots[name].to(dtype) for name in self.streams
        }
        if context.places is not None:
            embedded[IMAGES] = embedded[IMAGES] + context.places.repeat(1, self.config.imagined, 1)[:, None]
        tokens = torch.cat(list(embedded.values()), dim=2).flatten(0, 1)
        spread = [self.time[name](sinusoids(times[name], TIME_FEATURES).to(dtype)) for name in self.streams]
        chunks = sum(project(points[name].flatten(2).to(dtype)) for name, project in self.chunk_proj.items())
        common = context.tokens[:, :1] + chunks  # [B, D, width]
        condition = torch.stack(spread, dim=2) + common[:, :, None]  # [B, D, streams, width]
        condition = F.silu(condition).flatten(0, 1)
        plan = self._plan(context, tokens, draws)
        seen: Tensor | None = context.tokens
        stream: Tensor | None = tokens
        for number, layer in enumerate(self.layers):
            seen, stream, _ = layer(seen, stream, plan, condition, keys_only=number == len(self.layers) - 1)
        assert stream is not None
        result = self.norm(stream, condition)[0].unflatten(0, (-1, draws))
        parts = result.split([count for count, _ in self.streams.values()], dim=2)
        predicted = {name: self.out_proj[name](part).float() for name, part in zip(self.streams, parts)}
        if context.now is not None:
            predicted[IMAGES] = self._changed(predicted[IMAGES], context.now)
        return predicted

    def _changed(self, output: Tensor, now: Tensor) -> Tensor:
        """Blend new content into the present patches by a mask per pixel: the change of each patch, in `CHANGE`."""
        pixels = self.config.future_patch**2
        content, logits = output.split([3 * pixels, pixels], dim=-1)
        mask = torch.sigmoid(logits + CLOSED).repeat(1, 1, 1, 3)
        return mask * (content - now.repeat(1, self.config.imagined, 1)[:, None]) / CHANGE

    def _plan(self, context: Context, tokens: Tensor, draws: int) -> Plan:
        batch, length = context.tokens.shape[:2]
        count, device = tokens.shape[1], tokens.device
        places = torch.arange(length + count, device=device)[None]
        dim = self.config.width // self.config.heads
        mask = key_mask(context.valid, None, lengths=(length, count), batch=batch, device=device)
        return Plan(
            tower=rotary(places[:, :length], dim),
            prefix_mask=None if context.valid is None else context.valid[:, None, None],
            tail_mask=None,
            suffix=rotary(places[:, length:], dim),
            suffix_mask=None if mask is None else mask.repeat_interleave(draws, dim=0),
            prefix=length,
            seen=length,
            candidates=draws,
            insulate=False,
        )


def _stacked(missing: Sequence[Tensor | None], batch: int, device: torch.device) -> Tensor | None:
    """Stack marks of cameras to bool [B, cameras]; None where no sample lacks any."""
    if all(mask is None for mask in missing):
        return None
    none: Any = torch.zeros(batch, dtype=torch.bool, device=device)
    return torch.stack([none if mask is None else mask for mask in missing], dim=1)
