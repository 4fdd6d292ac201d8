"""pi0.5 and pi0 as a `Policy`: a batch of a robot in, losses per sample or actions out.

The network (`network.py`) is a pure function of tensors in its own units and widths. This file has
everything between a batch and that function: units and widths, image sizes, missing cameras, the
draws of a sample, and the loss terms

    flow    squared error of the velocity, over the robot's own dimensions and unpadded actions
    text    cross-entropy of the response, where the policy has responses
    fast    cross-entropy of the actions as FAST tokens, where the policy has a FAST tokenizer

With `insulation` the terms `text` and `fast` train the vision encoder and the language tower, and
`flow` the action expert alone.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from understudy.policies.batch import (
    STATES,
    STATES_IS_PAD,
    check_shape,
    split_states,
    to_device,
    value_of,
)
from understudy.policies.common.flow_matching import (
    Field,
    check_delay,
    delays,
    euler,
    sample_given,
    sample_guided,
    spread_times,
)
from understudy.policies.common.images import letterbox
from understudy.policies.common.normalizer import Normalizer, state_now
from understudy.policies.common.settings import LossTerm, TaskMode
from understudy.policies.common.towers import Packing
from understudy.policies.draws import Draws, RandomSpec, Use
from understudy.policies.graphs import Bucket, GraphPlan, Inputs, Step, graph_field
from understudy.policies.losses import Loss, valid_elements
from understudy.policies.pi05 import released_folder
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.first_weights import FirstWeights, stored_keys
from understudy.policies.pi05.network import (
    Frames,
    Observation,
    Pi0Network,
    States,
    Suffix,
    time_encoding,
)
from understudy.policies.pi05.released_keys import EXPERT_TENSORS
from understudy.policies.pi05.targets import (
    EXTENTS,
    FAST,
    PROMPT,
    TEXT,
    TOKENS,
    Extent,
    cut,
    enclosing,
    extents,
    flow_loss,
    images_of,
    known_extents,
    longest,
    noisy_chunks,
    packing_of,
    padded_tokens,
    respond,
    tail_of,
    token_losses,
    unlearnt_actions,
    widened,
)
from understudy.policies.pi05.tokenize_batch import Shared, Texts
from understudy.policies.policy import Policy
from understudy.policies.weight_files import StoredRows, TensorReader, fill_parameters
from understudy_base import ACTION, RESPONSE, STATE, Batch, Record

VALIDATION_DRAWS = 8
"""Noises and flow times per sample of a validation."""


class Pi05Policy(Policy, Pi0Network):
    """pi0.5 or pi0, by `config.type`. `Pi05Policy(config, normalization)` has fresh weights from
    torch's generator.

    For the keys of a batch see `Policy`; images have any size. `preprocess` adds the tokens of the
    texts (`tokenize_batch.py`). Missing cameras, padded dimensions and padded actions count nothing
    and reach nothing, whatever values the batch holds there. The network's own functions
    (`flow_loss`, `sample`, ...) are methods of this class.
    """

    validation_draws: int = VALIDATION_DRAWS
    fills_weights: ClassVar[bool] = True
    config: Pi05PolicyConfig

    read_folder = staticmethod(released_folder.read_folder)
    check_start = staticmethod(released_folder.check_implied)
    stored_facts = staticmethod(released_folder.stored_facts)

    def __init__(self, config: Pi05PolicyConfig, normalization: Record) -> None:
        """Build the network; it may be on the meta device.

        Args:
            config: see `Pi05PolicyConfig`.
            normalization: see `policies/common/normalizer.py`.

        Raises:
            ValueError: an entry of the normalization is missing, of the wrong width, or cannot be
                inverted.
            ConfigError: a tokenizer cannot be read.
        """
        super().__init__(config.sizes, getattr(torch, config.compute), config.state_history)
        self.config = config
        self.normalizer = Normalizer(normalization, config.widths)
        # A second one that stays on the host, for `preprocess`: in a tuple, `to` does not find it.
        self._at_host = Shared((Normalizer(normalization, config.widths),))
        self.texts = Texts(config, self.sizes.vocab, config.weights)

    @property
    def loss_terms(self) -> tuple[str, ...]:
        """Names of the loss terms: `flow`, and `text` and `fast` where the policy predicts these
        tokens.
        """
        terms = [LossTerm.FLOW]
        if self.config.response_tokens:
            terms.append(TEXT)
        if self.config.fast:
            terms.append(FAST)
        return tuple(terms)

    @property
    def _predicts_tokens(self) -> bool:
        return any(term in TOKENS for term in self.loss_terms)

    @property
    def insulates(self) -> bool:
        """Whether the flow loss trains the action expert alone: a matter of the settings, and of no
        loss weight.
        """
        return bool(self.config.insulation) and self._predicts_tokens

    def describe_losses(self, terms: Collection[str]) -> list[str]:
        """Describe which loss reaches which part; a frozen part is not trained by it."""
        tokens = [term for term in terms if term in TOKENS]
        flows = [term for term in terms if term not in TOKENS]
        seen = self.config.describe_history()
        parts = []
        if tokens:
            verb = "reach" if len(tokens) > 1 else "reaches"
            parts.append(f"{' and '.join(tokens)} {verb} vision and vlm")
        if flows:
            verb = "reach" if len(flows) > 1 else "reaches"
            reached = "expert alone" if self.insulates else "vision, vlm and expert"
            parts.append(f"{' and '.join(flows)} {verb} {reached}")
        line = f"losses: {'; '.join(parts)}"
        if self._predicts_tokens:
            state = "on" if self.insulates else "off"
            line += f" (policy.insulation is {state})"
        return [line, *seen]

    def blocks(self) -> list[nn.Module]:
        """Layers of the vision encoder, then those of both towers."""
        return [*self.vision.layers, *self.layers]

    def float32_modules(self) -> list[nn.Module]:
        """Patches, positions, and the layers between noisy actions, flow time, state and the
        expert.
        """
        alone = ("action_", "time_", "state_", "proprio_")
        float32_layers = [
            module for name, module in self.named_children() if name.startswith(alone)
        ]
        return [self.vision.patch, self.vision.position, *float32_layers]

    def random_spec(self, use: Use) -> dict[str, RandomSpec]:
        """Noise and flow time of D draws per sample, one time per stratum; to act one noise.

        The noise is as wide as the network: that in dimensions that a robot does not have is an
        input, as in the released training. With `max_delay`, training also draws the number of
        given actions.
        """
        config = self.config
        dim = self.sizes.dim
        if use == "act":
            return {"noise": RandomSpec("normal", (config.chunk, dim))}
        draws = VALIDATION_DRAWS if use == "validation" else config.noise_samples
        times = partial(spread_times, least=config.least_time)
        spec = {
            "flow noise": RandomSpec("normal", (draws, config.chunk, dim)),
            "flow time": RandomSpec("uniform", (draws,), times),
        }
        if config.max_delay and use == "train":
            spec["flow delay"] = RandomSpec("uniform", (), partial(delays, most=config.max_delay))
        return spec

    def check_ready(self) -> None:
        """Raise ConfigError where there is no tokenizer."""
        self.texts.required()

    def preprocess(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add the tokens of the texts, and the extent of each sample."""
        prepared = self.texts.add(self._split(batch), self._at_host[0])
        return {**prepared, EXTENTS: extents(prepared, self.config.cameras)}

    def largest_inputs(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Add tokens of the greatest lengths; it needs no tokenizer."""
        config = self.config
        fast = config.action_tokens if config.fast else 0
        return longest(
            self._split(batch), config.cameras, config.prompt_tokens, config.response_tokens, fast
        )

    def prompt_room(self, prompts: Sequence[str]) -> tuple[int, int, str] | None:
        """Tokens, with the state where the format has it."""
        longest_prompt = self.texts.longest_prompt(prompts)
        if longest_prompt is None:
            return None
        return longest_prompt, self.config.prompt_tokens, "prompt_tokens"

    def tokens(self, batch: Batch) -> list[int]:
        """Count the tokens of each sample in training: images, texts, past states, and
        `noise_samples` chunks.
        """
        expert = self.config.noise_samples * self.suffix_tokens
        return [
            extent.total(self.sizes.vision.tokens) + expert
            for extent in known_extents(batch, self.config.cameras)
        ]

    @property
    def suffix_tokens(self) -> int:
        """Tokens of a noisy chunk in the expert: its actions, and in pi0 the state."""
        return self.config.chunk + (not self.sizes.adaptive)

    def processed_tokens(self, batch: Batch) -> int:
        """Count the tokens that the towers compute: without `packs` each sample is as long as the
        longest.
        """
        counts = self.tokens(batch)
        sizes = known_extents(batch, self.config.cameras)
        if self.packs:
            return sum(counts)
        return sum(counts) + padded_tokens(sizes, self.sizes.vision.tokens, *self._padding)

    @property
    def _padding(self) -> tuple[int, tuple[int, int, int]]:
        multiple = 1 if self.packs else self.length_multiple
        return multiple, self.config.longest_texts

    def counts(self, batch: Batch, draws: Draws) -> dict[str, Tensor]:
        """Number of valid elements of each sample per loss term, int64 [B]."""
        counts = {}
        for term in (term for term in self.loss_terms if term == LossTerm.FLOW or term in TOKENS):
            if term == LossTerm.FLOW:
                dims = self.normalizer.dim_is_pad(ACTION, batch)
                counts[term] = valid_elements(
                    unlearnt_actions(batch, draws, self.config.chunk),
                    draws["flow time"].shape[1],
                    self.config.action_dim,
                    dims,
                )
            else:
                tokens, is_pad = TOKENS[term]
                actions = value_of(batch, ACTION)
                none = torch.zeros(len(actions), dtype=torch.int64, device=actions.device)
                counts[term] = (~batch[is_pad]).sum(dim=1) if tokens in batch else none
        return counts

    def losses(
        self, batch: Batch, draws: Draws, terms: Collection[str] | None = None, detail: bool = False
    ) -> dict[str, Loss]:
        """Compute the loss terms per sample, from the draws of `random_spec`.

        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        computed = [term for term in self.loss_terms if terms is None or term in terms]
        if not computed:
            return {}
        predicted = [term for term in computed if term in TOKENS]
        observed, sizes = self._observed(batch)
        tail = tail_of(batch, sizes, *self._padding) if self._predicts_tokens else None
        if tail is not None:
            observed = self.with_tail(observed, tail)
        suffix = read = None
        if len(predicted) < len(computed):
            suffix, read = self._noisy(batch, draws, computed, detail)
        packing = self.packing(sizes, tail is not None)
        result, hidden = self.run(
            observed,
            suffix,
            insulate=self.insulates,
            hidden=bool(predicted),
            packing=packing,
        )
        losses = {} if result is None or read is None else read(result)
        if tail is not None and hidden is not None:
            losses |= token_losses(self, observed, hidden, tail, sizes, predicted)
        return losses

    @torch.no_grad()
    def act(self, batch: Batch, draws: Draws, steps: int = 10, mode: str = "policy") -> Tensor:
        """Sample actions from the noise of `random_spec("act")`, float32 [B, T, A] in the robot's
        units.

        A policy with responses first predicts its own, unless the batch has them (`response`).
        """
        if mode not in self.modes:
            raise ValueError(
                f"mode {mode!r}: a policy of type {self.config.type} acts in mode "
                f"{TaskMode.POLICY!r} only"
            )
        actions = euler(self._field(batch, draws["noise"]), draws["noise"], steps)
        return self.robot_actions(actions, batch)

    @property
    def response_length(self) -> int:
        """See `Policy.response_length`."""
        return self.config.response_tokens

    @torch.no_grad()
    def respond(
        self, batch: Batch, draws: Draws, length: int | None = None, temperature: float = 0.0
    ) -> list[str]:
        """Generate the response of each sample; see `Policy.respond`."""
        if not self.response_length:
            return super().respond(batch, draws, length, temperature)
        observed, _ = self._observed(batch)
        tokenizer = self.texts.required()
        most = self.response_length if length is None else length
        end = tokenizer.model.eos_id()
        tail = respond(self, observed, most, end, temperature, draws.get(RESPONSE))
        return [
            tokenizer.text(tokens[mask].tolist())
            for tokens, mask in zip(tail.tokens.cpu(), tail.masks.cpu(), strict=True)
        ]

    @torch.no_grad()
    def continue_chunk(
        self,
        batch: Batch,
        draws: Draws,
        executing: Tensor,
        delay: int,
        steps: int = 10,
        horizon: int | None = None,
    ) -> Tensor:
        """Sample actions that continue a chunk which the robot is still executing; see
        `common/flow_matching.py`.

        Args:
            batch: see the class.
            draws: the numbers of `random_spec("act")`.
            executing: float32 [B, n, A], the rest of that chunk in the robot's units, its first
                action now; n <= T.
            delay: actions that the robot executes before the new ones arrive.
            steps: integration steps.
            horizon: actions to be guided by; None: the first `delay` are given, which needs a
                policy trained so.

        Returns:
            float32 [B, T, A] in the robot's units, the first action now.

        Raises:
            ValueError: `delay` or `horizon` exceeds the chunk, or without `horizon` the trained
                `max_delay`.
        """
        config = self.config
        length = executing.shape[1]
        check_delay(delay, horizon, length, config.max_delay)
        rest = nn.functional.pad(executing.float(), (0, 0, 0, config.chunk - length))
        chunk = self.widened(self.normalizer.actions({**batch, ACTION: rest}))
        step: Step = "given" if horizon is None else "guided"
        field = self._field(batch, draws["noise"], step)
        if horizon is None:
            actions = sample_given(field, draws["noise"], chunk, delay, steps)
        else:
            actions = sample_guided(
                field, draws["noise"], chunk, delay, horizon, steps, dims=self._own_dims(batch)
            )
        return self.robot_actions(actions, batch)

    def observed_batch(self, batch: Batch) -> Batch:
        """Return the batch whose images, texts and states the towers see; those of training may
        have more frames.
        """
        return batch

    def packing(self, sizes: Sequence[Extent], tail: bool) -> Packing | None:
        """Return the tokens that count, with `packs`; None: all that the batch is padded to.

        Args:
            sizes: extent of each sample.
            tail: whether the batch has text to predict.
        """
        return packing_of(sizes, self.sizes.vision.tokens, tail) if self.packs else None

    def resized(self, images: Tensor) -> Tensor:
        """Resize images uint8 [N, 3, H, W] to the network's square, in -1..1: float32 [N, 3, side,
        side].
        """
        return letterbox(images, self.sizes.vision.image)

    def widened(self, x: Tensor) -> Tensor:
        """Pad vectors [..., n] with zeros to the width of the network's, [..., dim]."""
        return widened(x, self.sizes.dim)

    def robot_actions(self, x: Tensor, batch: Batch) -> Tensor:
        """Convert actions of the network [B, T, dim] to the robot's units, float32 [B, T, A]."""
        return self.normalizer.robot_actions(x[..., : self.config.action_dim], batch)

    def graph_plan(self) -> GraphPlan:
        """See `CapturesGraphs`: prompts of half the length and of all of it."""
        problem = ""
        if self.config.response_tokens:
            problem = "the policy predicts a response before it acts (response_tokens)"
        if type(self).act is not Pi05Policy.act or not self.has_expert:
            problem = f"a policy of type {self.config.type} acts by functions of its own"
        most = self.config.prompt_tokens
        return GraphPlan((most, -(-most // 2)), ("step", "given", "guided"), problem)

    def graph_bucket(self, batch: Batch) -> Bucket:
        """See `CapturesGraphs`."""
        sizes = known_extents(batch, self.config.cameras)
        most = enclosing(sizes)
        shown = [camera for camera, has in zip(self.config.cameras, most.cameras) if has]
        cameras = shown or self.config.cameras[:1]
        return Bucket(len(sizes), most.prompt, tuple(cameras), max(1, len(self.past.images)))

    def graph_inputs(self, batch: Batch, noise: Tensor, bucket: Bucket) -> dict[str, Tensor]:
        """See `CapturesGraphs`: images and states in the network's form, tokens, and marks of what
        counts.
        """
        config = self.config
        device = noise.device
        sizes = known_extents(batch, config.cameras)
        length = bucket.tokens
        lengths = [min(length, extent.prompt) for extent in sizes]  # of an example
        tokens, _ = cut(value_of(batch, PROMPT[0]), lengths, multiple=length, most=length)
        marks = torch.arange(length) < torch.tensor(lengths)[:, None]
        columns = [camera in bucket.cameras for camera in config.cameras]
        alike = [extent._replace(cameras=tuple(columns)) for extent in sizes]
        side = self.sizes.vision.image
        images = images_of(batch, config.cameras, alike, side, self.past.images, device)
        has = torch.tensor([extent.cameras for extent in sizes], dtype=torch.bool)
        inputs = {
            "pixels": images.pixels,
            "has": to_device(has[:, torch.tensor(columns, dtype=torch.bool)], device),
            "tokens": tokens,
            "marks": to_device(marks, device),
            "own": self._own_dims(batch),
            "noise": noise,
        }
        if images.frames is not None and images.frames.valid is not None:
            encoding = time_encoding(images.frames.times, self.sizes.vision.width)
            inputs["frames"] = images.frames.valid
            inputs["encoding"] = to_device(encoding, device)[None]
        if self.past.states:
            inputs["past"], inputs["past_valid"] = self._states(batch)
        if (state := self._state(batch)) is not None:
            inputs["state"] = state
        return inputs

    def graph_prefix(self, inputs: Inputs, bucket: Bucket) -> tuple[Tensor, ...]:
        """See `Kernels`: marks of the tokens, then keys and values of each layer."""
        frames = states = None
        if "frames" in inputs:
            frames = Frames(self.past.images, inputs["frames"], inputs["encoding"][0])
        if "past" in inputs:
            states = States(inputs["past"], inputs["past_valid"])
        observed = self.observe(
            inputs["pixels"], None, inputs["tokens"], inputs["marks"], frames, states
        )
        # all images are encoded, and the missing ones masked: which ones is a value
        shown = inputs["has"].repeat_interleave(self.sizes.vision.tokens, dim=1)
        seen, text = observed.embeddings.tensor_split((shown.shape[1],), dim=1)
        embeddings = torch.cat([torch.where(shown[..., None], seen, 0.0), text], dim=1)
        valid = torch.cat([shown, observed.valid[:, shown.shape[1] :]], dim=1)
        caches = self.caches(observed._replace(embeddings=embeddings, valid=valid, full=False))
        return valid, *chain.from_iterable(caches)

    def graph_step(
        self, inputs: Inputs, cache: Sequence[Tensor], x: Tensor, time: Tensor, bucket: Bucket
    ) -> Tensor:
        """See `Kernels`."""
        valid = cache[0]
        caches = list(zip(cache[1::2], cache[2::2]))
        observed = Observation(valid, valid, valid.shape[1], 0, full=False)
        suffix = self.suffix(x, time, inputs.get("state"))
        moves = self.action_velocity(self.run_expert(observed, caches, suffix), x)
        return torch.where(inputs["own"], moves, inputs["noise"])

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy a state dict into the policy, under own names or those of a released file; raises as
        `stored_keys`.
        """
        fill_parameters(self, weights, stored_keys(self, weights))

    def stored_rows(self, weights: TensorReader) -> StoredRows:
        """Rows of stored weights, under own names or those of a released file; raises as
        `load_weights` does.
        """
        return StoredRows(weights, stored_keys(self, weights))

    def first_weights(self, seed: int) -> FirstWeights:
        """Rows of the weights of a fresh run: those of `config.weights`, or fresh ones."""
        needed = {name: p.shape for name, p in self.named_parameters()}
        unread = () if self.has_expert else EXPERT_TENSORS
        return FirstWeights(needed, self.config.weights, seed=seed, unread=unread)

    def _split(self, batch: dict[str, Any]) -> dict[str, Any]:
        times = self.past.states
        return split_states(batch, len(times)) if times else batch

    # -- inside ------------------------------------------------------------------------------------

    def _noisy(
        self, batch: Batch, draws: Draws, terms: Collection[str], detail: bool
    ) -> tuple[Suffix, Callable[[Tensor], dict[str, Loss]]]:
        """Embed the noisy chunks of a batch, and return the function that reads the loss of `terms`
        off `run`.
        """
        noisy, times, clean = noisy_chunks(
            batch, draws, self.config, self.normalizer, self.sizes.dim
        )
        suffix = self.suffix(
            noisy.flatten(0, 1), times.flatten(0, 1), self._state(batch), noisy.shape[1]
        )

        def read(result: Tensor) -> dict[str, Loss]:
            moves = self.action_velocity(result, noisy)
            return {LossTerm.FLOW: flow_loss(batch, draws, moves, clean, self.normalizer, detail)}

        return suffix, read

    def _observed(self, batch: Batch) -> tuple[Observation, list[Extent]]:
        """Embed the images and the prompt of a batch, without the cameras and the padding that no
        sample needs.
        """
        batch = self.observed_batch(batch)
        sizes = known_extents(batch, self.config.cameras)
        config = self.config
        tokens = value_of(batch, PROMPT[0])
        side = self.sizes.vision.image
        images = images_of(batch, config.cameras, sizes, side, self.past.images, tokens.device)
        tokens, masks = cut(
            tokens, [extent.prompt for extent in sizes], self._padding[0], config.prompt_tokens
        )
        states = self._states(batch) if self.past.states else None
        return self.observe(images.pixels, images.has, tokens, masks, images.frames, states), sizes

    def _states(self, batch: Batch) -> States:
        """States over time in the network's units and width."""
        values = value_of(batch, STATES)
        is_pad = value_of(batch, STATES_IS_PAD)
        check_shape(STATES, values, (None, len(self.past.states), self.config.state_dim))
        return States(self.widened(self.normalizer.states(batch, values)), ~is_pad)

    def _before_acting(self, batch: Batch) -> Observation:
        """Embed a batch to act on, with the response that the expert sees."""
        observed, sizes = self._observed(batch)
        if not self.config.response_tokens:
            return observed
        if TOKENS[TEXT][0] in batch:
            return self.with_tail(
                observed, tail_of(batch, [extent._replace(fast=0) for extent in sizes])
            )
        end = self.texts.required().model.eos_id()
        return self.with_tail(observed, respond(self, observed, self.config.response_tokens, end))

    def _state(self, batch: Batch) -> Tensor | None:
        """State in the network's units and width, float32 [B, dim]; None where the network has no
        such input.
        """
        if self.sizes.adaptive:
            return None
        state = state_now(batch)
        check_shape(STATE, state, (None, self.config.state_dim))
        return self.widened(self.normalizer.states(batch, state))

    def _field(self, batch: Batch, noise: Tensor, step: Step = "step") -> Field:
        """Make the velocity field of a batch that starts at `noise` [B, T, dim], of captured graphs
        where there are some.

        In dimensions that a robot does not have, training shows time * noise and asks for nothing.
        So the velocity is the noise there, which keeps sampling on the path of training.
        """
        count = len(known_extents(batch, self.config.cameras))
        check_shape("noise", noise, (count, self.config.chunk, self.sizes.dim))
        if (captured := graph_field(self, batch, noise, step)) is not None:
            return captured
        field = self.field(self._before_acting(batch), self._state(batch))
        is_own = self._own_dims(batch)
        return lambda x, time: torch.where(is_own, field(x, time), noise)

    def _own_dims(self, batch: Batch, key: str = ACTION) -> Tensor:
        """Mark the dimensions of the network's actions, or states, that the robot has, bool [B or
        1, 1, dim].
        """
        is_pad = self.normalizer.dim_is_pad(key, batch)
        if is_pad is None:
            width = self.config.widths[key]
            device = value_of(batch, PROMPT[0]).device
            is_pad = torch.zeros(1, width, dtype=torch.bool, device=device)
        return nn.functional.pad(~is_pad, (0, self.sizes.dim - is_pad.shape[-1]))[:, None]
