"""What a run holds in memory: policy, optimizer and average on the mesh, made, stepped and judged.

Made in one sequence, the only one that is right: build in float32 -> freeze -> copy for the average -> store (which may
keep the weights in bfloat16) -> to the device -> activation checkpoint per block -> compile per block -> shard ->
optimizer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from understudy.bytesize import parse_bytes
from understudy.config.limits import memory
from understudy.config.train import TrainConfig
from understudy.distributed.activation_checkpoint import apply_activation_checkpointing
from understudy.distributed.compile import compile_blocks
from understudy.distributed.mesh import Mesh, fair_threads, num_micro_batches, reshard_weights, shard
from understudy.errors import ConfigError
from understudy.load.eval.validation_data import HeldOut
from understudy.optim.adamw import Float32AdamW
from understudy.optim.lr_schedule import lr_factor
from understudy.optim.param_groups import ema_decay, freeze, loss_weights, make_average, update_average
from understudy.order.random.keys import make_key
from understudy.policies.flow.model import FlowPolicy, FlowPolicyConfig
from understudy.train import precision
from understudy.train.data.data import RunData
from understudy.train.eval.validate import DRAWS, evaluate
from understudy.train.profiling.timer import NULL, Timer
from understudy.train.step import (
    Draws,
    StepResult,
    apply_augmentation,
    batch_to_device,
    optimizer_step,
    split_micro_batches,
    to_device,
)
from understudy.train.task_modes import mode_of


@dataclass
class TrainState:
    """The state of a run between two steps."""

    config: TrainConfig
    mesh: Mesh
    policy: FlowPolicy
    optimizer: Float32AdamW
    average: FlowPolicy | None
    draws: Draws
    weights: dict[str, float]
    """Of the loss terms that are computed, by name."""
    heads: Tensor | None = None
    """int64 [sources]: the norm head of each; None where there is one head."""
    step: int = 0
    """Optimizer steps behind it."""
    checked: bool = False
    """Whether a step of this process has been looked at for parameters that the loss does not reach."""

    @property
    def eval_policy(self) -> FlowPolicy:
        """The weights to judge and to hand out."""
        return self.average or self.policy

    @property
    def lr(self) -> float:
        """Learning rate of the next step, before the factors of groups."""
        return self.config.optim.lr * lr_factor(self.step, self.config.schedule, self.config.steps)

    def train_step(self, batch: Mapping[str, Any], timer: Timer = NULL) -> StepResult:
        """One optimizer step from this rank's share of a global batch, as the loader hands it out."""
        config, device = self.config, self.mesh.device
        with timer("host to device"):
            noise, time = (to_device(draw, device) for draw in self.draws.noise_and_time(batch["position"]))
            batch = apply_augmentation(
                batch_to_device(self._marked(batch), device), self.policy.config.cameras, config.augment, config.seed
            )
            parts = split_micro_batches(batch, noise, time, num_micro_batches(config, self.mesh))
        result = optimizer_step(
            self.policy,
            self.optimizer,
            parts,
            self.mesh,
            lr=self.lr,
            clip=config.optim.clip,
            weights=self.weights,
            timer=timer,
            check=not self.checked,
        )
        self.step, self.checked = self.step + 1, True
        if self.average is not None:
            with timer("optimizer"):
                update_average(self.average, self.policy, self.optimizer, ema_decay(self.step, config.optim.ema))
        return result

    def _marked(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch with what a policy cannot know of its samples: int64 [B] each, where there is a choice."""
        marks: dict[str, Tensor] = {}
        if self.heads is not None:
            marks["head"] = self.heads[batch["source"]]
        if self.config.learns_dynamics():
            marks["mode"] = mode_of(self.config.seed, batch["position"], self.config.mode_weights())
        return {**batch, **marks}

    def evaluate(
        self, held: HeldOut, *, per_dim: bool = False, asked: Callable[[], bool] = lambda: False
    ) -> dict[str, Any]:
        """`evaluate` of the weights that `val_weights` chooses."""
        config, network = self.config, self.eval_policy if self.config.val_weights == "average" else self.policy
        threads = fair_threads(self.mesh) if config.loader_threads == "auto" else config.loader_threads
        try:
            return evaluate(
                network,
                held,
                replace(self.draws, draws=DRAWS),
                self.mesh,
                self.weights,
                mode=config.judged_mode(),
                open_loop=config.val_open_loop,
                per_dim=per_dim,
                threads=threads,
                memory=parse_bytes(config.memory) // self.mesh.local_world_size // 8,  # the rest is the loader's
                asked=asked,
            )
        finally:
            reshard_weights(network, self.mesh)

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint must hold, by name (`precision.named_tensors`)."""
        return precision.named_tensors(self.policy, self.optimizer, self.average)


class _Weightless(TorchFunctionMode):
    """Tensors of a million elements or more have a shape and no memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = dict(kwargs or {})
        if func is torch.empty:
            shape = named.get("size", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
            if prod(shape) >= 1 << 20:
                named["device"] = "meta"
        return func(*args, **named)


def _refuse_what_has_no_room(network: FlowPolicyConfig, normalisation: Mapping[str, Any], mesh: Mesh) -> None:
    """Raise ConfigError where the float32 weights alone, made whole in each process, are more than the machine has."""
    try:
        with torch.random.fork_rng(devices=[]), _Weightless():
            count = sum(weight.numel() for weight in FlowPolicy(network, normalisation).parameters())
    except (ValueError, RuntimeError):  # whoever makes it says why
        return
    needed, here = 4 * count * mesh.local_world_size, memory()
    if needed > here:
        raise ConfigError(
            f"policy: {count:,} parameters take {needed / 1e9:,.0f} GB in {mesh.local_world_size} processes, and this "
            f"machine has {here / 1e9:,.0f} GB: make policy.width, policy.layers or policy.channels smaller"
        )


def init_train_state(
    config: TrainConfig,
    data: RunData,
    normalisation: Mapping[str, Any],
    mesh: Mesh,
    weights: Mapping[str, Tensor] | None = None,
) -> TrainState:
    """The state at step 0: a function of settings and dataset; the global generator is left as it was.

    Args:
        weights: a policy's state dict, float32, to begin with instead of fresh ones.
    Raises:
        ConfigError: settings that name what the policy does not have, or that do not go with the mesh or the machine.
    """
    _refuse_what_has_no_room(data.policy_config(config), normalisation, mesh)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(make_key(config.seed, "first weights"))
        try:
            policy = FlowPolicy(data.policy_config(config), normalisation)
        except ValueError as error:  # what cannot be learnt, or could not be told back to a robot
            raise ConfigError(f"no policy can be made for this data: {error}") from error
    if lacking := [mode for mode, share in config.mode_weights().items() if share and mode not in policy.modes]:
        raise ConfigError(f"mode: {lacking[0]}: this policy can be trained in {', '.join(policy.modes)}")
    if weights is not None:
        policy.load_state_dict(weights)
    terms = loss_weights(policy.terms, config.optim)
    freeze(policy, config.optim)
    average = make_average(policy) if config.optim.ema.decay else None
    masters = precision.store(policy, config)
    apply_activation_checkpointing(policy.blocks(), config.activation_checkpoint)  # the average is never trained
    for network in (policy, average):
        if network is not None:
            network.to(mesh.device)
            if config.compile:
                compile_blocks(network.blocks(), mesh.device)
            shard(
                network,
                mesh,
                config,
                network.blocks(),
                network.float32_modules(),
                ("losses", "sample_actions", "sample_future"),
            )
    optimizer = precision.make_optimizer(policy, config, masters)
    shape = policy.config
    future = shape.state_dim if shape.future else 0
    draws = Draws(config.seed, config.policy.draws, config.data.chunk, shape.action_dim, future)
    heads = torch.from_numpy(data.head_of_source) if len(data.heads) > 1 else None
    return TrainState(config, mesh, policy, optimizer, average, draws, terms, heads)
