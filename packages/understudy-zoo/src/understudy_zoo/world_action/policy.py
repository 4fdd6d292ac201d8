"""The world-action model as a `Policy`: pi0.5, and the states and images that follow, by flow
matching.

Every sample of a training that has mode `policy` trains the policy's block (`network.py`), in any
mode of its own. The mode decides which streams of the other block are given and which are
predicted. So one network is a policy, a model of the world (forward dynamics) and an inverse of it,
and the future costs the policy no sample.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from understudy import (
    Draws,
    Imagined,
    Linear,
    Loss,
    LossTerm,
    Pi05Policy,
    RandomSpec,
    Stream,
    Suffix,
    TaskMode,
    Use,
    euler,
    masked_squared_error,
    spread_times,
    valid_elements,
)
from understudy_base import ACTION, MODE, Batch, Record
from understudy_zoo.world_action.config import WorldActionConfig
from understudy_zoo.world_action.network import CHANGE, Future, to_images, to_patches

IMAGE_SHIFT = 8.0
"""Shift of the flow times of images towards noise. A patch has hundreds of correlated numbers: at
even times their noise hides so little that the network would denoise instead of predicting.
"""


def shift_times(time: Tensor, factor: float) -> Tensor:
    """Shift flow times in [0, 1] towards noise for factors above 1; 0 and 1 stay.

    Esser et al. 2024, "Scaling Rectified Flow Transformers for High-Resolution Image Synthesis",
    equation 23.
    """
    return factor * time / (1 + (factor - 1) * time)


def image_times(uniform: Tensor) -> Tensor:
    """Flow times of images from uniform numbers [B, D], one per stratum."""
    return shift_times(spread_times(uniform), IMAGE_SHIFT)


class WorldActionPolicy(Pi05Policy):
    """World-action model. `WorldActionPolicy(config, normalization)` has fresh weights from torch's
    generator.

    Without `future` it is pi0.5. With it, training also needs `observation.state` [B, 1 + T, S],
    each camera uint8 [B, 1 + K, 3, H, W] with the future images behind the present one,
    `<key>_is_pad` of both, and `mode` int64 [B] unless all samples have mode "policy". To act, the
    present alone is enough.
    """

    forward_methods: ClassVar[tuple[str, ...]] = ("losses", "act", "imagine")
    config: WorldActionConfig

    @staticmethod
    def read_folder(*_: Any) -> None:
        """Return None: no other tool writes such folders."""

    def __init__(self, config: WorldActionConfig, normalization: Record) -> None:
        """Build the network; see `Pi05Policy`."""
        super().__init__(config, normalization)
        if config.future:
            self.future = Future(config)

    @property
    def imagines(self) -> bool:
        """Whether it was built with a future."""
        return self.config.future

    @property
    def modes(self) -> tuple[str, ...]:
        """Task modes that the policy can be trained in."""
        return TaskMode.ALL if self.config.future else (TaskMode.POLICY,)

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the loss terms: those of pi0.5, and with a future `dynamics` of the states,
        `images`.
        """
        if not self.config.future:
            return super().loss_terms
        return (*super().loss_terms, *list(self.future.streams)[1:])

    @property
    def suffix_tokens(self) -> int:
        """Tokens of a row of the expert in training."""
        ahead = sum(count for count, _ in self.future.streams.values()) if self.config.future else 0
        return super().suffix_tokens + ahead

    def float32_modules(self) -> list[nn.Module]:
        """Those of pi0.5, and the layers between the expert and the future."""
        ahead = self.future.modules() if self.config.future else ()
        return [
            *super().float32_modules(),
            *(module for module in ahead if isinstance(module, Linear)),
        ]

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """Those of pi0.5, and noise and flow times of each stream of the future, as many as of the
        actions.
        """
        spec = super().random_spec(use)
        if not self.config.future:
            return spec
        draws = () if use == "act" else spec["flow time"].shape
        for name, shape in self.future.streams.items():
            if name != LossTerm.FLOW:
                spec[f"{name} noise"] = RandomSpec("normal", (*draws, *shape))
                if draws:
                    times = image_times if name == LossTerm.IMAGES else spread_times
                    spec[f"{name} time"] = RandomSpec("uniform", draws, times)
        return spec

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample per loss term, int64 [B]."""
        counts = super().counts(batch, draws)
        if not self.config.future:
            return counts
        number = draws["flow time"].shape[1]
        for term, (_, dim) in self.future.streams.items():
            stream = self._stream(term, batch)
            width = self._width(term, dim)
            masks = self._unlearnt(stream, batch) if term == LossTerm.FLOW else (stream.uncounted,)
            elements = [valid_elements(mask, number, width, stream.dim_is_pad) for mask in masks]
            counts[term] = torch.stack(elements).sum(dim=0)
        return counts

    @torch.no_grad()
    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Sample actions from the noise of `random_spec("act")`, float32 [B, T, A] in the robot's
        units.

        Args:
            batch: see the class; mode "inverse_dynamics" needs the future as for training.
            draws: noise of each stream.
            steps: Euler steps.
            mode: "policy", or "inverse_dynamics": the actions that lead to the future in the batch.
        """
        if mode not in self.modes or LossTerm.FLOW not in TaskMode.TRAINS[mode]:
            names = (
                f"{TaskMode.POLICY!r} or {TaskMode.INVERSE!r}"
                if self.config.future
                else repr(TaskMode.POLICY)
            )
            raise ValueError(f"mode {mode!r} does not lead to actions here: use {names}")
        if mode == TaskMode.POLICY:
            return super().act(batch, draws, steps)
        plain = {key: value for key, value in batch.items() if key != MODE}
        inputs = {
            term: self._stream(term, plain).clean
            for term in self.future.streams
            if term != LossTerm.FLOW
        }
        return self.robot_actions(self._sample(batch, draws, steps, inputs)[LossTerm.FLOW], batch)

    @torch.no_grad()
    def imagine(
        self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "forward_dynamics"
    ) -> Imagined:
        """Sample the states and images that follow, by Euler steps; see `Policy.imagine`."""
        if (
            mode not in self.modes
            or LossTerm.DYNAMICS not in TaskMode.TRAINS[mode]
            or not self.config.future
        ):
            raise ValueError(
                f"mode {mode!r}: nothing to imagine; use a policy with a future in "
                f"{TaskMode.FORWARD!r} or {TaskMode.POLICY!r}"
            )
        plain = {key: value for key, value in batch.items() if key != MODE}
        if mode == TaskMode.POLICY:
            plain = {**plain, ACTION: self.act(batch, draws, steps)}
            plain.pop(f"{ACTION}_is_pad", None)
        if f"{ACTION}_is_pad" in plain:
            actions = self._stream(LossTerm.FLOW, plain).clean
        else:  # those of a robot need no marks of padding
            actions = self.widened(self.normalizer.actions(plain))
        sampled = self._sample(plain, draws, steps, {LossTerm.FLOW: actions})
        images = (
            self._images(sampled[LossTerm.IMAGES], plain) if LossTerm.IMAGES in sampled else None
        )
        states = sampled[LossTerm.DYNAMICS][..., : self.config.state_dim]
        return Imagined(
            self.robot_actions(actions, plain), self.normalizer.robot_states(states, plain), images
        )

    # -- inside ------------------------------------------------------------------------------------

    def observed_batch(self, batch: Batch) -> Batch:
        """Return the batch with the present images alone."""
        if not self.config.future:
            return batch
        images = {camera: present(self.value_of(batch, camera)) for camera in self.config.cameras}
        return {**batch, **images}

    def _noisy(
        self, batch: Batch, draws: Draws, terms: Collection[str], detail: bool
    ) -> tuple[Suffix, Callable[[Tensor], dict[str, Loss]]]:
        """Embed noisy points of the streams, in both blocks, and return the function that reads
        their losses.
        """
        if not self.config.future:
            return super()._noisy(batch, draws, terms, detail)
        streams = {term: self._stream(term, batch) for term in self.future.streams}
        points = {}
        times = {}
        targets = {}
        for term, stream in streams.items():
            noise = draws[f"{term} noise"]
            time = draws[f"{term} time"]
            self.check_shape(
                f"{term} noise",
                noise,
                (len(stream.clean), time.shape[1], *self.future.streams[term]),
            )
            if stream.given is None:
                times[term] = time
            else:
                times[term] = torch.where(stream.given[:, None], 0.0, time)
            points[term] = stream.points(noise, times[term])
            targets[term] = stream.velocity(noise)
            if term == LossTerm.IMAGES:  # clean patches
                targets[term] = stream.clean[:, None].expand_as(noise)
        noise = draws["flow noise"]
        time = draws["flow time"]
        alone = streams[LossTerm.FLOW].points(noise, time)
        suffix = self.future.suffix(self, points, times, self._now(batch), alone, time)

        def read(result: Tensor) -> dict[str, Loss]:
            predicted, moves = self.future.read(self, result, suffix.candidates)
            losses = {}
            for term in (term for term in streams if term in terms):
                stream = streams[term]
                width = self._width(term, targets[term].shape[-1])
                blocks = [(predicted[term], stream.uncounted)]
                if term == LossTerm.FLOW and moves is not None:
                    blocks = list(
                        zip(
                            (moves, predicted[LossTerm.FLOW]),
                            self._unlearnt(stream, batch),
                            strict=True,
                        )
                    )
                parts = [
                    masked_squared_error(
                        output[..., :width],
                        targets[term][..., :width],
                        mask,
                        stream.dim_is_pad,
                        detail and term != LossTerm.IMAGES,
                    )
                    for output, mask in blocks
                ]
                total, *others = parts
                for part in others:
                    total = total.plus(part)
                losses[term] = total.ordered(draws[f"{term} time"])
            return losses

        return suffix, read

    def _unlearnt(self, stream: Stream, batch: Batch) -> tuple[Tensor, Tensor]:
        """Mark the actions without a loss in the policy's block and in the other one, bool [B, T]
        each.

        The latter has the samples of mode `inverse_dynamics`, the former the rest of a validation
        and all of a training that has mode `policy`.
        """
        mode = batch.get(
            MODE, torch.zeros(len(stream.is_pad), dtype=torch.int64, device=stream.is_pad.device)
        )
        is_inverse = (mode == TaskMode.ALL.index(TaskMode.INVERSE))[:, None]
        is_policy = (mode == TaskMode.ALL.index(TaskMode.POLICY))[:, None]
        alone = stream.is_pad if self.training and self.config.acts else stream.is_pad | ~is_policy
        return alone, stream.is_pad | ~is_inverse

    def _width(self, term: str, dim: int) -> int:
        """Return the own dimensions of a stream: the robot's, or all of a patch."""
        return {
            LossTerm.FLOW: self.config.action_dim,
            LossTerm.DYNAMICS: self.config.state_dim,
        }.get(term, dim)

    def _stream(self, term: str, batch: Batch) -> Stream:
        """Read the target of a loss term from a training batch, as wide as the network.

        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        if term != LossTerm.IMAGES:
            stream = Stream.read(term, batch, self.config, self.normalizer)
            return stream._replace(clean=self.widened(stream.clean))
        changes = []
        pads = []
        for camera in self.config.cameras:
            images = self.value_of(batch, camera)
            is_pad = self.value_of(batch, f"{camera}_is_pad")
            self.check_image(camera, images, (None, 1 + self.config.imagined, 3, None, None))
            self.check_shape(f"{camera}_is_pad", is_pad, tuple(images.shape[:2]))
            is_pad = is_pad[:, 1:]
            lacks: Tensor | None = batch.get(f"{camera}_is_missing")
            if lacks is not None:
                is_pad = is_pad | lacks[:, None]
            patches = self._patches(images)  # [B, 1 + K, P, dim]
            changes.append(
                torch.where(
                    is_pad[..., None, None], 0.0, (patches[:, 1:] - patches[:, :1]) / CHANGE
                )
            )
            pads.append(is_pad[..., None].expand(-1, -1, patches.shape[2]))
        clean = torch.stack(changes, dim=2).flatten(1, 3)
        marks = torch.stack(pads, dim=2).flatten(1, 3)
        return Stream(clean, marks, None, Stream.samples_given(term, batch, self.config))

    def _patches(self, images: Tensor) -> Tensor:
        """Transform images uint8 [B, T, 3, H, W] into patches, float32 [B, T, P, dim]."""
        pixels = self.resized(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        return to_patches(pixels, self.config.patch_side)

    def _now(self, batch: Batch) -> Tensor | None:
        """Patches of the present images, float32 [B, cameras * P, dim]; 0 for missing cameras."""
        if not self.config.imagined:
            return None
        parts = []
        for camera in self.config.cameras:
            patches = self._patches(present(self.value_of(batch, camera))[:, None])[:, 0]
            lacks: Tensor | None = batch.get(f"{camera}_is_missing")
            if lacks is not None:
                patches = torch.where(lacks[:, None, None], 0.0, patches)
            parts.append(patches)
        return torch.cat(parts, dim=1)

    def _images(self, changes: Tensor, batch: Batch) -> Tensor:
        """Add predicted changes [B, tokens, dim] to the present images: uint8 [B, K, cameras, 3,
        side, side].
        """
        config = self.config
        side = self.sizes.vision.image
        now = torch.stack(
            [self.resized(present(batch[camera])) for camera in config.cameras], dim=1
        )
        shape = (config.imagined, len(config.cameras), config.patches)
        change = to_images(changes.unflatten(1, shape) * CHANGE, side, config.patch_side)
        return ((now[:, None] + change + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)

    def _sample(
        self, batch: Batch, draws: Draws, steps: int, inputs: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Integrate the streams that are not given side by side from noise; normalized, [B, tokens,
        dim] each.
        """
        expert = self.expert_alone(self._before_acting(batch))
        now = self._now(batch)
        noises = {}
        for term in self.future.streams:
            if term not in inputs:
                name = "noise" if term == LossTerm.FLOW else f"{term} noise"
                noises[term] = self.value_of(draws, name)
        for term, noise in noises.items():
            self.check_shape(f"{term} noise", noise, (None, *self.future.streams[term]))
        sizes = [noise[0].numel() for noise in noises.values()]

        def split(x: Tensor) -> dict[str, Tensor]:
            parts = x.split(sizes, dim=1)
            return {
                term: part.view_as(noises[term]) for term, part in zip(noises, parts, strict=True)
            }

        def field(x: Tensor, time: Tensor) -> Tensor:
            points = split(x)
            later = (time - 1 / steps).clamp(min=0)
            times = {term: torch.zeros_like(time) for term in inputs}
            for term in noises:
                times[term] = shift_times(time, IMAGE_SHIFT) if term == LossTerm.IMAGES else time
            suffix = self.future.suffix(
                self,
                {term: x[:, None] for term, x in {**points, **inputs}.items()},
                {term: time[:, None] for term, time in times.items()},
                now,
            )
            predicted, _ = self.future.read(self, expert(suffix), 1)
            moves = []
            for term, noise in noises.items():
                move = predicted[term][:, 0]
                # from the clean patches to a velocity, in the even times of the integration
                if term == LossTerm.IMAGES:
                    pace = (times[term] - shift_times(later, IMAGE_SHIFT)) * steps / times[term]
                    move = (points[term] - move) * pace[:, None, None]
                else:
                    move = torch.where(self._own_dims(batch, LossTerm.KEYS[term]), move, noise)
                moves.append(move.flatten(1))
            return torch.cat(moves, dim=1)

        return split(
            euler(field, torch.cat([noise.flatten(1) for noise in noises.values()], dim=1), steps)
        )


def present(image: Tensor) -> Tensor:
    """The current image of a camera, uint8 [B, 3, H, W], of a window [B, 1 + K, 3, H, W] or of the
    image itself.
    """
    return image[:, 0] if image.ndim == 5 else image
