"""FlowPolicy: pictures, state and text in, a chunk of actions out, by flow matching. About a million parameters.

The whole model reads top to bottom: encode what the robot sees and is told into one vector, then let a residual MLP
predict the velocity of the whole chunk at once (`flow.py` has the path and the convention of time). Everything random
is an argument, so the same batch, noise and time give the same numbers anywhere. In and out are the robot's units: the
normalisation belongs to the policy and is saved with it. Not here: dataset, optimizer, mesh, files (`folder.py`).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from understudy.policies import folder
from understudy.policies.affine import Affine
from understudy.policies.flow import euler, noisy_actions, velocity
from understudy.policies.layers import Linear, layer_norm, sinusoids, zero_init
from understudy.policies.losses import Loss, masked_squared_error, valid_elements
from understudy.policies.text import TextEncoder
from understudy.policies.vision import PictureEncoder

STATE, ACTION, TASK = "observation.state", "action", "task"
FLOW = "flow"


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

    def __post_init__(self) -> None:
        for name in ("action_dim", "chunk", "text_bytes", "channels", "blocks", "points", "width", "layers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if self.state_dim < 0:
            raise ValueError(f"state_dim={self.state_dim}: must be 0 (no state) or more")
        if self.channels % 8 or self.width % 8:
            raise ValueError(f"channels={self.channels}, width={self.width}: both must be multiples of 8")
        if self.points % 2:
            raise ValueError(f"points={self.points}: must be even, half of them look at colours")
        if len(self.picture) != 2 or any(side < 8 or side % 4 for side in self.picture):
            raise ValueError(f"picture={self.picture}: height and width must be multiples of 4, at least 8")


class Layer(nn.Module):
    """A residual MLP layer modulated by the condition (adaLN-zero, Peebles & Xie 2023, "Scalable Diffusion Models")."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulate = zero_init(Linear(width, 3 * width))
        self.grow = Linear(width, 2 * width)
        self.shrink = Linear(2 * width, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        scale, shift, gate = self.modulate(condition).chunk(3, dim=-1)
        return x + gate * self.shrink(F.gelu(self.grow(layer_norm(x) * (1 + scale) + shift)))


class FlowPolicy(nn.Module):
    """The policy. `FlowPolicy(config, normalisation)` with freshly drawn weights (from torch's generator), or `load`.

    A batch is a dict with the keys of `input_keys`: each camera uint8 [B, 3, H, W]; `observation.state` [B, S];
    `task` a sequence of B strings; for training also `action` [B, T, A] and `action_is_pad` bool [B, T].
    """

    def __init__(self, config: FlowPolicyConfig, normalisation: Mapping[str, Mapping[str, Any]]) -> None:
        """normalisation: {"action": {"offset": [A], "spread": [A]}, "observation.state": ...}; see `affine.py`.

        Raises ValueError when an entry is missing or of the wrong width.
        """
        super().__init__()
        self.config = config
        wanted = {ACTION: config.action_dim} | ({STATE: config.state_dim} if config.state_dim else {})
        for key in wanted:
            if key not in normalisation:
                raise ValueError(f"normalisation has {sorted(normalisation)}, the policy also needs {key!r}")
        # Module names may not contain dots.
        self.action_map = Affine.of(normalisation[ACTION], ACTION, config.action_dim)
        self.state_map = Affine.of(normalisation[STATE], STATE, config.state_dim) if config.state_dim else None

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
        self.time = Linear(64, width)
        self.enter = Linear(config.chunk * config.action_dim, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(config.layers))
        self.leave = zero_init(Linear(width, config.chunk * config.action_dim))

    @property
    def input_keys(self) -> tuple[str, ...]:
        """Keys a batch must have to act: the cameras, `observation.state` where used, `task`."""
        return (*self.config.cameras, *((STATE,) if self.config.state_dim else ()), TASK)

    @property
    def terms(self) -> tuple[str, ...]:
        """Names of the loss terms."""
        return (FLOW,)

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
        return {FLOW: valid_elements(_get(batch, f"{ACTION}_is_pad"), draws, self.config.action_dim).sum()}

    def losses(
        self, batch: Mapping[str, Any], noise: Tensor, time: Tensor, terms: Collection[str] | None = None
    ) -> dict[str, Loss]:
        """Flow-matching loss per sample.

        Args:
            batch: see the class.
            noise: float32 [B, D, T, A], standard normal; D independent draws per sample share one look at the pictures,
                which is most of the cost.
            time: float32 [B, D] in [0, 1], 1 is noise (see `flow.spread_times`).
            terms: those to compute, of `self.terms`; None: all.
        Returns:
            {"flow": Loss}, mean squared velocity error in normalised units over unpadded slots.
        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """
        if terms is not None and FLOW not in terms:
            return {}
        actions, is_pad = self._targets(batch)
        _check("noise", noise, (len(actions), None, self.config.chunk, self.config.action_dim))
        _check("time", time, tuple(noise.shape[:2]))
        clean = actions[:, None].expand_as(noise)  # [B, D, T, A]
        condition = self._condition(batch)
        predicted = self._velocity(noisy_actions(clean, noise, time), time, condition)
        return {FLOW: masked_squared_error(predicted, velocity(clean, noise), is_pad)}

    @torch.no_grad()
    def sample_actions(self, batch: Mapping[str, Any], noise: Tensor, steps: int = 10) -> Tensor:
        """Actions for what the robot sees now: `steps` Euler steps from noise float32 [B, T, A].

        Returns float32 [B, T, A] in the robot's units, not clipped to any limits.
        """
        _check("noise", noise, (None, self.config.chunk, self.config.action_dim))
        condition = self._condition(batch)
        _check("noise", noise, (len(condition), self.config.chunk, self.config.action_dim))

        def field(x: Tensor, time: Tensor) -> Tensor:
            return self._velocity(x[:, None], time[:, None], condition)[:, 0]

        return self.action_map.unnormalise(euler(field, noise, steps))

    def save(self, directory: str | Path, weights: Mapping[str, Tensor] | None = None) -> None:
        """Write model.safetensors (float32), config.json and normalisation.json; an older folder is replaced whole.

        weights: those to write, by name, where this policy does not hold them whole.
        """
        normalisation = {ACTION: self.action_map.arrays()}
        if self.state_map is not None:
            normalisation[STATE] = self.state_map.arrays()
        folder.save(directory, self.config, normalisation, self.state_dict() if weights is None else weights)

    @staticmethod
    def load(directory: str | Path) -> "FlowPolicy":
        """The saved policy, every weight and normalisation bit-equal, on the CPU. Raises ValueError or OSError."""
        config, normalisation, weights = folder.load(directory, FlowPolicyConfig)
        with torch.random.fork_rng(devices=[]):  # fresh weights are drawn and replaced: leave no trace of that
            policy = FlowPolicy(config, normalisation)
        try:
            policy.load_state_dict(weights)
        except RuntimeError as error:
            raise ValueError(f"{directory}: the weights are not those of this config: {error}") from error
        return policy

    # -- inside ---------------------------------------------------------------------------------------------------

    def _targets(self, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        """Normalised actions [B, T, A] with padded slots 0, and is_pad [B, T].

        What stands in a padded slot must not matter, and x_t at a padded slot is an input of the network: so the
        values are replaced here, before they meet anything. Such a slot carries noise only.
        """
        actions, is_pad = _get(batch, ACTION), _get(batch, f"{ACTION}_is_pad")
        _check(ACTION, actions, (None, self.config.chunk, self.config.action_dim))
        _check(f"{ACTION}_is_pad", is_pad, tuple(actions.shape[:2]))
        normalised = self.action_map.normalise(actions)
        return torch.where(is_pad[..., None], torch.zeros_like(normalised), normalised), is_pad

    def _condition(self, batch: Mapping[str, Any]) -> Tensor:
        """What the robot sees, feels and is told: [B, width]."""
        dtype = getattr(torch, self.config.compute)
        told = self.text(_get(batch, TASK), dtype)  # [B, width]
        parts = [told]
        if self.eyes is not None:
            pictures = [_get(batch, key) for key in self.config.cameras]
            for key, picture in zip(self.config.cameras, pictures):
                _check(key, picture, (len(told), 3, None, None))
                if picture.dtype != torch.uint8:
                    raise ValueError(f"{key} is {picture.dtype}, pictures are uint8")
            parts.append(self.eyes(pictures, told))
        if self.state_map is not None:
            state = _get(batch, STATE)
            _check(STATE, state, (len(told), self.config.state_dim))
            parts.append(self.state_map.normalise(state))
        fused = self.fuse(torch.cat([part.to(dtype) for part in parts], dim=1))
        return self.fuse_again(F.gelu(fused))

    def _velocity(self, x: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """Predicted velocity of D points per sample: x [B, D, T, A], time [B, D], condition [B, width] -> as x."""
        told = F.gelu(condition[:, None] + self.time(sinusoids(time, 64).to(condition.dtype)))  # [B, D, width]
        h = self.enter(x.flatten(2).to(condition.dtype))  # [B, D, width]
        for layer in self.layers:
            h = layer(h, told)
        return self.leave(layer_norm(h)).float().view(x.shape)


def _get(batch: Mapping[str, Any], key: str) -> Any:
    if key not in batch:
        raise ValueError(f"the batch has {sorted(batch)}, the policy needs {key!r}")
    return batch[key]


def _check(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Refuse a tensor whose shape is not `shape` (None: any)."""
    got = tuple(tensor.shape)
    if len(got) != len(shape) or any(want is not None and have != want for have, want in zip(got, shape)):
        wanted = ", ".join("any" if side is None else str(side) for side in shape)
        raise ValueError(f"{name} has shape {got}, expected ({wanted})")
