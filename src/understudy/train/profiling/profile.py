"""Where the time and the memory of a training step go: the step of `train/state.py` itself, with a timer handed in.

Three looks at the same training, warm-up left out of each:

    plain     steps as they are trained, the clock read before the first and after the last: the truth about speed
    timed     the device awaited at both ends of every phase: the truth about phases, without what overlaps
    traced    one step under torch's profiler: the collectives inside forward and backward, and memory over time

Nothing is written to a run directory: the weights that these steps train are dropped.
"""

import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from understudy._version import __version__
from understudy.config.train import TrainConfig
from understudy.distributed.mesh import join_mesh, num_micro_batches
from understudy.optim.state import local
from understudy.train.checkpoint.run_dir import RunDir
from understudy.train.data.data import normalisation, open_data
from understudy.train.inner_loop import Pace, loader_of, new_order
from understudy.train.profiling.flops import counted, peak
from understudy.train.profiling.timer import NULL, PHASES, PhaseTimer, Timer
from understudy.train.state import TrainState, init_train_state
from understudy.train.track.trackers import Log

OTHER = "everything else"


@dataclass(frozen=True)
class Phase:
    """Seconds per step in one phase."""

    worst: float
    """On the rank where it takes longest."""
    rank: int
    """Which that is."""
    mean: float
    """Over ranks."""


