"""A server in this process for a policy, and connections that speak to it below our client."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from websockets.sync.client import ClientConnection, connect

import understudy as us
from understudy import Policy
from understudy_client import encode
from understudy_client.protocol import Fault, decode
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.server import PolicyServer, running_server


@contextmanager
def served(folder: Path, *, head: str | None = "arm", **settings: Any) -> Iterator[PolicyServer]:
    """Serve the policy of a folder on a free port."""
    reaction = settings.setdefault("contract", "warn")
    robot = us.load_policy(
        folder, head=head, contract=reaction, action_bounds=settings.get("action_bounds", "off")
    )
    with running_server(
        robot, ServeConfig(policy=str(folder), **({"port": 0, "warm_up": 0} | settings))
    ) as server:
        yield server


def outcomes(server: PolicyServer) -> dict[str, int]:
    """Requests of a server by outcome."""
    names = (*get_args(Fault), "ok", "vanished", "refused", "token")
    found = {
        name: int(server.metrics.value("understudy_requests_total", f'outcome="{name}"'))
        for name in names
    }
    return {name: count for name, count in found.items() if count}


def plain(server: PolicyServer, **options: Any) -> ClientConnection:
    """A connection without our client; the metadata is read."""
    connection = connect(
        server.address, compression=None, max_size=None, proxy=None, **options
    ).__enter__()
    assert "chunk" in decode(connection.recv(5))  # type: ignore[arg-type]
    return connection


def reply(connection: ClientConnection, message: Any) -> Any:
    """Send a message; returns the decoded answer, or its text."""
    connection.send(encode(message))
    answer = connection.recv(10)
    return answer if isinstance(answer, str) else decode(answer)


@dataclass
class Passes:
    """Passes of a policy that wait while they are held."""

    free: threading.Event = field(default_factory=threading.Event)
    begun: threading.Event = field(default_factory=threading.Event)
    sizes: list[int] = field(default_factory=list)
    """Robots of each pass."""


@contextmanager
def held_passes(policy: Policy) -> Iterator[Passes]:
    """Let the passes of a policy wait for `free`, which the end of the block sets."""
    passes = Passes()
    original = policy.preprocess

    def preprocess(batch: dict[str, Any]) -> dict[str, Any]:
        passes.begun.set()
        passes.free.wait(60)
        passes.sizes.append(len(batch["task"]))
        return original(batch)

    policy.preprocess = preprocess  # type: ignore[method-assign]
    try:
        yield passes
    finally:
        passes.free.set()
        policy.preprocess = original  # type: ignore[method-assign]
