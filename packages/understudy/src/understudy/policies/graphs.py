"""Passes of a policy as graphs, captured once and replayed: a GPU then waits for no Python.

A pass is a prefix (images and texts -> caches) and one step for each evaluation of the velocity.
Both are functions of tensors of fixed shapes, a `Bucket`: texts and robots are padded to it. Images
are resized and inputs normalized before, on the device, and copied into the graph's buffers. Noise,
times and the integration stay outside, so draws and algorithms are those of plain passes.

A policy takes part by the methods of `CapturesGraphs`. Kernels of others replace its two functions:

    class Mine:  # Kernels
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
"""Bytes that all graphs of a policy may have by default."""
WARM_UP = 3
Step = Literal["step", "given", "guided"]
"""One time per robot, one time per action, or `guided_velocity`."""


class Bucket(NamedTuple):
    """Shapes of a pass."""

    rows: int
    """Robots."""
    tokens: int
    """Tokens of a prompt; 0 where every prompt has the same length."""
    cameras: tuple[str, ...]
    frames: int
    """Frames of each camera, with the present one."""

    def holds(self, other: "Bucket") -> bool:
        """Return whether a pass of the shapes `other` can be padded to this one."""
        return not self.lacks(other)

    def lacks(self, other: "Bucket") -> list[str]:
        """Name the fields that are too small for `other`."""
        fits = {
            "rows": other.rows <= self.rows,
            "tokens": other.tokens <= self.tokens,
            "cameras": set(other.cameras) <= set(self.cameras),
            "frames": other.frames == self.frames,
        }
        return [name for name, is_enough in fits.items() if not is_enough]

    def __str__(self) -> str:
        counts = self._replace(cameras=len(self.cameras))  # type: ignore[arg-type]
        return ", ".join(f"{name} {count}" for name, count in counts._asdict().items())


class GraphPlan(NamedTuple):
    """What to capture for a policy."""

    tokens: tuple[int, ...] = (0,)
    """Lengths of prompts, the longest first."""
    steps: tuple[Step, ...] = ("step",)
    problem: str = ""
    """Why it cannot be captured; "": it can."""


Inputs = Mapping[str, Tensor]
"""Tensors [rows, ...] by name."""


class Kernels(Protocol):
    """The two functions of a pass.

    They read `inputs`, `cache` and weights alone, compute on the device, never wait for it, and
    take no decision from values.
    """

    def graph_prefix(self, inputs: Inputs, bucket: Bucket) -> Sequence[Tensor]:
        """Compute what all steps share, the cache: tensors of fixed shapes."""

    def graph_step(
        self, inputs: Inputs, cache: Sequence[Tensor], x: Tensor, time: Tensor, bucket: Bucket
    ) -> Tensor:
        """Compute the velocity, float32 in the shape of x [rows, T, dim], at `time` [rows] or
        [rows, T]. It must be differentiable in x where the policy can be guided.
        """


@runtime_checkable
class CapturesGraphs(Kernels, Protocol):
    """A policy whose passes can be captured; its `act` takes its velocity from `graph_field`."""

    def graph_plan(self) -> GraphPlan:
        """Return what to capture."""

    def graph_bucket(self, batch: Batch) -> Bucket:
        """Return the smallest bucket of a prepared batch, read on the host."""

    def graph_inputs(self, batch: Batch, noise: Tensor, bucket: Bucket) -> dict[str, Tensor]:
        """Return the inputs of a prepared batch on the device, [B, ...] or [1, ...] each; texts are
        padded to the bucket.

        Raises:
            ValueError: a missing key or a wrong shape, by name.
        """


class Recording(NamedTuple):
    """A captured function."""

    replay: Callable[[], object]
    """Computes again from the contents of the same buffers, into `outputs`."""
    outputs: tuple[Tensor, ...]


class Recorder(Protocol):
    """Captures the functions of one bucket."""

    nbytes: int
    """Memory of its recordings."""

    def record(
        self, function: Callable[[], Sequence[Tensor]], reads: Iterable[Tensor]
    ) -> Recording:
        """Capture a function that reads these tensors and makes others; outputs have no values
        before the first replay.
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
        """See `Recorder`. Other threads may use the GPU meanwhile."""
        with torch.cuda.device(self._device):
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for _ in range(WARM_UP):
                    function()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            reserved = torch.cuda.memory_reserved()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ):
                outputs = tuple(function())
            self.nbytes += torch.cuda.memory_reserved() - reserved
        return Recording(graph.replay, outputs)


RECORDERS: dict[str, Callable[[torch.device], Recorder]] = {"cuda": CudaRecorder}
"""By type of the device."""


def check_compile(mode: str, device: torch.device) -> None:
    """Raise ConfigError where this device captures nothing."""
    if mode != "off" and device.type not in RECORDERS:
        raise ConfigError(
            f"compile: {mode} captures graphs, which needs a device of type "
            f"{', '.join(RECORDERS)}, and this one is {device.type}; leave compile off"
        )


