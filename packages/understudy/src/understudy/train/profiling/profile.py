"""Time and memory of a training step, measured on the step of `train/state.py` itself with a timer.

Measurements of the same training, without warm-up:

    plain     steps as in training, with the clock read before the first and after the last: the
              reference for speed
    timed     the device is synchronised at both ends of every phase: the reference for phases,
              without overlap
    traced    one step of several ranks under torch's profiler: collectives inside forward and
              backward
    memory    one step whose tensors are counted (`live_bytes.py`), and the plan for its inputs
              (`plan.py`)

Nothing is written to a run directory: the weights that these steps train are dropped.
"""

import logging
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple, Self

import torch
from torch import Tensor

from understudy.config.train import TrainConfig
from understudy.distributed.mesh import join_mesh
from understudy.train.data.run_data import make_loader, make_order, open_data
from understudy.train.data.run_normalization import choose_normalization
from understudy.train.loop import StepRunner
from understudy.train.micro_batches import PartCounts, add_counts
from understudy.train.optimizer_step import NULL, Timer
from understudy.train.paths import with_local_files
from understudy.train.profiling.data_sheets import peak_flops
from understudy.train.profiling.live_bytes import CudaBytes, LiveBytes
from understudy.train.profiling.plan import (
    NEEDS_VALUES,
    count_flops,
    resident_memory,
    resident_tensors,
    trace_batch,
    with_known_base,
)
from understudy.train.state import TrainState, init_train_state
from understudy.train.track.trackers import MetricsLog
from understudy_base import Record, __version__, temporary_folder
from understudy_data import Loader
from understudy_kit import override, plain

PHASES: Final = (
    "data wait",
    "host to device",
    "forward",
    "backward",
    "communication",
    "clip",
    "optimizer",
    "logging",
)
"""The phases of a step, in their sequence. Communication has the collectives of the step itself;
those of sharded modules inside forward and backward are measured separately, since they overlap
with work.
"""
OTHER = "everything else"


