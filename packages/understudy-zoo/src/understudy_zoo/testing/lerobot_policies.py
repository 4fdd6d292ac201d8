"""Small policies of LeRobot for the tests of the adapters, and LeRobot's own trainer on the batches
of a run.

LeRobot itself is imported by `their_losses` alone, and transformers by `write_vlm`.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from understudy import policy_type
from understudy.testing.runs import tiny_config
from understudy_kit import override
from understudy_zoo.lerobot.settings import (
    LerobotActConfig,
    LerobotDiffusionConfig,
    LerobotSmolvlaConfig,
)

CAMERA = "observation.images.top"
NORMALIZATION = {
    "heads": [""],
    "action": {"offset": [[1.0, 2.0]], "spread": [[0.5, 0.0]]},
    "observation.state": {"offset": [[0.0, 1.0, 2.0]], "spread": [[1.0, 2.0, 0.0]]},
    "delta": [[False, False]],
}
MOVING = NORMALIZATION | {"action": {"offset": [[1.0, 2.0]], "spread": [[0.5, 3.0]]}}
"""A normalization in which every dimension of the action varies."""
SMALL: dict[str, Any] = {
    "image_size": (32, 40),
    "pretrained_backbone_weights": None,
    "dim_model": 16,
    "n_heads": 2,
    "dim_feedforward": 16,
    "n_encoder_layers": 1,
    "n_vae_encoder_layers": 1,
    "latent_dim": 4,
}
SMALL_DIFFUSION: dict[str, Any] = {
    "image_size": (32, 40),
    "horizon": 8,
    "n_action_steps": 4,
    "spatial_softmax_num_keypoints": 4,
    "down_dims": (16, 32),
    "n_groups": 4,
    "diffusion_step_embed_dim": 8,
    "num_train_timesteps": 10,
}
SMALL_SMOLVLA: dict[str, Any] = {
    "image_size": (32, 40),
    "resize_imgs_with_padding": (32, 32),
    "max_state_dim": 5,
    "max_action_dim": 4,
    "num_vlm_layers": 2,
    "num_steps": 3,
}
FACTS: dict[str, Any] = {"action_dim": 2, "state_dim": 3, "cameras": (CAMERA,)}


def grouped(kind: type[Any], values: dict[str, Any]) -> dict[str, Any]:
    """Arguments of `kind`: names that it has not are fields of LeRobot's config."""
    names = {own.name for own in fields(kind)}
    theirs = {name: value for name, value in values.items() if name not in names}
    return {name: value for name, value in values.items() if name in names} | {"config": theirs}


def settings_of(kind: type[Any], small: dict[str, Any] | None = None, **changes: Any) -> Any:
    """Settings of `kind`; fields of LeRobot's config are arguments, too."""
    return kind(**grouped(kind, (small or {}) | changes))


def config(**changes: Any) -> LerobotActConfig:
    return LerobotActConfig(**grouped(LerobotActConfig, SMALL | FACTS | {"chunk": 4} | changes))


def diffusion_config(**changes: Any) -> LerobotDiffusionConfig:
    values = SMALL_DIFFUSION | changes
    chunk = values["horizon"] - values.get("n_obs_steps", 2) + 1
    return LerobotDiffusionConfig(
        **grouped(LerobotDiffusionConfig, FACTS | {"chunk": chunk} | values)
    )


def small_settings(name: str) -> Any:
    """Settings of a small policy of the type `name`."""
    sizes = {
        "lerobot-act": SMALL,
        "lerobot-diffusion": SMALL_DIFFUSION,
        "lerobot-smolvla": SMALL_SMOLVLA,
    }
    return settings_of(policy_type(name).settings, sizes[name])


def smolvla_config(vlm: Path | str, **changes: Any) -> LerobotSmolvlaConfig:
    values = FACTS | SMALL_SMOLVLA | {"vlm_model_name": str(vlm), "chunk": 4} | changes
    return LerobotSmolvlaConfig(**grouped(LerobotSmolvlaConfig, values))


