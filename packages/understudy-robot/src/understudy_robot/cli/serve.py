"""`understudy serve POLICY`: a policy for robots, over a websocket, and over gRPC for LeRobot's
client.
"""

import asyncio
import errno
import logging
import signal
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from understudy_base import ConfigError
from understudy_kit import ended_by_signals
from understudy_robot.serve.config import ServeConfig

if TYPE_CHECKING:
    from understudy_robot.serve.server import PolicyServer


def serve(config: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT; the first line on stdout is the address."""
    from understudy import RunDir

    with ended_by_signals("understudy serve"):  # nothing is there to be closed
        server = _load(config)
        choice = (
            RunDir(Path(config.policy)).describe_policy()
            if (Path(config.policy) / "config.yaml").is_file()
            else None
        )

    def announce() -> None:
        others = (
            " and every other address of this machine"
            if config.host in ("0.0.0.0", "::", "")
            else ""
        )
        print(f"serving {config.policy} at {server.address}{others}", flush=True)
        if server.lerobot_address is not None:
            print(
                f"serving LeRobot's robot_client: --server_address={server.lerobot_address}",
                flush=True,
            )
        if choice is not None:
            print(f"the policy is of {choice}", flush=True)

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await server.run(stop, announce)

    try:
        asyncio.run(run())
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port: {error.strerror}; --port 0 takes a free one") from error
        raise
    except ValueError as error:  # of the first passes
        raise ConfigError(f"{config.policy}: {error}") from error
    return 0


def _load(config: ServeConfig) -> "PolicyServer":
    """Load the policy of a server."""
    import torch

    from understudy import load_policy, torch_device
    from understudy_client import read_token
    from understudy_robot.serve.server import PolicyServer, lerobot_service, warn_if_open

    if config.lerobot_port >= 0:
        lerobot_service()  # missing packages end the command before a policy is read
    logging.getLogger("understudy.serve.connection").setLevel(logging.ERROR)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    torch_device(config.device)
    try:
        robot = load_policy(
            config.policy,
            device=config.device,
            head=config.head or None,
            compute=config.compute or None,
            contract=config.contract,
            action_bounds=config.action_bounds,
            compile=config.compile,
            max_batch=config.max_batch,
            graph_memory=config.graph_memory,
        )
    except (ValueError, FileNotFoundError) as error:
        raise ConfigError(str(error)) from error
    server = PolicyServer(robot, config)
    if line := warn_if_open(config, read_token(config.token_file)):
        warnings.warn(line, stacklevel=1)
    if config.lerobot_port >= 0 and read_token(config.token_file) is not None:
        warnings.warn(
            "LeRobot's robot_client sends no token, so it is refused; serve it without one",
            stacklevel=1,
        )
    return server
