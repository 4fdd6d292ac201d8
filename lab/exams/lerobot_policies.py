"""LeRobot's tests of real-time chunking, normalization, memory and moving averages, on the
arithmetic of understudy.

Their classes around it stay: `RTCProcessor` and the steps of a processor. Weights of their small
vision towers are copied into `VisionEncoder`. Names that the installed release lacks are those of
their main branch.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lerobot.configs import default
from lerobot.policies.pi05 import configuration_pi05, modeling_pi05
from lerobot.policies.rtc import modeling_rtc
from lerobot.processor import normalize_processor
from torch import nn

from shared import accept_our_refusals, explain
from understudy.config.train import EmaConfig
from understudy.policies.common.flow_matching import guidance_weights, guided_velocity
from understudy.policies.common.normalizer import Affine, Normalizer
from understudy.policies.inference import RobotPolicy
from understudy.policies.losses import masked_squared_error
from understudy.policies.observation_history import ObservationHistory
from understudy.policies.pi05.config import Pi05PolicyConfig, VisionSizes
from understudy.policies.pi05.network import Attention, Frames, VisionEncoder, time_encoding
from understudy.policies.pi05.normalization import _maps
from understudy.policies.pi05.targets import noisy_chunks
from understudy_base import ACTION, STATE, ConfigError
from understudy_kit import validate

accept_our_refusals()


class RTCProcessor(modeling_rtc.RTCProcessor):
    """Weights and velocity of guided sampling."""

    def get_prefix_weights(self, start: int, end: int, total: int) -> torch.Tensor:
        schedule = self.rtc_config.prefix_attention_schedule.value.lower()
        horizon = min(end, total)
        return guidance_weights(total, min(start, horizon), horizon, schedule)

    def denoise_step(
        self,
        x_t: torch.Tensor,
        prev_chunk_left_over: torch.Tensor | None,
        inference_delay: int,
        time: torch.Tensor,
        original_denoise_step_partial: Any,
        execution_horizon: int | None = None,
    ) -> torch.Tensor:
        if prev_chunk_left_over is None:
            return original_denoise_step_partial(x_t)
        noisy, previous = (x[None] if x.ndim < 3 else x for x in (x_t, prev_chunk_left_over))
        length = noisy.shape[1]
        given = previous.shape[1]
        horizon = min(execution_horizon or self.rtc_config.execution_horizon, given)
        weights = self.get_prefix_weights(inference_delay, horizon, length)[None, :, None]
        chunk = torch.nn.functional.pad(previous, (0, 0, 0, length - given))
        t = float(time)
        most = self.rtc_config.max_guidance_weight
        factor = most if t == 1 else min(most, t / (1 - t) * (t**2 + (1 - t) ** 2) / t**2)
        velocity = guided_velocity(
            lambda x, _: original_denoise_step_partial(x), noisy, t, chunk, weights, factor
        )
        return velocity if x_t.ndim == 3 else velocity[0]


def apply_transform(
    self: Any, values: torch.Tensor, key: str, feature_type: Any, *, inverse: bool = False
) -> torch.Tensor:
    """Normalize by the offset and spread that a processor file of LeRobot with this step would
    give.
    """
    mode = self.norm_map.get(feature_type)
    if feature_type.value == "VISUAL" or mode is None or mode.value == "IDENTITY":
        return original_transform(self, values, key, feature_type, inverse=inverse)
    kind = ACTION if feature_type.value == "ACTION" else STATE
    figures = (
        {kind: {name: f.float().numpy() for name, f in self._tensor_stats[key].items()}}
        if (key in self._tensor_stats)
        else {}
    )
    config = {"norm_map": {feature_type.value: mode.value}, "features": {kind: {}}, "eps": self.eps}
    maps, _ = _maps(Path("policy_preprocessor.json"), {"config": config}, figures, (kind,))
    affine = Affine(**maps[kind])
    return (affine.unnormalize(values) if inverse else affine.normalize(values)).to(values.dtype)


original_transform = normalize_processor._NormalizationMixin._apply_transform
normalize_processor._NormalizationMixin._apply_transform = apply_transform
modeling_rtc.RTCProcessor = RTCProcessor


# -- memory


def encode_video_with_mem(
    tower: Any, video: torch.Tensor, frame_mask: torch.Tensor, temporal_attention_every: int
) -> torch.Tensor:
    """Encode frames with `VisionEncoder`, one second apart."""
    config = tower.config
    sizes = VisionSizes(
        width=config.hidden_size,
        depth=config.num_hidden_layers,
        mlp=config.intermediate_size,
        heads=config.num_attention_heads,
        patch=config.patch_size,
        image=config.image_size,
        temporal_every=temporal_attention_every,
    )
    encoder = VisionEncoder(sizes)
    names = {"embeddings.patch_embedding": "patch", "embeddings.position_embedding": "position"}
    weights = {}
    for name, value in tower.state_dict().items():
        for theirs, ours in (
            *names.items(),
            ("encoder.layers", "layers"),
            ("post_layernorm", "norm"),
        ):
            if name.startswith(theirs):
                weights[ours + name.removeprefix(theirs)] = value
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        raise ConfigError(str(error)) from error
    times = tuple(float(age) for age in range(1 - video.shape[1], 1))
    return encoder(video, torch.float32, Frames(times, frame_mask))


def causal_temporal_mask(frame_mask: torch.Tensor, **options: Any) -> torch.Tensor:
    assert frame_mask.shape[1] == 1
    return frame_mask[:, None, None]


def space_time_attention(attention: Any, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    ours = Attention(hidden.shape[-1], attention.num_heads)
    ours.load_state_dict(attention.state_dict())
    return ours(hidden.flatten(0, 1), mask).view(hidden.shape)


def temporal_sinusoidal_embedding(frames: int, width: int, **options: Any) -> torch.Tensor:
    return time_encoding(range(1 - frames, 1), width)


def windows(frames: int, stride: int) -> dict[str, tuple[float, ...]]:
    return {"camera": tuple(float(-age) for age in range((frames - 1) * stride, -1, -stride))}


def sample_observation_history(
    history: Sequence[torch.Tensor], *, num_frames: int, stride: int, steps_seen: int
) -> tuple[torch.Tensor, torch.Tensor]:
    ours = ObservationHistory(windows(num_frames, stride), fps=1)
    for value in history[-steps_seen:]:
        ours.add({"camera": value.numpy()})
    window = ours.windows()
    padded = torch.from_numpy(window["camera_is_pad"])
    values = torch.from_numpy(window["camera"]).transpose(0, 1)
    return values, padded.expand(len(values), -1)


class PI05Policy(nn.Module):
    """The history of observations of `RobotPolicy`."""

    _remember = RobotPolicy._remember

    def reset(self) -> None:
        self.metadata = {"fps": 1}
        self._histories = []
        self.policy = SimpleNamespace(config=SimpleNamespace())

    def _windows(self) -> dict[str, tuple[float, ...]]:
        return windows(self.config.memory_frames, self.config.memory_stride)

    def _stack_inference_memory(self, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        try:
            self._histories = self._remember({**batch, "task": [""] * len(batch["camera"])}, None)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        return {
            "camera": torch.from_numpy(
                np.stack([row.windows()["camera"] for row in self._histories])
            )
        }


# -- training with given actions


def _build_flow_matching_inputs(
    actions: torch.Tensor, noise: torch.Tensor, time: torch.Tensor, prefix_mask: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    width = actions.shape[-1]
    chunk = actions.shape[1]
    identity = Normalizer(
        {ACTION: {"offset": [0.0] * width, "spread": [1.0] * width}}, {ACTION: width}
    )
    batch = {ACTION: actions, f"{ACTION}_is_pad": torch.zeros(actions.shape[:2], dtype=torch.bool)}
    draws = {
        "flow noise": noise[:, None],
        "flow time": time[:, None],
        "flow delay": prefix_mask.sum(1),
    }
    config: Any = SimpleNamespace(chunk=chunk, action_dim=width)
    noisy, times, _ = noisy_chunks(batch, draws, config, identity, width)
    return noisy[:, 0], times[:, 0]


def _reduce_training_rtc_loss(
    losses: torch.Tensor, prefix_mask: torch.Tensor, reduction: str
) -> torch.Tensor:
    loss = masked_squared_error(
        losses.sqrt()[:, None], torch.zeros_like(losses)[:, None], prefix_mask
    )
    return loss.sum.sum() / loss.count.sum()


def pi05_config(chunk_size: int, n_action_steps: int, rtc_training_max_delay: int) -> None:
    """Check the largest delay of training."""
    facts = {"action_dim": 7, "state_dim": 7, "cameras": (), "chunk": chunk_size}
    try:
        Pi05PolicyConfig(**facts, size="tiny", max_delay=rtc_training_max_delay)
    except ValueError as error:
        raise ConfigError(str(error)) from error


class EMAConfig:
    """The settings that both have."""

    def __init__(self, decay: float = 0.0, power: float = 0.75, **others: Any) -> None:
        validate(EmaConfig, {"decay": decay, "power": power})


memory = ModuleType("lerobot.policies.pi05.memory")
for function in (
    causal_temporal_mask,
    encode_video_with_mem,
    sample_observation_history,
    space_time_attention,
    temporal_sinusoidal_embedding,
):
    setattr(memory, function.__name__, function)
sys.modules[memory.__name__] = memory
configuration_pi05.PI05Config = pi05_config
modeling_pi05.PI05Policy = PI05Policy
modeling_pi05._build_flow_matching_inputs = _build_flow_matching_inputs
modeling_pi05._reduce_training_rtc_loss = _reduce_training_rtc_loss
default.EMAConfig = EMAConfig

CONFIG = (
    "settings of their policy, and the keys of its datasets; here ages are in seconds (`history`)"
)
NETWORK = "layers of their network, or of transformers; ours has none of them"
TRACKER = "their trace of each step, or a helper of theirs; nothing is traced here"
JACOBIAN = (
    "the guidance goes through the Jacobian of the network, as in its paper; in theirs the "
    "velocity is a constant"
)
OWN = (
    "their file formats, containers and conversions, or images, which no statistics normalize here"
)
BFLOAT16 = "normalized values are float32 for any input; theirs take its dtype"
SETTING = "a setting of their average that ours lacks"
TRAINING = "their training script"
FAILURES = {
    "lerobot-policies": {
        **dict.fromkeys(
            ("test_get_prefix_weights_zeros_schedule", "test_get_prefix_weights_ones_schedule"),
            "guidance decays exponentially or linearly, and has no other schedule",
        ),
        **dict.fromkeys(
            (
                "test_denoise_step_with_prev_chunk",
                "test_denoise_step_uses_custom_execution_horizon",
            ),
            JACOBIAN,
        ),
        "test_quantile_with_missing_stats": "a normalization without statistics is refused; theirs "
        "changes nothing",
        **dict.fromkeys(
            (
                "test_dtype_adaptation_bfloat16_input_float32_normalizer",
                "test_dtype_adaptation_device_processor_bfloat16_normalizer_float32",
            ),
            BFLOAT16,
        ),
    },
    "lerobot-main": {
        "test_inference_history_order_and_padding": "padding repeats the first observation; theirs "
        "is in the queue",
        "test_inference_history_rejects_a_too_short_queue": "before the start of an episode all is "
        "padding, no error",
        "test_mem_rejects_temporal_interval_larger_than_vision_depth": "then the last layer "
        "attends to past frames",
        "test_proprioceptive_memory_removes_the_state_from_the_prompt": "a prompt without state is "
        "openpi's `plain`",
    },
}
SKIPS = {
    "lerobot-policies": {
        **dict.fromkeys(
            ("test_action_interpolator.py", "test_action_queue.py", "test_latency_tracker.py"),
            "their queue of actions; `AsyncChunks` asks the policy itself, and takes no chunks of "
            "others",
        ),
        "test_configuration_rtc.py": "their settings",
        "test_debug_tracker.py": TRACKER,
        "test_rtc_relative_actions.py": "their processors, loaded from their source",
        "test_denoise_step_guidance_weight_at_time_zero": "sampling ends with a step to time 0, "
        "and takes none from it",
        **dict.fromkeys(
            (
                "test_rtc_processor_initialization_with_debug",
                "test_rtc_processor_initialization_without_debug",
                "test_track_when_tracker_enabled",
                "test_track_when_tracker_disabled",
                "test_get_all_debug_steps_when_enabled",
                "test_get_all_debug_steps_when_disabled",
                "test_is_debug_enabled_when_tracker_exists",
                "test_is_debug_enabled_when_tracker_disabled",
                "test_reset_tracker_when_enabled",
                "test_reset_tracker_when_disabled",
                "test_linweights_with_end_equals_start",
                "test_linweights_with_end_less_than_start",
                "test_add_trailing_zeros_normal",
                "test_add_trailing_zeros_no_zeros_needed",
                "test_add_leading_ones_normal",
                "test_add_leading_ones_no_ones_needed",
                "test_denoise_step_tracks_debug_info",
                "test_denoise_step_doesnt_track_without_debug",
                "test_denoise_step_full_workflow",
            ),
            TRACKER,
        ),
        **dict.fromkeys(
            (
                "test_numpy_conversion",
                "test_tensor_conversion",
                "test_scalar_conversion",
                "test_list_conversion",
                "test_unsupported_type",
                "test_mean_std_normalization",
                "test_selective_normalization",
                "test_from_lerobot_dataset",
                "test_state_dict_save_load",
                "test_action_from_lerobot_dataset",
                "test_processor_from_lerobot_dataset",
                "test_get_config",
                "test_empty_observation",
                "test_empty_stats",
                "test_partial_stats",
                "test_missing_action_stats_no_error",
                "test_identity_config_serialization",
                "test_hotswap_stats_basic_functionality",
                "test_hotswap_stats_deep_copy",
                "test_hotswap_stats_only_affects_normalizer_steps",
                "test_hotswap_stats_empty_stats",
                "test_hotswap_stats_no_normalizer_steps",
                "test_hotswap_stats_preserves_other_attributes",
                "test_hotswap_stats_multiple_normalizer_types",
                "test_hotswap_stats_with_different_data_types",
                "test_unknown_observation_keys_ignored",
                "test_complementary_data_preservation",
                "test_stats_override_preservation_in_load_state_dict",
                "test_stats_without_override_loads_normally",
                "test_stats_explicit_provided_flag_detection",
                "test_stats_reconstruction_after_load_state_dict",
            ),
            OWN,
        ),
    },
    "lerobot-main": {
        **dict.fromkeys(
            (
                "test_pi05_memory_delta_indices_are_modality_specific",
                "test_delta_timestamps_respect_raw_robomme_rename_map",
                "test_pi05_memory_config_rejects_non_positive_values",
                "test_visual_memory_requires_a_matching_image_key",
            ),
            CONFIG,
        ),
        **dict.fromkeys(
            (
                "test_mem_drops_past_frames_after_the_last_temporal_layer",
                "test_mem_normalizes_tuple_encoder_layer_output",
                "test_proprioceptive_history_adds_one_masked_token_per_frame",
                "test_pi05_base_checkpoint_keeps_fresh_proprio_memory_projection",
                "test_pi05_expert_layer_accepts_per_action_time_conditioning",
                "test_pi05_expert_layer_per_action_time_matches_scalar_when_uniform",
            ),
            NETWORK,
        ),
        **dict.fromkeys(
            (
                "test_ema_config_defaults_match_the_reference",
                *(
                    f"test_ema_config_rejects_invalid_values[kwargs{number}]"
                    for number in (0, 1, 2, 3, 5, 8, 9)
                ),
                "test_ema_constant_decay_pins_the_schedule",
            ),
            SETTING,
        ),
        **dict.fromkeys(
            (
                "test_ema_config_cli_parsing",
                "test_ema_config_cli_parsing_constant_decay",
                "test_ema_weights_context_swaps_and_restores",
                "test_train_diffusion_with_ema_checkpoint_and_resume",
                "test_train_with_constant_ema_decay",
                "test_train_with_ema_and_gradient_accumulation",
                "test_train_without_ema_writes_no_ema_files",
            ),
            TRAINING,
        ),
    },
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    exam = (
        "lerobot-main" if any("test_ema" in item.nodeid for item in items) else "lerobot-policies"
    )
    explain(items, FAILURES[exam], SKIPS[exam])