class Captured:
    """The graphs of one bucket, and their buffers."""

    def __init__(
        self, kernels: Kernels, bucket: Bucket, inputs: Inputs, noise: Tensor,
        steps: Sequence[Step], recorder: Recorder, weights: Sequence[Tensor],
    ) -> None:  # fmt: skip
        """Capture the prefix and each kind of step; `inputs` and `noise` [1, T, dim] are an
        example.
        """
        rows = bucket.rows
        buffers = {name: _repeated(value, rows) for name, value in inputs.items()}
        self._inputs = buffers
        self._prefix = recorder.record(
            lambda: kernels.graph_prefix(buffers, bucket), [*weights, *buffers.values()]
        )
        self._prefix.replay()
        cache = self._prefix.outputs
        self._steps: dict[str, tuple[dict[str, Tensor], Recording]] = {}

        def field(x: Tensor, time: Tensor) -> Tensor:
            return kernels.graph_step(buffers, cache, x, time, bucket)

        for name in steps:
            x = _repeated(noise, rows)
            values = {"x": x, "time": torch.ones_like(x[:, 0, 0])}
            function: Callable[..., Tensor] = field
            if name == "given":
                values["time"] = torch.ones_like(x[..., 0])
            elif name == "guided":
                one = torch.ones((), device=x.device)
                values |= {"time": one, "factor": one.clone(), "chunk": torch.zeros_like(x)}
                values |= {"weights": torch.ones_like(x), "dims": torch.ones_like(x).bool()}
                function = partial(guided_velocity, field)
            known = [*weights, *buffers.values(), *cache, *values.values()]
            recording = recorder.record(_called(function, values), known)
            self._steps[name] = values, recording
        made = [buffers, *(values for values, _ in self._steps.values())]
        self.nbytes = recorder.nbytes
        for group in made:
            self.nbytes += sum(value.nbytes for value in group.values())

    @property
    def steps(self) -> set[str]:
        """Kinds of steps that it has."""
        return set(self._steps)

    def start(self, inputs: Inputs, rows: int) -> None:
        """Compute the prefix of a pass of `rows` robots."""
        _fill(self._inputs, inputs, rows)
        self._prefix.replay()

    def step(self, name: str, values: Mapping[str, Any], rows: int) -> Tensor:
        """Compute a step of the pass."""
        buffers, recording = self._steps[name]
        _fill(buffers, values, rows)
        recording.replay()
        return recording.outputs[0][:rows].clone()  # the next step fills the same buffer


class GraphField:
    """Velocity field of one pass (`flow_matching.Field`), which replays graphs."""

    def __init__(self, captured: Captured, rows: int) -> None:
        self._captured = captured
        self._rows = rows

    def __call__(self, x: Tensor, time: Tensor) -> Tensor:
        """Compute the velocity at x [B, T, dim], time [B] or [B, T]."""
        name = "step" if time.ndim == 1 else "given"
        return self._captured.step(name, {"x": x, "time": time}, self._rows)

    def guided(self, dims: Tensor | None, **values: Any) -> Tensor:
        """Compute `guided_velocity` of this field."""
        if dims is None:
            dims = torch.ones((1, 1, 1), dtype=torch.bool, device=values["x"].device)
        return self._captured.step("guided", {"dims": dims, **values}, self._rows)


