"""State of a run in memory: policy, optimizer and moving average on the mesh.

`init_train_state` makes it in the one correct sequence: build in float32 -> low-rank adapters ->
freeze -> copy for the average -> store (which may keep the weights in bfloat16) -> activation
checkpointing per block -> to the device -> compile per block -> shard -> optimizer. A policy that
can be filled (`Policy.fills_weights`) is built on the meta device and filled after sharding, so
that no process ever holds all of its weights. Its adapters have values at once.
"""

from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from understudy.compile import attention_kernels, compile_blocks
from understudy.config.data import DataConfig
from understudy.config.samples import TaskModes
from understudy.config.train import TrainConfig
from understudy.distributed.activation_checkpoint import (
    apply_activation_checkpointing,
    select_blocks,
)
from understudy.distributed.fill_weights import (
    ReadRows,
    RowsAsTensors,
    fill,
    materialise,
    to_device_or_meta,
)
from understudy.distributed.mesh import Mesh, shard
from understudy.optim.adamw import Float32AdamW
from understudy.optim.lora import add_adapters
from understudy.optim.lr_schedule import lr_factor
from understudy.optim.moving_average import ema_decay, make_average, update_average
from understudy.optim.param_groups import freeze, loss_weights
from understudy.optim.state import local
from understudy.policies.batch import batch_to_device
from understudy.policies.common.settings import TaskMode
from understudy.policies.draws import keyed_generators
from understudy.policies.policy import Policy
from understudy.policies.registry import policy_type
from understudy.policies.weight_files import OnMeta, TensorReader, stored_dtypes
from understudy.train import precision
from understudy.train.augment_batch import (
    draw_modes,
    draw_on_device,
    drop_instructions,
    drop_metadata,
    shift_cameras,
)
from understudy.train.memory_check import (
    check_filled_weights,
    check_gpu_memory,
    check_whole_weights,
    free_memory,
)
from understudy.train.micro_batches import MicroBatch, PartCounts, check_budget, cut_batch
from understudy.train.optimizer_step import NULL, StepResult, Timer, optimizer_step
from understudy_base import MODE, SOURCE, Batch, ConfigError, Record, page
from understudy_data import KeyedDraws

if TYPE_CHECKING:
    from understudy.train.data.run_data import RunData


MAX_SOURCES = 64
"""Most sources with separate training losses: metrics.jsonl has a line per step."""
COMPILED_LENGTHS = 32
"""Multiple of the lengths of texts in compiled runs: at most seven lengths up to 200 tokens."""
NO_DTYPES: Mapping[str, torch.dtype] = MappingProxyType({})


class PreparedBatch(dict[str, Any]):
    """A batch that went through `TrainState.prepare`."""


