"""FlowPolicy: images, state and text in, a chunk of actions out, by flow matching. About a million
parameters.

The model reads top to bottom: encode images, state and instruction into one vector, then let a
residual MLP predict the velocity of the whole chunk at once. `policies/common/flow_matching.py` has
the path and the convention of time. All random numbers are arguments, so the same batch, noise and
time give the same numbers anywhere. Inputs and outputs are in the robot's units: the policy has the
normalization and saves it (`policies/common/normalizer.py`).

With `future` the same network also predicts the states that follow. They are a second stream next
to the chunk of actions, with its own flow time. Given one stream (time 0), the network finds the
other: forward and inverse dynamics (`policies/common/settings.py`), as in Zhu et al. 2025, "Unified
World Models".
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies.batch import check_shape, prompts_of, to_device
from understudy.policies.common.encoders import as_network_input, byte_tokens
from understudy.policies.common.flow_matching import (
    Field,
    check_delay,
    delays_or_none,
    euler,
    given_actions,
    sample_given,
    sample_guided,
    spread_times,
)
from understudy.policies.common.layers import Layer, Linear, layer_norm, sinusoids
from understudy.policies.common.normalizer import Normalizer, blanked
from understudy.policies.common.observing import ObservingPolicy
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy.policies.common.streams import (
    VALIDATION_DRAWS,
    Stream,
    read_values,
)
from understudy.policies.draws import Draws, RandomSpec, Use
from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.graphs import Bucket, GraphPlan, Inputs, Step, graph_field
from understudy.policies.losses import Imagined, Loss, masked_squared_error, valid_elements
from understudy_base import ACTION, Batch, Record

GIVEN = "given"
"""Key of a batch of `graph_inputs`: the number of given actions."""
Integrate = Callable[[Field, Tensor, int], Tensor]
"""(velocity field, noise [B, T, dim], steps) -> [B, T, dim]."""


def make_integration(
    config: FlowPolicyConfig,
    normalizer: Normalizer,
    batch: Batch,
    executing: Tensor,
    delay: int,
    horizon: int | None,
) -> Integrate:
    """Return the integration that continues the actions in execution; arguments of
    `Policy.continue_chunk`.

    Raises:
        ValueError: a policy with a future, numbers beyond `executing`, or a `delay` above
            `max_delay` without a horizon.
    """
    length = executing.shape[1]
    if config.future:
        raise ValueError(
            "a flow policy with a future cannot continue a chunk; call act without previous"
        )
    check_delay(delay, horizon, length, config.max_delay)
    rest = nn.functional.pad(executing.float(), (0, 0, 0, config.chunk - length))
    chunk = normalizer.actions({**batch, ACTION: rest})
    padded = normalizer.dim_is_pad(ACTION, batch)

    def integrate(field: Field, noise: Tensor, steps: int) -> Tensor:
        with torch.no_grad():
            if horizon is None:
                # The field has one time per sample. The last action is never given, so it has the
                # time of the sample.
                return sample_given(
                    lambda x, time: field(x, time[:, -1]), noise, chunk, delay, steps
                )
            dims = None if padded is None else ~padded[:, None]
            return sample_guided(field, noise, chunk, delay, horizon, steps, dims=dims)

    return integrate


class FlowPolicy(ObservingPolicy):
    """Flow-matching policy. `FlowPolicy(config, normalization)` has fresh weights from torch's
    generator.

    For the keys of a batch see `Policy`. Padded dimensions and missing cameras count nothing and
    reach nothing, whatever values the batch holds there. With `future`, training needs
    `observation.state` [B, 1 + T, S], of now and after each action, and `observation.state_is_pad`
    bool [B, 1 + T]. It also needs `mode` int64 [B] (`TaskMode.ALL`) unless all samples have mode
    "policy". To act, [B, S] is enough.
    """

    forward_methods: ClassVar[tuple[str, ...]] = ("losses", "act", "imagine")
    config: FlowPolicyConfig

    def __init__(self, config: FlowPolicyConfig, normalization: Record) -> None:
        """Build the network.

        Args:
            config: see `FlowPolicyConfig`.
            normalization: {"heads": [...], "action": {"offset": [H][A], "spread": [H][A]},
                "observation.state": ..., "delta": ..., "dims": ...}; see
                `policies/common/normalizer.py`.

        Raises:
            ValueError: an entry is missing, of the wrong width, or cannot be inverted.
        """
        super().__init__(config, normalization)
        width = config.width
        self.time = Linear(64 * len(self._streams), width)
        self.in_proj = Linear(config.chunk * config.noise_dim, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(config.layers))
        self.out_proj = Linear(width, config.chunk * config.noise_dim).zeroed()
        self.delay = Linear(64, width) if config.max_delay else None

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the loss terms: `flow` of the actions, and with a future `dynamics` of the
        states.
        """
        return self._streams

    def blocks(self) -> list[nn.Module]:
        """Modules to recompute, compile and shard one by one. The text encoder is none: its shapes
        change.
        """
        if self.vision is None:
            return list(self.layers)
        return [*self.vision.blocks, *self.layers]

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """Noise and flow time of D draws per sample, one time per stratum; to act one noise.

        With a future its noise and times are independent of the actions'. Both streams have one
        time per stratum, and "future stratum" is the random pairing of the two. With `max_delay`,
        training also draws the number of given actions.
        """
        config = self.config
        draws = VALIDATION_DRAWS if use == "validation" else self.config.noise_samples
        if use == "act":
            return {"noise": RandomSpec("normal", (config.chunk, config.noise_dim))}
        spec = {
            "flow noise": RandomSpec("normal", (draws, config.chunk, config.action_dim)),
            "flow time": RandomSpec("uniform", (draws,), spread_times),
        }
        if config.future:
            spec |= {
                "future noise": RandomSpec("normal", (draws, config.chunk, config.state_dim)),
                "future time": RandomSpec("uniform", (draws,), spread_times),
                "future stratum": RandomSpec("uniform", (draws,), partial(torch.argsort, dim=1)),
            }
        if config.max_delay and use == "train":
            spec["flow delay"] = RandomSpec(
                "uniform", (), partial(delays_or_none, most=config.max_delay)
            )
        return spec

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample per loss term, int64 [B]."""
        number = draws["flow time"].shape[1]
        delay = draws.get("flow delay")
        streams = {term: self._stream(batch, term, delay) for term in self._streams}
        return {
            term: valid_elements(stream.uncounted, number, self._width(term), stream.dim_is_pad)
            for term, stream in streams.items()
        }

    def losses(
        self, batch: Batch, draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss]:
        """Flow-matching loss per sample (`flow_losses`) from the draws of `random_spec`."""
        noise = draws["flow noise"]
        time = draws["flow time"]
        if self.config.future:
            noise = torch.cat([noise, draws["future noise"]], dim=3)
            time = torch.stack(
                [time, draws["future time"].gather(1, draws["future stratum"])], dim=2
            )
        return self.flow_losses(batch, noise, time, terms, detail, draws.get("flow delay"))

    def flow_losses(
        self,
        batch: Batch,
        noise: Tensor,
        time: Tensor,
        terms: Collection[str] | None = None,
        detail: bool = False,
        delay: Tensor | None = None,
    ) -> dict[str, Loss]:
        """Flow-matching loss per sample at given noise and flow times.

        Args:
            batch: see the class.
            noise: float32 [B, D, T, A], standard normal; the D independent draws of a sample share
                one pass over its images, which is most of the cost. With a future [B, D, T, A + S],
                the noise of the states behind.
            time: float32 [B, D] in [0, 1], 1 is noise (see `spread_times`). With a future [B, D,
                2], of the actions and of the states.
            terms: loss terms to compute, of `loss_terms`; None: all.
            detail: also by draw and dimension; the rest is equal to the bit.
            delay: int64 [B], leading actions that a sample is given and that count nothing; None:
                none (`max_delay`).

        Returns:
            {"flow": Loss, "dynamics": Loss}, the second with a future: mean squared velocity error
            in normalized units over unpadded slots and dimensions. A sample whose mode gives the
            target of a term has 0 elements there.

        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        computed = [term for term in self._streams if terms is None or term in terms]
        if not computed:
            return {}
        streams = [self._stream(batch, term, delay) for term in self._streams]
        check_shape(
            "noise", noise, (len(streams[0].clean), None, self.config.chunk, self.config.noise_dim)
        )
        per_stream = (len(streams),) if len(streams) > 1 else ()
        check_shape("time", time, (*noise.shape[:2], *per_stream))
        # one per stream
        noises = self._split(noise)
        drawn = time.view(*noise.shape[:2], -1).unbind(dim=2)
        times = list(drawn)
        points = []
        targets = []
        for number, (stream, stream_noise) in enumerate(zip(streams, noises)):
            if stream.given is not None:
                times[number] = torch.where(stream.given[:, None], 0.0, times[number])
            points.append(blanked(stream.points(stream_noise, times[number]), stream.dim_is_pad))
            # [B, D, T, dim]
            targets.append(stream.velocity(stream_noise))
        known_delay = 0 if delay is None else delay
        predicted = self._velocity(
            torch.cat(points, dim=3),
            torch.stack(times, dim=2),
            self._condition(batch, known_delay),
        )
        losses = {
            term: masked_squared_error(velocities, target, s.uncounted, s.dim_is_pad, detail)
            for term, velocities, target, s in zip(
                self._streams, self._split(predicted), targets, streams
            )
            if term in computed
        }
        if detail:
            times_of = dict(zip(self._streams, drawn))
            losses = {term: loss.ordered(times_of[term]) for term, loss in losses.items()}
        return losses

    @torch.no_grad()
    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Sample actions; see `Policy.act`.

        Args:
            batch: see the class.
            draws: "noise" [B, T, A]; with a future [B, T, A + S].
            steps: Euler steps.
            mode: "policy", or "inverse_dynamics": the actions that lead to the future in the batch
                (as for training).
        """
        return self.normalizer.robot_actions(
            self._sample(batch, draws["noise"], steps, mode, LossTerm.FLOW)[LossTerm.FLOW], batch
        )

    @torch.no_grad()
    def continue_chunk(
        self, batch: Batch, draws: Draws, executing: Tensor, delay: int, steps: int = 10,
        horizon: int | None = None,
    ) -> Tensor:  # fmt: skip
        """Sample actions that continue the chunk in execution; see `Policy.continue_chunk`."""
        integrate = make_integration(self.config, self.normalizer, batch, executing, delay, horizon)
        num_given = delay if horizon is None else 0
        step: Step = "step" if horizon is None else "guided"
        actions = self._sample(
            batch, draws["noise"], steps, TaskMode.POLICY, LossTerm.FLOW, integrate, num_given, step
        )[LossTerm.FLOW]
        return self.normalizer.robot_actions(actions, batch)

    @torch.no_grad()
    def imagine(
        self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "forward_dynamics"
    ) -> Imagined:
        """Sample the states that follow; see `Policy.imagine`. There are no images."""
        sampled = self._sample(batch, draws["noise"], steps, mode, LossTerm.DYNAMICS)
        units = self.normalizer
        actions = units.robot_actions(sampled[LossTerm.FLOW], batch)
        states = units.robot_states(sampled[LossTerm.DYNAMICS], batch)
        return Imagined(actions, states, None)

    def graph_plan(self) -> GraphPlan:
        """See `CapturesGraphs`: texts always have `text_bytes`."""
        problem = ""
        if type(self).act is not FlowPolicy.act:
            problem = f"a policy of type {self.config.type} acts by functions of its own"
        steps: tuple[Step, ...] = ("step",) if self.config.future else ("step", "guided")
        return GraphPlan((0,), steps, problem)

    def graph_bucket(self, batch: Batch) -> Bucket:
        """See `CapturesGraphs`; a missing camera is masked."""
        return Bucket(len(prompts_of(batch)), 0, self.config.cameras, 1)

    def graph_inputs(self, batch: Batch, noise: Tensor, bucket: Bucket) -> dict[str, Tensor]:
        """See `CapturesGraphs`: images and state in the network's form, and byte tokens."""
        config = self.config
        prompts = prompts_of(batch)
        images, missing, state = self.observed(batch, len(prompts))
        none = torch.zeros(1, dtype=torch.bool, device=noise.device)
        delay = torch.full((1,), int(batch.get(GIVEN, 0)), device=noise.device)
        tokens = to_device(byte_tokens(prompts, config.text_bytes), noise.device)
        inputs = {"tokens": tokens, "delay": delay}
        for number, (image, lacks) in enumerate(zip(images, missing)):
            dtype = getattr(torch, config.compute)
            inputs[f"image {number}"] = as_network_input(image, config.image_size, dtype)
            inputs[f"missing {number}"] = none if lacks is None else lacks
        if state is not None:
            inputs["state"] = state
        for name in self._streams:
            pads = self.normalizer.dim_is_pad(LossTerm.KEYS[name], batch)
            inputs[f"pads {name}"] = none.expand(1, self._width(name)) if pads is None else pads
        return inputs

    def graph_prefix(self, inputs: Inputs, bucket: Bucket) -> tuple[Tensor, ...]:
        """See `Kernels`: the condition of the action network."""
        numbers = range(len(self.config.cameras))
        images = [inputs[f"image {number}"] for number in numbers]
        missing: list[Tensor | None] = [inputs[f"missing {number}"] for number in numbers]
        fused = self.fused(inputs["tokens"], images, missing, inputs.get("state"))
        return (self._with_delay(fused, inputs["delay"]),)

    def graph_step(
        self, inputs: Inputs, cache: Sequence[Tensor], x: Tensor, time: Tensor, bucket: Bucket
    ) -> Tensor:
        """See `Kernels`."""
        times = torch.stack([time] * len(self._streams), dim=1)[:, None]
        parts = self._split(self._velocity(x[:, None], times, cache[0])[:, 0])
        moves = [blanked(part, inputs[f"pads {name}"]) for name, part in zip(self._streams, parts)]
        return torch.cat(moves, dim=2)

    # -- inside ------------------------------------------------------------------------------------

    @property
    def _streams(self) -> tuple[str, ...]:
        """Names of the streams that are found from noise side by side, by their loss terms."""
        return (LossTerm.FLOW, LossTerm.DYNAMICS) if self.config.future else (LossTerm.FLOW,)

    def _stream(self, batch: Batch, term: str, delay: Tensor | None = None) -> Stream:
        """Target of `term` in a batch for training; the first `delay` actions are given."""
        stream = Stream.read(term, batch, self.config, self.normalizer)
        if delay is None or term != LossTerm.FLOW:
            return stream
        return stream._replace(first=given_actions(delay, self.config.chunk))

    def _condition(self, batch: Batch, delay: Tensor | int = 0) -> Tensor:
        """Condition of the action network from images, state, instruction and number of given
        actions: [B, width].
        """
        return self._with_delay(self.observe(batch), delay)

    def _with_delay(self, fused: Tensor, delay: Tensor | int) -> Tensor:
        """Add the number of given actions to `observe` [B, width]."""
        if self.delay is None:
            return fused
        share = torch.zeros_like(fused[:, 0], dtype=torch.float32) + delay / self.config.chunk
        return fused + self.delay(sinusoids(share, 64).to(fused.dtype))

    def _velocity(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Predict the velocity of D points per sample, in the shape of x.

        x is [B, D, T, A + S], time [B, D, K] of the K streams, condition [B, width].
        """
        spread = sinusoids(time, 64).flatten(2).to(condition.dtype)  # [B, D, 64 K]
        modulation = F.gelu(condition[:, None] + self.time(spread))  # [B, D, width]
        h = self.in_proj(x.flatten(2).to(condition.dtype))  # [B, D, width]
        for layer in self.layers:
            h = layer(h, modulation)
        return self.out_proj(layer_norm(h)).float().view(x.shape)

    def _sample(
        self,
        batch: Batch,
        noise: Tensor,
        steps: int,
        mode: str,
        term: str,
        integrate: Integrate = euler,
        delay: int = 0,
        step: Step = "step",
    ) -> dict[str, Tensor]:
        """Sample `term` and the other streams from noise [B, T, A + S] in `mode`: normalized, [B,
        T, dim] each.
        """
        if mode not in self.modes or term not in self._streams or term not in TaskMode.TRAINS[mode]:
            able = [
                name
                for name in self.modes
                if term in TaskMode.TRAINS[name] and term in self._streams
            ]
            result = "actions" if term == LossTerm.FLOW else "states"
            reason = f"mode {mode!r} does not lead to {result} with this policy"
            raise ValueError(f"{reason}: use {' or '.join(able) or 'a policy with a future'}")
        check_shape("noise", noise, (None, self.config.chunk, self.config.noise_dim))
        captured = None
        if mode == TaskMode.POLICY:
            captured = graph_field(self, {**batch, GIVEN: delay}, noise, step)
        if captured is None:
            condition = self._condition(batch, delay)
            shape = (condition.shape[0], self.config.chunk, self.config.noise_dim)
            check_shape("noise", noise, shape)
        pads = {
            name: self.normalizer.dim_is_pad(LossTerm.KEYS[name], batch) for name in self._streams
        }
        start = []
        for name, part in zip(self._streams, self._split(noise)):
            if name in TaskMode.TRAINS[mode]:
                start.append(blanked(part, pads[name]))
            else:
                start.append(self._given_stream(batch, name))

        def field(x: Tensor, time: Tensor) -> Tensor:
            times = []
            for name in self._streams:
                time_of_stream = time if name in TaskMode.TRAINS[mode] else torch.zeros_like(time)
                times.append(time_of_stream)
            moves = self._velocity(x[:, None], torch.stack(times, dim=1)[:, None], condition)[:, 0]
            parts = []
            for name, part in zip(self._streams, self._split(moves)):
                if name in TaskMode.TRAINS[mode]:
                    parts.append(blanked(part, pads[name]))
                else:
                    parts.append(torch.zeros_like(part))
            return torch.cat(parts, dim=2)

        sampled = integrate(captured or field, torch.cat(start, dim=2), steps)
        return dict(zip(self._streams, self._split(sampled)))

    def _given_stream(self, batch: Batch, term: str) -> Tensor:
        """Stream that a mode gives as an input, [B, T, dim]; slots are padded where the batch has a
        mask.
        """
        if f"{LossTerm.KEYS[term]}_is_pad" not in batch:
            return read_values(term, batch, self.config, self.normalizer)
        return self._stream(batch, term).clean

    def _width(self, term: str) -> int:
        return self.config.action_dim if term == LossTerm.FLOW else self.config.state_dim

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """[..., A + S] -> of each stream, [..., dim]."""
        return x.split([self._width(term) for term in self._streams], dim=-1)