class Graphs:
    """The graphs of a policy. `capture_graphs` makes them; `policy.graphs = None` frees them.

    Attributes:
        nbytes: their memory.
        beyond: buckets that the stated memory did not suffice for.
    """

    def __init__(self, policy: Policy) -> None:
        self.nbytes = 0
        self.beyond: list[Bucket] = []
        self._captured: dict[Bucket, Captured] = {}
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._weights: list[tuple[dict[str, Any], str, int]] = []
        for module in policy.modules():
            for owner in (module._parameters, module._buffers):
                for name, value in owner.items():
                    if value is not None:
                        self._weights.append((owner, name, value.data_ptr()))

    def __deepcopy__(self, memo: Any) -> None:
        return None  # a copy of the policy has other weights

    def __reduce__(self) -> tuple[Any, ...]:
        return type(None), ()

    @property
    def buckets(self) -> list[Bucket]:
        """Captured buckets."""
        return list(self._captured)

    def add(self, bucket: Bucket, captured: Captured, memory: int) -> None:
        """Keep the graphs of a bucket, where all together have at most `memory` bytes."""
        if self.nbytes + captured.nbytes > memory:
            self.beyond.append(bucket)
            return
        self.nbytes += captured.nbytes
        self._captured[bucket] = captured

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let `field` of this thread replay: the buffers serve one pass at a time."""
        with self._lock:
            self._thread = threading.get_ident()
            try:
                yield
            finally:
                self._thread = None

    def field(self, policy: Any, batch: Batch, noise: Tensor, step: Step) -> GraphField | None:
        """Compute the prefix of a pass, and return its field; None: outside of `used`, or nothing
        captured holds it.
        """
        if self._thread != threading.get_ident():
            return None
        needed = policy.graph_bucket(batch)
        check_shape("noise", noise, (needed.rows, None, None))
        fitting = [bucket for bucket in self._captured if bucket.holds(needed)]
        if not fitting:
            lacking = [set(bucket.lacks(needed)) for bucket in self._captured]
            fields = sorted(set.intersection(*lacking)) if lacking else ["buckets"]
            return self._tell(", ".join(fields), f"no captured bucket holds {needed}")
        bucket = min(fitting, key=lambda each: (each.rows, each.tokens, len(each.cameras)))
        captured = self._captured[bucket]
        if step not in captured.steps:
            return self._tell(step, f"the kind of step {step!r} is not captured")
        if any(_pointer(owner, name) != pointer for owner, name, pointer in self._weights):
            return self._tell("weights", "weights were replaced after the capture; load it again")
        captured.start(policy.graph_inputs(batch, noise, bucket), needed.rows)
        return GraphField(captured, needed.rows)

    def _tell(self, key: str, reason: str) -> None:
        if key not in self._told:
            self._told.add(key)
            LOG.warning("graphs: %s; such passes are computed without graphs", reason)


def capture_graphs(
    policy: Policy, batch: Batch, noise: Tensor, rows: Iterable[int], memory: int,
    kernels: Kernels | None = None,
) -> None:  # fmt: skip
    """Capture the graphs of a policy (`policy.graphs`); a policy that cannot be captured stays
    without, and the log names the reason.

    Args:
        policy: the network, on its device.
        batch: a prepared batch of one robot with all of its cameras, on the device.
        noise: float32 [1, T, dim].
        rows: numbers of robots in a pass, ascending.
        memory: bytes that the graphs may have; a bucket beyond them is left out.
        kernels: functions in place of the policy's.
    """
    policy.graphs = None
    if not isinstance(policy, CapturesGraphs):
        kind = policy.config.type
        LOG.warning("graphs: a policy of type %s has no graph_prefix and graph_step", kind)
        return
    plan = policy.graph_plan()
    if plan.problem:
        LOG.warning("graphs: not captured: %s", plan.problem)
        return
    device = next(policy.parameters()).device
    weights = [*policy.parameters(), *policy.buffers()]
    graphs = Graphs(policy)
    smallest = policy.graph_bucket(batch)
    buckets: list[Bucket] = []
    for count in rows:
        buckets += [smallest._replace(rows=count, tokens=length) for length in plan.tokens]
    with Progress(len(buckets), "graphs", "bucket", last=True) as progress, torch.no_grad():
        for bucket in buckets:
            progress.set_note(str(bucket))
            if any(bucket.holds(left) for left in graphs.beyond):
                graphs.beyond.append(bucket)
            else:
                inputs = policy.graph_inputs(batch, noise, bucket)
                recorder = RECORDERS[device.type](device)
                try:
                    captured = Captured(
                        kernels or policy, bucket, inputs, noise, plan.steps, recorder, weights
                    )
                    graphs.add(bucket, captured, memory)
                except torch.OutOfMemoryError:
                    graphs.beyond.append(bucket)
            progress.update()
    for bucket in graphs.beyond:
        LOG.warning("graphs: %s: beyond the memory of %s bytes (graph_memory)", bucket, memory)
    policy.graphs = graphs


@contextmanager
def replaying(policy: Policy) -> Iterator[None]:
    """Let `policy.act` and `continue_chunk` of this thread replay the captured graphs, if any."""
    if policy.graphs is None:
        yield
        return
    with policy.graphs.used():
        yield


def graph_field(
    policy: Policy, batch: Batch, noise: Tensor, step: Step = "step"
) -> GraphField | None:
    """Return the velocity field of a pass by captured graphs; None: compute it without. For
    arguments see `Graphs.field`.
    """
    return None if policy.graphs is None else policy.graphs.field(policy, batch, noise, step)


def row_buckets(most: int) -> list[int]:
    """Return the numbers of robots to capture: powers of two, and `most`."""
    return sorted({most, *(1 << power for power in range(most.bit_length()))})


def _called(function: Callable[..., Tensor], values: Inputs) -> Callable[[], tuple[Tensor]]:
    return lambda: (function(**values),)


def _pointer(owner: Mapping[str, Any], name: str) -> int | None:
    value = owner.get(name)
    return None if value is None else value.data_ptr()


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
            raise ValueError(
                f"{name} is {value.dtype} {tuple(value.shape)}, the graph needs {buffer.dtype} "
                f"{shape}"
            )
        buffer[:rows].copy_(expanded)
        if rows < len(buffer):
            buffer[rows:].copy_(buffer[:1].expand_as(buffer[rows:]))
