"""Asynchronous chunks of a local and of a served policy: without a delay the actions are those of
the policy.
"""

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
from understudy.testing.arm import write_arm_policy
from understudy_base.testing.refusals import refused
from understudy_client.testing.arm import arm_observations
from understudy_robot.serve.session import describe_policy

AsyncChunks = us.AsyncChunks
T = 8


def test_a_delay_that_the_policy_was_not_trained_for_is_refused(tmp_path: Path) -> None:
    robot = us.load_policy(
        write_arm_policy(tmp_path / "policy", max_delay=2), head="arm", contract="off"
    )
    remote: Any = SimpleNamespace(chunk=16, metadata=describe_policy(robot, "arm", "off"))
    for policy in (robot, remote):
        AsyncChunks(policy, execute=4, compensation="trained", delay=2).close()
        AsyncChunks(policy, execute=4, compensation="guided", delay=3).close()
        with refused("delay", 3, 2, "max_delay", "trained", kind=ValueError):
            AsyncChunks(policy, execute=4, compensation="trained", delay=3)


def test_a_server_gives_the_chunks_of_a_flow_policy_up_to_its_delay(tmp_path: Path) -> None:
    pytest.importorskip("websockets", reason="needs the extra serve")
    pytest.importorskip("msgpack", reason="needs the extra serve")
    from understudy_client import Noise
    from understudy_robot.testing.serving import outcomes, served

    folder = write_arm_policy(tmp_path / "policy", max_delay=2)
    seen = arm_observations(1)[0]
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
        assert np.array_equal(
            [chunks.select_action(each, generator=generator) for each in seen], expected
        )


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
    """With a past, and with actions in execution; at delay 0 also those of the synchronous
    policy.
    """
    pytest.importorskip("websockets", reason="needs the extra serve")
    pytest.importorskip("msgpack", reason="needs the extra serve")
    from understudy_client import RemotePolicy
    from understudy_robot.serve.config import ServeConfig
    from understudy_robot.serve.server import running_server

    class Local:
        """The local policy with the noise of the remote one."""

        config = remembering.config
        metadata = remembering.metadata
        step = 0

        def reset(self) -> None:
            self.step = 0
            remembering.reset()

        def observe(self, observation: Mapping[str, Any], *, time: float | None = None) -> None:
            self.step += 1
            remembering.observe(observation)

        def act(self, observation: Mapping[str, Any], **options: Any) -> np.ndarray:
            draws = make_draws(
                remembering.policy.random_spec("act"), 4, np.array([self.step]), "rollout"
            )
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
            assert np.array_equal(
                [policy.select_action(each, horizon=2) for each in seen], expected
            )
        policy.close()
