"""Memory and arithmetic of a training step from shapes alone: nothing is allocated, no GPU and no
other rank is needed.

The step of `train/state.py` itself runs on fake tensors (shapes, dtypes and lifetimes without
values), on a mesh of one real process and as many absent ones as planned. So the plan has the
sharding, the precision, the activation checkpointing and the low-rank adapters of the run, for any
policy.

Not counted: the CUDA context and its libraries (0.5 to 1 GB), fragmentation, and memory inside
kernels. `RESERVED` of a card is left to them.
"""

import functools
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from itertools import chain
from math import floor, prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.flop_counter import FlopCounterMode

from understudy.config.mesh import MeshSettings
from understudy.config.train import TrainConfig
from understudy.distributed.activation_checkpoint import CheckpointMode, without_checkpointing
from understudy.distributed.mesh import DIMENSIONS, Mesh, mesh_shape
from understudy.optim.state import local
from understudy.policies.draws import make_draws
from understudy.policies.weight_files import WeightFiles
from understudy.train.data.run_data import (
    RunData,
    instructions,
    longest_prompts,
    open_data,
    prompt_fields,
    read_first_batch,
)
from understudy.train.data.run_normalization import choose_normalization
from understudy.train.micro_batches import check_budget
from understudy.train.paths import with_local_files
from understudy.train.profiling.live_bytes import LiveBytes, forget_values, without_values
from understudy.train.state import TrainState, assemble, build_on_meta
from understudy_base import ACTION, TASK, Batch, ConfigError, MissingExtraError, Progress, Record
from understudy_kit import override

logger = logging.getLogger(__name__)

RESERVED = 0.06
"""Share of a card's memory that is left unused."""
MOST = 4096
"""Samples of a forward pass up to which a plan looks for the largest micro-batch."""
NEEDS_VALUES = (DataDependentOutputException, DynamicOutputShapeException)
"""Errors of an operation that fake tensors cannot do; torch gives them no base class below
RuntimeError.
"""
_STEPS_OF_CARD = 4
"""Steps on shapes that the search for the largest micro-batch of a card usually takes."""
MODES: tuple[CheckpointMode, ...] = ("none", "selective", "full")


@dataclass(frozen=True)
class Card:
    """A run on a card."""

    limit: int
    """Bytes of the card that a run may use."""
    largest_micro_batch: int
    """Largest micro-batch whose peak fits into `limit`, sought up to `MOST` or the planned one; 0:
    not even one sample does.
    """


