"""A client of LeRobot's asynchronous inference without LeRobot: its classes by name, and its four
calls over grpcio.
"""

import pickle
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import numpy as np
import torch

from understudy_client.testing.arm import CAMERAS, HEIGHT, NAMES, WIDTH, Observation

MODULE = "lerobot.async_inference.helpers"
PART = 2 << 20
"""Bytes of a part, as LeRobot's client sends them."""


@dataclass
class TimedObservation:
    timestamp: float
    timestep: int
    observation: dict[str, Any]
    must_go: bool = False


@dataclass
class TimedAction:
    timestamp: float
    timestep: int
    action: torch.Tensor


@dataclass
class RemotePolicyConfig:
    policy_type: str
    pretrained_name_or_path: str
    lerobot_features: dict[str, dict[str, Any]]
    actions_per_chunk: int
    device: str = "cpu"
    rename_map: dict[str, str] = field(default_factory=dict)


@contextmanager
def classes_of_lerobot(module: str = MODULE) -> Iterator[None]:
    """Have pickles of the classes above name LeRobot's module, installed or not."""
    parts = module.split(".")
    names = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
    before = {name: sys.modules.get(name) for name in names}
    own = (TimedObservation, TimedAction, RemotePolicyConfig)
    try:
        for name in names:
            sys.modules[name] = types.ModuleType(name)
        for each in own:
            each.__module__ = module
            setattr(sys.modules[module], each.__name__, each)
        yield
    finally:
        for each in own:
            each.__module__ = __name__
        for name, kept in before.items():
            if kept is None:
                del sys.modules[name]
            else:
                sys.modules[name] = kept


def pickled(value: Any, protocol: int = 4, module: str = MODULE) -> bytes:
    with classes_of_lerobot(module):
        return pickle.dumps(value, protocol)


def unpickled(data: bytes, module: str = MODULE) -> Any:
    with classes_of_lerobot(module):
        return pickle.loads(data)


FEATURES: dict[str, dict[str, Any]] = {
    "observation.state": {"dtype": "float32", "shape": (len(NAMES),), "names": list(NAMES)},
    **{
        f"observation.images.{name}": {
            "dtype": "image",
            "shape": (HEIGHT, WIDTH, 3),
            "names": ["height", "width", "channels"],
        }
        for name in CAMERAS
    },
}
"""Features of the arm, as LeRobot's client derives them from its robot."""


def raw(seen: Observation) -> dict[str, Any]:
    """An observation of the arm as its LeRobot driver returns it."""
    joints = {name: float(value) for name, value in zip(NAMES, seen["joints"])}
    return {**joints, **{name: seen[f"cam_{name}"] for name in CAMERAS}, "task": seen["task"]}


def standard(seen: Observation) -> dict[str, Any]:
    """The same observation in the policy's keys."""
    images = {f"observation.images.{name}": seen[f"cam_{name}"] for name in CAMERAS}
    return {"observation.state": seen["joints"].astype(np.float32), "task": seen["task"], **images}


def varint(value: int) -> bytes:
    return bytes([value]) if value < 0x80 else bytes([value & 0x7F | 0x80]) + varint(value >> 7)


def parts(data: bytes) -> Iterator[bytes]:
    """The parts of an observation, as messages."""
    for start in range(0, len(data), PART):
        own = data[start : start + PART]
        state = 3 if start + PART >= len(data) else 1 if start == 0 else 2
        yield b"\x08" + bytes([state]) + b"\x12" + varint(len(own)) + own


class Client:
    """The calls of LeRobot's `RobotClient`, on a connection of its own."""

    def __init__(self, address: str, token: str = "") -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 300)]
        self.channel = grpc.insecure_channel(address, options)
        self._metadata = [("authorization", f"Bearer {token}")] if token else []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def call(self, name: str, message: bytes = b"", timeout: float = 10) -> bytes:
        calls: Callable[..., bytes] = self.channel.unary_unary(f"/transport.AsyncInference/{name}")
        return calls(message, timeout=timeout, metadata=self._metadata)

    def start(self, **changes: Any) -> None:
        """Ready and SendPolicyInstructions."""
        self.call("Ready")
        asked = {
            "policy_type": "flow",
            "pretrained_name_or_path": "policy",
            "lerobot_features": FEATURES,
        }
        config = RemotePolicyConfig(**({**asked, "actions_per_chunk": 50} | changes))
        data = pickled(config)
        self.call("SendPolicyInstructions", b"\x0a" + varint(len(data)) + data)

    def send(self, observation: TimedObservation | bytes | Iterator[bytes]) -> None:
        data = pickled(observation) if isinstance(observation, TimedObservation) else observation
        calls = self.channel.stream_unary("/transport.AsyncInference/SendObservations")
        calls(parts(data) if isinstance(data, bytes) else data, timeout=60, metadata=self._metadata)

    def actions(self, module: str = MODULE) -> list[TimedAction]:
        """GetActions; empty where none came."""
        reply = self.call("GetActions")
        if not reply:
            return []
        assert reply[:1] == b"\x0a"
        place = 1 + next(index for index, byte in enumerate(reply[1:], 1) if byte < 0x80)
        return unpickled(reply[place:], module)

    def act(self, seen: Observation, timestep: int = 0, must_go: bool = True) -> list[TimedAction]:
        self.send(TimedObservation(1000.5, timestep, raw(seen), must_go))
        return self.actions()
