"""LeRobot's Diffusion Policy as a `Policy`.

LeRobot's horizon begins at the first of the observations that the policy sees, `n_obs_steps` - 1
control steps before the present: training reads those actions too (`Past.actions`), and `act`
returns the chunk from the present on.
"""

from collections.abc import Collection
from functools import partial

import torch
from torch import Tensor, nn

from understudy import Draws, Loss, RandomSpec, Use, masked_squared_error, valid_elements
from understudy_base import ACTION, STATE, Batch, Record, optional_imports
from understudy_zoo.lerobot.adapter import GivenNoise, LerobotPolicy, build_errors
from understudy_zoo.lerobot.settings import LerobotDiffusionConfig

DIFFUSION = "diffusion"
VALIDATION_DRAWS = 4
"""Noises and diffusion steps per sample of a validation; they share one pass over the images."""


class LerobotDiffusion(LerobotPolicy):
    """LeRobot's Diffusion Policy. `LerobotDiffusion(config, normalization)` has fresh weights from
    torch's generator.

    `diffusion` is the network, with LeRobot's names of parameters. The draws of a batch decide
    noise, diffusion step and crop of each sample in training, and the noise of each step in `act`.
    """

    config: LerobotDiffusionConfig
    validation_draws = VALIDATION_DRAWS

    def __init__(self, config: LerobotDiffusionConfig, normalization: Record) -> None:
        """Build the network; arguments and errors: see `LerobotPolicy`."""
        super().__init__(config, normalization)
        with optional_imports():
            import diffusers  # noqa: F401  # without it LeRobot raises another error
            from lerobot.policies.diffusion.modeling_diffusion import DiffusionModel

        with build_errors():
            self.diffusion = DiffusionModel(config.theirs)
        scheduler = self.diffusion.noise_scheduler
        # Copies of the policy share its constants: their tensors are no buffers, and a plan cannot
        # copy them.
        scheduler.__deepcopy__ = lambda memo: scheduler
        self._crop_size: tuple[int, int] | None = config.theirs.crop_shape
        separate = config.theirs.use_separate_rgb_encoder_per_camera
        encoders = list(self.diffusion.rgb_encoder) if separate else [self.diffusion.rgb_encoder]
        self._resize = encoders[0].resize
        for encoder in encoders:  # resizing and cropping are ours: each sample has its own crop
            encoder.resize = None
            encoder.do_crop = False

    @property
    def inference_steps(self) -> int:
        """Steps of sampling."""
        return int(self.config.theirs.num_inference_steps or self.config.theirs.num_train_timesteps)

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Name of the loss term: `diffusion`."""
        return (DIFFUSION,)

    def blocks(self) -> list[nn.Module]:
        """Residual blocks of the U-Net."""
        from lerobot.policies.diffusion.modeling_diffusion import (
            DiffusionConditionalResidualBlock1d,
        )

        return [
            module
            for module in self.diffusion.unet.modules()
            if isinstance(module, DiffusionConditionalResidualBlock1d)
        ]

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """Noise, diffusion step and crop for a loss; to act the first noise and, with DDPM, that of
        each step.
        """
        theirs = self.config.theirs
        count = VALIDATION_DRAWS if use == "validation" else 1
        shape = (theirs.horizon, self.config.action_dim)
        if use == "act":
            spec = {"noise": RandomSpec("normal", shape)}
            if theirs.noise_scheduler_type == "DDPM" and self.inference_steps > 1:
                spec["step noise"] = RandomSpec("normal", (self.inference_steps - 1, *shape))
            return spec
        spec = {
            "noise": RandomSpec("normal", (count, *shape)),
            "timestep": RandomSpec(
                "uniform", (count,), partial(spread_steps, count=theirs.num_train_timesteps)
            ),
        }
        if use == "train" and theirs.crop_is_random and self._crop_size is not None:
            spec["crop"] = RandomSpec("uniform", (len(self.config.cameras), 2))
        return spec

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample, int64 [B]; those of padding too, without a mask
        of the loss.
        """
        dim_is_pad = self.normalizer.dim_is_pad(ACTION, batch)
        shape = draws["timestep"].shape[1], self.config.action_dim
        return {DIFFUSION: valid_elements(self._is_pad(batch), *shape, dim_is_pad)}

    def losses(
        self, batch: Batch, draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss]:
        """Squared error of the predicted noise, or of the predicted actions (`prediction_type`);
        see `Policy.losses`.

        Args:
            batch: see `Policy`; `action` is [B, horizon, A], from `past_steps` before the present
                on.
            draws: "noise" [B, D, horizon, A], "timestep" int64 [B, D], and in training "crop" [B,
                cameras, 2].
            terms: see `Policy.losses`.
            detail: see `Policy.losses`.
        """
        if terms is not None and DIFFUSION not in terms:
            return {}
        batch = self._with_history(batch)
        actions = self.actions(batch)
        theirs = self.config.theirs
        shape = (None, theirs.horizon, self.config.action_dim)
        self.check_shape(ACTION, actions, shape)
        noise = draws["noise"]
        steps = draws["timestep"]
        self.check_shape("noise", noise, (len(actions), *shape))
        dim_is_pad = self.normalizer.dim_is_pad(ACTION, batch)
        clean = actions[:, None].expand_as(noise)
        noisy = self.diffusion.noise_scheduler.add_noise(
            clean.flatten(0, 1), noise.flatten(0, 1), steps.flatten()
        )
        noisy = self.normalizer.blank(ACTION, batch, noisy.view_as(noise))
        condition = self._condition(batch, draws.get("crop")).repeat_interleave(noise.shape[1], 0)
        predicted = self.diffusion.unet(noisy.flatten(0, 1), steps.flatten(), global_cond=condition)
        target = noise if theirs.prediction_type == "epsilon" else clean
        predicted = predicted.float().view_as(noise)
        return {
            DIFFUSION: masked_squared_error(
                predicted, target, self._is_pad(batch), dim_is_pad, detail
            )
        }

    @torch.no_grad()
    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Sample actions, float32 [B, T, A] in the robot's units, in `num_inference_steps` of the
        config, not `steps`.

        Args:
            batch: see `Policy`.
            draws: "noise" [B, horizon, A] and, with DDPM, "step noise" [B, steps - 1, horizon, A].
            steps: has no effect.
            mode: "policy".
        """
        batch = self._with_history(batch)
        condition = self._condition(batch, None)
        scheduler = self.diffusion.noise_scheduler
        x = self.normalizer.blank(ACTION, batch, draws["noise"])
        scheduler.set_timesteps(self.inference_steps)
        later = draws["step noise"].unbind(1) if "step noise" in draws else ()
        with GivenNoise(*later):
            for step in scheduler.timesteps:
                steps_of_batch = torch.full((len(x),), int(step), device=x.device)
                predicted = self.diffusion.unet(x, steps_of_batch, global_cond=condition)
                x = scheduler.step(predicted, step, x).prev_sample
                x = self.normalizer.blank(ACTION, batch, x)
        return self.normalizer.robot_actions(x[:, self.config.past_steps :].float(), batch)

    def _with_history(self, batch: Batch) -> Record:
        """Return the batch with the present state under its key, and all states under
        `STATE_HISTORY`, [B, n, S].
        """
        if self.config.past_steps:
            states = {**batch, STATE: self.filled(batch, STATE)}
            return self.split_states(states, self.config.past_steps + 1)
        return {**batch, self.STATE_HISTORY: self.value_of(batch, STATE)[:, None]}

    def _is_pad(self, batch: Batch) -> Tensor:
        """Slots that count nothing, bool [B, horizon]."""
        is_pad: Tensor = self.value_of(batch, f"{ACTION}_is_pad")
        return is_pad if self.config.theirs.do_mask_loss_for_padding else torch.zeros_like(is_pad)

    def _condition(self, batch: Batch, crop: Tensor | None) -> Tensor:
        """Condition of the U-Net, float32 [B, C]; `crop` [B, cameras, 2] in [0, 1) decides the
        crops; None: center.
        """
        views = []
        for number, camera in enumerate(self.config.cameras):
            images = self.normal_images(batch, camera)  # [B, (n,) 3, H, W]
            images = images if images.ndim == 5 else images[:, None]
            images = images if self._resize is None else self._resize(images)
            crop_of_camera = None if crop is None else crop[:, number]
            views.append(cropped(images, self._crop_size, crop_of_camera))
        states = self.normalizer.states(batch, batch[self.STATE_HISTORY])
        inputs = {STATE: states, "observation.images": torch.stack(views, dim=2)}
        condition: Tensor = self.diffusion._prepare_global_conditioning(inputs)
        return condition


def spread_steps(uniform: Tensor, count: int) -> Tensor:
    """Map uniform draws [B, D] to diffusion steps, int64 [B, D] in [0, count), one of D intervals
    for each draw.
    """
    draws = uniform.shape[1]
    return ((torch.arange(draws) + uniform) / draws * count).long().clamp(max=count - 1)


def cropped(images: Tensor, size: tuple[int, int] | None, places: Tensor | None) -> Tensor:
    """Crop images.

    Args:
        images: [B, n, 3, H, W].
        size: height and width; None: the images are not cropped.
        places: float32 [B, 2] in [0, 1), top and left of each sample as a share of the free room;
            None: the center.
    """
    if size is None:
        return images
    free = [have - want for have, want in zip(images.shape[-2:], size)]
    if places is None:
        top, left = (round(room / 2) for room in free)  # as torchvision's
        return images[..., top : top + size[0], left : left + size[1]]
    rows, columns = (
        (places[:, axis] * (room + 1)).long().clamp(max=room)[:, None]
        + torch.arange(want, device=images.device)
        for axis, (room, want) in enumerate(zip(free, size))
    )
    samples = torch.arange(len(images), device=images.device)[:, None, None]
    # [B, h, w, n, 3] before
    return images[samples, :, :, rows[:, :, None], columns[:, None]].permute(0, 3, 4, 1, 2)