def write_vlm(folder: Path) -> Path:
    """Write the files of a tiny SmolVLM, without weights: config, tokenizer of bytes, processor."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        SmolVLMConfig,
        SmolVLMImageProcessor,
        SmolVLMProcessor,
    )
    from transformers.models.smolvlm.video_processing_smolvlm import SmolVLMVideoProcessor

    special = [
        "<|endoftext|>",
        "<fake_token_around_image>",
        "<image>",
        "<global-img>",
        "<end_of_utterance>",
    ]
    names = ("fake_image_token", "image_token", "global_image_token", "end_of_utterance_token")
    words = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    plain = Tokenizer(
        models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[])
    )
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ends = dict.fromkeys(("pad_token", "eos_token", "bos_token", "unk_token"), special[0])
    named = dict(zip(names, special[1:], strict=True))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=plain, extra_special_tokens=named, **ends)
    text = {
        "model_type": "llama", "vocab_size": len(words), "hidden_size": 16, "intermediate_size": 16,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8,
        "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    vision |= {"image_size": 32, "patch_size": 8}
    config = SmolVLMConfig(
        text_config=text, vision_config=vision, scale_factor=2, image_token_id=2, pad_token_id=0
    )
    config.save_pretrained(folder)
    SmolVLMProcessor(SmolVLMImageProcessor(), tokenizer, SmolVLMVideoProcessor()).save_pretrained(
        folder
    )
    return folder


def batch_of(count: int, slots: int = 4, times: int = 0, seed: int = 0) -> dict[str, Any]:
    """A batch of `slots` actions; `times`: observations per sample, 0 for no dimension of time."""
    generator = torch.Generator().manual_seed(seed)
    time = (times,) if times else ()
    found = {
        CAMERA: torch.randint(
            0, 256, (count, *time, 3, 32, 40), dtype=torch.uint8, generator=generator
        ),
        "observation.state": torch.randn(count, *time, 3, generator=generator),
        "task": ["lift"] * count,
        "action": torch.randn(count, slots, 2, generator=generator),
        "action_is_pad": torch.arange(slots) >= slots - torch.arange(count)[:, None] % 3,
    }
    if times:
        is_pad = torch.zeros(count, times, dtype=bool)
        found |= {f"{CAMERA}_is_pad": is_pad, "observation.state_is_pad": is_pad}
    return found


def run_config(data: Path, out: Path, policy: Any, **changes: Any) -> Any:
    """Four steps of a policy with LeRobot's optimizer, without augmentation."""
    base = tiny_config(data, out)
    settings = {
        "policy": policy,
        "data": {"chunk_size": policy.stored_chunk() or base.data.chunk_size},
        "optim": {
            "lr": 1e-4,
            "beta2": 0.999,
            "weight_decay_of": {"*": 1e-4},
            "grad_clip_norm": 10.0,
            "ema": {"decay": 0.0},
        },
        "schedule": {"kind": "constant", "warmup_steps": 0},
        "steps": 4,
        "checkpoint": {"every": 2},
        "val": {"every": 2},
        "augment": {"shift": 0, "text_dropout": 0.0},
    }
    return replace(override(base, **settings), **changes)


class Recorder:
    """Batches and draws of the training steps of a run, and the weights before the first one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[Any], drawn: str) -> None:
        """Record the losses of policies of `kind` whose draws have `drawn`, as those of training
        do.
        """
        self.batches: list[dict[str, Any]] = []
        self.draws: list[dict[str, torch.Tensor]] = []
        self.weights: dict[str, torch.Tensor] = {}
        losses = kind.losses

        def noted(policy: Any, batch: Any, draws: Any, *args: Any, **kwargs: Any) -> Any:
            if drawn in draws and policy.training:
                if not self.weights:
                    self.weights = {
                        name: value.clone() for name, value in policy.state_dict().items()
                    }
                copied = dict(batch)
                for key, value in batch.items():
                    if isinstance(value, torch.Tensor):
                        copied[key] = value.clone()
                self.batches.append(copied)
                self.draws.append({name: value.clone() for name, value in draws.items()})
            return losses(policy, batch, draws, *args, **kwargs)

        monkeypatch.setattr(kind, "losses", noted)


def their_losses(
    policy: Any,
    folder: Path,
    seen: Recorder,
    inside: Callable[[dict[str, torch.Tensor]], Any],
    size: tuple[int, int] | None = None,
) -> list[float]:
    """Train LeRobot's policy by its own step and processor on recorded batches, and return its
    losses.

    Args:
        policy: with the first weights.
        folder: with its processors.
        seen: batches and draws.
        inside: draws -> context in which a step is computed.
        size: height and width to which images are resized, where LeRobot's policy resizes none
            itself.
    """
    from accelerate import Accelerator
    from lerobot.processor import PolicyProcessorPipeline
    from lerobot.processor.converters import batch_to_transition, transition_to_batch
    from lerobot.scripts.lerobot_train import update_policy
    from lerobot.utils.logging_utils import AverageMeter, MetricsTracker

    name = "policy_preprocessor.json"
    convert = {"to_transition": batch_to_transition, "to_output": transition_to_batch}
    before = PolicyProcessorPipeline.from_pretrained(folder, name, **convert)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, weight_decay=1e-4)
    accelerator = Accelerator(cpu=True)
    tracker = MetricsTracker(
        4, 51, 6, {n: AverageMeter(n) for n in ("loss", "grad_norm", "lr", "update_s")}
    )
    found = []
    for own, draws in zip(seen.batches, seen.draws, strict=True):
        images: dict[str, torch.Tensor] = {}
        for key in policy.config.image_features:
            images[key] = own[key].float() / 255
            if size is not None:
                small = torch.nn.functional.interpolate(
                    images[key].flatten(0, -4), size=size, mode="area"
                )
                images[key] = small.view(*own[key].shape[:-2], *size)
        with inside(draws):
            tracker, _ = update_policy(
                tracker, policy, before({**own, **images}), optimizer, 10.0, accelerator=accelerator
            )
        found.append(tracker.loss.val)
    return found
