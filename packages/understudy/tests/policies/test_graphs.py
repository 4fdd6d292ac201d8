"""Captured passes have the bits of the same functions uncaptured; a recorder with the rules of CUDA
graphs stands in for a GPU.
"""

import copy
import gc
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import understudy as us
from understudy.compile import missing_compiler
from understudy.policies.acting import Prepared, predict
from understudy.policies.common.normalizer import Normalizer
from understudy.policies.draws import make_draws
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.graphs import (
    Bucket,
    CapturesGraphs,
    CudaRecorder,
    Graphs,
    Inputs,
    row_buckets,
)
from understudy.policies.inference import RobotPolicy
from understudy.policies.policy import Policy
from understudy.testing.arm import write_arm_policy
from understudy.testing.graphs import CaptureError, Tape, Uncaptured, recorder
from understudy.testing.policies import CAMERAS, policy
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client.testing.arm import arm_observations

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
RECORDERS: dict[str, Any] = {"cpu": Tape, "cuda": CudaRecorder}
REST = np.full((3, 3), 0.1, np.float32)
CONTINUED: dict[str, dict[str, Any]] = {
    "free": {},
    "given": {"previous": REST, "delay": 2},
    "guided": {"previous": REST, "delay": 1, "horizon": 3},
}


@pytest.fixture
def robot() -> RobotPolicy:
    """A robot whose policy continues chunks in both ways."""
    made = RobotPolicy(policy(max_delay=2).eval(), {"heads": {"": {"fps": 10}}})
    made.reset()
    return made


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.WARNING, "understudy.policies"):
        yield caplog


def observation(seed: int = 0, size: tuple[int, int] = (16, 16)) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    images = {key: rng.integers(0, 256, (*size, 3), np.uint8) for key in CAMERAS}
    state = rng.normal(size=2).astype(np.float32)
    return {**images, "observation.state": state, "task": "pick up the red block"[: 4 + 2 * seed]}


def prepared(robot: RobotPolicy, seeds: Sequence[int], **options: Any) -> list[Prepared]:
    """An observation of each seed, with the noise of the seed."""
    spec = robot.policy.random_spec("act")
    found = []
    for seed in seeds:
        draws = make_draws(spec, 5, np.array([seed]), "rollout")
        found.append(robot.prepare(observation(seed), draws=draws, **options))
    return found


def capture(
    robot: RobotPolicy, make: Callable[..., Any], *arguments: Any, **options: Any
) -> Graphs:
    with recorder(make, next(robot.policy.parameters()).device.type):
        robot.capture(*arguments, **options)
    graphs = robot.policy.graphs
    assert isinstance(graphs, Graphs)
    return graphs


@pytest.mark.parametrize("options", CONTINUED.values(), ids=CONTINUED)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_has_the_bits_of_the_same_functions_uncaptured(
    robot: RobotPolicy,
    device: str,
    rows: int,
    options: dict[str, Any],
    logged: pytest.LogCaptureFixture,
) -> None:
    """Three robots are padded to four."""
    robot.policy.to(device)
    passes = [prepared(robot, range(first, first + rows), **options) for first in (0, 2)]
    plain = [predict(robot.policy, each) for each in passes]
    found = []
    for make in (Uncaptured, RECORDERS[device]):
        capture(robot, make, 4)
        found.append([predict(robot.policy, each) for each in passes])
    for direct, replayed, eager in zip(*found, plain, strict=True):
        assert np.array_equal(direct, replayed)
        assert np.allclose(replayed, eager, atol=1e-5)
    assert not np.array_equal(found[1][0], found[1][1])  # another observation, other actions
    assert not logged.records


def test_the_noise_of_an_episode_stays(robot: RobotPolicy) -> None:
    """Keyed draws are made outside of the graphs."""

    def chunks() -> list[np.ndarray]:
        robot.reset(seed=3, position=7)
        return [robot.act(observation(number)) for number in range(3)]

    plain = chunks()
    capture(robot, Tape)
    replayed = chunks()
    assert np.allclose(plain, replayed, atol=1e-5)
    assert np.array_equal(replayed, chunks())