@dataclass(frozen=True)
class Plan:
    """Result of `plan`. Bytes count one rank."""

    memory: dict[str, int]
    """`parameters`, `gradients`, `optimizer state`, `average`, `activations` and `peak`, as of a
    `Profile`.
    """
    activations: dict[str, int]
    """Activations that forward leaves for backward, by checkpointing mode, at the planned
    micro-batch.
    """
    peaks: dict[str, int]
    """Peaks by checkpointing mode, at the planned micro-batch."""
    inputs: int
    """Bytes of a micro-batch and its random numbers: images, states, actions, tokens."""
    average_if_kept: int
    """Bytes that an average of the weights takes, or would take."""
    micro_batch_size: int
    """Samples of a forward pass."""
    cards: tuple[Card, ...]
    """The run on each card, in the given order."""
    checkpoint: int
    """Bytes of a checkpoint on disk: trained weights, moments and average in float32. The ranks
    together copy as many into the memory of their hosts while it is saved.
    """
    best: int
    """Bytes of the weights of the best validation, without moments; 0 where the run keeps none."""
    parameters: int
    """Number of weights of the whole network."""
    trained: int
    """Number of those with a gradient."""
    bytes_per_parameter: float
    """Of weights, gradients and optimizer state, per trained weight on this rank."""
    flops_per_sample: int
    """Model FLOPs: operations of forward and backward of a sample, without those that checkpointing
    repeats.
    """
    tokens_per_sample: int | None
    """Tokens of a sample that the network processes; None where it has none."""
    longest_prompt: tuple[int, int, str] | None
    """Length of the data's longest prompt, metadata included, the length of the policy, and the
    setting of that one; None where the policy has no tokenizer.
    """
    arithmetic: str
    """Arithmetic of the products: "float32" or "bfloat16"."""
    conditions: dict[str, Any]
    """Settings that the plan is for."""

    def step_seconds(self, flops_per_second: float) -> float:
        """Return the seconds of an optimizer step that waits for nothing.

        Args:
            flops_per_second: model FLOPs that each rank computes in a second.
        """
        samples = self.conditions["batch"] / self.conditions["ranks"]
        return samples * self.flops_per_sample / flops_per_second

    def plain(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Shapes:
    """One step on shapes."""

    memory: dict[str, int]
    parameters: int
    trained: int
    trained_here: int
    flops: int
    tokens: int | None
    inputs: int
    """Bytes of the batch and its random numbers."""


def plan(
    config: TrainConfig, world_size: int = 1, device: str = "cuda", cards: Sequence[int] = ()
) -> Plan:
    """Plan a run.

    Args:
        config: its settings; the dataset is opened, and one sample of it is read for its shapes.
        world_size: processes of the run.
        device: "cpu" or "cuda", whose rules of summation the step follows.
        cards: bytes of memory of each card to consider.

    Raises:
        ConfigError: settings that the policy or the mesh cannot serve, or losses that read values
            of tensors.
        DatasetError: the dataset cannot be used.
    """
    config = with_local_files(config).resolved()
    data = open_data(config)
    mesh_shape(config.mesh, world_size)  # before anything takes time
    normalization = choose_normalization(config, data)
    config = with_known_base(config, data, normalization)
    network = build_on_meta(config, data.policy_config(config), normalization)
    sample = one_sample(config, data)
    check_budget(network, config.batching, config.samples, data)
    total = 1 + len(MODES) + _STEPS_OF_CARD * len(cards)
    logger.info("plan: about %d steps on shapes; one of a large network takes a minute", total)
    with Progress(total, "plan", "step") as progress, _values_needed(config.policy.type):

        @functools.cache
        def at(size: int, mode: CheckpointMode) -> Shapes:
            chosen = override(config, activation_checkpoint=mode)
            progress.set_note(f"micro-batch {size}, checkpointing {mode}")
            shapes = trace_step(chosen, data, normalization, sample, world_size, device, size)
            progress.update(min(1, total - progress.n))
            return shapes

        single = at(1, "none")
        size = config.batching.largest_part(world_size, single.tokens)
        planned = config.activation_checkpoint
        shapes = at(size, planned)
        by_mode = {}
        for mode in MODES:
            with suppress(ConfigError):  # the policy has no blocks
                by_mode[mode] = at(size, mode).memory
        limits = [floor(card * (1 - RESERVED)) for card in cards]
        most = max(MOST, size)
        largest = [
            largest_batch(lambda n: at(n, planned).memory["peak"], limit, most, size)
            for limit in limits
        ]
        progress.update(total - progress.n)
    state = sum(shapes.memory[name] for name in ("parameters", "gradients", "optimizer state"))
    weights = shapes.trained * torch.float32.itemsize
    keeps_best = config.checkpoint.keep_best != "none" and config.val.every > 0
    copies = 4 if config.optim.ema.decay else 3
    best = weights if keeps_best else 0
    return Plan(
        memory=shapes.memory,
        activations={mode: memory["activations"] for mode, memory in by_mode.items()},
        peaks={mode: memory["peak"] for mode, memory in by_mode.items()},
        inputs=shapes.inputs,
        average_if_kept=shapes.memory["average"] or shapes.trained_here * torch.float32.itemsize,
        micro_batch_size=size,
        cards=tuple(map(Card, limits, largest)),
        checkpoint=weights * copies,
        best=best,
        parameters=shapes.parameters,
        trained=shapes.trained,
        bytes_per_parameter=state / max(1, shapes.trained_here),
        flops_per_sample=single.flops,
        tokens_per_sample=single.tokens,
        longest_prompt=network.prompt_room(
            longest_prompts(data.training, config.augment.task_separator)
        ),
        arithmetic=network.config.compute,
        conditions=_conditions(config, data, world_size, device),
    )


@contextmanager
def _values_needed(kind: str) -> Iterator[None]:
    """Raise ConfigError where the losses of a type of policy read values of tensors."""
    try:
        yield
    except NEEDS_VALUES as error:
        raise ConfigError(
            f"policy.type: {kind}: its losses read values of tensors, and a plan has shapes alone: "
            "measure the memory with `understudy profile`"
        ) from error


def _conditions(config: TrainConfig, data: RunData, world_size: int, device: str) -> dict[str, Any]:
    return {
        "device": device,
        "ranks": world_size,
        "shards": config.parallel.dp_shard,
        "precision": config.precision,
        "activation_checkpoint": config.recomputation(),
        "attention": config.attention,
        "batch": config.batch_size,
        "cameras": list(data.cameras),
    }


def largest_batch(
    peak_of: Callable[[int], int], limit: int, most: int, first_guess: int = 2
) -> int:
    """Return the largest number of samples n <= `most` with `peak_of(n)` <= `limit`; 0 where one
    sample exceeds it.

    `first_guess` is a number whose peak costs nothing.

    Memory is usually a line over the samples: three evaluations follow the line through two points.
    The others double the number of samples, and then halve the interval, so there are at most 2
    log2(most) + 4.
    """
    low = 1
    low_peak = peak_of(1)
    high = most + 1
    if low_peak > limit:
        return 0
    probe = min(max(2, first_guess), most)
    evaluations = 1
    while high - low > 1:
        peak = peak_of(probe)
        evaluations += 1
        slope = max(1.0, (peak - low_peak) / (probe - low))
        if peak <= limit:
            low = probe
            low_peak = peak
        else:
            high = probe
        guess = low + max(1, floor((limit - low_peak) / slope))
        if evaluations >= 4:
            guess = min(2 * low, (low + high) // 2)
        probe = min(guess, high - 1)
    return low


def one_sample(config: TrainConfig, data: RunData) -> dict[str, Any]:
    """Load the first sample of a run."""
    return read_first_batch(data, data.order(replace(config, batch_size=1, micro_batch_size=None)))


def trace_step(
    config: TrainConfig,
    data: RunData,
    normalization: Record,
    sample: Record,
    world_size: int,
    device: str,
    size: int,
) -> Shapes:
    """Run one step on shapes, with micro-batches of `size` samples and the longest instructions.

    Args:
        config: settings of the run.
        data: its sources.
        normalization: normalization of the policy.
        sample: a batch of one sample.
        world_size: processes of the run.
        device: see `plan`.
        size: samples of a forward pass; where the run has several of them in a step, two are run.
    """
    cut = config.batching.accumulates()
    num_parts = 1
    if cut:
        num_parts = -(-config.batch_size // (world_size * (config.micro_batch_size or size)))
    count = min(2, num_parts) * size
    micro_batch_size = size if cut else None
    traced = replace(
        config,
        batch_size=count * world_size,
        micro_batch_size=micro_batch_size,
        max_num_tokens=None,
        max_samples=None,
    )
    distinct = len(instructions(data.training, config.augment.task_separator)) + (
        config.augment.text_dropout > 0
    )
    if fields := len(config.data.prompt_metadata):  # each of its subsets, where fields are dropped
        distinct *= len(prompt_fields(data.training)) * 2**fields + 1

    def inputs(state: TrainState) -> dict[str, Any]:
        repeated: dict[str, Any] = {}
        for key, value in sample.items():
            if isinstance(value, Tensor):
                repeated[key] = value.expand(count, *value.shape[1:])
            else:
                repeated[key] = list(value) * count
        repeated[TASK] = [str(number % size % max(1, distinct)) for number in range(count)]
        return state.policy.largest_inputs(state.marked(repeated))

    shapes = _trace(traced, data, normalization, inputs, world_size, device, count)
    if num_parts > 2:  # the inputs of the micro-batches that were left out, and their copies
        shapes.memory["peak"] += 2 * shapes.inputs * (num_parts - 2) // 2
    return shapes


def trace_batch(
    config: TrainConfig,
    data: RunData,
    normalization: Record,
    batch: Batch,
    world_size: int,
    device: str,
) -> dict[str, int]:
    """Run one step on the shapes of a real step and return its memory, as of a `Plan`.

    Args:
        config: settings of the run.
        data: its sources.
        normalization: normalization of the policy.
        batch: a rank's share of a batch (`TrainState.device_inputs`); `position` and values at the
            host are read.
        world_size: processes of the run.
        device: see `plan`.

    Raises:
        NEEDS_VALUES: the step reads values of its tensors, say by `.item()`, `.nonzero()` or a mask
            as an index.
    """
    traced = replace(config, batch_size=len(batch[ACTION]) * world_size)
    return _trace(traced, data, normalization, lambda state: dict(batch), world_size, device).memory


def _trace(
    config: TrainConfig,
    data: RunData,
    normalization: Record,
    inputs: Callable[[TrainState], dict[str, Any]],
    world_size: int,
    device: str,
    num_samples: int = 1,
) -> Shapes:
    """Run one step on the shapes of `inputs`, `num_samples` of them on this rank."""
    config = replace(config, compile=False)
    policy = build_on_meta(config, data.policy_config(config), normalization)
    heads = torch.from_numpy(data.head_of_source) if len(data.heads) > 1 else None
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    live = LiveBytes(sums_copies=device == "cpu")
    with _mesh(config.mesh, world_size, device) as mesh, warnings.catch_warnings():
        # by deepcopy
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        with fake, live:
            forget_values(policy)
            state = assemble(config, policy, mesh, heads)
            # the moments of shards are made inside operations of DTensor
            live.watch(resident_tensors(state))
        state.checked = True
        prepared = inputs(state)
        drawn = make_draws(state.policy.random_spec("train"), config.seed, prepared["position"])
        with fake, live:
            bytes_without_inputs = live.now
            batch = {key: without_values(value) for key, value in prepared.items()}
            draws = {key: without_values(value) for key, value in drawn.items()}
            input_bytes = live.now - bytes_without_inputs
            # its kernels take no memory for the update of the weights, unlike those of a CPU
            if device == "cuda":
                state.optimizer.step = lambda *_, **__: None  # type: ignore[method-assign]
            # The second step has the buffers that the first one leaves.
            steps = 1 if world_size == 1 else 2
            for _ in range(steps):
                live.reset()
                state.device_step(batch, draws, live)
            trained = [p for p in state.policy.parameters() if p.requires_grad]
            return Shapes(
                memory=resident_memory(state)
                | {"activations": live.activations, "peak": live.peak},
                parameters=sum(p.numel() for p in state.policy.parameters()),
                trained=sum(p.numel() for p in trained),
                trained_here=sum(local(p).numel() for p in trained),
                flops=live.flops // num_samples,
                tokens=max(state.policy.tokens(batch) or [0]) or None,
                inputs=input_bytes,
            )


@contextmanager
def _mesh(settings: MeshSettings, world_size: int, device: str) -> Iterator[Mesh]:
    """The mesh of one of `world_size` processes, of which the others are absent and every exchange
    does nothing.
    """
    from torch.testing._internal.distributed.fake_pg import FakeStore

    cpu = torch.device("cpu")
    shape = mesh_shape(settings, world_size)
    alone = world_size == 1
    if not alone:
        if dist.is_initialized():
            raise ConfigError(
                "plan: this process belongs to a run of several already; plan in another process"
            )
        dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())
    try:
        devices: Any = _Alone()
        if not alone:
            devices = init_device_mesh("cpu", shape, mesh_dim_names=DIMENSIONS)
        yield Mesh(
            0, world_size, 0, world_size, cpu, devices, False, planned_device=torch.device(device)
        )
    finally:
        if not alone:
            dist.destroy_process_group()


class _Alone:
    """Device mesh of one process."""

    shape = (1, 1)


def count_flops(step: Callable[[], object], policy: nn.Module) -> int:
    """Run `step()`, uncompiled, and return its floating-point operations on this rank; a
    multiply-add counts as two.
    """
    with (
        without_checkpointing(policy),
        torch.compiler.set_stance("force_eager"),
        FlopCounterMode(display=False) as counter,
    ):
        step()
    return int(counter.get_total_flops())


def resident_memory(state: TrainState) -> dict[str, int]:
    """Return the bytes on this rank just after a step: parameters, gradients, optimizer state,
    average.

    Frozen parameters that the average shares with the policy count as parameters alone.
    """

    def size(tensors: Sequence[Tensor | None]) -> int:
        parts = [local(tensor) for tensor in tensors if tensor is not None]
        return sum(part.numel() * part.element_size() for part in parts)

    parameters = list(state.policy.parameters())
    held = {_storage(parameter) for parameter in parameters}
    average = []
    if state.average is not None:
        average = [*state.average.parameters(), *state.average.buffers()]
    states = state.optimizer.state.values()
    return {
        "parameters": size([*parameters, *state.policy.buffers()]),
        "gradients": size([parameter.grad for parameter in parameters]),
        "optimizer state": size(
            list(chain.from_iterable(of_parameter.values() for of_parameter in states))
        ),
        "average": size([tensor for tensor in average if _storage(tensor) not in held]),
    }


def resident_tensors(state: TrainState) -> list[Tensor]:
    """Return the tensors of `resident_memory` on this rank."""
    modules = [state.policy] if state.average is None else [state.policy, state.average]
    tensors: list[Tensor] = []
    for module in modules:
        tensors += [*module.parameters(), *module.buffers()]
    tensors += [
        parameter.grad for parameter in state.policy.parameters() if parameter.grad is not None
    ]
    for of_parameter in state.optimizer.state.values():
        tensors += of_parameter.values()
    return [local(tensor) for tensor in tensors]


def _storage(tensor: Tensor) -> int:
    """Identity of the memory of a tensor, also of one without values."""
    return local(tensor).untyped_storage()._cdata


def with_known_base(config: TrainConfig, data: RunData, normalization: Record) -> TrainConfig:
    """Add the parameters that the file of the first weights lacks to `lora.also_train`, and find
    its dtype.

    The setting `lora.base: stored` is replaced by the dtype of most weights. Only names, shapes and
    dtypes of the file are read, as the policy reads them. Without a file, or where it cannot be
    read, which is logged, it is float32.

    Args:
        config: settings of the run.
        data: its sources.
        normalization: normalization of the policy.
    """
    lora = config.lora
    if not lora.rank:
        return config
    sizes: dict[torch.dtype | None, int] = {}
    fresh: tuple[str, ...] = ()
    try:
        stored = _stored(config, data, normalization)
        for size, dtype in stored.values():
            sizes[dtype] = sizes.get(dtype, 0) + size
        fresh = tuple(name for name, (_, dtype) in stored.items() if dtype is None)
    # RuntimeError: no policy without memory
    except (OSError, ValueError, RuntimeError, MissingExtraError) as error:
        taken = ", and their dtype is taken as float32" if lora.base == "stored" else ""
        logger.warning(
            "lora: the first weights cannot be read: layers they lack are not counted%s: %s",
            taken,
            error,
        )
    base = lora.base
    if base == "stored":
        base = "bfloat16" if sizes.get(torch.bfloat16, 0) > sum(sizes.values()) / 2 else "float32"
    return replace(config, lora=replace(lora, base=base, also_train=(*lora.also_train, *fresh)))


def _stored(
    config: TrainConfig, data: RunData, normalization: Record
) -> dict[str, tuple[int, torch.dtype | None]]:
    """Number of weights and dtype of each tensor by name, None for one that the file lacks; empty
    without a file.
    """
    if config.init_from:
        files = WeightFiles(config.init_from, floats_only=False)
        return {key: (prod(shape), files.dtypes[key]) for key, shape in files.shapes.items()}
    policy = build_on_meta(config, data.policy_config(config), normalization)
    if not policy.fills_weights:
        return {}
    dtypes = getattr(policy.first_weights(config.seed), "dtypes", {})
    return {name: (p.numel(), dtypes.get(name)) for name, p in policy.named_parameters() if dtypes}
