"""`understudy serve POLICY`: a policy for robots, over a websocket."""

import asyncio
import logging
import signal
import warnings

from understudy.config.serve import ServeConfig


def serve(config: ServeConfig) -> int:
    """Serve until SIGTERM or SIGINT; the first line on stdout is the address."""
    import torch

    from understudy.errors import ConfigError
    from understudy.policies.inference import load_policy
    from understudy.serve.access import read_token
    from understudy.serve.server import PolicyServer, warn_if_open

    logging.getLogger("understudy.serve.connection").setLevel(logging.ERROR)
    if config.num_threads:
        torch.set_num_threads(config.num_threads)
    try:
        torch.empty(0, device=config.device)
    except (RuntimeError, AssertionError) as error:  # unknown, not built in, not there: each has its own
        raise ConfigError(f"device: {config.device!r} cannot be used here: {str(error).splitlines()[0]}") from error
    try:
        robot = load_policy(
            config.policy,
            device=config.device,
            head=config.head or None,
            compute=config.compute or None,
            contract=config.contract,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    server = PolicyServer(robot, config)
    if line := warn_if_open(config, read_token(config.token_file)):
        warnings.warn(line, stacklevel=1)

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        others = " and every other address of this machine" if config.host in ("0.0.0.0", "::", "") else ""
        await server.run(stop, lambda: print(f"serving {config.policy} at {server.address}{others}", flush=True))

    asyncio.run(run())
    return 0