@dataclass
class TrainState:
    """The state of a run between two steps."""

    config: TrainConfig
    mesh: Mesh
    policy: Policy
    optimizer: Float32AdamW
    average: Policy | None
    """Moving average of the weights, where the run keeps one."""
    weights: dict[str, float]
    """Weights of the loss terms to compute, by name."""
    heads: Tensor | None = None
    """int64 [sources]: the norm head of each source; None where there is one head."""
    sources: tuple[str, ...] = ()
    """Names of the sources."""
    step: int = 0
    """Optimizer steps done."""
    starts: list[dict[str, Any]] = field(default_factory=list)
    """Steps from which processes of this run trained: step, position, batch, world, weights of the
    sources, versions of their datasets.
    """
    updates: Sequence[Record] = ()
    """Updates of the data (`train/data/updates.py`)."""
    checked: bool = False
    """Whether this process has checked a step for parameters that the loss does not reach."""
    part_counts: PartCounts | None = None
    """Parts of the latest step on this rank."""
    rounded: int = 0
    """Frozen weights that the start has rounded to bfloat16."""

    def begin(
        self,
        saved: Record | None,
        position: int,
        weights: Sequence[float],
        versions: Sequence[Record],
    ) -> None:
        """Add the start of this process to those of the checkpoint `saved`; versions: see
        `versions_read`.
        """
        start: dict[str, Any] = {
            "step": self.step,
            "position": position,
            "batch": self.config.batch_size,
        }
        start |= {
            "world": self.mesh.world_size,
            "weights": list(weights),
            "versions": list(versions),
        }
        past_starts = saved.get("starts", ()) if saved else ()
        self.starts = [*past_starts, start]

    @property
    def seed(self) -> int:
        """Seed of every draw."""
        return self.config.seed

    @property
    def modes(self) -> TaskModes:
        """The task modes of the samples."""
        return self.config.modes

    @property
    def eval_policy(self) -> Policy:
        """Weights to evaluate and to export: the moving average, where the run keeps one."""
        return self.average or self.policy

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """Groups with separate training losses: key of a batch -> name of each of its numbers."""
        if self.policy.scalar_losses:
            return {}
        modes = {MODE: TaskMode.ALL} if self.config.modes.learn_dynamics() else {}
        sources = {SOURCE: self.sources} if 1 < len(self.sources) <= MAX_SOURCES else {}
        return {**sources, **modes}

    @property
    def lr(self) -> float:
        """Learning rate of the next step, before the factors of groups."""
        return self.config.optim.lr * lr_factor(self.step, self.config.schedule, self.config.steps)

    def train_step(self, batch: Batch, timer: Timer = NULL) -> StepResult:
        """Run one optimizer step on this rank's share of a global batch, as the loader returns
        it.
        """
        with timer("host to device"):
            inputs = self.device_inputs(batch)
        return self.device_step(inputs.batch, inputs.draws, timer)

    def device_inputs(self, batch: Batch) -> MicroBatch:
        """Prepare and augment a rank's share of a global batch, draw its random numbers, copy both
        to the device.
        """
        config = self.config
        device = self.mesh.device
        if not isinstance(batch, PreparedBatch):
            batch = self.prepare(batch)
        draws = draw_on_device(
            self.policy.random_spec("train"), config.seed, batch["position"], device
        )
        inputs = shift_cameras(
            batch_to_device(batch, device), self.policy.config.cameras, config.augment, config.seed
        )
        return MicroBatch(inputs, draws)

    def device_step(
        self, batch: Batch, draws: Mapping[str, Tensor], timer: Timer = NULL
    ) -> StepResult:
        """Run the part of a step that is the device's: all arithmetic, and no randomness.

        Args:
            batch: this rank's share, prepared, augmented, on the device.
            draws: its random numbers.
            timer: measures the phases.
        """
        config = self.config
        parts, self.part_counts = cut_batch(self.policy, config.batching, self.mesh, batch, draws)
        with attention_kernels(config.attention):
            result = optimizer_step(
                self.policy,
                self.optimizer,
                parts,
                self.mesh,
                lr=self.lr,
                clip=config.optim.grad_clip_norm,
                weights=self.weights,
                groups={key: len(names) for key, names in self.groups.items()},
                seed=config.seed,
                timer=timer,
                check=not self.checked,
            )
        self.step = self.step + 1
        self.checked = True
        if self.average is not None:
            with timer("optimizer"):
                update_average(
                    self.average,
                    self.policy,
                    self.optimizer,
                    ema_decay(self.step, config.optim.ema),
                )
        return result

    def prepare(self, batch: Batch) -> "PreparedBatch":
        """Add marks, drop instructions and metadata, and run the policy's preprocessing: all host
        work of a batch.

        It changes no state, so that loader threads may call it.
        """
        marked = drop_instructions(self.marked(batch), self.config.augment, self.config.seed)
        marked = drop_metadata(marked, self.config.data, self.config.seed)
        return PreparedBatch(self.policy.preprocess(marked))

    def marked(self, batch: Batch) -> dict[str, Any]:
        """Add norm head and task mode of each sample, int64 [B], where there is more than one."""
        marks: dict[str, Tensor] = {}
        if self.heads is not None:
            marks["head"] = self.heads[batch[SOURCE]]
        if self.config.modes.learn_dynamics():
            marks[MODE] = draw_modes(
                self.config.seed, batch["position"], self.config.modes.weights()
            )
        return {**batch, **marks}

    def tensors(self) -> dict[str, Tensor]:
        """Tensors of a checkpoint, by name (`precision.named_tensors`)."""
        return precision.named_tensors(self.policy, self.optimizer, self.average)


def build_on_meta(config: TrainConfig, network: Any, normalization: Record) -> Policy:
    """Build a policy whose large parameters are on the meta device; no global generator changes.

    Raises:
        ConfigError: the policy cannot be built, or trained in the modes of the run.
    """
    with _keyed(config), OnMeta():
        return _build(config, network, normalization)


