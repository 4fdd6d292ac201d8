"""Time and memory of a training step, measured on the step of `train/state.py` itself with a timer.

Three measurements of the same training, without warm-up:

    plain     steps as in training, with the clock read before the first and after the last: the reference for speed
    timed     the device is synchronised at both ends of every phase: the reference for phases, without overlap
    traced    one step under torch's profiler: collectives inside forward and backward, and memory over time

Nothing is written to a run directory: the weights that these steps train are dropped.
"""

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from understudy._version import __version__
from understudy.config.schema import override
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.train.data.hub_files import with_local_files
from understudy.train.data.make_loader import make_loader, make_order
from understudy.train.data.run_data import choose_normalization, open_data
from understudy.train.micro_batches import PartCounts, add_counts
from understudy.train.profiling.flops import count_flops, peak_flops
from understudy.train.profiling.resident import resident_memory
from understudy.train.profiling.timer import NULL, PHASES, PhaseTimer, Timer
from understudy.train.state import TrainState, init_train_state
from understudy.train.step_runner import StepRunner
from understudy.train.track.trackers import MetricsLog

OTHER = "everything else"


@dataclass(frozen=True)
class Phase:
    """Seconds per step in one phase."""

    worst: float
    """On the slowest rank."""
    rank: int
    """The slowest rank."""
    mean: float
    """Mean over ranks."""


@dataclass(frozen=True)
class Profile:
    """Result of `profile`. Seconds are per optimizer step, bytes per rank (of the rank with the most)."""

    samples_per_s: float
    """Samples of a global batch divided by `step_s`."""
    step_s: float
    """Mean plain step of the slowest rank."""
    waiting_s: float
    """Part of it spent waiting for data, on the rank that waits longest."""
    timed_step_s: float
    """Mean timed step; it exceeds `step_s` by the lost overlap and the waiting itself."""
    phases: dict[str, Phase]
    """By name, in the sequence of a step; "everything else" is the rest of `timed_step_s`."""
    collectives: int
    """Sums and gathers over ranks in one step, including those of sharded modules."""
    collectives_s: float
    """Seconds of all collectives, with or without overlap, on the rank where they take longest."""
    memory: dict[str, int]
    """`parameters`, `gradients`, `optimizer state`, `average`, `activations` (left by forward for backward), and
    `peak`, the largest total during a step."""
    flops: int
    """Operations of a step, all ranks together."""
    flops_per_s: float
    """Of one device, in plain steps."""
    mfu: float | None
    """Share of the device's peak; None if the peak is unknown."""
    conditions: dict[str, Any]
    """Device, settings and versions."""
    samples_per_part: float = 0.0
    """Mean number of samples of a micro-batch; 0: not counted."""
    tokens_per_s: float | None = None
    """Valid tokens of a global batch divided by `step_s`; None: the policy has no tokens."""
    valid_share: float | None = None
    """Share of valid tokens among those that the network computes."""

    def plain(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)


def profile(config: TrainConfig, warmup: int, steps: int) -> Profile | None:
    """Train `warmup` unmeasured steps, then `steps` plain and `steps` timed ones; call it on every rank.

    Returns:
        The profile on rank 0, None on the others.

    Raises:
        ConfigError: as `run.train`; an existing run is accepted.
        DatasetError: as `run.train`.
        RankError: as `run.train`.
    """
    config = with_local_files(override(config, log={"trackers": ()}, steps=warmup + 2 * steps + 2)).resolved()
    with join_mesh(config) as mesh, tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(config.torch_threads)
        with mesh.together():
            data = open_data(config)
            (order, _), scales = make_order(config, data, mesh), choose_normalization(config, data)
            log = MetricsLog(Path(folder), config, 0, writes=mesh.rank == 0)
        state = init_train_state(config, data, scales, mesh)
        with (
            closing(log),
            make_loader(config, data, order, mesh, 0, state.prepare) as loader,
            StepRunner(state, loader, log) as runner,
        ):
            ranks = mesh.gather(_measure(state, runner, lambda: loader.wait_seconds, warmup, steps))
        conditions = _conditions(state) | {"warmup": warmup, "steps": steps}
        fastest = peak_flops(conditions["device"], conditions["arithmetic"])
        return combine(ranks, config.batch_size, fastest, conditions) if mesh.rank == 0 else None


class RankProfile(NamedTuple):
    """Measurements of one rank, in seconds per step."""

    plain: float
    waited: float
    timed: float
    phases: dict[str, float]
    collectives: int
    collectives_s: float
    memory: dict[str, int]
    flops: int
    parts: PartCounts | None = None
    """Of the plain steps."""


