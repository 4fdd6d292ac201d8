"""Asynchronous chunks: each action belongs to its control step, and without a delay all are those of the policy."""

import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import understudy as us
from understudy.policies.acting import predict
from understudy.policies.draws import make_draws
from understudy.policies.inference import RobotPolicy
from understudy.policies.policy import Policy
from understudy.testing.arm import arm_observations, write_arm_policy
from understudy_base.testing.refusals import refused, warned
from understudy_client.async_chunks import DelayWarning
from understudy_robot.serve.session import describe_policy

AsyncChunks = us.AsyncChunks
T = 8


class Counting:
    """A policy whose action for control step s is s + 1000 r in its r-th chunk; it keeps the options of each."""

    chunk = T

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.seen: list[int] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.fails = False

    def reset(self) -> None:
        self.asked.clear()
        self.seen.clear()

    def observe(self, observation: Mapping[str, Any], *, time: float | None = None) -> None:
        self.seen.append(int(observation["step"][0]))

    def act(self, observation: Mapping[str, Any], **options: Any) -> np.ndarray:
        assert self.may_answer.wait(60)
        if self.fails:
            raise RuntimeError("no answer")
        step = int(observation["step"][0])
        self.seen.append(step)
        self.asked.append({"step": step, **options})
        return np.arange(step, step + T, dtype=np.float32)[:, None] + np.float32(1000 * (len(self.asked) - 1))


def drive(chunks: us.AsyncChunks, steps: int, first: int = 0) -> list[float]:
    buffer = np.zeros(1, np.int64)  # as a driver, which reuses it
    found = []
    for step in range(first, first + steps):
        buffer[0] = step
        found.append(float(chunks.select_action({"step": buffer, "task": ""})[0]))
    return found