def _keyed(config: TrainConfig, purpose: str = "first weights") -> AbstractContextManager[object]:
    """Seed the global generators for the first weights, within this context alone."""
    on_gpu = config.device != "cpu" and torch.cuda.is_available()
    kind = "cuda" if on_gpu else "cpu"
    return keyed_generators(KeyedDraws(config.seed).key(purpose), torch.device(kind))


def _build(config: TrainConfig, network: Any, normalization: Record) -> Policy:
    try:
        policy: Policy = policy_type(network.type).build(network, normalization)
    except ValueError as error:  # a normalization that cannot be inverted, for example
        raise ConfigError(f"no policy can be made for this data: {error}") from error
    if not isinstance(policy, Policy):
        raise ConfigError(
            f"policy.type: {network.type} builds a {type(policy).__name__}: derive it from "
            "policies.Policy"
        )
    if missing := policy.missing_hooks():
        raise ConfigError(
            f"{type(policy).__name__} lacks {', '.join(missing)}, which each policy has "
            f"({page('own_policies.md')})"
        )
    if policy.scalar_losses:
        _check_scalar_losses(config.data, config.checkpoint.keep_best)
    if lacking := [
        mode for mode, share in config.modes.weights().items() if share and mode not in policy.modes
    ]:
        raise ConfigError(
            f"mode: {lacking[0]}: this policy can be trained in {', '.join(policy.modes)}"
        )
    return policy


def _check_scalar_losses(settings: DataConfig, keep_best: str) -> None:
    """Raise ConfigError where a setting needs losses per sample."""
    if any(
        source.frame_weights and source.frame_weights_in != "order" for source in settings.mixed()
    ):
        raise ConfigError(
            "frame_weights_in: the policy returns one loss per batch (scalar_losses): set it to "
            "order"
        )
    if keep_best not in ("none", "loss", "open_loop"):
        raise ConfigError(
            f"checkpoint.keep_best: {keep_best}: the policy returns one loss per batch "
            "(scalar_losses), so validations have no groups: one of none, loss, open_loop"
        )


def init_train_state(
    config: TrainConfig,
    data: "RunData",
    normalization: Record,
    mesh: Mesh,
    weights: Mapping[str, Tensor] | None = None,
    resumed: Mapping[str, torch.dtype] | None = None,
    check_files: bool = False,
) -> TrainState:
    """Make the state at step 0, a function of settings and dataset; no global generator changes.

    Args:
        config: settings of the run.
        data: its sources.
        normalization: normalization of the policy.
        mesh: the processes.
        weights: state dict to start from; those of files are read into their place. None: those
            that the settings of the policy name, or fresh ones.
        resumed: dtypes of the frozen weights in the checkpoint that is loaded next; then no first
            weights are needed.
        check_files: whether the policy must have all files that training needs, before any weight
            is read.

    Raises:
        ConfigError: settings that the policy, the mesh or the machine cannot serve.
    """
    network = data.policy_config(config)

    def build() -> Policy:
        with _keyed(config):
            return _build(config, network, normalization)

    try:
        policy = build_on_meta(config, network, normalization)
        on_meta = True
    except RuntimeError:  # its constructor computes with values
        policy = build()
        on_meta = False
    if check_files:
        with mesh.together():
            policy.check_ready()
    check_budget(policy, config.batching, config.samples, data)
    heads = torch.from_numpy(data.head_of_source) if len(data.heads) > 1 else None
    setting = "policy.weights" if weights is None else "init_from"
    if on_meta and policy.fills_weights and isinstance(weights, TensorReader | None):
        with _weight_errors(setting), _keyed(config, "start weights"):
            if resumed is not None:
                read = _no_weights(policy)
            else:
                read = _rows(policy, weights, config.seed)
        dtypes = getattr(read, "dtypes", {}) if resumed is None else resumed
        return assemble(
            config, policy, mesh, heads, _named_errors(read, setting), dtypes, data.names
        )
    if on_meta:
        check_whole_weights(policy, mesh)
        policy = build()
    with _weight_errors(setting), _keyed(config, "start weights"):
        if weights is None and resumed is None:
            weights = policy.start_weights()
        if weights is not None:
            policy.load_weights(weights)
    dtypes = resumed
    if dtypes is None:  # whatever a type of policy calls its tensors, it has filled all parameters
        dtypes = dict.fromkeys(dict(policy.named_parameters()), torch.float32) | stored_dtypes(
            weights or {}
        )
    return assemble(config, policy, mesh, heads, dtypes=dtypes, sources=data.names)