def test_weights_that_change_in_place_are_read_again(robot: RobotPolicy) -> None:
    capture(robot, Tape)
    first = robot.policy.out_proj.weight
    ready = prepared(robot, [0])
    before = predict(robot.policy, ready)
    with torch.no_grad():
        first.mul_(2)
    replayed = predict(robot.policy, ready)
    assert not np.array_equal(replayed, before)
    robot.policy.graphs = None
    assert np.allclose(predict(robot.policy, ready), replayed, atol=1e-5)


def test_replaced_weights_are_computed_without_graphs(
    robot: RobotPolicy, logged: pytest.LogCaptureFixture
) -> None:
    capture(robot, Tape)
    ready = prepared(robot, [0])
    robot.policy.out_proj.weight = torch.nn.Parameter(2 * robot.policy.out_proj.weight.detach())
    replaced = predict(robot.policy, ready)
    robot.policy.graphs = None
    assert np.array_equal(replaced, predict(robot.policy, ready))
    assert "weights" in logged.text


def test_shapes_that_are_not_captured_are_named_once(
    robot: RobotPolicy, logged: pytest.LogCaptureFixture
) -> None:
    plain = predict(robot.policy, prepared(robot, range(3)))
    capture(robot, Tape, 2)
    for _ in range(2):
        assert np.array_equal(predict(robot.policy, prepared(robot, range(3))), plain)
    (record,) = logged.records
    assert "rows=3" in record.getMessage()


def test_a_bucket_beyond_the_memory_is_left_out_by_name(
    robot: RobotPolicy, logged: pytest.LogCaptureFixture
) -> None:
    needed = capture(robot, Tape, 1).nbytes
    graphs = capture(robot, Tape, 4, memory=needed)
    assert [bucket.rows for bucket in graphs.buckets] == [1]
    assert [bucket.rows for bucket in graphs.beyond] == [2]
    assert graphs.nbytes <= needed
    assert len(logged.records) == 1
    assert str(graphs.beyond[0]) in logged.text
    assert capture(robot, Tape, 1, memory=0).buckets == {}
    plain = predict(robot.policy, prepared(robot, [0]))
    robot.policy.graphs = None
    assert np.array_equal(plain, predict(robot.policy, prepared(robot, [0])))


