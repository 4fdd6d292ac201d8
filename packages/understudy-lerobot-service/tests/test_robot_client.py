"""LeRobot's own `robot_client`, unchanged and in a process of its own, drives a simulated arm with
our server.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("websockets", reason="needs the extra serve")
if not entry_points(group="understudy.services", name="lerobot"):
    pytest.skip("understudy-lerobot-service is not installed: make setup", allow_module_level=True)
if find_spec("lerobot") is None:
    pytest.skip("lerobot is not installed", allow_module_level=True)
pytest.importorskip("google.protobuf", reason="needs lerobot[async]")

import understudy as us
from support.lerobot_client import standard
from understudy_client.testing.arm import CAMERAS, HEIGHT, NAMES, WIDTH, Observation
from understudy_robot.testing.serving import outcomes, served

PLUGIN = """
import json, os
from dataclasses import dataclass
import numpy as np
from lerobot.robots import Robot, RobotConfig

NAMES, CAMERAS, SHAPE = {names!r}, {cameras!r}, {shape!r}

@RobotConfig.register_subclass("simulated_arm")
@dataclass(kw_only=True)
class SimulatedArmConfig(RobotConfig):
    images: str
    performed: str

class SimulatedArm(Robot):
    config_class, name = SimulatedArmConfig, "simulated_arm"

    def __init__(self, config):
        super().__init__(config)
        self.config, self.seen = config, dict(np.load(config.images))
        self.file = open(config.performed, "a", buffering=1)

    observation_features = property(
        lambda self: dict.fromkeys(NAMES, float) | dict.fromkeys(CAMERAS, SHAPE)
    )
    action_features = property(lambda self: dict.fromkeys(NAMES, float))
    is_connected = is_calibrated = True

    def connect(self, calibrate=True): pass
    def calibrate(self): pass
    def configure(self): pass
    def disconnect(self): pass

    def get_observation(self):
        joints = dict(zip(NAMES, map(float, self.seen["joints"])))
        return joints | {{name: self.seen[f"cam_{{name}}"] for name in CAMERAS}}

    def send_action(self, action):
        print(json.dumps(list(action.values())), file=self.file)
        return action
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a robot that LeRobot finds by its name, as any robot of a third party."""
    root = tmp_path_factory.mktemp("plugin")
    shape = (HEIGHT, WIDTH, 3)
    (root / "lerobot_robot_simulated").mkdir()
    text = PLUGIN.format(names=NAMES, cameras=CAMERAS, shape=shape)
    (root / "lerobot_robot_simulated" / "__init__.py").write_text(text)
    (root / "lerobot_robot_simulated-0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: lerobot_robot_simulated\nVersion: 0\n"
    (root / "lerobot_robot_simulated-0.dist-info" / "METADATA").write_text(metadata)
    return root


class Arm:
    """A process of `python -m lerobot.async_inference.robot_client`."""

    def __init__(
        self,
        plugin: Path,
        folder: Path,
        address: str,
        seen: Observation,
        policy: Path,
        **flags: str,
    ) -> None:
        folder.mkdir()
        np.savez(
            folder / "seen.npz", **{key: value for key, value in seen.items() if key != "task"}
        )
        self.file = folder / "performed"
        self.log = folder / "log"
        self.file.touch()
        given = {
            "robot.type": "simulated_arm",
            "robot.images": str(folder / "seen.npz"),
            "robot.performed": str(self.file),
            "task": seen["task"],
            "server_address": address,
            "policy_type": "flow",
            "pretrained_name_or_path": str(policy),
            "actions_per_chunk": "16",
            "chunk_size_threshold": "0",
            "fps": "60",
        } | flags
        command = [sys.executable, "-m", "lerobot.async_inference.robot_client"]
        path = os.pathsep.join([str(plugin), *filter(None, [os.environ.get("PYTHONPATH")])])
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*command, *(f"--{name}={value}" for name, value in given.items())],
                cwd=folder,
                env=os.environ | {"PYTHONPATH": path},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def performed(self) -> np.ndarray:
        return np.array(
            [json.loads(line) for line in self.file.read_text().splitlines()], np.float32
        ).reshape(-1, 7)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < end, self.log.read_text()[-3000:]
            time.sleep(0.05)

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait, and fail where the client ends."""
        self.wait_until(lambda: condition() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()[-3000:]

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def driving(*arguments: Any, **flags: str) -> Iterator[Arm]:
    arm = Arm(*arguments, **flags)
    try:
        yield arm
    finally:
        arm.end()


def expected(folder: Path, seen: Observation, seed: int, chunks: int) -> np.ndarray:
    """Actions that the client executes: its next chunk begins with the action that it executed
    last.
    """
    robot = us.load_policy(folder, head="arm")
    generator = torch.Generator().manual_seed(seed)
    robot.reset()
    found = [robot.act(standard(seen), generator=generator) for _ in range(chunks)]
    return np.concatenate([chunk[bool(number) :] for number, chunk in enumerate(found)])


def test_two_robots_execute_the_actions_of_the_local_policy_to_the_bit(
    folder: Path, plugin: Path, tmp_path: Path, seen: list[Observation]
) -> None:
    with served(folder, lerobot_port=0, seed=7, max_batch=1) as server:
        address = str(server.lerobot_address)
        with driving(plugin, tmp_path / "one", address, seen[0], folder) as one:
            one.wait_for(lambda: len(one.performed()) >= 20)
            with driving(plugin, tmp_path / "two", address, seen[1], folder) as two:
                two.wait_for(lambda: len(two.performed()) >= 40)
                one.wait_for(lambda: len(one.performed()) >= 100)
        for number, arm in enumerate((one, two)):
            count = len(arm.performed())
            wanted = expected(folder, seen[number], 7 + number, count // 15 + 1)
            assert np.array_equal(arm.performed(), wanted[:count])
        assert not server.metrics.value("understudy_mismatches_total", 'kind="dimension order"')
        one.wait_until(lambda: not server._engine.connected)  # both were killed
        assert set(outcomes(server)) <= {"ok", "vanished"}


@pytest.mark.long
def test_a_killed_server_is_found_again(
    folder: Path, plugin: Path, tmp_path: Path, seen: list[Observation]
) -> None:
    def start(port: int) -> tuple[subprocess.Popen[str], str]:
        arguments = [
            "serve",
            str(folder),
            "--head",
            "arm",
            "--port",
            "0",
            "--lerobot-port",
            str(port),
        ]
        command = [sys.executable, "-m", "understudy", *arguments, "--warm-up", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        return process, process.stdout.readline().strip().rpartition("=")[2]

    process, address = start(0)
    try:
        with driving(
            plugin, tmp_path / "one", address, seen[0], folder, chunk_size_threshold="0.5"
        ) as arm:
            arm.wait_for(lambda: len(arm.performed()) >= 20)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            time.sleep(1)
            count = len(arm.performed())
            process, _ = start(int(address.rpartition(":")[2]))
            arm.wait_for(lambda: len(arm.performed()) >= count + 20)
    finally:
        process.kill()
        process.wait()


@pytest.mark.long
def test_another_policy_is_refused_by_a_strict_server(
    folder: Path, plugin: Path, tmp_path: Path, seen: list[Observation]
) -> None:
    with (
        served(folder, lerobot_port=0, contract="strict") as server,
        driving(
            plugin,
            tmp_path / "one",
            str(server.lerobot_address),
            seen[0],
            folder,
            policy_type="act",
        ) as arm,
    ):
        assert arm.process.wait(120) == 0  # it logs the refusal and ends
        assert len(arm.performed()) == 0
        text = arm.log.read_text()
        assert "'act'" in text
        assert "'flow'" in text
        assert outcomes(server) == {"refused": 1}
