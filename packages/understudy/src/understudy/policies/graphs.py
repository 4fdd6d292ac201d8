"""Passes of a policy as graphs, captured once and replayed: a GPU then waits for no Python.

A pass is a prefix (images and texts -> cache) and a step for each evaluation of the velocity: two
functions of tensors of fixed shapes, those of a `Bucket`. Images are resized and values normalized
before, on the device, and copied into the buffers of the graphs. Noise and integration stay
outside. A policy takes part by `CapturesGraphs`; kernels of others replace its two functions:

    class Mine:
        def graph_prefix(self, inputs, bucket): ...
        def graph_step(self, inputs, cache, x, time, bucket): ...

    us.load_policy(folder, device="cuda", compile="graphs", kernels=lambda policy: Mine())

A replay has the bits of the same functions uncaptured, at the same bucket. A pass that no bucket
holds is computed without graphs; the log names the reason once.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from understudy.policies.batch import check_shape
from understudy.policies.common.flow_matching import guided_velocity
from understudy.policies.policy import Policy
from understudy_base import Batch, ConfigError, Progress

LOG = logging.getLogger("understudy.policies")
Compile = Literal["off", "graphs", "compiled"]
"""Passes run as they are written, as graphs, or as graphs of blocks that torch.compile made."""
GRAPH_MEMORY = 8 << 30
"""Bytes that the graphs of a policy may have by default."""
WARM_UP = 3
Step = Literal["step", "given", "guided"]
"""One time per robot, one time per action, or `guided_velocity`."""
Inputs = Mapping[str, Tensor]
"""Tensors [rows, ...] by name."""


class Bucket(NamedTuple):
    """Shapes of a pass."""

    rows: int
    """Robots."""
    tokens: int
    """Tokens of a prompt; 0 where every prompt has the same length."""
    cameras: tuple[str, ...]
    frames: int
    """Frames of each camera, with the present one."""

    def lacks(self, other: "Bucket") -> set[str]:
        """Name the fields to which a pass of the shapes `other` cannot be padded."""
        fits = {
            "rows": other.rows <= self.rows,
            "tokens": other.tokens <= self.tokens,
            "cameras": set(other.cameras) <= set(self.cameras),
            "frames": other.frames == self.frames,
        }
        return {name for name, is_enough in fits.items() if not is_enough}


class GraphPlan(NamedTuple):
    """What to capture for a policy."""

    tokens: tuple[int, ...]
    """Lengths of prompts, the longest first."""
    steps: tuple[Step, ...]
    problem: str
    """Why it cannot be captured; "": it can."""


class Kernels(Protocol):
    """The two functions of a pass: of `inputs`, `cache` and weights alone, on the device, without
    waiting for it and without decisions from values.
    """

    def graph_prefix(self, inputs: Inputs, bucket: Bucket) -> Sequence[Tensor]:
        """Compute the cache, which all steps share."""

    def graph_step(
        self, inputs: Inputs, cache: Sequence[Tensor], x: Tensor, time: Tensor, bucket: Bucket
    ) -> Tensor:
        """Compute the velocity, float32 in the shape of x [rows, T, dim], at `time` [rows] or
        [rows, T]; differentiable in x.
        """


@runtime_checkable
class CapturesGraphs(Kernels, Protocol):
    """A policy whose passes can be captured; its `act` takes the velocity of `graph_field`."""

    def graph_plan(self) -> GraphPlan:
        """Return what to capture."""

    def graph_bucket(self, batch: Batch) -> Bucket:
        """Return the smallest bucket of a prepared batch, from values of the host."""

    def graph_inputs(self, batch: Batch, noise: Tensor, bucket: Bucket) -> dict[str, Tensor]:
        """Return the inputs of a prepared batch on its device, [B, ...] or [1, ...] each, with
        texts padded to the bucket. Raises ValueError as `act` does.
        """


class Recording(NamedTuple):
    """A captured function."""

    replay: Callable[[], object]
    """Computes from what the buffers hold now, into `outputs`."""
    outputs: tuple[Tensor, ...]


class Recorder(Protocol):
    """Captures the functions of a bucket; `nbytes` is the memory of the recordings."""

    nbytes: int

    def record(
        self, function: Callable[[], Sequence[Tensor]], reads: Iterable[Tensor]
    ) -> Recording:
        """Capture a function that reads these tensors; its outputs have no values before a
        replay.
        """


class CudaRecorder:
    """CUDA graphs with a memory pool of their own."""

    def __init__(self, device: torch.device) -> None:
        self.nbytes = 0
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def record(
        self, function: Callable[[], Sequence[Tensor]], reads: Iterable[Tensor]
    ) -> Recording:
        """See `Recorder`."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UP):
                    function()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            reserved = torch.cuda.memory_reserved()
            graph = torch.cuda.CUDAGraph()
            # other threads may use the GPU meanwhile
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                outputs = tuple(function())
            self.nbytes += torch.cuda.memory_reserved() - reserved
        return Recording(graph.replay, outputs)


RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": CudaRecorder}
"""By type of the device."""


def recorder_of(device: torch.device) -> Callable[[torch.device], Recorder]:
    """Return the class of a device's recorders. Raises ConfigError where it has none."""
    if device.type not in RECORDERS:
        raise ConfigError(
            f"compile: graphs need a device of type {', '.join(RECORDERS)}, and this one is "
            f"{device.type}; leave compile off"
        )
    return RECORDERS[device.type]


class Captured:
    """Graphs of one bucket; between two `start`, the velocity field of a pass."""

    def __init__(
        self, kernels: Kernels, bucket: Bucket, inputs: Inputs, noise: Tensor,
        steps: Sequence[Step], recorder: Recorder, weights: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Capture the prefix and each kind of step; `inputs` and `noise` are an example."""
        buffers = {name: _repeated(value, bucket.rows) for name, value in inputs.items()}
        known = [*weights, *buffers.values()]
        self.bucket = bucket
        self._rows = bucket.rows
        self._inputs = buffers
        self._prefix = recorder.record(lambda: kernels.graph_prefix(buffers, bucket), known)
        self._prefix.replay()
        cache = self._prefix.outputs
        self.nbytes = sum(value.nbytes for value in buffers.values())
        self.steps: dict[str, tuple[dict[str, Tensor], Recording]] = {}

        def field(x: Tensor, time: Tensor) -> Tensor:
            return kernels.graph_step(buffers, cache, x, time, bucket)

        for name in steps:
            x = _repeated(noise, bucket.rows)
            values = {"x": x, "time": torch.ones_like(x[:, 0, 0])}
            function: Callable[..., Tensor] = field
            if name == "given":
                values["time"] = torch.ones_like(x[..., 0])
            elif name == "guided":
                one = torch.ones((), device=x.device)
                values |= {"time": one, "factor": one.clone(), "chunk": torch.zeros_like(x)}
                values |= {"weights": torch.ones_like(x), "dims": torch.ones_like(x).bool()}
                function = partial(guided_velocity, field)
            recording = recorder.record(
                _bound(function, values), [*known, *cache, *values.values()]
            )
            self.steps[name] = values, recording
            self.nbytes += sum(value.nbytes for value in values.values())
        self.nbytes += recorder.nbytes

    def start(self, inputs: Inputs, rows: int) -> None:
        """Compute the prefix of a pass of `rows` robots."""
        self._rows = rows
        _fill(self._inputs, inputs, rows)
        self._prefix.replay()

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        """Compute the velocity at x [B, T, dim], time [B] or [B, T]."""
        name = "step" if time.ndim == 1 else "given"
        return self._step(name, x=x, time=time)

    def guided(self, dims: Tensor | None, **values: Any) -> Tensor:
        """Compute `guided_velocity` of this field."""
        if dims is None:
            dims = torch.ones((1, 1, 1), dtype=torch.bool, device=values["x"].device)
        return self._step("guided", dims=dims, **values)

    def _step(self, name: str, **values: Any) -> Tensor:
        buffers, recording = self.steps[name]
        _fill(buffers, values, self._rows)
        recording.replay()
        return recording.outputs[0][: self._rows].clone()  # the next step writes there


class Graphs:
    """Graphs of a policy, `Policy.graphs`; they are freed with the last reference.

    Attributes:
        buckets: captured ones.
        beyond: those that the memory did not suffice for.
        nbytes: memory of the graphs.
    """

    def __init__(
        self, policy: Any, batch: Batch, noise: Tensor, rows: Iterable[int], memory: int,
        kernels: Kernels | None = None,
    ) -> None:  # fmt: skip
        """Capture the buckets of a policy.

        Args:
            policy: one that `can_capture`.
            batch: a prepared batch of one robot with all of its cameras, on the device.
            noise: float32 [1, T, dim].
            rows: numbers of robots in a pass, ascending.
            memory: bytes that the graphs may have; buckets beyond them are left out.
            kernels: functions in place of the policy's.
        """
        self.buckets: dict[Bucket, Captured] = {}
        self.beyond: list[Bucket] = []
        self.nbytes = 0
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._weights: list[tuple[dict[str, Any], str, Tensor, int]] = []
        for module in policy.modules():
            for owner in (module._parameters, module._buffers):
                for name, value in owner.items():
                    if value is not None:
                        self._weights.append((owner, name, value, value.data_ptr()))
        weights = [value for _, _, value, _ in self._weights]
        plan = policy.graph_plan()
        device = noise.device
        make = recorder_of(device)
        needed = policy.graph_bucket(batch)
        buckets: list[Bucket] = []
        for count in rows:
            buckets += [needed._replace(rows=count, tokens=length) for length in plan.tokens]
        with Progress(len(buckets), "graphs", "bucket", last=True) as progress, torch.no_grad():
            for bucket in buckets:
                progress.set_note(str(bucket))
                if all(bucket.lacks(left) for left in self.beyond):
                    inputs = policy.graph_inputs(batch, noise, bucket)
                    example = (inputs, noise, plan.steps, make(device), weights)
                    self._add(
                        bucket, partial(Captured, kernels or policy, bucket, *example), memory
                    )
                progress.update()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()  # a copy of the policy has other weights

    def _add(self, bucket: Bucket, capture: Callable[[], Captured], memory: int) -> None:
        try:
            captured = capture()
        except torch.OutOfMemoryError:
            captured = None
        if captured is None or self.nbytes + captured.nbytes > memory:
            self.beyond.append(bucket)
            LOG.warning("graphs: beyond %s bytes (graph_memory), as all larger: %s", memory, bucket)
        else:
            self.nbytes += captured.nbytes
            self.buckets[bucket] = captured

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let `field` of this thread replay: the buffers serve one pass at a time."""
        with self._lock:
            self._thread = threading.get_ident()
            try:
                yield
            finally:
                self._thread = None

    def field(self, policy: Any, batch: Batch, noise: Tensor, step: Step) -> Captured | None:
        """Compute the prefix of a pass, and return its field; None: outside of `used`, or nothing
        captured holds it.
        """
        if self._thread != threading.get_ident():
            return None
        needed = policy.graph_bucket(batch)
        check_shape("noise", noise, (needed.rows, None, None))
        fitting = [bucket for bucket in self.buckets if not bucket.lacks(needed)]
        reason = ""
        if not fitting:
            lacking = [bucket.lacks(needed) for bucket in self.buckets] or [{"memory"}]
            reason = f"too small a bucket ({', '.join(sorted(set.intersection(*lacking)))})"
        elif step not in self.buckets[fitting[0]].steps:
            reason = f"no step of the kind {step!r}"
        elif any(
            owner.get(name) is not value or value.data_ptr() != pointer
            for owner, name, value, pointer in self._weights
        ):
            reason = "weights were replaced after the capture"
        if reason:
            if reason not in self._told:
                LOG.warning("graphs: %s: computed without graphs, as all such: %s", reason, needed)
            self._told.add(reason)
            return None
        captured = self.buckets[min(fitting, key=lambda each: (each.rows, each.tokens))]
        captured.start(policy.graph_inputs(batch, noise, captured.bucket), needed.rows)
        return captured


def can_capture(policy: Policy) -> bool:
    """Return whether the passes of a policy can be captured; if not, the log names the reason."""
    problem = f"a policy of type {policy.config.type} has no graph_prefix and graph_step"
    if isinstance(policy, CapturesGraphs):
        problem = policy.graph_plan().problem
    if problem:
        LOG.warning("graphs: computed without graphs: %s", problem)
    return not problem


@contextmanager
def replaying(policy: Policy) -> Iterator[None]:
    """Let `act` and `continue_chunk` of this thread replay the graphs of a policy, if any."""
    if policy.graphs is None:
        yield
        return
    with policy.graphs.used():
        yield


def graph_field(
    policy: Policy, batch: Batch, noise: Tensor, step: Step = "step"
) -> Captured | None:
    """Return `Graphs.field`; None: the policy computes the pass without graphs."""
    return None if policy.graphs is None else policy.graphs.field(policy, batch, noise, step)


def row_buckets(most: int) -> list[int]:
    """Return the numbers of robots to capture: powers of two, and `most`."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def _bound(function: Callable[..., Tensor], values: Inputs) -> Callable[[], tuple[Tensor]]:
    return lambda: (function(**values),)


def _repeated(value: Tensor, rows: int) -> Tensor:
    """Copy the first row of a tensor `rows` times."""
    return value[:1].expand(rows, *value.shape[1:]).clone(memory_format=torch.contiguous_format)


def _fill(buffers: Inputs, values: Mapping[str, Any], rows: int) -> None:
    """Copy values into buffers in place; rows behind `rows` get the first one.

    Raises:
        ValueError: names, shapes or dtypes differ from those of the capture.
    """
    if buffers.keys() != values.keys():
        raise ValueError(f"a graph of {sorted(buffers)} got {sorted(values)}")
    for name, buffer in buffers.items():
        value = values[name]
        if buffer.ndim == 0:
            buffer.fill_(value)
            continue
        shape = (rows, *buffer.shape[1:])
        try:
            expanded = value.expand(shape)
        except RuntimeError:
            expanded = None
        if expanded is None or value.dtype != buffer.dtype:
            given = f"{value.dtype} {tuple(value.shape)}"
            raise ValueError(f"{name} is {given}, the graph needs {buffer.dtype} {shape}")
        buffer[:rows].copy_(expanded)
        if rows < len(buffer):
            buffer[rows:].copy_(buffer[:1].expand_as(buffer[rows:]))