@dataclass(frozen=True)
class Profile:
    """What was measured. Seconds are per optimizer step, bytes per rank (of the rank with the most)."""

    samples_per_s: float
    """Global batch by `step_s`."""
    step_s: float
    """Plain steps, mean of the slowest rank."""
    waiting_s: float
    """Of that, waiting for data; likewise of the rank that waits longest."""
    timed_step_s: float
    """Under the timer; what it is longer than `step_s` is what overlaps otherwise, and the waiting itself."""
    phases: dict[str, Phase]
    """By name, in the sequence of a step; "everything else" is what is left of `timed_step_s`."""
    collectives: int
    """Sums and gathers over ranks in one step, those of the sharded modules included."""
    collectives_s: float
    """Seconds they take by themselves, overlapping with work or not; of the rank where they take longest."""
    memory: dict[str, int]
    """`parameters`, `gradients`, `optimizer state`, `average`, `activations` (what forward leaves behind for backward),
    and `peak`, the most a step had at once."""
    flops: int
    """Operations a step needs, all ranks together."""
    flops_per_s: float
    """Of one device, in plain steps."""
    mfu: float | None
    """Share of what the device could do; None where its peak is not known."""
    conditions: dict[str, Any]
    """What was measured on and with."""

    def plain(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def profile(config: TrainConfig, warmup: int, steps: int) -> Profile | None:
    """Train `warmup` steps unseen, then `steps` plain and `steps` timed ones. On every rank; the answer is rank 0's.

    Raises:
        ConfigError, DatasetError, RankError: as `run.train` does, but an existing run is no obstacle.
    """
    config = replace(config, trackers=(), steps=warmup + 2 * steps + 2).resolved()
    with join_mesh(config) as mesh, tempfile.TemporaryDirectory() as folder:
        torch.set_num_threads(config.threads)
        with mesh.together():
            data = open_data(config)
            (order, _), scales = new_order(config, data, mesh), normalisation(data, config.data.normalise)
            log = Log(RunDir(Path(folder)), config, 0, writes=mesh.rank == 0)
        training = init_train_state(config, data, scales, mesh)
        with closing(log), loader_of(config, data, order, mesh, 0) as loader, Pace(training, loader, log) as pace:
            ranks = mesh.gather(_measured(training, pace, lambda: loader.wait_seconds, warmup, steps))
        conditions = _conditions(training) | {"warmup": warmup, "steps": steps}
        fastest = peak(conditions["device"], conditions["arithmetic"])
        return _together(ranks, config.batch, fastest, conditions) if mesh.rank == 0 else None


class _Rank(NamedTuple):
    """What one rank measured; seconds per step."""

    plain: float
    waited: float
    timed: float
    phases: dict[str, float]
    collectives: int
    collectives_s: float
    memory: dict[str, int]
    flops: int


def _measured(training: TrainState, pace: Pace, waited: Callable[[], float], warmup: int, steps: int) -> _Rank:
    mesh, config = training.mesh, training.config
    cuda = mesh.device.type == "cuda"
    wait: Callable[[], object] = torch.cuda.synchronize if cuda else lambda: None

    def run(count: int, timer: Timer = NULL) -> float:
        """Seconds per step. As `run.train` goes on between validations and checkpoints."""
        wait()
        mesh.any(False)  # all begin together
        began = time.perf_counter()
        for _ in range(count):
            pace.step(timer)
            with timer("communication"):
                mesh.votes(False, False)
            if training.step % config.log_every == 0:
                pace.write(timer)
        wait()
        return (time.perf_counter() - began) / count

    run(warmup)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    before = waited()
    plain = run(steps)
    waiting = (waited() - before) / steps
    highest = torch.cuda.max_memory_allocated() if cuda else 0
    timer = PhaseTimer(wait)
    timed = run(steps, timer)
    phases = {name: seconds / steps for name, seconds in timer.taken().items()}
    phases[OTHER] = timed - sum(phases.values())
    trace = _traced(lambda timer: run(1, timer), cuda)
    memory = _kept(training)
    resident = sum(memory.values()) - memory["gradients"]  # those are made and dropped within a step
    memory |= {"activations": trace.activations, "peak": highest or resident + trace.risen}
    flops = counted(lambda: run(1), training.policy)
    return _Rank(plain, waiting, timed, phases, trace.collectives, trace.seconds, memory, flops)


def _kept(training: TrainState) -> dict[str, int]:
    """Bytes on this rank, just after a step."""

    def size(tensors: Sequence[Tensor | None]) -> int:
        parts = [local(tensor) for tensor in tensors if tensor is not None]
        return sum(part.numel() * part.element_size() for part in parts)

    parameters, average = list(training.policy.parameters()), training.average
    return {
        "parameters": size([*parameters, *training.policy.buffers()]),
        "gradients": size([parameter.grad for parameter in parameters]),
        "optimizer state": size([value for state in training.optimizer.state.values() for value in state.values()]),
        "average": size([*average.parameters(), *average.buffers()]) if average is not None else 0,
    }


class _Trace(NamedTuple):
    collectives: int
    seconds: float
    activations: int
    """Bytes that the largest forward pass left behind."""
    risen: int
    """Bytes by which memory rose above its level at the beginning."""


def _traced(step: Callable[[Timer], object], cuda: bool) -> _Trace:
    """One step under torch's profiler, phases marked in the trace."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with profile(activities=activities, profile_memory=True) as traced:
        step(lambda phase: record_function(f"understudy: {phase}"))
    events = traced.profiler.kineto_results.events()  # the one way to memory over time
    place = DeviceType.CUDA if cuda else DeviceType.CPU
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns(), e.start_thread_id()) for e in events if _forward(e)]
    # On the CPU the loader's threads make batches meanwhile: what counts is what the step's own thread does.
    threads = {thread for _, _, thread in spans}
    changes = sorted(
        (e.start_ns(), e.nbytes())
        for e in events
        if e.name() == "[memory]" and e.device_type() == place and (cuda or e.start_thread_id() in threads)
    )
    level, risen = 0, 0
    for _, change in changes:
        level += change
        risen = max(risen, level)
    left = [sum(change for at, change in changes if began <= at <= ended) for began, ended, _ in spans]
    # Kernels on a GPU, threads of gloo on a CPU; what only asks for them has other names.
    talks = [e.duration_ns() for e in events if e.name().startswith(("gloo:", "ncclDevKernel"))]
    return _Trace(len(talks), sum(talks) / 1e9, max(left, default=0), risen)


def _forward(event: Any) -> bool:
    from torch.autograd import DeviceType

    return bool(event.name() == "understudy: forward" and event.device_type() == DeviceType.CPU)


def _together(ranks: Sequence[_Rank], batch: int, fastest: float | None, conditions: dict[str, Any]) -> Profile:
    """What all ranks measured, as the job feels it: a step takes as long as on its slowest rank.

    fastest: operations per second of a device, where known.
    """
    step = max(rank.plain for rank in ranks)
    phases = {}
    for name in (*PHASES, OTHER):
        taken = [rank.phases.get(name, 0.0) for rank in ranks]
        phases[name] = Phase(max(taken), taken.index(max(taken)), sum(taken) / len(taken))
    flops = sum(rank.flops for rank in ranks)
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
    )


def _conditions(training: TrainState) -> dict[str, Any]:
    config = training.config
    cuda = training.mesh.device.type == "cuda"
    arithmetic: str = training.policy.config.compute
    if arithmetic == "float32" and torch.get_float32_matmul_precision() != "highest":
        arithmetic = "tf32"
    replicas, shards = training.mesh.shape
    return {
        "device": torch.cuda.get_device_name() if cuda else platform.processor() or platform.machine(),
        "ranks": training.mesh.world_size,
        "replicas": replicas,
        "shards": shards,
        "threads": config.threads,
        "arithmetic": arithmetic,
        "precision": config.precision,
        "parameters": sum(parameter.numel() for parameter in training.policy.parameters()),
        "batch": config.batch,
        "micro_batches": num_micro_batches(config, training.mesh),
        "activation_checkpoint": config.activation_checkpoint,
        "compile": config.compile,
        "understudy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
