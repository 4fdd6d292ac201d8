"""LeRobot's tests of asynchronous inference against the service: its client, its queue of
observations, its messages.

In the test of the whole loop, a server of understudy with a policy of the robot's joints is in
place of theirs.
"""

import asyncio
import pickle
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from lerobot.async_inference import helpers, policy_server
from lerobot.transport import services_pb2_grpc

import understudy as us
from shared import explain
from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.flow.model import FlowPolicy
from understudy_lerobot_service import service
from understudy_lerobot_service.messages import (
    MODULES,
    Instructions,
    read_observation,
    write_actions,
)
from understudy_lerobot_service.robots import SIMILAR, Robot, read_inputs
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.server import running_server

JOINTS = [f"motor_{number}.pos" for number in (1, 2, 3)]
"""Joints of LeRobot's mock robot."""


def received(observation: Any) -> Any:
    """Observation of their class, as the service reads its pickle."""
    return read_observation(pickle.dumps(observation))


def skipped(
    observation: Any, previous: Any, predicted: Any, features: Any, atol: float = 1.0
) -> str:
    """Why the service skips an observation after the one that was computed last, or ""."""
    inputs = read_inputs(Instructions("test", "test", features, 20))
    width = sum(map(len, inputs.vectors.values()))
    robot = Robot("exam", None, np.full(width, atol / SIMILAR))  # type: ignore[arg-type]
    if previous is not None:
        message = received(previous)
        robot.offer(message, inputs.select(message.values), 0.0)
        asyncio.run(robot.take(1))
        robot._predicted = dict.fromkeys(predicted)
    message = received(observation)
    return robot.offer(message, inputs.select(message.values), 0.0)[0]


def observations_similar(first: Any, second: Any, lerobot_features: Any, atol: float = 1.0) -> bool:
    return skipped(second, first, (), lerobot_features, atol) == "similar"


class PolicyServer(policy_server.PolicyServer):
    """Their server with the decisions and the messages of the service."""

    def _enqueue_observation(self, observation: Any) -> bool:
        if skipped(
            observation, self.last_processed_obs, self._predicted_timesteps, self.lerobot_features
        ):
            return False
        self.observation_queue.put(observation)
        return True

    def _obs_sanity_checks(self, observation: Any, previous: Any) -> bool:
        return not skipped(observation, previous, self._predicted_timesteps, self.lerobot_features)

    def _time_action_chunk(self, start: float, actions: list[torch.Tensor], step: int) -> list[Any]:
        rows = torch.stack(actions).numpy()
        return list(
            pickle.loads(write_actions(rows, start, step, self.config.environment_dt, MODULES[0]))
        )


class Server:
    """A server of understudy with the interface of `grpc.server`, on the address that the test
    gives.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        self.running = ExitStack()

    def add_insecure_port(self, address: str) -> None:
        self.port = int(address.rpartition(":")[2])

    def start(self) -> None:
        folder = Path(tempfile.mkdtemp(), "policy")
        config = FlowPolicyConfig(
            action_dim=3, state_dim=3, cameras=(), chunk=20, width=32, layers=2
        )
        affine = {"offset": [0.0] * 3, "spread": [1.0] * 3}
        policy = FlowPolicy(config, {"action": affine, "observation.state": affine})
        policy.save(
            folder,
            metadata={"action_names": JOINTS, "state_names": JOINTS, "cameras": [], "fps": 30},
        )
        options = ServeConfig(policy=str(folder), port=0, lerobot_port=self.port, warm_up=0)
        self.running.enter_context(running_server(us.load_policy(folder), options))

    def wait_for_termination(self, timeout: float) -> None:
        time.sleep(timeout)

    def stop(self, grace: float | None) -> None:
        self.running.close()


def serve(servicer: Any, server: Server) -> None:
    """Note for the test the timesteps of which the service computed a chunk."""

    class Watched(Robot):
        async def take(self, seconds: float) -> Any:
            newest = await super().take(seconds)
            servicer._predicted_timesteps.update(self._predicted)
            return newest

    service.Robot = Watched  # type: ignore[misc]


def loads(data: bytes) -> Any:
    """Read a message as the service reads or writes it."""
    theirs = pickle.loads(data)
    if isinstance(theirs, helpers.TimedAction):
        values = theirs.action.numpy()[None], theirs.timestamp, theirs.timestep, 1.0, MODULES[0]
        return pickle.loads(write_actions(*values))[0]
    message = read_observation(data)
    values = {key: torch.as_tensor(value) for key, value in message.values.items()}
    return helpers.TimedObservation(message.timestamp, message.timestep, values, message.must_go)


grpc.server = Server
policy_server.PolicyServer = PolicyServer
services_pb2_grpc.add_AsyncInferenceServicer_to_server = serve

ALONE = "their client without a server; the test of the whole loop has it against the service"
OWN = (
    "a function of their server; here the policy takes the robot's observation, and resizes its "
    "images"
)
SKIPS = {
    "test_robot_client.py": ALONE,
    **dict.fromkeys(
        (
            "test_fps_tracker_first_observation",
            "test_fps_tracker_single_interval",
            "test_fps_tracker_multiple_intervals",
            "test_fps_tracker_irregular_intervals",
            "test_timed_action_getters",
            "test_timed_observation_getters",
            "test_prepare_image",
            "test_resize_robot_observation_image",
            "test_prepare_raw_observation",
            "test_raw_observation_to_observation_basic",
            "test_raw_observation_to_observation_with_non_tensor_data",
            "test_raw_observation_to_observation_device_handling",
            "test_raw_observation_to_observation_deterministic",
            "test_image_processing_pipeline_preserves_content",
        ),
        OWN,
    ),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.module for item in items if isinstance(item, pytest.Function)}:
        if hasattr(module, "observations_similar"):
            module.observations_similar = observations_similar
            module.pickle = SimpleNamespace(dumps=pickle.dumps, loads=loads)
    explain(items, {}, SKIPS)