logger = logging.getLogger(__name__)


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
    """Result of `profile`. Seconds are per optimizer step, bytes per rank (of the rank with the
    most).
    """

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
    """`parameters`, `gradients`, `optimizer state`, `average`, `activations` (left by forward for
    backward), and `peak`, the largest total during a step.
    """
    predicted: dict[str, int] | None
    """The same as `understudy plan` predicts it for the inputs of that step; None inside a process
    group of others, and where the step reads values of its tensors (`.item()`, `.nonzero()`).
    """
    flops: int
    """Model FLOPs of a step, all ranks together: without the operations that checkpointing repeats.
    """
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
    settings: dict[str, Any] = field(default_factory=dict)
    """Those settings of the run that time and memory of a step depend on (`step_settings`)."""

    def plain(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_plain(cls, facts: Record) -> Self:
        """Return the profile that `plain` gave as JSON.

        Raises:
            ValueError: a value is missing or of another type; names it.
        """
        from pydantic import TypeAdapter

        return TypeAdapter(cls).validate_python(facts)


STEP_SETTINGS = (
    "policy",
    "mode",
    "batch_size",
    "micro_batch_size",
    "max_num_tokens",
    "max_samples",
    "precision",
    "activation_checkpoint",
    "activation_checkpoint_blocks",
    "attention",
    "compile",
    "torch_threads",
    "lora",
    "parallel",
)
"""Settings that time and memory of a step depend on."""


def step_settings(config: TrainConfig) -> dict[str, Any]:
    """Return the `STEP_SETTINGS` of a run as plain values."""
    settings = plain(config)
    return {name: settings[name] for name in STEP_SETTINGS}


def profile(config: TrainConfig, warmup: int, steps: int) -> Profile | None:
    """Train `warmup` unmeasured steps, then `steps` plain and `steps` timed ones; call it on every
    rank.

    Returns:
        The profile on rank 0, None on the others.

    Raises:
        ConfigError: as `run.train`; an existing run is accepted.
        DatasetError: as `run.train`.
        RankError: as `run.train`.
    """
    config = override(config, log={"trackers": ()}, steps=warmup + 2 * steps + 4)
    config = with_local_files(config).resolved()
    with join_mesh(config.mesh) as mesh, temporary_folder() as folder:
        torch.set_num_threads(config.torch_threads)
        with mesh.together():
            data = open_data(config)
            order = make_order(config, data, mesh)
            scales = choose_normalization(config, data)
            config = with_known_base(config, data, scales)
            log = MetricsLog(folder, (), {}, 0, writes=mesh.rank == 0)
        state = init_train_state(config, data, scales, mesh)
        with (
            closing(log),
            make_loader(config, data, order, mesh, 0, state.prepare) as loader,
            StepRunner(state, loader, log) as runner,
        ):
            ranks = mesh.gather(_measure(state, runner, loader, warmup, steps))
        conditions = _conditions(state) | {"warmup": warmup, "steps": steps}
    if mesh.rank:
        return None
    del state
    measured = combine(
        ranks,
        config.batch_size,
        peak_flops(conditions["device"], conditions["arithmetic"]),
        conditions,
    )
    measured = replace(measured, settings=step_settings(config))
    if not mesh.ours:
        logger.warning(
            "profile: no predicted memory: the process group is not of understudy; run `understudy "
            "profile`"
        )
        return measured
    largest = max(ranks, key=lambda rank: rank.memory["peak"])
    try:
        predicted = trace_batch(
            config, data, scales, largest.inputs, mesh.world_size, mesh.device.type
        )
    except NEEDS_VALUES as error:
        logger.warning(
            "profile: no predicted memory: the step reads values of tensors, and shapes have none "
            "(%s)",
            error,
        )
        return measured
    return replace(measured, predicted=predicted)


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
    inputs: dict[str, Any]
    """Batch of the step whose memory was measured, without values but those at the host."""
    parts: PartCounts | None = None
    """Of the plain steps."""


def _measure(
    state: TrainState, runner: StepRunner, loader: Loader, warmup: int, steps: int
) -> RankProfile:
    mesh = state.mesh
    config = state.config
    cuda = mesh.device.type == "cuda"
    wait: Callable[[], object] = torch.cuda.synchronize if cuda else lambda: None

    def run(count: int, timer: Timer = NULL, cuts: list[PartCounts] | None = None) -> float:
        """Run steps as the training loop does between validations and checkpoints; returns seconds
        per step.
        """
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
    before = loader.wait_seconds
    cuts = list[PartCounts]()
    plain = run(steps, cuts=cuts)
    waiting = (loader.wait_seconds - before) / steps
    timer = PhaseTimer(wait)
    timed = run(steps, timer)
    phases = {name: seconds / steps for name, seconds in timer.taken().items()}
    phases[OTHER] = timed - sum(phases.values())
    collectives, seconds = _trace(lambda: run(1)) if mesh.world_size > 1 else (0, 0.0)
    memory, inputs = _measure_memory(state, next(loader))
    flops = count_flops(lambda: run(1), state.policy)
    counts = add_counts(cuts)
    return RankProfile(
        plain, waiting, timed, phases, collectives, seconds, memory, flops, inputs, counts
    )


def _measure_memory(
    state: TrainState, batch: dict[str, Any]
) -> tuple[dict[str, int], dict[str, Any]]:
    """Measure the memory of a step on this batch, uncompiled on a CPU; return it and the shapes of
    the batch.
    """
    inputs, draws = state.device_inputs(batch)
    if state.mesh.device.type == "cuda":
        read = CudaBytes()
        state.device_step(inputs, draws, read)
        peaks = {"activations": read.activations, "peak": read.peak}
    else:
        live = LiveBytes()
        with live, torch.compiler.set_stance("force_eager"):
            live.watch(
                value for value in (*inputs.values(), *draws.values()) if isinstance(value, Tensor)
            )
            live.watch(resident_tensors(state))
            # the first one shows the buffers of FSDP2
            steps = 1 if state.mesh.world_size == 1 else 2
            for _ in range(steps):
                live.reset()
                state.device_step(inputs, draws, live)
        peaks = {"activations": live.activations, "peak": live.peak}
    shapes = dict(inputs)
    for key, value in inputs.items():
        if isinstance(value, Tensor) and key != "position":
            shapes[key] = value.to("meta")
    return resident_memory(state) | peaks, shapes


def _trace(step: Callable[[], object]) -> tuple[int, float]:
    """Trace one step under torch's profiler; returns the number of its collectives and their
    seconds.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as traced:
        step()
    # Kernels on a GPU, threads of gloo on a CPU; their launches have other names.
    events = traced.profiler.kineto_results.events()
    talks = [
        event.duration_ns()
        for event in events
        if event.name().startswith(("gloo:", "ncclDevKernel"))
    ]
    return len(talks), sum(talks) / 1e9


def combine(
    ranks: Sequence[RankProfile], batch: int, fastest: float | None, conditions: dict[str, Any]
) -> Profile:
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
    rates: Record = add_counts(counted).rates(step * conditions["steps"]) if counted else {}
    speed = flops / len(ranks) / step
    utilization = speed / fastest if fastest else None
    memory = {}
    for name in ranks[0].memory:
        memory[name] = max(rank.memory[name] for rank in ranks)
    return Profile(
        samples_per_s=batch / step,
        step_s=step,
        waiting_s=max(rank.waited for rank in ranks),
        timed_step_s=max(rank.timed for rank in ranks),
        phases=phases,
        collectives=max(rank.collectives for rank in ranks),
        collectives_s=max(rank.collectives_s for rank in ranks),
        memory=memory,
        predicted=None,
        flops=flops,
        flops_per_s=speed,
        mfu=utilization,
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
    if cuda:
        device = torch.cuda.get_device_name()
    else:
        device = platform.processor() or platform.machine()
    micro_batches = 1 if state.part_counts is None else state.part_counts.parts
    return {
        "device": device,
        "ranks": state.mesh.world_size,
        "replicas": replicas,
        "shards": shards,
        "threads": config.torch_threads,
        "arithmetic": arithmetic,
        "precision": config.precision,
        "policy": config.policy.type,
        "parameters": sum(parameter.numel() for parameter in state.policy.parameters()),
        "batch": config.batch_size,
        "micro_batches": micro_batches,
        "activation_checkpoint": config.recomputation(),
        "attention": config.attention,
        "compile": config.compile,
        "understudy": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


class PhaseTimer:
    """Wall seconds per phase, excluding phases inside it, so that all phases together do not exceed
    the step.

    Both ends of a phase wait for the device. Otherwise its work would be counted in the phase that
    happens to wait next. This removes every overlap between host and device: a step under this
    timer is slower than one without.

    Args:
        wait: waits until the device is idle (`torch.cuda.synchronize`); on a CPU it does nothing.
        clock: monotonic clock in seconds; replaceable in tests.

    Raises:
        ValueError: a phase is not in `PHASES`; a misspelt one would be missing from the table.
    """

    def __init__(
        self,
        wait: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._wait = wait
        self._clock = clock
        self._seconds: dict[str, float] = {}
        self._inside = [0.0]  # seconds of the phases inside each open one, the innermost last

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Return a context that adds its seconds to `phase`."""
        if phase not in PHASES:
            raise ValueError(f"phase {phase!r}: must be one of {', '.join(PHASES)}")
        self._wait()
        self._inside.append(0.0)
        start = self._clock()
        try:
            yield
        finally:
            self._wait()
            seconds = self._clock() - start
            self._seconds[phase] = self._seconds.get(phase, 0.0) + seconds - self._inside.pop()
            self._inside[-1] += seconds

    def taken(self) -> dict[str, float]:
        """Return the seconds per phase since the last call, without phases that did not occur, and
        reset them.
        """
        seconds = self._seconds
        self._seconds = {}
        return seconds
