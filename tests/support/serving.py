"""A server in this process for a policy, and connections that speak to it below our client."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import understudy as us
from understudy.config.serve import ServeConfig
from understudy.serve.server import PolicyServer, running_server


@contextmanager
def served(folder: Path, *, head: str | None = "arm", **settings: Any) -> Iterator[PolicyServer]:
    """Serve the policy of a folder on a free port."""
    reaction = settings.setdefault("contract", "warn")
    robot = us.load_policy(folder, head=head, contract=reaction, action_bounds=settings.get("action_bounds", "off"))
    with running_server(robot, ServeConfig(policy=str(folder), **({"port": 0, "warm_up": 0} | settings))) as server:
        yield server


def outcomes(server: PolicyServer) -> dict[str, int]:
    """Requests of a server by outcome."""
    names = (
        "ok",
        "contract",
        "value",
        "message",
        "busy",
        "deadline",
        "closing",
        "server",
        "vanished",
        "refused",
        "token",
    )
    found = {name: int(server.metrics.value("understudy_requests_total", f'outcome="{name}"')) for name in names}
    return {name: count for name, count in found.items() if count}
