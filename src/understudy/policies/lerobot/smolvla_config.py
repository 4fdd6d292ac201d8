"""Settings and config of the policy type `lerobot-smolvla`: LeRobot's SmolVLA. No torch, no lerobot."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from understudy.policies.lerobot.settings import IDENTITY, LerobotConfig, LerobotSettings, too_small
from understudy.policies.lerobot.smolvla_start import stored_values, taken_values
from understudy.policies.registry import PolicyType


@dataclass(frozen=True, kw_only=True)
class LerobotSmolvlaSettings(LerobotSettings):
    """LeRobot's SmolVLA, with LeRobot's names and defaults.

    `weights` starts from the network of a folder such as LeRobot's `smolvla_base`, with the normalization of the data;
    `init_from` also takes the folder's normalization. Without both, all weights are fresh.
    """

    THEIR_TYPE: ClassVar[str] = "smolvla"
    THEIR_CONFIG: ClassVar[str] = "lerobot.policies.smolvla.configuration_smolvla:SmolVLAConfig"
    RUN_ONLY: ClassVar[tuple[str, ...]] = (
        *("compute", "cameras", "chunk", "image_size", "resize_imgs_with_padding"),
        *("vlm_model_name", "tokenizer_max_length", "pad_language_to", "num_steps", "weights"),
    )
    START_FILES: ClassVar[Mapping[str, tuple[str, ...]]] = {"weights": ("*.json", "model*.safetensors")}
    START_CHECK: ClassVar[str] = "understudy.policies.lerobot.smolvla_start:check_start"
    AT_START: ClassVar[tuple[str, ...]] = ("freeze_vision_encoder", "train_expert_only", "train_state_proj")
    RESIZE: ClassVar[str] = "understudy.policies.lerobot.smolvla:resize_image"
    TORCH_ATTENTION: ClassVar[bool] = False
    RESIZED: ClassVar[str] = "aspect ratio kept, black on the left and on top"

    type: Literal["lerobot-smolvla"] = "lerobot-smolvla"
    """Type of the policy."""
    weights: str = ""
    """Network to start from: the folder of a SmolVLA of LeRobot or understudy, or the id of a hub repository. Settings
    that have their default take the folder's value, apart from frozen parts. The normalization is that of the data."""
    image_size: tuple[int, int] = (480, 640)
    """Height and width of the images in LeRobot's config; the network takes images of any size."""
    vlm_model_name: str = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
    """Folder, or repository of the hub, with config, tokenizer and processor of the vision-language model. Its weights
    are not read."""
    resize_imgs_with_padding: tuple[int, int] | None = (512, 512)
    """Width and height to which images are resized with their aspect ratio kept, padded left and on top with black."""
    max_state_dim: int = 32
    """Width to which states are padded."""
    max_action_dim: int = 32
    """Width to which actions are padded."""
    tokenizer_max_length: int = 48
    """Longest instruction in tokens; longer ones are cut."""
    pad_language_to: Literal["longest", "max_length"] = "longest"
    """Length to which instructions are padded: that of the batch's longest, or `tokenizer_max_length`."""
    num_steps: int = 10
    """Integration steps of `act`."""
    freeze_vision_encoder: bool = True
    """Train no weights of the vision encoder."""
    train_expert_only: bool = True
    """Train no weights of the vision-language model: the action expert and the projections alone."""
    train_state_proj: bool = True
    """Train the projection of the state."""
    add_image_special_tokens: bool = False
    """Put special tokens around the tokens of an image."""
    attention_mode: Literal["cross_attn", "self_attn"] = "cross_attn"
    """Attention of the expert to the vision-language model."""
    prefix_length: int = -1
    """Length to which images, instruction and state are padded; -1: none."""
    num_expert_layers: int = -1
    """Layers of the expert; -1: as many as of the vision-language model."""
    num_vlm_layers: int = 16
    """Layers of the vision-language model that are used, the first ones; -1: all."""
    self_attn_every_n_layers: int = 2
    """With `cross_attn`, every n-th layer has self-attention; -1: none."""
    expert_width_multiplier: float = 0.75
    """Width of the expert as a share of the vision-language model's."""
    min_period: float = 4e-3
    """Shortest period of the embedded flow time."""
    max_period: float = 4.0
    """Longest period of the embedded flow time."""

    @property
    def network_size(self) -> tuple[int, int]:
        """Height and width of the images that the network computes with."""
        size = self.resize_imgs_with_padding
        return self.image_size if size is None else (size[1], size[0])

    def resolved(self) -> Self:
        """Return the settings with the absolute paths of `vlm_model_name` and `weights`, where these exist."""
        there = {name: getattr(self, name) for name in ("vlm_model_name", "weights")}
        paths = {name: os.path.abspath(path) for name, path in there.items() if os.path.exists(path)}
        return replace(super().resolved(), **paths)

    def started(self) -> Self:
        """Return the settings of a new run: those with their default as the folder `weights` has them.

        Raises:
            ConfigError: its config is missing or damaged, or of another type.
        """
        return replace(self, **taken_values(self))

    def stored_chunk(self) -> int | None:
        """Return the actions per chunk of `weights`; None: there are none."""
        return stored_values(self).get("chunk")

    @classmethod
    def read_stored(cls, stored: Mapping[str, Any], normalized: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chunk; see `LerobotSettings.read_stored`."""
        plain = {"n_obs_steps": 1, "empty_cameras": 0, "adapt_to_pi_aloha": False}
        for name, value in plain.items():
            if stored.get(name, value) != value:
                raise ValueError(f"{name}: {stored[name]}: {cls.type} has {value} alone")
        if normalized != IDENTITY:
            raise ValueError(f"normalization_mapping: VISUAL: {cls.type} normalizes no images")
        return {"chunk": stored.get("chunk_size", 50)}

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        counts = ("max_state_dim", "max_action_dim", "tokenizer_max_length", "num_steps")
        found = [*super().problems(), *too_small(self, counts)]
        if not self.vlm_model_name:
            found.append("vlm_model_name: '': must name a folder, or a repository of the hub")
        for name in ("image_size", "resize_imgs_with_padding"):
            size = getattr(self, name)
            if size is not None and (len(size) != 2 or min(size) < 1):
                found.append(f"{name}: {size}: must be two numbers of at least 1")
        if not self.expert_width_multiplier > 0:
            found.append(f"expert_width_multiplier: {self.expert_width_multiplier}: must be above 0")
        if not 0 < self.min_period < self.max_period:
            found.append(f"min_period: {self.min_period}: must be above 0 and below max_period, {self.max_period}")
        if self.num_expert_layers > 0 and self.num_vlm_layers > 0 and self.num_vlm_layers % self.num_expert_layers:
            layers = self.num_vlm_layers
            found.append(f"num_expert_layers: {self.num_expert_layers}: must divide num_vlm_layers, {layers}")
        return found


@dataclass(frozen=True)
class LerobotSmolvlaConfig(LerobotSmolvlaSettings, LerobotConfig):
    """Config of a `LerobotSmolvla`: the run's settings and the facts of its data."""

    def their_fields(self) -> dict[str, Any]:
        """Return the fields of `SmolVLAConfig` that are no settings."""
        steps = {"n_obs_steps": 1, "chunk_size": self.chunk, "n_action_steps": self.chunk}
        return {**steps, "load_vlm_weights": False, "device": "cpu"}

    def their_steps(self) -> list[tuple[str, dict[str, Any]]]:
        """Return the steps of the preprocessor that make tokens of the instruction."""
        tokens = {
            "max_length": self.tokenizer_max_length,
            "task_key": "task",
            "padding_side": "right",
            "padding": self.pad_language_to,
            "truncation": True,
            "tokenizer_name": self.vlm_model_name,
        }
        return [("smolvla_new_line_processor", {}), ("tokenizer_processor", tokens)]

    def fact_problems(self) -> list[str]:
        """List the rules that the facts of the data break, one line each."""
        found = super().fact_problems()
        for name in ("state_dim", "action_dim"):
            width, most = getattr(self, name), getattr(self, f"max_{name}")
            if width > most:
                found.append(f"{name}: {width}: the network takes up to {most}; set policy.max_{name}")
        return found


LEROBOT_SMOLVLA = PolicyType(
    LerobotSmolvlaSettings, LerobotSmolvlaConfig, "understudy.policies.lerobot.smolvla:LerobotSmolvla"
)
