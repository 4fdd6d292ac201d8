"""The mesh: ranks of the processes of a run, agreement between them, and sharding of the weights.

    (dp_replicate, dp_shard)    (1, 1) one process    (N, 1) DDP    (1, N) FSDP2    (R, S) HSDP

The mesh is always two-dimensional and there is always a process group, so no other code asks
whether a run is distributed: with one process every sum is over one. CPU tensors go through gloo;
on GPUs tensors of the device go through NCCL.

When a rank dies, its connections close and the others fail at once. When it hangs, they fail after
`parallel.timeout`. Work of rank 0 alone may take longer (`keepalive.py`).
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from understudy.devices import describe_unused_cards, missing_cuda, missing_kernels
from understudy.distributed.keepalive import RankStalled, send_heartbeats, wait_for_rank_0
from understudy.distributed.ranks import Ranks
from understudy.distributed.torch_release import leave_groups_alive, missing_feature
from understudy_base import ConfigError, UnderstudyError, is_wrong_input
from understudy_kit import ended_in_calls

if TYPE_CHECKING:
    from understudy.config.mesh import MeshSettings

T = TypeVar("T")
DIMENSIONS = ("dp_replicate", "dp_shard")
ACCELERATE = {
    "MIXED_PRECISION": "--precision bf16",
    "USE_FSDP": "--parallel.dp-shard N",
    "USE_DEEPSPEED": "--parallel.dp-shard N",
    "DYNAMO_BACKEND": "--compile",
    "GRADIENT_ACCUMULATION_STEPS": "--micro-batch-size N",
}
"""Options of `accelerate launch`, as variables ACCELERATE_* of its processes -> the setting of a
run in their place.
"""


class RankError(UnderstudyError, OSError):
    """Another process of this run failed or ended; the message is that process's own error."""