class Doubled:
    """Kernels of a stranger: those of the policy, and twice its velocity."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy
        self.calls: list[tuple[str, Bucket]] = []

    def graph_prefix(self, inputs: Inputs, bucket: Bucket) -> Sequence[Tensor]:
        self.calls.append(("prefix", bucket))
        result: Sequence[Tensor] = self.policy.graph_prefix(inputs, bucket)
        return result

    def graph_step(
        self, inputs: Inputs, cache: Sequence[Tensor], x: Tensor, time: Tensor, bucket: Bucket
    ) -> Tensor:
        self.calls.append(("step", bucket))
        result: Tensor = 2 * self.policy.graph_step(inputs, cache, x, time, bucket)
        return result


class Greedy(Doubled):
    """Kernels that a device has the memory of for one robot alone."""

    def graph_prefix(self, inputs: Inputs, bucket: Bucket) -> Sequence[Tensor]:
        if bucket.rows > 1:
            raise torch.OutOfMemoryError("out of memory")
        return super().graph_prefix(inputs, bucket)


def test_a_bucket_beyond_the_memory_of_the_device_is_left_out(
    robot: RobotPolicy, logged: pytest.LogCaptureFixture
) -> None:
    graphs = capture(robot, Tape, 2, kernels=Greedy(robot.policy))
    assert [bucket.rows for bucket in graphs.buckets] == [1]
    assert [bucket.rows for bucket in graphs.beyond] == [2]
    assert len(logged.records) == 1


def test_images_of_any_size_share_a_bucket(robot: RobotPolicy) -> None:
    """They are resized before the graph, on the device."""
    seen = observation(size=(32, 32))
    robot.reset(seed=0)
    plain = robot.act(seen)
    capture(robot, Tape)
    robot.reset(seed=0)
    assert np.allclose(robot.act(seen), plain, atol=1e-5)


def test_kernels_of_a_stranger_replace_the_two_functions(robot: RobotPolicy) -> None:
    capture(robot, Tape)
    ready = prepared(robot, [0], steps=1)
    own = predict(robot.policy, ready)[0]
    kernels = Doubled(robot.policy)
    (bucket,) = capture(robot, Tape, kernels=kernels).buckets
    assert set(kernels.calls) == {("prefix", bucket), ("step", bucket)}
    kernels.calls.clear()
    normalizer = robot.policy.normalizer
    start = normalizer.robot_actions(ready[0].draws["noise"], ready[0].batch)[0].numpy()
    changed = predict(robot.policy, ready)[0]
    assert np.allclose(changed - start, 2 * (own - start), atol=1e-4)
    assert kernels.calls == []  # a replay calls no Python


class Unhooked(FlowPolicy):
    """A policy that acts by a function of its own."""

    def act(self, *arguments: Any, **options: Any) -> Tensor:
        return super().act(*arguments, **options)


class Hookless(Policy):
    """A policy without the hook, as of another framework."""

    def __init__(self, config: Any, normalization: Any) -> None:
        super().__init__()
        self.config = config
        self.normalizer = Normalizer(normalization, config.widths)


@pytest.mark.parametrize("kind", [Unhooked, Hookless])
def test_a_policy_that_cannot_be_captured_says_why(
    kind: Any, logged: pytest.LogCaptureFixture
) -> None:
    usual = policy()
    assert isinstance(usual, CapturesGraphs)
    robot = RobotPolicy(kind(usual.config, usual.normalizer.arrays()).eval(), {})
    with recorder(Tape):
        robot.capture()
    assert robot.policy.graphs is None
    (record,) = logged.records
    assert "flow" in record.getMessage()


def test_two_servers_of_one_policy_do_not_mix(robot: RobotPolicy) -> None:
    """The buffers serve one pass at a time."""
    capture(robot, Tape)
    passes = [prepared(robot, [seed]) for seed in range(4)]
    expected = [predict(robot.policy, each)[0] for each in passes]
    wrong: list[int] = []

    def serve(number: int) -> None:
        for _ in range(10):
            if not np.array_equal(predict(robot.policy, passes[number])[0], expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=serve, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert wrong == []


def test_graphs_end_with_their_policy_and_are_not_copied(robot: RobotPolicy) -> None:
    graphs = weakref.ref(capture(robot, Tape))
    assert copy.deepcopy(robot.policy).graphs is None
    gc.disable()  # the memory of a GPU must not wait for it
    try:
        robot.policy.graphs = None
        assert graphs() is None
    finally:
        gc.enable()


def test_a_policy_is_loaded_with_its_graphs(tmp_path: Path) -> None:
    """Two norm heads; `act` of the network alone stays the plain function."""
    folder = write_arm_policy(tmp_path / "policy")
    seen = arm_observations(1)[0]
    plain = us.load_policy(folder, head="arm")
    plain.reset(seed=1)
    calls: list[Any] = []

    def make(policy: Any) -> Doubled:
        calls.append(Doubled(policy))
        return calls[-1]

    with recorder(Tape):
        fast = us.load_policy(folder, head="arm", compile="graphs")
        us.load_policy(folder, head="arm", compile="graphs", kernels=make)
    assert calls[0].calls
    fast.reset(seed=1)
    assert np.allclose(fast.act(seen), plain.act(seen), atol=1e-4)
    ready = fast.prepare(seen, generator=torch.Generator())
    with torch.no_grad():
        direct = [each.policy.act(ready.batch, ready.draws) for each in (fast, plain)]
    assert torch.equal(*direct)


def test_settings_are_refused_by_name(tmp_path: Path) -> None:
    with refused("compile", "fast", "off", "graphs", "compiled", kind=ValueError):
        us.load_policy(tmp_path, compile="fast")  # type: ignore[arg-type]
    with refused("compile", "graphs", "cuda", "cpu", kind=ConfigError):
        us.load_policy(tmp_path, compile="graphs")


def test_powers_of_two_are_captured() -> None:
    assert [row_buckets(most) for most in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.long
@pytest.mark.skipif(missing_compiler(torch.device("cpu")) is not None, reason="no compiler")
def test_compiled_blocks_agree_with_plain_ones(tmp_path: Path) -> None:
    """Within 1e-4 of an action's deviation."""
    folder = write_arm_policy(tmp_path / "policy")
    seen = arm_observations(1)[0]
    chunks = []
    for mode in ("off", "compiled"):
        with recorder(Uncaptured):
            robot = us.load_policy(folder, head="arm", compile=mode)
        robot.reset(seed=1)
        chunks.append(robot.act(seen))
    spread = robot.policy.normalizer.action.spread[0].numpy()
    assert (np.abs(chunks[0] - chunks[1]) / spread).max() < 1e-4


