"""Settings and config of the policy type `lerobot-diffusion`: LeRobot's Diffusion Policy. No torch, no lerobot."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from understudy.policies.lerobot.settings import RECORDED, ColorSettings, LerobotConfig, too_small
from understudy.policies.registry import PolicyType


@dataclass(frozen=True, kw_only=True)
class LerobotDiffusionSettings(ColorSettings):
    """LeRobot's Diffusion Policy, with LeRobot's names and defaults, except `use_group_norm`.

    The ResNets start with fresh weights; `init_from` starts from a folder of LeRobot.
    """

    THEIR_TYPE: ClassVar[str] = "diffusion"
    THEIR_CONFIG: ClassVar[str] = "lerobot.policies.diffusion.configuration_diffusion:DiffusionConfig"
    RUN_ONLY: ClassVar[tuple[str, ...]] = ("compute", "n_action_steps", "num_inference_steps")
    TORCH_ATTENTION: ClassVar[bool] = False
    NORMALIZE: ClassVar[Literal["mean_std", "min_max", "quantile"]] = "min_max"

    type: Literal["lerobot-diffusion"] = "lerobot-diffusion"
    """Type of the policy."""
    n_obs_steps: int = 2
    """Observations that the policy sees: the present one, and those of the control steps before it."""
    horizon: int = 64
    """Actions that the network predicts, from the first observation on; a multiple of 2 per number of `down_dims`. The
    chunk from the present on has `n_obs_steps` - 1 fewer, and is the default of `data.chunk_size`."""
    n_action_steps: int = 32
    """Actions that LeRobot executes of a chunk, stored in exported folders. `act` returns the whole chunk."""
    vision_backbone: Literal["resnet18", "resnet34", "resnet50"] = "resnet18"
    """ResNet of torchvision."""
    resize_shape: tuple[int, int] | None = None
    """Height and width to which the images are resized before they are cropped."""
    crop_ratio: float = 1.0
    """Share of `resize_shape` that is cropped; 1: no crop."""
    crop_shape: tuple[int, int] | None = None
    """Height and width of the crop without `resize_shape`."""
    crop_is_random: bool = True
    """Crop at random places in training, which the draws of each sample decide; otherwise at the center."""
    use_group_norm: bool = True
    """Normalize by groups of channels in the ResNets, as the paper does. False, which is LeRobot's default: batch
    normalization, whose stored statistics training leaves as they are."""
    spatial_softmax_num_keypoints: int = 32
    """Keypoints of each image."""
    use_separate_rgb_encoder_per_camera: bool = True
    """A ResNet for each camera."""
    down_dims: tuple[int, ...] = (512, 1024, 2048)
    """Channels of the stages of the U-Net; multiples of `n_groups`."""
    kernel_size: int = 5
    """Width of its convolutions, an odd number."""
    n_groups: int = 8
    """Groups of its normalizations."""
    diffusion_step_embed_dim: int = 128
    """Width of the embedded diffusion step, an even number of 4 or more."""
    use_film_scale_modulation: bool = True
    """Scale by the condition, too; False: add it alone."""
    noise_scheduler_type: Literal["DDPM", "DDIM"] = "DDPM"
    """Sampling: with new noise in each step, or without."""
    num_train_timesteps: int = 100
    """Diffusion steps of training."""
    beta_schedule: Literal["linear", "scaled_linear", "squaredcos_cap_v2"] = "squaredcos_cap_v2"
    """Course of the noise over the diffusion steps."""
    beta_start: float = 0.0001
    """Variance of the first step's noise; `squaredcos_cap_v2` has its own."""
    beta_end: float = 0.02
    """Variance of the last step's noise."""
    prediction_type: Literal["epsilon", "sample"] = "epsilon"
    """Target of the network: the noise, or the actions."""
    clip_sample: bool = True
    """Clip the estimated actions in each step of sampling: normalized actions must lie in `clip_sample_range`."""
    clip_sample_range: float = 1.0
    """Range of `clip_sample`, from its negative to itself."""
    num_inference_steps: int | None = None
    """Steps of sampling; None: `num_train_timesteps`."""
    do_mask_loss_for_padding: bool = False
    """Leave actions beyond the episode out of the loss. False: copies of the last one are targets."""

    def deviation(self, steps: int) -> str:
        """Return the differences to LeRobot; see the base class."""
        return (
            "LeRobot's ResNets start with the weights of ImageNet and have batch normalization; here they are fresh, "
            "with group normalization unless policy.use_group_norm is off. LeRobot's Adam adds weight decay to the "
            "gradients"
        )

    @property
    def past_steps(self) -> int:
        """Control steps before the present that the policy sees."""
        return self.n_obs_steps - 1

    @property
    def past_actions(self) -> int:
        """Actions of the horizon before the present."""
        return self.n_obs_steps - 1

    @property
    def inference_steps(self) -> int:
        """Steps of sampling."""
        return self.num_inference_steps or self.num_train_timesteps

    def stored_chunk(self) -> int:
        """Return the default of `data.chunk_size`: the horizon from the present on."""
        return self.horizon - self.past_actions

    @classmethod
    def read_stored(cls, stored: Mapping[str, Any], normalized: Mapping[str, Any]) -> dict[str, Any]:
        """Return colors and chunk; see `LerobotSettings.read_stored`."""
        chunk = int(stored.get("horizon", cls.horizon)) - int(stored.get("n_obs_steps", cls.n_obs_steps)) + 1
        return {**super().read_stored(stored, normalized), "chunk": chunk}

    def problems(self) -> list[str]:
        """List the rules that the values break, one line each."""
        counts = ("n_obs_steps", "horizon", "n_action_steps", "spatial_softmax_num_keypoints", "num_train_timesteps")
        found = [*super().problems(), *too_small(self, (*counts, "kernel_size", "n_groups"))]
        stages = 2 ** len(self.down_dims)
        if self.horizon % stages or self.horizon < self.n_obs_steps:
            more = max(-(-max(self.horizon, self.n_obs_steps) // stages), 1) * stages
            found.append(f"horizon: {self.horizon}: must be a multiple of {stages} for down_dims; set {more}")
        if not self.down_dims or any(dim < 1 or dim % max(1, self.n_groups) for dim in self.down_dims):
            found.append(f"down_dims: {self.down_dims}: must be multiples of n_groups, {self.n_groups}")
        elif self.down_dims[0] % 8:
            found.append(
                f"down_dims: {self.down_dims}: the first must be a multiple of 8, the groups of the last layer"
            )
        if not 1 <= self.n_action_steps <= max(1, self.stored_chunk()):
            most = self.stored_chunk()
            found.append(f"n_action_steps: {self.n_action_steps}: must be at most horizon - n_obs_steps + 1, {most}")
        if self.kernel_size % 2 == 0:
            found.append(f"kernel_size: {self.kernel_size}: must be odd")
        if self.diffusion_step_embed_dim < 4 or self.diffusion_step_embed_dim % 2:
            found.append(f"diffusion_step_embed_dim: {self.diffusion_step_embed_dim}: must be even, and at least 4")
        if not 0 < self.crop_ratio <= 1:
            found.append(f"crop_ratio: {self.crop_ratio}: must be above 0 and at most 1")
        if self.num_inference_steps is not None and not 1 <= self.num_inference_steps <= self.num_train_timesteps:
            most = self.num_train_timesteps
            found.append(f"num_inference_steps: {self.num_inference_steps}: must be from 1 to {most}")
        for name in ("resize_shape", "crop_shape"):
            shape = getattr(self, name)
            if shape is not None and (len(shape) != 2 or min(shape) < 1):
                found.append(f"{name}: {shape}: must be height and width")
        crop = None if self.resize_shape is not None else self.crop_shape
        known = tuple(self.image_size) != RECORDED
        if crop is not None and known and any(want > have for want, have in zip(crop, self.image_size)):
            found.append(f"crop_shape: {crop}: must fit into image_size, {self.image_size}")
        return found


@dataclass(frozen=True)
class LerobotDiffusionConfig(LerobotDiffusionSettings, LerobotConfig):
    """Config of a `LerobotDiffusion`: the run's settings and the facts of its data."""

    def their_fields(self) -> dict[str, Any]:
        """Return the fields of `DiffusionConfig` that are no settings."""
        return {"pretrained_backbone_weights": None, "device": "cpu"}

    def fact_problems(self) -> list[str]:
        """List the rules that the facts of the data break, one line each."""
        found = super().fact_problems()
        if self.chunk != (wanted := self.stored_chunk()):
            found.append(
                f"chunk: {self.chunk}: must be policy.horizon - policy.n_obs_steps + 1, {wanted}; leave out "
                f"data.chunk_size, or set policy.horizon to {self.chunk + self.past_actions}"
            )
        return found


LEROBOT_DIFFUSION = PolicyType(
    LerobotDiffusionSettings, LerobotDiffusionConfig, "understudy.policies.lerobot.diffusion:LerobotDiffusion"
)