@dataclass(frozen=True)
class Mesh(Ranks):
    """The processes of a run, as seen by one of them."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    """Processes on this host: they share its memory and cores."""
    device: torch.device
    device_mesh: DeviceMesh
    """Two-dimensional, `DIMENSIONS`; neighbouring ranks are shards of one replica."""
    ours: bool
    """Whether `begin` created the process group, and not the program around this one."""
    timeout: float = 600.0
    """Seconds after which the other ranks give up on a process that hangs."""
    planned_device: torch.device | None = None
    """Device whose arithmetic a plan on shapes follows, while its tensors are on `device`; None:
    `device`.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """(replicas, shards) of the mesh."""
        replicas, shards = self.device_mesh.shape
        return replicas, shards

    @property
    def grad_sum_dtype(self) -> torch.dtype:
        """Dtype in which gradients of ranks and micro-batches are summed; see `grad_sum_dtype`."""
        return grad_sum_dtype(self.planned_device or self.device)

    def largest(self, count: int) -> int:
        """Return the largest `count` of all ranks; does not wait for the device."""
        if self.world_size == 1:
            return count
        most = torch.tensor(count, dtype=torch.int64)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        return int(most)

    def equal(self, number: int) -> bool:
        """Return whether all ranks give the same `number`, of less than 63 bits; does not wait for
        the device.
        """
        if self.world_size == 1:
            return True
        ends = torch.tensor([number, -number], dtype=torch.int64)
        dist.all_reduce(ends, op=dist.ReduceOp.MAX)
        most, least = ends.tolist()
        return bool(most == -least)

    def first(self, make: Callable[[], T]) -> T:
        """Call `make` on rank 0 and return its result, or raise its error, on every rank.

        The other ranks wait as long as `make` works: `timeout` counts only while it is idle. `make`
        must not use collectives.

        Raises:
            RankError: on the others, when rank 0 hangs.
        """
        box: list[Any] = [None]
        if self.rank:
            try:
                wait_for_rank_0(self.timeout)
            except RankStalled as error:
                raise RankError(f"rank {self.rank}: {error}") from error
        with self.together():
            if self.rank == 0:
                heartbeats = send_heartbeats() if self.world_size > 1 else nullcontext()
                with heartbeats:
                    box[0] = make()
        dist.broadcast_object_list(box, src=0)
        return box[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Fail the block on all ranks if it fails on one; a rank without an error raises the first
        one's.

        The block must not use collectives: it is for settings, data, files. On the other ranks
        wrong input is a ConfigError, anything else a RankError.
        """
        mine: Exception | None = None
        try:
            yield
        except Exception as error:
            mine = error
        error_info = None if mine is None else (is_wrong_input(mine), str(mine) or repr(mine))
        failed = [
            (rank, report)
            for rank, report in enumerate(self.gather(error_info))
            if report is not None
        ]
        if mine is not None:
            raise mine
        if failed:
            rank, (wrong_input, message) = failed[0]
            if wrong_input:
                raise ConfigError(message)
            raise RankError(f"rank {rank} failed: {message}")


def begin(settings: "MeshSettings") -> Mesh:
    """Join the other processes of this run, by RANK, WORLD_SIZE, LOCAL_RANK, …; a single process
    without them.

    A process group that the program has already initialized, as Ray Train does, becomes that of the
    run.

    Raises:
        ConfigError: the processes do not fit `settings.parallel`, there is no such device, the
            program's process group lacks a backend for tensors of the CPU, or `accelerate launch`
            was given an option that only its own `Accelerator` follows.
        RankError: the other processes did not join.
    """
    for name, setting in ACCELERATE.items():
        value = os.environ.get(f"ACCELERATE_{name}", "")
        if value.lower() not in ("", "no", "false", "1"):
            option = name.lower().removeprefix("use_")
            raise ConfigError(
                f"{option} {value} of accelerate launch has no effect here: leave it out, and use "
                f"{setting}"
            )
    ours = not dist.is_initialized()
    if not ours and "cpu:" not in (backend := dist.get_backend_config()):
        raise ConfigError(
            f"the process group has the backend {backend}, and ranks agree through tensors of the "
            "CPU: initialize it with cpu:gloo,cuda:nccl"
        )
    if ours:
        rank = _from_env("RANK", 0)
        world = _from_env("WORLD_SIZE", 1)
    else:
        rank = dist.get_rank()
        world = dist.get_world_size()
    local_rank = _from_env("LOCAL_RANK", 0)
    local_world = _from_env("LOCAL_WORLD_SIZE", 1)
    shape = mesh_shape(settings, world)
    device = choose_device(settings.device, local_rank)
    if ours:
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        options: dict[str, Any] = {"timeout": timedelta(seconds=settings.parallel.timeout)}
        if world == 1:
            options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        try:
            dist.init_process_group(backend, **options)
        except (RuntimeError, ValueError) as error:
            raise RankError(
                f"the {world} processes of the run did not find each other: {_line(error)}"
            ) from error
    made = init_device_mesh(device.type, shape, mesh_dim_names=DIMENSIONS)
    return Mesh(rank, world, local_rank, local_world, device, made, ours, settings.parallel.timeout)


def end(mesh: Mesh) -> None:
    """Leave the process group, if `begin` created it."""
    if mesh.ours and dist.is_initialized():
        leave_groups_alive()
        dist.destroy_process_group()


@contextmanager
def join_mesh(settings: "MeshSettings", code: int | None = None) -> Iterator[Mesh]:
    """Run a block between `begin` and `end`. A collective that fails because of another rank
    becomes a RankError.

    Args:
        settings: those of the run's processes.
        code: exit code after a signal while the processes wait for each other; None: 128 and the
            number of the signal.
    """
    with ended_in_calls(code):
        mesh = begin(settings)
    try:
        yield mesh
    except BaseException as error:
        if mesh.device.type == "cpu" or mesh.world_size == 1:
            # NCCL would wait for messages that never come; there the process ends without `end`
            end(mesh)
        if isinstance(error, RuntimeError) and mesh.world_size > 1 and _lost(error):
            how = "is gone"
            if "timed out" in str(error).lower():
                how += (
                    f", or has not answered for {settings.parallel.timeout:g} seconds "
                    "(parallel.timeout)"
                )
            raise RankError(
                f"rank {mesh.rank}: another process of the run {how}: {_line(error)}"
            ) from error
        raise
    end(mesh)


def mesh_shape(settings: "MeshSettings", world: int) -> tuple[int, int]:
    """Return (replicas, shards) of `world` processes. Raises ConfigError, with the remedy, where
    they do not fit.
    """
    shards = settings.parallel.dp_shard
    replicate = settings.parallel.dp_replicate
    batching = settings.batching
    replicas = replicate or max(1, world // shards)
    if replicas * shards != world:
        fitting = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
        free = "" if replicate is None else ", and leave out parallel.dp_replicate"
        raise ConfigError(
            f"parallel: dp_replicate {replicas} x dp_shard {shards} is {replicas * shards} "
            f"processes, and there are {world}: start {replicas * shards}, or set "
            f"parallel.dp_shard to one of {fitting}{free}"
        )
    if world > batching.batch_size:
        raise ConfigError(
            f"batch_size: {batching.batch_size} samples do not suffice for {world} processes: use "
            "fewer, or more samples"
        )
    micro_batch_size = batching.micro_batch_size
    if micro_batch_size and batching.batch_size % (world * micro_batch_size):
        raise ConfigError(
            f"micro_batch_size: {micro_batch_size} x {world} processes does not divide "
            f"{batching.batch_size}: use another number of processes, or leave out micro_batch_size"
        )
    if missing := missing_feature(settings, world):
        raise ConfigError(missing)
    return replicas, shards


def choose_device(device: str, local_rank: int) -> torch.device:
    """Return the CPU, or this process's own GPU, which becomes torch's current device.

    Raises:
        ConfigError: torch sees no GPU, has no kernels for this one, or there are fewer than
            processes on this host.
    """
    if device == "cpu":
        return torch.device("cpu")
    lacking = missing_cuda() if not torch.cuda.is_available() else ""
    count = 0 if lacking else torch.cuda.device_count()
    without = [missing_kernels(index) for index in range(count)]
    if device == "auto" and all(without):  # of every process on this host alike
        if local_rank == 0 and (line := describe_unused_cards()):
            warnings.warn(line, stacklevel=2)
        return torch.device("cpu")
    if not count:
        raise ConfigError(f"device: cuda: {lacking}; or use --device cpu")
    if local_rank >= count:
        raise ConfigError(
            f"device: {count} GPUs on this host, and none for its process {local_rank}: start at "
            f"most {count} here, or use --device cpu"
        )
    if without[local_rank]:
        usable = ",".join(str(index) for index, lack in enumerate(without) if not lack)
        other = f"set CUDA_VISIBLE_DEVICES={usable}" if usable else "use --device cpu"
        raise ConfigError(f"device: {without[local_rank]}; or {other}")
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def shard(
    policy: nn.Module,
    mesh: Mesh,
    precision: str,
    blocks: Sequence[nn.Module],
    float32_modules: Sequence[nn.Module] = (),
    methods: Sequence[str] = (),
) -> None:
    """Shard `policy` over the mesh, in place: fully_shard per block, the rest as one group with the
    root.

    The policy is on `mesh.device` already and has the same weights on every rank. Gradients are
    summed, in float32 or better, not averaged: the loss is divided by the global count
    (`train/optimizer_step.py`).

    Args:
        policy: the network.
        mesh: the processes.
        precision: the setting of the run.
        blocks: modules of `policy` that are sharded one by one.
        float32_modules: modules that compute in float32 whatever `precision` is.
        methods: names of methods of `policy` that gather its weights, besides `forward`.
    """
    if mesh.world_size == 1:
        # The wrapping alone costs a small network on a CPU a quarter of its step, with the same
        # numbers: the network casts its weights itself, as FSDP casts those of a sharded one.
        return
    from torch.distributed.fsdp import (
        FSDPModule,
        MixedPrecisionPolicy,
        fully_shard,
        register_fsdp_forward_method,
    )

    def wrap(module: nn.Module, param_dtype: torch.dtype | None) -> None:
        # Inputs are not cast: actions and states are normalized in float32 first.
        mixed = MixedPrecisionPolicy(
            param_dtype=param_dtype, reduce_dtype=mesh.grad_sum_dtype, cast_forward_inputs=False
        )
        # Unsharded weights need not be gathered again for the backward pass.
        fully_shard(
            module, mesh=mesh.device_mesh, mp_policy=mixed, reshard_after_forward=mesh.shape[1] > 1
        )

    compute = torch.bfloat16 if precision == "bf16" else None
    for module in float32_modules:
        wrap(module, None)
    for module in blocks:
        wrap(module, compute)
    wrap(policy, compute)
    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            # gloo has no other, and nothing is divided anyway
            module.set_force_sum_reduction_for_comms(True)
    for method in methods:
        register_fsdp_forward_method(policy, method)


def reshard_weights(policy: nn.Module, mesh: Mesh) -> None:
    """Free the gathered weights after a pass without backward, so that the next forward pass
    gathers current ones.

    A backward pass frees them itself. Without one, the root (and everything in a mesh without
    shards) would keep computing with the weights gathered first.
    """
    if mesh.world_size == 1:
        return
    from torch.distributed.fsdp import FSDPModule

    for module in policy.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def grad_sum_dtype(device: torch.device) -> torch.dtype:
    """Return the dtype in which gradients of ranks and micro-batches are summed.

    Sums of a few float32 numbers are exact in float64 in any order (where they are not 2^29 apart).
    So on CPUs one process and meshes of any shape agree to the bit. On GPUs float32 halves the
    traffic.
    """
    return torch.float64 if device.type == "cpu" else torch.float32


def sync_gradients(policy: nn.Module, mesh: Mesh, last: bool) -> None:
    """Make the next backward pass sum gradients over the ranks only for the `last` micro-batch.

    Where weights are sharded on GPUs, every micro-batch is reduce-scattered, or each rank would
    hold gradients of the whole network; only the sum over replicas waits for the last one.
    """
    if mesh.world_size == 1:
        return
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(policy, FSDPModule)
    if not last:
        _gather_once(policy)
    if mesh.shape[1] > 1 and (mesh.planned_device or mesh.device).type != "cpu":
        policy.set_requires_all_reduce(last)
    else:
        policy.set_requires_gradient_sync(last)


@torch.no_grad()
def _gather_once(policy: nn.Module) -> None:
    """Gather the weights of each sharded module once, one module after the other; all ranks call
    this together.

    A backward pass that does not sum gradients over the ranks reads the gathered weights of every
    module, also of one that no forward pass has entered (a vision encoder without cameras), which
    would have none.
    """
    from torch.distributed.fsdp import FSDPModule

    for module in policy.modules():
        if isinstance(module, FSDPModule) and module not in _GATHERED:
            module.unshard()
            module.reshard()
            _GATHERED.add(module)


_GATHERED: WeakSet[nn.Module] = WeakSet()
"""Sharded modules whose weights have been gathered (`_gather_once`)."""


def _from_env(name: str, default: int) -> int:
    return int(os.environ.get(name, default))


def _lost(error: RuntimeError) -> bool:
    """Return whether a collective failed because of another process; gloo has no error type for
    it.
    """
    words = str(error).lower()
    return isinstance(error, dist.DistError) or any(
        word in words for word in ("gloo", "connection", "nccl", "timed out")
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