def _measure(
    state: TrainState, runner: StepRunner, waited: Callable[[], float], warmup: int, steps: int
) -> RankProfile:
    mesh, config = state.mesh, state.config
    cuda = mesh.device.type == "cuda"
    wait: Callable[[], object] = torch.cuda.synchronize if cuda else lambda: None

    def run(count: int, timer: Timer = NULL, cuts: list[PartCounts] | None = None) -> float:
        """Run steps as the training loop does between validations and checkpoints; returns seconds per step."""
        wait()
        mesh.any(False)  # all start together
        start = time.perf_counter()
        for _ in range(count):
            runner.step(timer)
            if cuts is not None and state.part_counts is not None:
                cuts.append(state.part_counts)
            with timer("communication"):
                mesh.votes(False, False)
            if state.step % config.log.every == 0:
                runner.log_steps(timer)
        wait()
        return (time.perf_counter() - start) / count

    run(warmup)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before, cuts = waited(), list[PartCounts]()
    plain = run(steps, cuts=cuts)
    waiting = (waited() - before) / steps
    highest = torch.cuda.max_memory_allocated() if cuda else 0
    timer = PhaseTimer(wait)
    timed = run(steps, timer)
    phases = {name: seconds / steps for name, seconds in timer.taken().items()}
    phases[OTHER] = timed - sum(phases.values())
    trace = _trace(lambda timer: run(1, timer), cuda)
    memory = resident_memory(state)
    resident = sum(memory.values()) - memory["gradients"]  # gradients exist only within a step
    memory |= {"activations": trace.activations, "peak": highest or resident + trace.increase}
    flops = count_flops(lambda: run(1), state.policy)
    return RankProfile(plain, waiting, timed, phases, trace.collectives, trace.seconds, memory, flops, add_counts(cuts))


class _Trace(NamedTuple):
    collectives: int
    seconds: float
    activations: int
    """Bytes left by the largest forward pass."""
    increase: int
    """Largest increase of memory above its level at the start."""


def _trace(step: Callable[[Timer], object], cuda: bool) -> _Trace:
    """Trace one step under torch's profiler, with its phases."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, profile_memory=True) as traced:
        step(lambda phase: record_function(f"understudy: {phase}"))
    events = traced.profiler.kineto_results.events()  # the only access to memory over time
    place = DeviceType.CUDA if cuda else DeviceType.CPU
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns(), e.start_thread_id()) for e in events if _forward(e)]
    # On the CPU the loader's threads build batches meanwhile; only the step's own thread counts.
    threads = {thread for _, _, thread in spans}
    changes = sorted(
        (e.start_ns(), e.nbytes())
        for e in events
        if e.name() == "[memory]" and e.device_type() == place and (cuda or e.start_thread_id() in threads)
    )
    level, increase = 0, 0
    for _, change in changes:
        level += change
        increase = max(increase, level)
    left = [sum(change for at, change in changes if start <= at <= end) for start, end, _ in spans]
    # Kernels on a GPU, threads of gloo on a CPU; their launches have other names.
    talks = [e.duration_ns() for e in events if e.name().startswith(("gloo:", "ncclDevKernel"))]
    return _Trace(len(talks), sum(talks) / 1e9, max(left, default=0), increase)


def _forward(event: Any) -> bool:
    from torch.autograd import DeviceType

    return bool(event.name() == "understudy: forward" and event.device_type() == DeviceType.CPU)


def combine(ranks: Sequence[RankProfile], batch: int, fastest: float | None, conditions: dict[str, Any]) -> Profile:
    """Combine the measurements of all ranks: a step takes as long as on its slowest rank.

    fastest: peak operations per second of a device, if known.
    """
    step = max(rank.plain for rank in ranks)
    phases = {}
    for name in (*PHASES, OTHER):
        taken = [rank.phases.get(name, 0.0) for rank in ranks]
        phases[name] = Phase(max(taken), taken.index(max(taken)), sum(taken) / len(taken))
    flops = sum(rank.flops for rank in ranks)
    counted = [rank.parts for rank in ranks if rank.parts is not None]
    rates = add_counts(counted).rates(step * conditions["steps"]) if counted else {}
    speed = flops / len(ranks) / step
    return Profile(
        samples_per_s=batch / step,
        step_s=step,
        waiting_s=max(rank.waited for rank in ranks),
        timed_step_s=max(rank.timed for rank in ranks),
        phases=phases,
        collectives=max(rank.collectives for rank in ranks),
        collectives_s=max(rank.collectives_s for rank in ranks),
        memory={name: max(rank.memory[name] for rank in ranks) for name in ranks[0].memory},
        flops=flops,
        flops_per_s=speed,
        mfu=speed / fastest if fastest else None,
        conditions=conditions,
        **rates,
    )


def _conditions(state: TrainState) -> dict[str, Any]:
    config = state.config
    cuda = state.mesh.device.type == "cuda"
    arithmetic: str = state.policy.config.compute
    if arithmetic == "float32" and torch.get_float32_matmul_precision() != "highest":
        arithmetic = "tf32"
    replicas, shards = state.mesh.shape
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "ranks": state.mesh.world_size,
        "replicas": replicas,
        "shards": shards,
        "threads": config.torch_threads,
        "arithmetic": arithmetic,
        "precision": config.precision,
        "parameters": sum(parameter.numel() for parameter in state.policy.parameters()),
        "batch": config.batch_size,
        "micro_batches": 1 if state.part_counts is None else state.part_counts.parts,
        "activation_checkpoint": config.activation_checkpoint,
        "compile": config.compile,
        "understudy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
