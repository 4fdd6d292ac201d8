"""Settings and config of the policy type `lerobot-act`: LeRobot's ACT. Neither torch nor lerobot is imported."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from understudy.policies.registry import PolicyConfig, PolicySettings, PolicyType

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class LerobotActSettings(PolicySettings):
    """LeRobot's ACT, with LeRobot's names and defaults.

    The ResNet starts with fresh weights; `init_from` starts from a folder of LeRobot.
    """

    FOLDER: ClassVar[str] = "understudy.policies.lerobot.folder:read_folder"
    FORMATS: ClassVar[Mapping[str, str]] = {"lerobot": "understudy.policies.lerobot.folder:describe_folder"}

    type: Literal["lerobot-act"] = "lerobot-act"
    """Type of the policy."""
    image_size: tuple[int, int] = (240, 320)
    """Height and width of the network's images; images of another size are area-averaged."""
    vision_backbone: Literal["resnet18", "resnet34", "resnet50"] = "resnet18"
    """ResNet of torchvision."""
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
    image_mean: tuple[float, ...] = IMAGENET_MEAN
    """Mean of the colors in 0..1 by which images are normalized, three numbers; ImageNet's, as LeRobot's default is."""
    image_std: tuple[float, ...] = IMAGENET_STD
    """Deviation of the colors."""

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        counts = ("dim_model", "n_heads", "dim_feedforward", "n_encoder_layers", "n_decoder_layers", "latent_dim")
        found = [f"{name}: {getattr(self, name)}: must be at least 1" for name in counts if getattr(self, name) < 1]
        if self.n_heads > 0 and self.dim_model % (2 * self.n_heads):
            found.append(f"dim_model: {self.dim_model}: must be a multiple of twice n_heads, {2 * self.n_heads}")
        if not 0 <= self.dropout < 1:
            found.append(f"dropout: {self.dropout}: must be at least 0 and less than 1")
        for name in ("image_mean", "image_std"):
            values = getattr(self, name)
            if len(values) != 3 or (name == "image_std" and min(values) <= 0):
                found.append(f"{name}: {values}: must be three numbers, deviations above 0")
        if len(self.image_size) != 2 or min(self.image_size) < 32:
            found.append(f"image_size: {self.image_size}: height and width must be at least 32")
        return found


@dataclass(frozen=True)
class LerobotActConfig(LerobotActSettings, PolicyConfig):
    """Config of a `LerobotAct`: the run's settings and the facts of its data."""

    def fact_problems(self) -> list[str]:
        """List the rules that the facts of the data break, one line each."""
        found = super().fact_problems()
        if self.compute != "float32":
            found.append(f"compute: {self.compute}: LeRobot's ACT computes in float32; set precision to fp32")
        if not self.cameras or not self.state_dim:
            found.append("cameras: lerobot-act needs a camera and a state")
        if self.future:
            found.append("future: True: lerobot-act predicts no states")
        return found


LEROBOT_ACT = PolicyType(LerobotActSettings, LerobotActConfig, "understudy.policies.lerobot.act:LerobotAct")
