"""The world-action model as a `Policy`: actions, and the states and images that follow, by flow matching.

Each stream has its own flow time; a stream that the task mode gives has time 0. So one network is a policy, a
model of the world (forward dynamics) and an inverse of it, as in Zhu et al. 2025, "Unified World Models".
"""

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from understudy.batch_keys import ACTION, MODE, STATE
from understudy.policies.batch import check_image, check_shape, prompts_of, value_of
from understudy.policies.common.flow_matching import shift_times, spread_times, velocity
from understudy.policies.common.normalizer import blanked, state_now
from understudy.policies.common.settings import DYNAMICS, FLOW, FORWARD, IMAGES, POLICY, TRAINS
from understudy.policies.common.streams import KEY_OF, VALIDATION_DRAWS, StreamPolicy
from understudy.policies.draws import Draws, RandomSpec, Use
from understudy.policies.losses import Imagined, Loss, masked_squared_error, valid_elements
from understudy.policies.world_action.config import WorldActionConfig
from understudy.policies.world_action.network import (
    Context,
    WorldActionNetwork,
    check_mode,
    imagined_images,
    present,
    stream_of,
)

IMAGE_SHIFT = 8.0
"""Shift of the flow times of images towards noise. A patch has hundreds of correlated pixels: at even times their noise
hides so little that the network would denoise instead of predicting."""
NOISE = {FLOW: "flow noise", DYNAMICS: "future noise", IMAGES: "image noise"}
"""Name of the noise of each stream."""


def image_times(uniform: Tensor) -> Tensor:
    """Flow times of images from uniform numbers [B, D], one per stratum."""
    return shift_times(spread_times(uniform), IMAGE_SHIFT)