# -- the stand-in finds what no graph can hold ---------------------------------------------------


def taped(function: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], Tensor]:
    """Replay a captured function of x."""
    recording = Tape().record(lambda: (function(x),), [x])

    def replay() -> Tensor:
        recording.replay()
        return recording.outputs[0].clone()

    return replay


FORBIDDEN: dict[str, Callable[[Tensor], Tensor]] = {
    "item": lambda x: x * x.sum().item(),
    "cpu": lambda x: x.cpu() + 1,
    "numpy": lambda x: torch.zeros(3) + len(x.numpy()),
    "tolist": lambda x: x * x.tolist()[0],
    "float": lambda x: x * float(x[0]),
    "branch": lambda x: -x if x.sum() > 0 else x,
    "equal": lambda x: -x if torch.equal(x, x) else x,
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "host data": lambda x: x + torch.tensor([1.0, 2.0, 3.0]),
    "random": lambda x: x + torch.randn(3),
    "resize": lambda x: x.clone().resize_(5),
}


@pytest.mark.parametrize("function", FORBIDDEN.values(), ids=FORBIDDEN)
def test_the_stand_in_refuses(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(CaptureError):
        taped(function, torch.ones(3))


def test_the_stand_in_refuses_a_tensor_that_a_warm_up_kept() -> None:
    kept: dict[str, Tensor] = {}

    def function(x: Tensor) -> Tensor:
        return x + kept.setdefault("table", torch.arange(3.0))

    with pytest.raises(CaptureError):
        taped(function, torch.ones(3))


def test_the_stand_in_replays_operations_and_no_python() -> None:
    calls = []

    def function(x: Tensor) -> Tensor:
        calls.append(1)
        y = x.clone()
        y[1:].mul_(len(calls))  # a decision of Python: its value at the capture stays
        return y.view(3, 1).sum(1)

    x = torch.ones(3)
    replay = taped(function, x)
    captured = len(calls)
    x.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert replay().tolist() == [1.0, 2.0 * captured, 3.0 * captured]
    assert replay().tolist() == [1.0, 2.0 * captured, 3.0 * captured]
    assert len(calls) == captured


def test_a_buffer_that_is_replaced_and_not_filled_is_found() -> None:
    """The replay still reads the old storage, so it differs from the function."""
    buffers = {"x": torch.ones(3)}
    x = buffers["x"]
    recording = Tape().record(lambda: (2 * buffers["x"],), [x])
    assert recording.outputs[0].isnan().all()  # a capture computes nothing
    buffers["x"] = torch.full((3,), 5.0)
    recording.replay()
    assert not torch.equal(recording.outputs[0], 2 * buffers["x"])
    x.fill_(5.0)
    recording.replay()
    assert torch.equal(recording.outputs[0], 2 * buffers["x"])


def test_the_stand_in_replays_gradients() -> None:
    x = torch.ones(3)

    def function(x: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            (found,) = torch.autograd.grad((leaf.sin() * leaf).sum(), leaf)
        return found

    replay = taped(function, x)
    x.copy_(torch.tensor([0.1, 0.2, 0.3]))
    assert torch.equal(replay(), function(x))