def wait_for(policy: Counting, steps: int) -> None:
    """Wait until the thread has given the policy all observations."""
    end = time.monotonic() + 60
    while len(policy.seen) < steps:
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize("delay", range(5))
@pytest.mark.parametrize("compensation", ["skip", "ensemble", "guided"])
def test_each_action_belongs_to_its_step(delay: int, compensation: Any) -> None:
    policy = Counting()
    with AsyncChunks(policy, execute=4, compensation=compensation, delay=delay) as chunks:
        for _ in range(2):
            chunks.reset()
            found = drive(chunks, 20)
            wait_for(policy, 20)
        assert [value % 1000 for value in found] == list(range(20)) or compensation == "ensemble"
        if compensation != "ensemble":
            used = [int(value // 1000) for value in found]
            assert used == [max(0, (step - delay) // 4) for step in range(20)]
        assert [each["step"] for each in policy.asked] == [0, 4, 8, 12, 16]
        assert policy.seen == list(range(20))
        assert list(chunks.delays) == [delay] * len(chunks.delays)
        assert chunks.stalls == 0


def test_without_compensation_chunks_begin_late() -> None:
    with AsyncChunks(Counting(), execute=4, compensation="none", delay=2) as chunks:
        found = drive(chunks, 14)
    assert [value % 1000 for value in found] == [0, 1, 2, 3, 4, 5, 4, 5, 6, 7, 8, 9, 10, 11]


def test_an_ensemble_is_the_weighted_mean_of_the_chunks_of_a_step() -> None:
    with AsyncChunks(Counting(), execute=2, compensation="ensemble", delay=0, decay=0.5) as chunks:
        found = drive(chunks, 7)
    assert found[:2] == [0, 1]
    weights = np.exp(-0.5 * np.arange(4))
    expected = 6 + 1000 * (weights * np.arange(4)).sum() / weights.sum()
    assert found[6] == pytest.approx(expected, rel=1e-6)


def test_the_rest_of_the_chunk_guides_the_next() -> None:
    policy = Counting()
    with AsyncChunks(policy, execute=4, compensation="guided", delay=3) as chunks:
        drive(chunks, 9)
        wait_for(policy, 9)
    first, second, third = policy.asked
    assert "previous" not in first
    assert second["previous"][:, 0].tolist() == [4, 5, 6, 7]
    assert (second["delay"], second["horizon"]) == (3, 4)
    assert third["previous"][:, 0].tolist() == [1008, 1009, 1010, 1011]


def test_the_delay_is_measured_in_actions() -> None:
    policy = Counting()
    with AsyncChunks(policy, execute=2) as chunks:
        drive(chunks, 2)
        policy.may_answer.clear()
        assert drive(chunks, 5, 2) == [2, 3, 4, 5, 6]  # of the first chunk
        policy.may_answer.set()
        wait_for(policy, 7)
        assert drive(chunks, 1, 7) == [1007]
        assert list(chunks.delays) == [5]
        assert chunks.stalls == 0


def test_a_robot_without_actions_waits() -> None:
    policy = Counting()
    with AsyncChunks(policy, execute=4) as chunks:
        drive(chunks, 4)
        policy.may_answer.clear()
        drive(chunks, 4, 4)
        threading.Timer(0.05, policy.may_answer.set).start()
        assert drive(chunks, 1, 8) == [1008]
        assert (chunks.stalls, list(chunks.delays)) == (1, [4])


def test_errors_come_out_and_the_next_step_asks_again() -> None:
    policy = Counting()
    with AsyncChunks(policy, execute=4, delay=0) as chunks:
        drive(chunks, 4)
        policy.fails = True
        with refused(kind=RuntimeError):
            drive(chunks, 1, 4)
        policy.fails = False
        assert drive(chunks, 2, 5) == [1005, 1006]
        wait_for(policy, 7)
        assert policy.seen == [0, 1, 2, 3, 4, 5, 6]


def test_settings_that_a_chunk_cannot_hold_are_refused() -> None:
    with refused("delay", 5, kind=ValueError):
        AsyncChunks(Counting(), execute=4, delay=5)
    with refused("execute", 9, kind=ValueError):
        AsyncChunks(Counting(), execute=9)
    with refused("compensation", "hope", kind=ValueError):
        AsyncChunks(Counting(), compensation="hope")  # type: ignore[arg-type]
    with refused("compensation", "trained", kind=ValueError):
        AsyncChunks(Counting(), compensation="trained")


class Given(Counting):
    """As `Counting`; it was trained for delays up to 2."""

    metadata = {"max_delay": 2}  # noqa: RUF012 (read only)


def test_the_executed_actions_are_given_to_a_policy_trained_for_it() -> None:
    policy = Given()
    with AsyncChunks(policy, execute=4, compensation="trained", delay=2) as chunks:
        assert drive(chunks, 9)[6:8] == [1006, 1007]
        wait_for(policy, 9)
    first, second, third = policy.asked
    assert "previous" not in first
    assert [(each["previous"][:, 0].tolist(), each["delay"]) for each in (second, third)] == [
        ([4, 5, 6, 7], 2),
        ([1008, 1009, 1010, 1011], 2),
    ]
    assert not {"horizon"} & {*second, *third}


def test_a_delay_that_the_policy_was_not_trained_for_is_refused(tmp_path: Path) -> None:
    robot = us.load_policy(write_arm_policy(tmp_path / "policy", max_delay=2), head="arm", contract="off")
    remote = SimpleNamespace(chunk=16, metadata=describe_policy(robot, "arm", "off"))
    for policy in (robot, remote, Given()):
        AsyncChunks(policy, execute=4, compensation="trained", delay=2).close()  # type: ignore[arg-type]
        AsyncChunks(policy, execute=4, compensation="guided", delay=3).close()  # type: ignore[arg-type]
        with refused("delay", 3, 2, "max_delay", "trained", kind=ValueError):
            AsyncChunks(policy, execute=4, compensation="trained", delay=3)  # type: ignore[arg-type]


def test_a_chunk_later_than_in_training_warns_once_in_an_episode() -> None:
    policy = Given()

    def play(chunks: us.AsyncChunks, delay: int) -> None:
        """An episode with two chunks that arrive `delay` actions late."""
        chunks.reset()
        drive(chunks, 2)
        for first in (2, 2 + delay):
            policy.may_answer.clear()
            drive(chunks, delay, first)
            policy.may_answer.set()
            wait_for(policy, first + delay)
        drive(chunks, 1, 2 + 2 * delay)
        assert list(chunks.delays)[-2:] == [delay, delay]

    with AsyncChunks(policy, execute=2, compensation="trained") as chunks:
        for _ in range(2):
            with warned(3, 2, "max_delay", kind=DelayWarning) as seen:
                play(chunks, 3)
            assert len(seen) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            play(chunks, 2)
    with AsyncChunks(policy, execute=2, compensation="guided") as chunks, warnings.catch_warnings():
        warnings.simplefilter("error")
        play(chunks, 3)


def test_a_server_gives_the_chunks_of_a_flow_policy_up_to_its_delay(tmp_path: Path) -> None:
    pytest.importorskip("websockets", reason="needs the extra serve")
    pytest.importorskip("msgpack", reason="needs the extra serve")
    from understudy_client.protocol import Noise
    from understudy_robot.testing.serving import outcomes, served

    folder, seen = write_arm_policy(tmp_path / "policy", max_delay=2), arm_observations(1)[0]
    robot = us.load_policy(folder, head="arm")
    robot.reset()
    draws = make_draws(robot.policy.random_spec("act"), 4, np.array([7]), "rollout")
    rest = np.full((5, 7), 0.25, np.float32)
    expected = predict(robot.policy, [robot.prepare(seen, draws=draws, previous=rest, delay=2)])[0]
    with served(folder) as server, us.RemotePolicy(server.address) as policy:
        assert policy.metadata["max_delay"] == 2
        assert np.array_equal(policy.act(seen, previous=rest, delay=2, noise=Noise(4, 7)), expected)
        with refused("delay=3", 2, "max_delay", kind=ValueError):
            policy.act(seen, previous=rest, delay=3)
        assert policy.act(seen, previous=rest, delay=3, horizon=4).shape == (16, 7)
        assert outcomes(server) == {"ok": 2, "value": 1}


def test_without_a_delay_the_actions_are_those_of_the_policy_to_the_bit(tmp_path: Path) -> None:
    robot = us.load_policy(write_arm_policy(tmp_path / "policy"), head="arm", contract="strict")
    seen = arm_observations(9)
    robot.reset()
    generator = torch.Generator().manual_seed(3)
    expected = [robot.select_action(each, horizon=4, generator=generator) for each in seen]
    with AsyncChunks(robot, execute=4, delay=0) as chunks:
        chunks.reset()
        generator = torch.Generator().manual_seed(3)
        assert np.array_equal([chunks.select_action(each, generator=generator) for each in seen], expected)


def test_a_policy_that_cannot_continue_chunks_is_refused_at_the_start(tmp_path: Path) -> None:
    """Not at the first chunk that continues another one, when the robot moves already."""
    robot = us.load_policy(write_arm_policy(tmp_path / "policy"), head="arm", contract="off")
    AsyncChunks(robot, compensation="guided").close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(robot.policy), "continue_chunk", Policy.continue_chunk)
        remote = SimpleNamespace(chunk=T, metadata=describe_policy(robot, "arm", "off"))
        for policy in (robot, remote):
            with refused("'guided'", kind=ValueError):
                AsyncChunks(policy, compensation="guided")  # type: ignore[arg-type]
            AsyncChunks(policy, compensation="skip").close()  # type: ignore[arg-type]


@pytest.mark.parametrize(("compensation", "delay"), [("guided", 0), ("guided", 2), ("trained", 2)])
def test_a_server_and_a_local_policy_give_the_same_chunks(
    remembering: RobotPolicy, moments: list[dict[str, Any]], compensation: Any, delay: int
) -> None:
    """With a past, and with actions in execution; at delay 0 also those of the synchronous policy."""
    pytest.importorskip("websockets", reason="needs the extra serve")
    pytest.importorskip("msgpack", reason="needs the extra serve")
    from understudy_client.client import RemotePolicy
    from understudy_robot.serve.config import ServeConfig
    from understudy_robot.serve.server import running_server

    class Local:
        """The local policy with the noise of the remote one."""

        config, metadata = remembering.config, remembering.metadata
        step = 0

        def reset(self) -> None:
            self.step = 0
            remembering.reset()

        def observe(self, observation: Mapping[str, Any], *, time: float | None = None) -> None:
            self.step += 1
            remembering.observe(observation)

        def act(self, observation: Mapping[str, Any], **options: Any) -> np.ndarray:
            draws = make_draws(remembering.policy.random_spec("act"), 4, np.array([self.step]), "rollout")
            prepared = remembering.prepare(observation, draws=draws, **options)
            remembering.accept(prepared)
            self.step += 1
            return predict(remembering.policy, [prepared])[0]

    seen = moments[:7]
    with AsyncChunks(Local(), execute=2, compensation=compensation, delay=delay) as chunks:
        chunks.reset()
        expected = [chunks.select_action(each) for each in seen]
    with running_server(remembering, ServeConfig(policy="small", port=0, warm_up=0)) as server:
        policy = RemotePolicy(server.address)
        with AsyncChunks(policy, execute=2, compensation=compensation, delay=delay) as chunks:
            chunks.reset(seed=4)
            assert np.array_equal([chunks.select_action(each) for each in seen], expected)
        if not delay:
            policy.reset(seed=4)
            assert np.array_equal([policy.select_action(each, horizon=2) for each in seen], expected)
        policy.close()
