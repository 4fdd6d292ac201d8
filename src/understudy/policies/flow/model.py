"""FlowPolicy: pictures, state and text in, a chunk of actions out, by flow matching. About a million parameters.

The whole model reads top to bottom: encode what the robot sees and is told into one vector, then let a residual MLP
predict the velocity of the whole chunk at once (`policies/common/flow_matching.py` has the path and the convention of
time). Everything random is an argument, so the same batch, noise and time give the same numbers anywhere. In and out
are the robot's units: the normalisation belongs to the policy and is saved with it (`policies/common/units.py`).

With `future` the same network also learns what comes of the actions: the states that follow are a second stream beside
the chunk of actions, with a flow time of its own, and whichever is given (time 0) the other is found from it: forward
and inverse dynamics (`policies/common/modes.py`), as in Zhu et al. 2025, "Unified World Models".
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.batch_keys import ACTION, MODE, STATE, TASK
from understudy.policies import pretrained
from understudy.policies.batch import check_shape, value_of
from understudy.policies.common.flow_matching import euler, noisy_actions, velocity
from understudy.policies.common.layers import Layer, Linear, layer_norm, sinusoids, zero_init
from understudy.policies.common.modes import DYNAMICS, FLOW, FORWARD, MODES, POLICY, TRAINS
from understudy.policies.common.units import Units, blanked, state_now
from understudy.policies.flow.text import TextEncoder
from understudy.policies.flow.vision import PictureEncoder
from understudy.policies.losses import Loss, masked_squared_error, valid_elements


@dataclass(frozen=True)
class FlowPolicyConfig:
    """What a FlowPolicy is. The first block comes from the dataset's features, the rest is the network."""

    action_dim: int
    """Width of one action."""
    state_dim: int = 0
    """Width of `observation.state`; 0: the policy has no state."""
    cameras: tuple[str, ...] = ()
    """Keys of the pictures, in the order they are encoded; empty: the policy is blind."""
    chunk: int = 8
    """Actions predicted at once (T)."""
    picture: tuple[int, int] = (64, 64)
    """Height and width the network sees; pictures of another size are area-averaged to it."""
    text_bytes: int = 96
    """Length of the instruction in bytes, with its start token; longer ones are cut."""
    channels: int = 24
    """Channels of the picture network (a multiple of 8)."""
    blocks: int = 3
    """Residual blocks of the picture network."""
    points: int = 32
    """Keypoints read from each picture (even: half from the network's maps, half from the plain colours)."""
    width: int = 192
    """Width of the condition and of the action network."""
    layers: int = 3
    """Residual layers of the action network."""
    compute: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network's arithmetic; normalisation, the flow and the loss are float32 always."""
    future: bool = False
    """Also learn the states that follow each action of the chunk, and thereby forward and inverse dynamics."""

    @property
    def noise_dim(self) -> int:
        """Width of the noise that a slot of the chunk begins as: of the action, and of the state behind it."""
        return self.action_dim + (self.state_dim if self.future else 0)

    def __post_init__(self) -> None:
        for name in ("action_dim", "chunk", "text_bytes", "channels", "blocks", "points", "width", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.state_dim < 0:
            raise ValueError(f"state_dim={self.state_dim}: must be 0 (no state) or more")
        if self.future and not self.state_dim:
            raise ValueError(f"future={self.future}, state_dim=0: without a state there is no future to learn")
        if self.channels % 8 or self.width % 8:
            raise ValueError(f"channels={self.channels}, width={self.width}: both must be multiples of 8")
        if self.points % 2:
            raise ValueError(f"points={self.points}: must be even, half of them look at colours")
        if len(self.picture) != 2 or any(side < 8 or side % 4 for side in self.picture):
            raise ValueError(f"picture={self.picture}: height and width must be multiples of 4, at least 8")


KEY_OF = {FLOW: ACTION, DYNAMICS: STATE}
"""Where a batch has what a loss term is about."""


class _Stream(NamedTuple):
    """What one loss term is about: the chunk of actions, or the states that follow."""

    clean: Tensor
    """float32 [B, T, dim], normalised, 0 in padded slots and dimensions."""
    is_pad: Tensor
    """bool [B, T]."""
    dim_is_pad: Tensor | None
    """bool [B, dim]."""
    given: Tensor | None
    """bool [B], True where the sample's mode gives it instead of asking for it; None: nowhere."""


class FlowPolicy(nn.Module):
    """The policy. `FlowPolicy(config, normalisation)` with freshly drawn weights (from torch's generator), or `load`.

    A batch is a dict with the keys of `input_keys`: each camera uint8 [B, 3, H, W]; `observation.state` [B, S]; `task`
    a sequence of B strings; for training also `action` [B, T, A] and `action_is_pad` bool [B, T].

    Where robots differ, also `head` int64 [B] (see `policies/common/units.py`; needed where there are several),
    `action_dim_is_pad` bool [B, A] and `observation.state_dim_is_pad` bool [B, S], and `<camera>_is_missing` bool [B]:
    what they name counts nothing and reaches nothing, whatever stands there. With `future`: to train
    `observation.state` [B, 1 + T, S], of now and after each action, `observation.state_is_pad` bool [B, 1 + T], and
    where it is not always "policy" `mode` int64 [B] (`modes.MODES`); to act [B, S] is enough.
    """

    def __init__(self, config: FlowPolicyConfig, normalisation: Mapping[str, Any]) -> None:
        """normalisation: {"heads": [...], "action": {"offset": [H][A], "spread": [H][A]}, "observation.state": ...,
        "delta": ..., "dims": ...}; see `policies/common/units.py`.

        Raises ValueError when an entry is missing, of the wrong width, or cannot be undone.
        """
        super().__init__()
        self.config = config
        self.units = Units(
            normalisation, {ACTION: config.action_dim} | ({STATE: config.state_dim} if config.state_dim else {})
        )
        width = config.width
        self.text = TextEncoder(config.text_bytes, 64, width)
        self.eyes = (
            PictureEncoder(
                len(config.cameras), config.picture, config.channels, config.blocks, config.points, condition=width
            )
            if config.cameras
            else None
        )
        seen = len(config.cameras) * 2 * config.points
        self.fuse = Linear(seen + config.state_dim + width, width)
        self.fuse_again = Linear(width, width)
        self.time = Linear(64 * len(self._streams), width)
        self.enter = Linear(config.chunk * config.noise_dim, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(config.layers))
        self.leave = zero_init(Linear(width, config.chunk * config.noise_dim))

    @property
    def input_keys(self) -> tuple[str, ...]:
        """Keys a batch must have to act: the cameras, `observation.state` where used, `task`."""
        return (*self.config.cameras, *((STATE,) if self.config.state_dim else ()), TASK)

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the norm heads, in the sequence of the numbers that a batch has under `head`."""
        return self.units.heads

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the loss terms."""
        return self._streams

    @property
    def modes(self) -> tuple[str, ...]:
        """The task modes that it can be trained in."""
        return MODES if self.config.future else (POLICY,)

    def blocks(self) -> list[nn.Module]:
        """Where the network may be cut: modules that are given tensors of the same shapes in every step, hold much of
        it, and not one another. A run recomputes, compiles and shards these one by one. (The text encoder is given
        sentences, as many as differ.)"""
        return [*(self.eyes.blocks if self.eyes is not None else ()), *self.layers]

    def float32_modules(self) -> list[nn.Module]:
        """Modules that compute in float32 from float32 weights whatever `config.compute` says."""
        return [self.text.out]

    def counts(self, batch: Mapping[str, Any], draws: int) -> dict[str, Tensor]:
        """Valid elements of a batch per loss term with `draws` draws per sample, int64 []: known before any loss is,
        so that a step can divide by the count over all ranks and micro-batches."""
        return {
            term: valid_elements(
                _uncounted(self._is_pad(batch, term), self._given(batch, term)),
                draws,
                self._width(term),
                self.units.dim_is_pad(KEY_OF[term], batch),
            ).sum()
            for term in self._streams
        }

    def losses(
        self,
        batch: Mapping[str, Any],
        noise: Tensor,
        time: Tensor,
        terms: Collection[str] | None = None,
        detail: bool = False,
    ) -> dict[str, Loss]:
        """Flow-matching loss per sample.

        Args:
            batch: see the class.
            noise: float32 [B, D, T, A], standard normal; D independent draws per sample share one look at the pictures,
                which is most of the cost. With a future [B, D, T, A + S], the noise of the states behind.
            time: float32 [B, D] in [0, 1], 1 is noise (see `flow.spread_times`). With a future [B, D, 2], of the
                actions and of the states.
            terms: those to compute, of `self.terms`; None: all.
            detail: also by draw and dimension; the rest is the same to the bit.
        Returns:
            {"flow": Loss, "dynamics": Loss}, the second with a future: mean squared velocity error in normalised units
            over unpadded slots and dimensions; 0 elements of a sample whose mode gives what a term is about.
        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        wanted = [term for term in self._streams if terms is None or term in terms]
        if not wanted:
            return {}
        streams = [self._stream(batch, term) for term in self._streams]
        check_shape("noise", noise, (len(streams[0].clean), None, self.config.chunk, self.config.noise_dim))
        check_shape("time", time, (*noise.shape[:2], *((len(streams),) if len(streams) > 1 else ())))
        noises, times = self._split(noise), list(time.view(*noise.shape[:2], -1).unbind(dim=2))  # one per stream
        points, targets = [], []
        for number, (stream, own) in enumerate(zip(streams, noises)):
            if stream.given is not None:
                times[number] = torch.where(stream.given[:, None], 0.0, times[number])
            clean = stream.clean[:, None].expand_as(own)  # [B, D, T, dim]
            points.append(blanked(noisy_actions(clean, own, times[number]), stream.dim_is_pad))
            targets.append(velocity(clean, own))
        predicted = self._velocity(torch.cat(points, dim=3), torch.stack(times, dim=2), self._condition(batch))
        return {
            term: masked_squared_error(each, target, _uncounted(s.is_pad, s.given), s.dim_is_pad, detail)
            for term, each, target, s in zip(self._streams, self._split(predicted), targets, streams)
            if term in wanted
        }

    @torch.no_grad()
    def sample_actions(self, batch: Mapping[str, Any], noise: Tensor, steps: int = 10, mode: str = POLICY) -> Tensor:
        """Actions for what the robot sees now: `steps` Euler steps from noise float32 [B, T, A], or [B, T, A + S] with
        a future.

        Args:
            mode: "policy", or "inverse_dynamics": those that lead to the future that the batch has (as for training).
        Returns:
            float32 [B, T, A] in the robot's units, not clipped to any limits; 0 behind a robot's own dimensions.
        """
        return self.units.robot_actions(self._sample(batch, noise, steps, mode, FLOW), batch)

    @torch.no_grad()
    def sample_future(self, batch: Mapping[str, Any], noise: Tensor, steps: int = 10, mode: str = FORWARD) -> Tensor:
        """States that follow, of a policy with a future: `steps` Euler steps from noise float32 [B, T, A + S].

        Args:
            mode: "forward_dynamics": after the batch's `action` [B, T, A]; "policy": after what it would do itself.
        Returns:
            float32 [B, T, S] in the robot's units; 0 behind a robot's own dimensions.
        """
        return self.units.robot_states(self._sample(batch, noise, steps, mode, DYNAMICS), batch)

    def save(self, directory: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write model.safetensors (float32), config.json and normalisation.json; an older folder is replaced whole.

        weights: those to write, by name, where this policy does not hold them whole.
        """
        pretrained.save(directory, self.config, self.units.arrays(), self.state_dict() if weights is None else weights)

    @staticmethod
    def load(directory: str | Path) -> "FlowPolicy":
        """The saved policy, every weight and normalisation bit-equal, on the CPU. Raises ValueError or OSError."""
        config, normalisation, weights = pretrained.load(directory, FlowPolicyConfig)
        with torch.random.fork_rng(devices=[]):  # fresh weights are drawn and replaced: leave no trace of that
            policy = FlowPolicy(config, normalisation)
        try:
            policy.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{directory}: the weights are not those of this config: {error}") from error
        return policy

    # -- inside ---------------------------------------------------------------------------------------------------

    @property
    def _streams(self) -> tuple[str, ...]:
        """What is found from noise side by side, by its loss term; a policy made from this one may have more terms."""
        return (FLOW, DYNAMICS) if self.config.future else (FLOW,)

    def _stream(self, batch: Mapping[str, Any], term: str) -> _Stream:
        """What `term` is about, of a batch for training.

        What stands in a padded slot must not matter, and x_t at a padded slot is an input of the network: so the
        values are replaced here, before they meet anything. Such a slot carries noise only, a padded dimension nothing.
        """
        clean, is_pad = self._values(batch, term), self._is_pad(batch, term)
        clean = torch.where(is_pad[..., None], torch.zeros_like(clean), clean)
        return _Stream(clean, is_pad, self.units.dim_is_pad(KEY_OF[term], batch), self._given(batch, term))

    def _values(self, batch: Mapping[str, Any], term: str) -> Tensor:
        """The batch's actions, or the states behind them: normalised, float32 [B, T, dim]."""
        values, chunk = value_of(batch, KEY_OF[term]), self.config.chunk
        if term == FLOW:
            check_shape(ACTION, values, (None, chunk, self.config.action_dim))
            return self.units.actions(batch)
        check_shape(STATE, values, (None, 1 + chunk, self.config.state_dim))
        return self.units.states(batch, values[:, 1:])

    def _is_pad(self, batch: Mapping[str, Any], term: str) -> Tensor:
        """Slots without a target, bool [B, T]."""
        key, slots = f"{KEY_OF[term]}_is_pad", self.config.chunk + (term == DYNAMICS)
        is_pad: Tensor = value_of(batch, key)
        check_shape(key, is_pad, (len(value_of(batch, KEY_OF[term])), slots))
        return is_pad[:, -self.config.chunk :]

    def _given(self, batch: Mapping[str, Any], term: str) -> Tensor | None:
        """Samples whose mode gives what `term` is about, bool [B]; None: there are no modes."""
        if MODE not in batch:
            return None
        if not self.config.future:
            raise ValueError(
                f"the batch has {MODE!r}, and a policy without a future is trained in mode {POLICY!r} alone"
            )
        given = torch.zeros_like(batch[MODE], dtype=torch.bool)
        for number, mode in enumerate(MODES):
            if term not in TRAINS[mode]:
                given = given | (batch[MODE] == number)
        return given

    def _condition(self, batch: Mapping[str, Any]) -> Tensor:
        """What the robot sees, feels and is told: [B, width]."""
        dtype = getattr(torch, self.config.compute)
        told = self.text(value_of(batch, TASK), dtype)  # [B, width]
        parts = [told]
        if self.eyes is not None:
            pictures = [value_of(batch, key) for key in self.config.cameras]
            missing: list[Tensor | None] = [batch.get(f"{key}_is_missing") for key in self.config.cameras]
            for key, picture, lacks in zip(self.config.cameras, pictures, missing):
                check_shape(key, picture, (len(told), 3, None, None))
                if picture.dtype != torch.uint8:
                    raise ValueError(f"{key} is {picture.dtype}, pictures are uint8")
                if lacks is not None:
                    check_shape(f"{key}_is_missing", lacks, (len(told),))
            parts.append(self.eyes(pictures, told, missing))
        if self.config.state_dim:
            state = value_of(batch, STATE)
            slots = (1 + self.config.chunk,) if self.config.future and state.ndim == 3 else ()
            check_shape(STATE, state, (len(told), *slots, self.config.state_dim))
            parts.append(self.units.states(batch, state_now(batch)))
        fused = self.fuse(torch.cat([part.to(dtype) for part in parts], dim=1))
        return self.fuse_again(F.gelu(fused))

    def _velocity(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Predicted velocity of D points per sample: x [B, D, T, A + S], time [B, D, K] of the K streams, condition
        [B, width] -> as x."""
        spread = sinusoids(time, 64).flatten(2).to(condition.dtype)  # [B, D, 64 K]
        told = F.gelu(condition[:, None] + self.time(spread))  # [B, D, width]
        h = self.enter(x.flatten(2).to(condition.dtype))  # [B, D, width]
        for layer in self.layers:
            h = layer(h, told)
        return self.leave(layer_norm(h)).float().view(x.shape)

    def _sample(self, batch: Mapping[str, Any], noise: Tensor, steps: int, mode: str, term: str) -> Tensor:
        """What `term` is about, found from noise [B, T, A + S] in `mode`: normalised, [B, T, dim]."""
        if mode not in self.modes or term not in self._streams or term not in TRAINS[mode]:
            able = [each for each in self.modes if term in TRAINS[each] and term in self._streams]
            what = f"mode {mode!r} does not lead to {'actions' if term == FLOW else 'states'} with this policy"
            raise ValueError(f"{what}: {' or '.join(able) or 'none does, it was made without a future'}")
        check_shape("noise", noise, (None, self.config.chunk, self.config.noise_dim))
        condition = self._condition(batch)
        check_shape("noise", noise, (len(condition), self.config.chunk, self.config.noise_dim))
        pads = {each: self.units.dim_is_pad(KEY_OF[each], batch) for each in self._streams}
        start = [
            blanked(own, pads[each]) if each in TRAINS[mode] else self._given_stream(batch, each)
            for each, own in zip(self._streams, self._split(noise))
        ]

        def field(x: Tensor, time: Tensor) -> Tensor:
            times = [time if each in TRAINS[mode] else torch.zeros_like(time) for each in self._streams]
            moves = self._velocity(x[:, None], torch.stack(times, dim=1)[:, None], condition)[:, 0]
            parts = [
                blanked(own, pads[each]) if each in TRAINS[mode] else torch.zeros_like(own)
                for each, own in zip(self._streams, self._split(moves))
            ]
            return torch.cat(parts, dim=2)

        found = euler(field, torch.cat(start, dim=2), steps)
        return self._split(found)[self._streams.index(term)]

    def _given_stream(self, batch: Mapping[str, Any], term: str) -> Tensor:
        """What a mode gives, to sample the rest: [B, T, dim]; slots are padded where the batch says so."""
        if f"{KEY_OF[term]}_is_pad" not in batch:
            return self._values(batch, term)
        return self._stream(batch, term).clean

    def _width(self, term: str) -> int:
        return self.config.action_dim if term == FLOW else self.config.state_dim

    def _split(self, x: Tensor) -> tuple[Tensor, ...]:
        """[..., A + S] -> of each stream, [..., dim]."""
        return x.split([self._width(term) for term in self._streams], dim=-1)


def _uncounted(is_pad: Tensor, given: Tensor | None) -> Tensor:
    """Slots that count nothing, bool [B, T]: without a target, or all of them where it is given."""
    return is_pad if given is None else is_pad | given[:, None]