class WorldActionPolicy(StreamPolicy):
    """World-action model. `WorldActionPolicy(config, normalization)` has fresh weights from torch's generator.

    For the keys of a batch see `Policy`. With `future`, training also needs `observation.state` [B, 1 + T, S], each
    camera uint8 [B, 1 + K, 3, H, W] with the future images behind the present one, `<key>_is_pad` of both, and `mode`
    int64 [B] unless all samples have mode "policy". To act, the present alone is enough.
    """

    forward_methods: ClassVar[tuple[str, ...]] = ("losses", "act", "imagine")
    config: WorldActionConfig

    def __init__(self, config: WorldActionConfig, normalization: Mapping[str, Any]) -> None:
        """Build the network.

        Args:
            config: see `WorldActionConfig`.
            normalization: see `policies/common/normalizer.py`.

        Raises:
            ValueError: an entry is missing, of the wrong width, or cannot be inverted.
        """
        super().__init__(config, normalization)
        self.network = WorldActionNetwork(config)

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the loss terms: `flow` of the actions; with a future `dynamics` of the states, `images`."""
        return tuple(self.network.streams)

    def blocks(self) -> list[nn.Module]:
        """Modules to recompute, compile and shard one by one."""
        vision = self.network.vision
        return [*(vision.blocks if vision is not None else ()), *self.network.layers]

    def float32_modules(self) -> list[nn.Module]:
        """The layer of the text encoder whose output is a phase in radians."""
        return [self.network.text.out]

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """Noise of each stream and flow times of D draws per sample, one time per stratum; to act one noise each.

        The strata of the future's times are paired with those of the actions at random.
        """
        draws = VALIDATION_DRAWS if use == "validation" else self.config.noise_samples
        shapes = {NOISE[term]: shape for term, shape in self.network.streams.items()}
        if use == "act":
            return {name: RandomSpec("normal", shape) for name, shape in shapes.items()}
        spec = {name: RandomSpec("normal", (draws, *shape)) for name, shape in shapes.items()}
        spec["flow time"] = RandomSpec("uniform", (draws,), spread_times)
        for term in self.loss_terms[1:]:
            spec[f"{term} time"] = RandomSpec("uniform", (draws,), image_times if term == IMAGES else spread_times)
            spec[f"{term} stratum"] = RandomSpec("uniform", (draws,), partial(torch.argsort, dim=1))
        return spec

    def counts(self, batch: Mapping[str, Any], draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample per loss term, int64 [B]."""
        counts = {}
        for term, (_, dim) in self.network.streams.items():
            stream = stream_of(term, batch, self.config, self.normalizer)
            number = draws["flow time"].shape[1]
            counts[term] = valid_elements(stream.uncounted, number, dim, stream.dim_is_pad)
        return counts

    def losses(
        self, batch: Mapping[str, Any], draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss]:
        """Squared error per sample: of velocities, and of the clean changes of the images.

        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        computed = [term for term in self.loss_terms if terms is None or term in terms]
        if not computed:
            return {}
        streams = {term: stream_of(term, batch, self.config, self.normalizer) for term in self.loss_terms}
        drawn = {FLOW: draws["flow time"]}
        for term in self.loss_terms[1:]:
            drawn[term] = draws[f"{term} time"].gather(1, draws[f"{term} stratum"])
        points, times, targets = {}, {}, {}
        for term, stream in streams.items():
            noise = draws[NOISE[term]]
            check_shape(NOISE[term], noise, (len(stream.clean), drawn[FLOW].shape[1], *self.network.streams[term]))
            times[term] = drawn[term] if stream.given is None else torch.where(stream.given[:, None], 0.0, drawn[term])
            clean = stream.clean[:, None].expand_as(noise)
            points[term] = blanked(stream.points(noise, times[term]), stream.dim_is_pad)
            targets[term] = clean if term == IMAGES else velocity(clean, noise)
        predicted = self.network.predict(self._context(batch), points, times)
        losses = {}
        for term in computed:
            stream, vectors = streams[term], detail and term != IMAGES
            loss = masked_squared_error(predicted[term], targets[term], stream.uncounted, stream.dim_is_pad, vectors)
            if loss.detail is not None:
                loss = loss._replace(detail=loss.detail._replace(order=drawn[term].argsort(dim=1)))
            losses[term] = loss
        return losses

    @torch.no_grad()
    def act(self, batch: Mapping[str, Any], draws: Draws, steps: int = 10, mode: str = POLICY) -> Tensor:
        """Sample actions from the noise of `random_spec("act")`, float32 [B, T, A] in the robot's units.

        Args:
            batch: see the class; mode "inverse_dynamics" needs the future as for training.
            draws: noise of each stream.
            steps: Euler steps.
            mode: "policy", or "inverse_dynamics": the actions that lead to the future in the batch.
        """
        if FLOW not in TRAINS.get(mode, ()):
            raise ValueError(f"mode {mode!r} does not lead to actions: use {POLICY!r} or 'inverse_dynamics'")
        return self.normalizer.robot_actions(self._sample(batch, draws, steps, mode)[FLOW], batch)

    @torch.no_grad()
    def imagine(self, batch: Mapping[str, Any], draws: Draws, steps: int = 10, mode: str = FORWARD) -> Imagined:
        """Sample the states and images that follow, by Euler steps; see `Policy.imagine`."""
        if not self.config.future or DYNAMICS not in TRAINS.get(mode, ()):
            raise ValueError(
                f"mode {mode!r}: nothing to imagine; use a policy with a future in {FORWARD!r} or {POLICY!r}"
            )
        sampled = self._sample(batch, draws, steps, mode)
        images = None
        if IMAGES in sampled:
            now = [present(value_of(batch, camera)) for camera in self.config.cameras]
            images = imagined_images(sampled[IMAGES], now, self.config)
        return Imagined(
            self.normalizer.robot_actions(sampled[FLOW], batch),
            self.normalizer.robot_states(sampled[DYNAMICS], batch),
            images,
        )

    # -- inside ---------------------------------------------------------------------------------------------------

    def _context(self, batch: Mapping[str, Any]) -> Context:
        """Embed the present of a batch."""
        texts = prompts_of(batch)
        images, missing = [], []
        for camera in self.config.cameras:
            image = present(value_of(batch, camera))
            check_image(camera, image, (len(texts), 3, None, None))
            images.append(image)
            missing.append(batch.get(f"{camera}_is_missing"))
        state = None
        if self.config.state_dim:
            value_of(batch, STATE)
            state = state_now(batch)
            check_shape(STATE, state, (len(texts), self.config.state_dim))
            state = self.normalizer.states(batch, state)
        return self.network.observe(texts, images, missing, state)

    def _sample(self, batch: Mapping[str, Any], draws: Draws, steps: int, mode: str) -> dict[str, Tensor]:
        """Integrate all streams side by side from noise; given ones stay. Normalized, [B, tokens, dim] each."""
        check_mode(mode, self.config)
        if steps < 1:
            raise ValueError(f"steps={steps}: sampling needs at least 1 Euler step")
        context = self._context(batch)
        count, pads, points, is_given = len(context.tokens), {}, {}, {}
        for term, shape in self.network.streams.items():
            is_given[term] = term not in TRAINS[mode]
            pads[term] = None if term == IMAGES else self.normalizer.dim_is_pad(KEY_OF[term], batch)
            noise = value_of(draws, NOISE[term])
            check_shape(NOISE[term], noise, (count, *shape))
            points[term] = self._given_stream(term, batch) if is_given[term] else blanked(noise, pads[term])
        even = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
        grids = {term: (shift_times(even, IMAGE_SHIFT) if term == IMAGES else even).tolist() for term in points}
        for step in range(steps):
            times = {
                term: torch.full((count, 1), 0.0 if is_given[term] else grids[term][step], device=x.device)
                for term, x in points.items()
            }
            moves = self.network.predict(context, {term: x[:, None] for term, x in points.items()}, times)
            for term, x in points.items():
                if is_given[term]:
                    continue
                move, time, after = moves[term][:, 0], *grids[term][step : step + 2]
                move = (x - move) / time if term == IMAGES else move  # from the clean patches to a velocity
                points[term] = x - blanked(move, pads[term]) * (time - after)
        return points

    def _given_stream(self, term: str, batch: Mapping[str, Any]) -> Tensor:
        """Stream that a mode gives as an input; actions of a robot need no marks of padding."""
        if term == FLOW and f"{ACTION}_is_pad" not in batch:
            return self.normalizer.actions(batch)
        return stream_of(term, {k: v for k, v in batch.items() if k != MODE}, self.config, self.normalizer).clean
