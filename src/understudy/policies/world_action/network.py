"""Context tower and stream tower of the world-action model, in the layers of pi0.5 (`pi05/gemma.py`).

    instruction, keypoints of the images, state -> one token -+
    patches of the present images ----------------------------+-> context tower --- keys, values of each layer
                                                                                              |
    noisy actions | noisy states | noisy patches of future images -> stream tower <-----------+ -> one head per stream

Each stream has its own flow time, which the adaptive norms of its tokens read. The head of the images predicts the
clean patches instead of the velocity: a patch has more numbers than a token, so that a token cannot hold its noise (Li
& He 2025, "Back to Basics: Let Denoising Generative Models Denoise").
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.common.layers import Linear, sinusoids, zero_init
from understudy.policies.common.task_modes import DYNAMICS, FLOW, IMAGES
from understudy.policies.flow.text import TextEncoder
from understudy.policies.flow.vision import ImageEncoder, as_network_input
from understudy.policies.pi05.attention import Plan, key_mask, rotary
from understudy.policies.pi05.gemma import AdaRMSNorm, PairLayer
from understudy.policies.pi05.sizes import TowerSizes
from understudy.policies.world_action.config import WorldActionConfig
from understudy.policies.world_action.patches import to_patches

TIME_FEATURES = 64


class Context:
    """Embedded observation of a batch: `tokens` [B, C, width] and `valid` bool [B, C], None where all are valid."""

    def __init__(self, tokens: Tensor, valid: Tensor | None) -> None:
        """Hold both."""
        self.tokens, self.valid = tokens, valid


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
        self.in_proj = nn.ModuleDict({name: Linear(dim, width) for name, (_, dim) in self.streams.items()})
        self.slots = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(count, width) * 0.5) for name, (count, _) in self.streams.items()}
        )
        self.time = nn.ModuleDict({name: Linear(TIME_FEATURES, width) for name in self.streams})
        sizes = TowerSizes(
            width=width,
            depth=config.layers,
            mlp_dim=2 * width,
            num_heads=config.heads,
            num_kv_heads=config.heads,
            head_dim=width // config.heads,
        )
        self.layers = nn.ModuleList(PairLayer(sizes, sizes, adaptive=True) for _ in range(config.layers))
        self.norm = AdaRMSNorm(width)
        self.out_proj = nn.ModuleDict({name: zero_init(Linear(width, dim)) for name, (_, dim) in self.streams.items()})
        for module in self.modules():
            if isinstance(module, AdaRMSNorm):  # fresh layers of the stream tower are the identity
                zero_init(module.dense)

    @property
    def streams(self) -> dict[str, tuple[int, int]]:
        """Stream -> its number of tokens and their width."""
        config = self.config
        found = {FLOW: (config.chunk, config.action_dim)}
        if config.future:
            found[DYNAMICS] = (config.chunk, config.state_dim)
        if config.imagined:
            count = config.imagined * len(config.cameras) * config.patches
            found[IMAGES] = (count, 3 * config.future_patch**2)
        return found

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
            return Context(fused, None)
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
        return Context(torch.cat([fused, patches.flatten(1, 2)], dim=1), valid)

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
        tokens = torch.cat(
            [self.in_proj[name](points[name].to(dtype)) + self.slots[name].to(dtype) for name in self.streams], dim=2
        ).flatten(0, 1)
        spread = [
            F.silu(self.time[name](sinusoids(times[name], TIME_FEATURES).to(dtype)))[:, :, None].expand(
                -1, -1, count, -1
            )
            for name, (count, _) in self.streams.items()
        ]
        condition = torch.cat(spread, dim=2).flatten(0, 1)
        plan = self._plan(context, tokens, draws)
        seen: Tensor | None = context.tokens
        stream: Tensor | None = tokens
        for number, layer in enumerate(self.layers):
            seen, stream, _ = layer(seen, stream, plan, condition, keys_only=number == len(self.layers) - 1)
        assert stream is not None
        found = self.norm(stream, condition)[0].unflatten(0, (-1, draws))
        parts = found.split([count for count, _ in self.streams.values()], dim=2)
        return {name: self.out_proj[name](part).float() for name, part in zip(self.streams, parts)}

    def _plan(self, context: Context, tokens: Tensor, draws: int) -> Plan:
        batch, length = context.tokens.shape[:2]
        count, device = tokens.shape[1], tokens.device
        at = torch.arange(length + count, device=device)[None]
        dim = self.config.width // self.config.heads
        mask = key_mask(context.valid, None, lengths=(length, count), batch=batch, device=device)
        return Plan(
            tower=rotary(at[:, :length], dim),
            prefix_mask=None if context.valid is None else context.valid[:, None, None],
            tail_mask=None,
            suffix=rotary(at[:, length:], dim),
            suffix_mask=None if mask is None else mask.repeat_interleave(draws, dim=0),
            prefix=length,
            seen=length,
            candidates=draws,
            insulate=False,
        )


def _stacked(missing: Sequence[Tensor | None], batch: int, device: torch.device) -> Tensor | None:
    """Stack marks of cameras to bool [B, cameras]; None where no sample lacks any."""
    if all(each is None for each in missing):
        return None
    none: Any = torch.zeros(batch, dtype=torch.bool, device=device)
    return torch.stack([none if each is None else each for each in missing], dim=1)
