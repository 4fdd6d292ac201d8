"""A chunk of pi0.5 as a robot gets it: plain, by CUDA graphs, and by graphs of compiled blocks.

    python lab/benchmarks/gpu_serving.py [--json] [--size base|tiny] [--device cuda] [--repeats 100]
        [--robots 1] [--modes off graphs compiled]

Three cameras of 480x640, a prompt as long as the policy takes, 10 steps, bfloat16, fresh weights.
On a CPU, for a test of this script, the functions are called and not captured. For each mode:

    network_ms       velocity field and integration, of inputs on the device: p50, p99
    chunk_ms         tokens, copies, resizing, network, actions on the host: `predict`
    served_ms        the same over a websocket on loopback, seen by the robot
    first_ms         the first request after the start of the server
    start_s, bytes   of the capture
    apart            largest difference to the plain chunk, in deviations of the actions
    same_bits        whether replays have the bits of the same functions uncaptured

`levels` is the largest difference of images that the device and the CPU resize, of 255.
"""

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from gpu_pi05_run import CAMERAS, TEXT, DeviceWeights, normalization, sizes_of, wait
from parsers import make_parser
from understudy.compile import compile_blocks
from understudy.policies.acting import Prepared, predict, to_network
from understudy.policies.common.images import letterbox
from understudy.policies.draws import make_draws
from understudy.policies.graphs import replaying
from understudy.policies.inference import RobotPolicy
from understudy.policies.pi05.config import Pi05PolicyConfig
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.policy import narrow_weights
from understudy.policies.weight_files import OnMeta
from understudy.testing.graphs import Uncaptured, recorder
from understudy.testing.sentences import write_model
from understudy_client import RemotePolicy
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.server import running_server

Row = dict[str, Any]


def make_robot(size: str, device: torch.device, tokenizer: Path) -> RobotPolicy:
    """A policy with weights that are drawn on the device, stored as a loaded one."""
    sizes = sizes_of(size)
    config = Pi05PolicyConfig(
        size=size, prompt_tokens=TEXT[size], action_dim=sizes.dim, state_dim=sizes.dim,
        cameras=CAMERAS, chunk=sizes.chunk, compute="bfloat16", tokenizer=str(tokenizer),
    )  # fmt: skip
    with OnMeta():
        policy = Pi05Policy(config, normalization(sizes.dim))
    narrow_weights(policy)
    read = DeviceWeights({name: tuple(p.shape) for name, p in policy.named_parameters()}, device)
    for prefix, module in policy.named_modules():
        for name, parameter in module.named_parameters(prefix, recurse=False):
            value = read(name, 0, parameter.shape[0]).to(parameter.dtype)
            setattr(module, name.rpartition(".")[2], nn.Parameter(value, requires_grad=False))
    read.clear()
    robot = RobotPolicy(policy.to(device).eval(), {"heads": {"": {"fps": 30}}})
    robot.reset()
    return robot


def observation(robot: RobotPolicy, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    images = {camera: rng.integers(0, 256, (480, 640, 3), np.uint8) for camera in CAMERAS}
    state = rng.uniform(-1, 1, robot.config.state_dim).astype(np.float32)
    return images | {"observation.state": state, "task": "pick up the red block " * 100}


def prepared(robot: RobotPolicy, count: int, **options: Any) -> list[Prepared]:
    spec = robot.policy.random_spec("act")
    found = []
    for number in range(count):
        draws = make_draws(spec, 0, np.array([number]), "rollout")
        found.append(robot.prepare(observation(robot, number), draws=draws, **options))
    return found


def timed(call: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """p50 and p99 in milliseconds, from an idle device to an idle device."""
    seconds = []
    for _ in range(3):
        call()
    for _ in range(repeats):
        wait(device)
        start = time.perf_counter()
        call()
        wait(device)
        seconds.append(time.perf_counter() - start)
    return [round(float(value) * 1e3, 3) for value in np.quantile(seconds, (0.5, 0.99))]


def measure(robot: RobotPolicy, device: torch.device, robots: int, repeats: int) -> Row:
    policy = robot.policy
    ready = prepared(robot, robots)
    batch, draws = to_network(policy, ready)

    def network() -> None:
        with torch.no_grad(), replaying(policy):
            policy.act(batch, draws)

    found: Row = {"network_ms": timed(network, device, repeats)}
    found["chunk_ms"] = timed(lambda: predict(policy, ready), device, repeats)
    options = ServeConfig("pi05", port=0, max_batch=robots, contract="off", deadline_s=600)
    with (
        running_server(robot, options) as server,
        RemotePolicy(server.address, timeout_s=600) as remote,
    ):
        seen = observation(robot)
        start = time.perf_counter()
        remote.act(seen)
        found["first_ms"] = round(1e3 * (time.perf_counter() - start), 3)
        found["served_ms"] = timed(lambda: remote.act(seen), device, repeats)
    return found


def chunks(robot: RobotPolicy, robots: int) -> list[np.ndarray]:
    """Chunks of all kinds of passes: free and guided, one robot and all of them."""
    policy = robot.policy
    rest = np.zeros((robot.config.chunk // 2, robot.action_dim), np.float32)
    guide = {"previous": rest, "delay": 2, "horizon": len(rest)}
    found = []
    for count in sorted({1, robots}):
        for options in ({}, guide):
            found += predict(policy, prepared(robot, count, **options))
    return found


def levels(device: torch.device) -> float:
    """Largest difference of images that two devices resize, in levels of 255."""
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 3, 480, 640), np.uint8))
    there = letterbox(images.to(device), 224).cpu()
    return float((there - letterbox(images, 224)).abs().max()) * 127.5


def main() -> None:
    parser = make_parser(__doc__, whole=True)
    parser.add_argument("--size", choices=("base", "tiny"), default="base")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--robots", type=int, default=1)
    parser.add_argument("--modes", nargs="+", default=["off", "graphs", "compiled"])
    args = parser.parse_args()
    device = torch.device(args.device)
    on_cpu = recorder(Uncaptured) if device.type == "cpu" else nullcontext()
    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    found: Row = {"device": name, "torch": torch.__version__, "levels": levels(device)}
    with tempfile.TemporaryDirectory() as place, on_cpu:
        robot = make_robot(args.size, device, write_model(Path(place)))
        plain = chunks(robot, args.robots)
        for mode in args.modes:
            row: Row = {}
            if mode == "compiled":
                compile_blocks(robot.policy.blocks(), device)
            if mode != "off":
                with recorder(Uncaptured, device.type):
                    robot.capture(args.robots)
                direct = chunks(robot, args.robots)
                start = time.perf_counter()
                robot.capture(args.robots)
                row["start_s"] = round(time.perf_counter() - start, 2)
                row["bytes"] = robot.policy.graphs.nbytes
                replayed = chunks(robot, args.robots)
                row["same_bits"] = all(map(np.array_equal, replayed, direct))
                apart = [np.abs(a - b).max() for a, b in zip(replayed, plain, strict=True)]
                row["apart"] = float(max(apart))
            found[mode] = row | measure(robot, device, args.robots, args.repeats)
    lines = [f"{key}: {value}" for key, value in found.items()]
    print(json.dumps(found) if args.json else "\n".join(lines))
    if not all(found[mode].get("same_bits", True) for mode in args.modes):
        raise SystemExit("replays differ from the same functions uncaptured")


if __name__ == "__main__":
    main()
