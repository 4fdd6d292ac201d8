"""LeRobot's ACT as a `Policy`: normalization, random numbers and per-sample losses are ours, the
network is theirs.
"""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from understudy import Draws, Loss, RandomSpec, Use, valid_elements
from understudy_base import ACTION, STATE, Batch, ConfigError, Record, optional_imports
from understudy_zoo.lerobot.adapter import GivenNoise, LerobotPolicy, build_errors
from understudy_zoo.lerobot.settings import LerobotActConfig

L1 = "l1"
KL = "kl"
LATENT = "latent"
"""Name of the draws of the latent variable."""


class LerobotAct(LerobotPolicy):
    """LeRobot's ACT. `LerobotAct(config, normalization)` has fresh weights from torch's generator.

    `model` is the network, with LeRobot's names of parameters. Training takes the latent variable
    from the draws of a batch, and the masks of dropout from torch's generator, which a run keys;
    validation and `act` use neither, as LeRobot does.
    """

    config: LerobotActConfig

    @staticmethod
    def check_start(config: LerobotActConfig) -> None:
        """Fetch the weights of a new run's ResNet, if it has some; see `backbone_weights`."""
        backbone_weights(config.theirs.pretrained_backbone_weights)

    def __init__(self, config: LerobotActConfig, normalization: Record) -> None:
        """Build the network; arguments and errors: see `LerobotPolicy`."""
        super().__init__(config, normalization)
        with optional_imports():
            from lerobot.policies.act.modeling_act import ACT

        with build_errors():
            self.model = ACT(replace(config.theirs, pretrained_backbone_weights=None))

    def start_weights(self) -> Mapping[str, Tensor] | None:
        """Weights of a new run: those of the constructor, with those of ImageNet in the ResNet."""
        if not (backbone := backbone_weights(self.config.theirs.pretrained_backbone_weights)):
            return None
        return {
            name: backbone.get(name.removeprefix("model.backbone."), w)
            for name, w in self.state_dict().items()
        }

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the loss terms: `l1` of the actions and, with a latent variable, `kl`, times
        `kl_weight`.
        """
        return (L1, KL) if self.config.theirs.use_vae else (L1,)

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """In training the latent variable's noise; otherwise none."""
        if use != "train" or not self.config.theirs.use_vae:
            return {}
        return {LATENT: RandomSpec("normal", (self.config.theirs.latent_dim,))}

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample per loss term, int64 [B]; one of `kl` in
        training, else none.
        """
        is_pad = self.value_of(batch, f"{ACTION}_is_pad")
        counts = {
            L1: valid_elements(
                is_pad, 1, self.config.action_dim, self.normalizer.dim_is_pad(ACTION, batch)
            )
        }
        if self.config.theirs.use_vae:
            counts[KL] = torch.full_like(counts[L1], LATENT in draws)
        return counts

    def losses(
        self, batch: Batch, draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss]:
        """Absolute error of the normalized actions, and the divergence of the latent variable; see
        `Policy.losses`.

        In evaluation mode, or without its draws, the latent variable is 0, as when it acts, and
        `kl` has no elements.
        """
        actions = self.actions(batch)
        is_pad = self.value_of(batch, f"{ACTION}_is_pad")
        self.check_shape(ACTION, actions, (None, self.config.chunk, self.config.action_dim))
        counts = self.counts(batch, draws)
        inputs = self._inputs(batch)
        with self._mode(draws) as training:
            if training:
                inputs |= {ACTION: actions, f"{ACTION}_is_pad": is_pad}
            predicted, (mean, log_variance) = self.model(inputs)
        pad = self.normalizer.padded_elements(ACTION, batch)
        zero = torch.zeros((), device=actions.device)
        error = (torch.where(pad, zero, actions) - torch.where(pad, zero, predicted.float())).abs()
        losses = {L1: Loss(error.sum(dim=(1, 2)), counts[L1])}
        if self.config.theirs.use_vae:
            divergence = torch.zeros(len(actions), device=actions.device)
            if mean is not None:
                divergence = (-0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp())).sum(-1)
            losses[KL] = Loss(self.config.theirs.kl_weight * divergence, counts[KL])
        return {term: loss for term, loss in losses.items() if terms is None or term in terms}

    @torch.no_grad()
    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Predict actions, float32 [B, T, A] in the robot's units; it samples nothing, so `steps`
        has no effect.
        """
        self.model.eval()
        predicted, _ = self.model(self._inputs(batch))
        return self.normalizer.robot_actions(predicted.float(), batch)

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """Inputs of the network: normalized images and state."""
        images = [self.normal_images(batch, camera) for camera in self.config.cameras]
        state = self.normalizer.present_states(batch)
        return {"observation.images": images, STATE: state}

    @contextmanager
    def _mode(self, draws: Draws) -> Iterator[bool]:
        """Set the network to training or evaluation, and give it the draws; yields whether it
        trains.
        """
        has_latent = LATENT in draws
        trains = self.training and (has_latent or not self.config.theirs.use_vae)
        self.model.train(trains)
        given_noise = GivenNoise(draws[LATENT]) if trains and has_latent else nullcontext()
        with given_noise:
            yield trains


def backbone_weights(name: str | None) -> dict[str, Tensor]:
    """Return the state dict of torchvision's weights of this name; empty for None.

    Raises:
        ConfigError: there are no such weights, or they are neither in torch's cache nor to be
            fetched.
    """
    if name is None:
        return {}
    with optional_imports():
        from torchvision.models import get_weight

    setting = "policy.config: pretrained_backbone_weights"
    fix = "null, which trains the ResNet from fresh weights"
    try:
        weights = get_weight(name)
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"{setting}: {name}: torchvision has no such weights; give names of it, or {fix}"
        ) from error
    try:
        backbone: dict[str, Tensor] = weights.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        place = f"{torch.hub.get_dir()}/checkpoints/{weights.url.rpartition('/')[2]}"
        raise ConfigError(
            f"{setting}: {name} is not in torch's cache and cannot be fetched ({error}); put "
            f"{weights.url} at {place}, or give {fix}"
        ) from error
    return backbone
