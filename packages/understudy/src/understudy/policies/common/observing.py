"""One vector from the images, the state and the instruction of a sample."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import check_image, check_shape, prompts_of, value_of
from understudy.policies.common.encoders import ImageEncoder, TextEncoder, byte_tokens
from understudy.policies.common.layers import Linear
from understudy.policies.common.streams import StreamPolicy
from understudy_base import STATE, Batch, Record


class ObservingPolicy(StreamPolicy):
    """Base class of the policies that see one vector, with a `config` of `EncoderSettings` and
    `width`.
    """

    TASK_TOKENS: ClassVar[str] = "task_tokens"
    """Key of a batch with `task_tokens` in place of the instructions, for graphs."""

    def __init__(self, config: Any, normalization: Record) -> None:
        """Build the encoders; arguments and errors are those of `StreamPolicy`."""
        super().__init__(config, normalization)
        width = config.width
        self.text = TextEncoder(config.text_bytes, 64, width)
        sizes = (
            len(config.cameras),
            config.image_size,
            config.channels,
            config.blocks,
            config.keypoints,
        )
        self.vision = ImageEncoder(*sizes, condition=width) if config.cameras else None
        seen = len(config.cameras) * 2 * config.keypoints
        self.fuse = Linear(seen + config.state_dim + width, width)
        self.fuse2 = Linear(width, width)

    def float32_modules(self) -> list[nn.Module]:
        """The layer of the text encoder whose output is a phase in radians."""
        return [self.text.out]

    def task_tokens(self, prompts: Sequence[str]) -> Tensor:
        """Return the bytes of instructions as tokens, int64 [B, L]."""
        return byte_tokens(prompts, self.config.text_bytes)

    def observe(self, batch: Batch) -> Tensor:
        """Encode images, state and instruction: [B, width].

        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        dtype = getattr(torch, self.config.compute)
        prompts = batch.get(self.TASK_TOKENS)
        if prompts is None:
            prompts = prompts_of(batch)
        text_emb = self.text(prompts, dtype)  # [B, width]
        parts = [text_emb]
        if self.vision is not None:
            images = [value_of(batch, key) for key in self.config.cameras]
            missing: list[Tensor | None] = [
                batch.get(f"{key}_is_missing") for key in self.config.cameras
            ]
            for key, image, lacks in zip(self.config.cameras, images, missing):
                check_image(key, image, (text_emb.shape[0], 3, None, None))
                if lacks is not None:
                    check_shape(f"{key}_is_missing", lacks, (text_emb.shape[0],))
            parts.append(self.vision(images, text_emb, missing))
        if self.config.state_dim:
            state = value_of(batch, STATE)
            slots = (1 + self.config.chunk,) if self.config.future and state.ndim == 3 else ()
            check_shape(STATE, state, (text_emb.shape[0], *slots, self.config.state_dim))
            parts.append(self.normalizer.present_states(batch))
        return self.fuse2(F.gelu(self.fuse(torch.cat([part.to(dtype) for part in parts], dim=1))))
