"""Settings and config of the policy type `lerobot-act`: LeRobot's ACT. Neither torch nor lerobot is imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from understudy.policies.lerobot.settings import NO_WEIGHTS, ColorSettings, LerobotConfig, too_small
from understudy.policies.registry import PolicyType


@dataclass(frozen=True, kw_only=True)
class LerobotActSettings(ColorSettings):
    """LeRobot's ACT, with LeRobot's names and defaults.

    The ResNet starts with the weights of ImageNet; `init_from` starts from a folder of LeRobot.
    """

    THEIR_TYPE: ClassVar[str] = "act"
    THEIR_CONFIG: ClassVar[str] = "lerobot.policies.act.configuration_act:ACTConfig"
    AT_START: ClassVar[tuple[str, ...]] = ("pretrained_backbone_weights",)
    START_CHECK: ClassVar[str] = "understudy.policies.lerobot.backbone:check_backbone"

    type: Literal["lerobot-act"] = "lerobot-act"
    """Type of the policy."""
    vision_backbone: Literal["resnet18", "resnet34", "resnet50"] = "resnet18"
    """ResNet of torchvision."""
    pretrained_backbone_weights: str = "ResNet18_Weights.IMAGENET1K_V1"
    """Weights of torchvision from which the ResNet of a new run starts; they are fetched unless torch has them in its
    cache. `none`: fresh weights."""
    replace_final_stride_with_dilation: bool = False
    """Replace the last stride of the ResNet by a dilation."""
    pre_norm: bool = False
    """Normalize before each block of the transformers, not behind it."""
    dim_model: int = 512
    """Width of the transformers."""
    n_heads: int = 8
    """Heads of attention; they divide `dim_model`."""
    dim_feedforward: int = 3200
    """Width inside the feed-forward layers."""
    feedforward_activation: Literal["relu", "gelu", "glu"] = "relu"
    """Activation of the feed-forward layers."""
    n_encoder_layers: int = 4
    """Layers of the encoder."""
    n_decoder_layers: int = 1
    """Layers of the decoder."""
    use_vae: bool = True
    """Train with a latent variable, encoded from the actions."""
    latent_dim: int = 32
    """Width of the latent variable."""
    n_vae_encoder_layers: int = 4
    """Layers of the encoder of the latent variable."""
    dropout: float = 0.1
    """Share of values that are dropped in training; the draws follow from the position of the sample."""
    kl_weight: float = 10.0
    """Weight of the divergence of the latent variable, the loss term `kl`."""

    @classmethod
    def read_stored(cls, stored: Mapping[str, Any], normalized: Mapping[str, Any]) -> dict[str, Any]:
        """Return colors and chunk; see `LerobotSettings.read_stored`."""
        if stored.get("n_obs_steps", 1) != 1 or stored.get("temporal_ensemble_coeff") is not None:
            raise ValueError("n_obs_steps, temporal_ensemble_coeff: lerobot-act has one observation and no ensemble")
        dilated = bool(stored.get("replace_final_stride_with_dilation", False))  # an int in LeRobot
        chunk = {"chunk": stored.get("chunk_size", 100), "replace_final_stride_with_dilation": dilated}
        chunk["pretrained_backbone_weights"] = NO_WEIGHTS  # the folder has weights
        return {**super().read_stored(stored, normalized), **chunk}

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        counts = ("dim_model", "n_heads", "dim_feedforward", "n_encoder_layers", "n_decoder_layers", "latent_dim")
        found = [*super().problems(), *too_small(self, counts)]
        if self.n_heads > 0 and self.dim_model % (2 * self.n_heads):
            found.append(f"dim_model: {self.dim_model}: must be a multiple of twice n_heads, {2 * self.n_heads}")
        net = self.pretrained_backbone_weights.partition("_")[0].lower()
        if net not in (self.vision_backbone, NO_WEIGHTS):
            rule = f"vision_backbone is {self.vision_backbone}; give weights of it, or {NO_WEIGHTS}"
            found.append(f"pretrained_backbone_weights: {self.pretrained_backbone_weights}: {rule}")
        if not 0 <= self.dropout < 1:
            found.append(f"dropout: {self.dropout}: must be at least 0 and less than 1")
        return found


@dataclass(frozen=True)
class LerobotActConfig(LerobotActSettings, LerobotConfig):
    """Config of a `LerobotAct`: the run's settings and the facts of its data."""

    def their_fields(self) -> dict[str, Any]:
        """Return the fields of `ACTConfig` that are no settings."""
        steps = {"n_obs_steps": 1, "chunk_size": self.chunk, "n_action_steps": self.chunk}
        return {**steps, "pretrained_backbone_weights": None, "device": "cpu"}


LEROBOT_ACT = PolicyType(LerobotActSettings, LerobotActConfig, "understudy.policies.lerobot.act:LerobotAct")