def _rows(policy: Policy, weights: TensorReader | None, seed: int) -> ReadRows:
    return policy.first_weights(seed) if weights is None else policy.stored_rows(weights)


@contextmanager
def _weight_errors(setting: str) -> Iterator[None]:
    """Raise errors of files of weights as ConfigError of `setting`."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError(f"{setting}: {error}") from error


def _named_errors(read: ReadRows, setting: str) -> ReadRows:
    def rows(name: str, start: int, stop: int) -> Tensor:
        with _weight_errors(setting):
            return read(name, start, stop)

    return rows


def assemble(
    config: TrainConfig,
    policy: Policy,
    mesh: Mesh,
    heads: Tensor | None = None,
    read: ReadRows | None = None,
    dtypes: Mapping[str, torch.dtype] = NO_DTYPES,
    sources: tuple[str, ...] = (),
) -> TrainState:
    """Apply the techniques of a run to a float32 policy, in the one correct sequence.

    Args:
        config: settings of the run.
        policy: the policy with its weights; with `read` its parameters may be on the meta device.
        mesh: the processes.
        heads: see `TrainState`.
        read: rows of the weights by name, of which each rank reads its own; None: the policy has
            its weights.
        dtypes: dtypes of the weights in their file, or of the frozen ones in their checkpoint, by
            name (`lora.base`). With adapters, parameters that are not among them are trained in
            full. Empty: there is no file.
        sources: names of the sources.
    """
    base_names = [name for name, _ in policy.named_parameters()]
    policy.packs = config.max_num_tokens is not None
    policy.length_multiple = COMPILED_LENGTHS if config.compile else 1
    terms = loss_weights(policy.loss_terms, config.optim.loss_weights)
    parts = policy.config.PARTS
    full = [name for name in base_names if dtypes and name not in dtypes]
    optim = config.optim
    draws = KeyedDraws(config.seed)
    add_adapters(policy, config.lora, optim, lambda name: draws.key(f"lora {name}"), parts, full)
    freeze(policy, optim, parts)
    rounded = precision.narrow_base(policy, config.lora, dtypes)
    if read is not None:
        check_filled_weights(policy, mesh)
    check_gpu_memory(policy, config.precision, config.optim.ema, mesh, free_memory(mesh.device))
    average = make_average(policy) if config.optim.ema.decay else None
    masters: Mapping[str, Tensor] = precision.store(policy, config.precision)
    if config.activation_checkpoint != "none":  # the average is never trained
        recomputed = select_blocks(policy, policy.blocks(), config.activation_checkpoint_blocks)
        apply_activation_checkpointing(recomputed, config.activation_checkpoint)
    for module in (policy, average):
        if module is not None:
            to_device_or_meta(module, mesh.device)
            if config.compile:
                compile_blocks(module.blocks(), mesh.device)
            shard(
                module,
                mesh,
                config.precision,
                module.blocks(),
                module.float32_modules(),
                module.forward_methods,
            )
    if read is not None:
        copies = [module for module in (policy, average) if module is not None]
        materialise(copies, mesh.device)
        filled = set[int]()  # an average shares frozen parameters
        for module in copies:
            parameters = {
                name: parameter
                for name, parameter in module.named_parameters()
                if name in base_names
            }
            fresh = {name: p for name, p in parameters.items() if local(p).data_ptr() not in filled}
            fill(fresh.items(), read)
            filled |= {local(parameter).data_ptr() for parameter in parameters.values()}
        adapters = {name: master for name, master in masters.items() if name not in base_names}
        rows = RowsAsTensors(
            read, {name: master.shape for name, master in masters.items() if name in base_names}
        )
        masters = ChainMap(adapters, rows)  # type: ignore[arg-type]  # it is only read
    optimizer = precision.make_optimizer(
        policy, config.optim, masters, accumulates=config.batching.accumulates()
    )
    return TrainState(
        config,
        mesh,
        policy,
        optimizer,
        average,
        terms,
        heads,
        sources,
        rounded=sum(rounded.values()),
    )


def _no_weights(policy: Policy) -> ReadRows:
    """Rows of zeros, in place of weights that a checkpoint has."""
    shapes = {name: parameter.shape for name, parameter in policy.named_parameters()}
    return lambda name, start, stop: torch.zeros(stop - start, *shapes[name][1:])
