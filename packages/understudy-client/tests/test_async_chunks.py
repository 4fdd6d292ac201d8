"""Asynchronous chunks: each action belongs to its control step."""

import threading
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from understudy_base.testing.refusals import refused, warned
from understudy_client.async_chunks import AsyncChunks, DelayWarning
from understudy_client.client import RemotePolicy
from understudy_client.testing.small_server import METADATA, small_server

T = 8


class Counting:
    """A policy whose action for control step s is s + 1000 r in its r-th chunk; it keeps the
    options of each.
    """

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
        return np.arange(step, step + T, dtype=np.float32)[:, None] + np.float32(
            1000 * (len(self.asked) - 1)
        )


def drive(chunks: AsyncChunks, steps: int, first: int = 0) -> list[float]:
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


def test_a_chunk_later_than_in_training_warns_once_in_an_episode() -> None:
    policy = Given()

    def play(chunks: AsyncChunks, delay: int) -> None:
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


def test_a_delay_that_the_policy_was_not_trained_for_is_refused() -> None:
    AsyncChunks(Given(), execute=4, compensation="trained", delay=2).close()
    AsyncChunks(Given(), execute=4, compensation="guided", delay=3).close()
    with refused("delay", 3, 2, "max_delay", "trained", kind=ValueError):
        AsyncChunks(Given(), execute=4, compensation="trained", delay=3)


def test_a_reset_drops_the_chunk_in_work() -> None:
    policy = Counting()
    with AsyncChunks(policy, execute=2) as chunks:
        drive(chunks, 2)
        policy.may_answer.clear()
        drive(chunks, 1, 2)  # asks for the chunk of step 2
        threading.Timer(0.05, policy.may_answer.set).start()
        chunks.reset()
        assert (policy.seen, list(chunks.delays), chunks.stalls) == ([], [], 0)
        assert drive(chunks, 2) == [0, 1]


def test_an_action_is_the_callers_own() -> None:
    with AsyncChunks(Counting(), execute=4, delay=0) as chunks:
        action = chunks.select_action({"step": np.zeros(1, np.int64)})
        action[:] = 7
        assert drive(chunks, 1, 1) == [1]


# -- a policy behind an address --------------------------------------------------------------------

SEEN = {"observation.state": np.zeros(2), "task": "push"}


@pytest.mark.parametrize("compensation", ["skip", "guided", "trained", "ensemble", "none"])
def test_without_a_delay_the_actions_are_those_of_select_action(compensation: Any) -> None:
    with small_server(greeting={"max_delay": 2}) as server, RemotePolicy(server.address) as policy:
        expected = [policy.select_action(SEEN, horizon=4) for _ in range(9)]
        with AsyncChunks(policy, execute=4, compensation=compensation, delay=0) as chunks:
            chunks.reset()
            found = [chunks.select_action(SEEN) for _ in range(9)]
        assert server.steps == [0, 4, 8] * 2
    if compensation != "ensemble":  # its mean is over several chunks
        assert np.array_equal(found, expected)
    assert np.array_equal(np.array(found)[:, 0], np.arange(9))


@pytest.mark.parametrize(("compensation", "delay"), [("guided", 3), ("trained", 2)])
def test_a_chunk_is_continued_over_the_wire(compensation: Any, delay: int) -> None:
    """A scripted chunk comes back as the rest in execution."""
    scripted = np.arange(2 * T, dtype=np.float32).reshape(T, 2) / 8
    with small_server(greeting={"max_delay": 2}, script=[{"actions": scripted}]) as server:
        policy = RemotePolicy(server.address)
        with AsyncChunks(policy, execute=4, compensation=compensation, delay=delay) as chunks:
            actions = [chunks.select_action(SEEN) for _ in range(4 + delay + 1)]
        policy.close()
    first, second = server.controls
    assert (first["step"], first.get("previous"), first["delay"]) == (0, None, 0)
    assert (second["step"], second["delay"]) == (4, delay)
    assert second.get("horizon") == {"guided": 4, "trained": None}[compensation]
    assert np.array_equal(second["previous"], scripted[4:])
    assert np.array_equal(actions[: 4 + delay], scripted[: 4 + delay])
    assert actions[4 + delay].tolist() == [4 + delay, -4]  # of the second chunk, at its own step


def test_the_delay_is_reported_to_the_server() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        with AsyncChunks(policy, execute=2, delay=1) as chunks:
            for _ in range(6):
                chunks.select_action(SEEN)
        assert [control.get("executed") for control in server.controls] == [None, None, 1]


def test_a_remote_policy_is_asked_for_no_more_than_it_can() -> None:
    """At the start, and not when the robot moves already."""
    with (
        small_server(greeting={"continues_chunks": False}) as server,
        RemotePolicy(server.address) as policy,
    ):
        with refused("'guided'", kind=ValueError):
            AsyncChunks(policy, compensation="guided")
        with refused("'trained'", "max_delay", kind=ValueError):
            AsyncChunks(policy, compensation="trained")
        AsyncChunks(policy, compensation="skip").close()
        assert (policy.metadata["chunk"], policy.metadata["max_delay"]) == (METADATA["chunk"], 0)


def test_an_error_of_the_server_comes_out_at_its_step() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        with AsyncChunks(policy, execute=2, delay=0) as chunks:
            chunks.select_action(SEEN)
            chunks.select_action(SEEN)
            server.script.append(ValueError("observation.state"))
            with refused("observation.state", kind=ValueError):
                chunks.select_action(SEEN)
            assert chunks.select_action(SEEN).tolist() == [3, -3]
        assert server.steps == [0, 2, 3]
