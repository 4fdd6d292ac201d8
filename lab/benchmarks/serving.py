"""The policy server under load, faults and restarts.

    python lab/benchmarks/serving.py [--json] [--requests 10000] [--robots 8]

A tiny policy of seven joints and two cameras of 96 x 128 pixels is served by `understudy serve` in
a process of its own. Robots in threads of this process send observations and compare each chunk
with the local policy's. One request in a hundred is a fault of another robot on another connection:
garbage, an oversized message, half a message and silence, or a request whose robot vanishes.
Figures:

    requests, wrong       of the sound robots; wrong is another chunk (beyond 1e-4) or an error
    leaked_fds            open files of the server after all robots left, less those before
    grown_mb              resident memory of the server, the last tenth of the requests against the
                          second
    p50_ms, p99_ms        of a request, seen by the robot: {"1": one robot, "8": as many as
                          `--robots`}
    restart_*             the server is killed with SIGKILL under load and started again: requests,
                          wrong, longest
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import understudy as us
from parsers import make_parser
from understudy.policies.draws import make_draws
from understudy.testing.arm import write_arm_policy
from understudy_client import Noise, RemotePolicy, encode
from understudy_client.testing.arm import arm_observations

COMBINATIONS = 64
FAULT_EVERY = 100
FAULTS = ("garbage", "oversized", "slow", "vanished")


class Server:
    """`understudy serve` in a process of its own."""

    def __init__(self, folder: Path, port: int = 0) -> None:
        words = [
            "serve",
            str(folder),
            "--head",
            "arm",
            "--port",
            str(port),
            "--num-threads",
            "1",
            "--contract",
            "off",
        ]
        words += ["--max-message-mb", "2"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "understudy", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self.port = int(self.address.rpartition(":")[2])

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def resident_mb(self) -> float:
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> int:
        self.process.terminate()
        return self.process.wait(30)


class Expected:
    """Observations, and the local policy's chunk for each."""

    def __init__(self, folder: Path) -> None:
        robot = us.load_policy(folder, head="arm", contract="off")
        robot.reset()
        names = {"joints": "observation.state", "task": "task"}
        names |= {
            f"cam_{camera}": f"observation.images.{camera}" for camera in ("front", "wrist_left")
        }
        self.seen = [
            {names[key]: own for key, own in each.items()}
            for each in arm_observations(COMBINATIONS)
        ]
        spec = robot.policy.random_spec("act")
        self.chunks = []
        for number, observation in enumerate(self.seen):
            draws = make_draws(spec, 0, np.array([number]), "rollout")
            with torch.no_grad():
                self.chunks.append(
                    robot.policy.act(robot.prepare(observation, draws=draws).batch, draws)[
                        0
                    ].numpy()
                )


class Robots:
    """Sound robots in threads, which share a number of requests."""

    def __init__(
        self, address: str, expected: Expected, requests: int, timeout_s: float = 60
    ) -> None:
        self.address = address
        self.expected = expected
        self.timeout_s = timeout_s
        self.left = requests
        self.wrong = 0
        self.largest = 0.0
        self.seconds: list[float] = []
        self.lock = threading.Lock()

    def drive(self, number: int) -> None:
        rng = np.random.default_rng(number)
        with RemotePolicy(self.address, timeout_s=self.timeout_s) as policy:
            policy.reset()
            while True:
                with self.lock:
                    if self.left <= 0:
                        return
                    self.left -= 1
                which = int(rng.integers(COMBINATIONS))
                started = time.perf_counter()
                try:
                    chunk = policy.act(self.expected.seen[which], noise=Noise(0, which))
                    apart = float(np.abs(chunk - self.expected.chunks[which]).max())
                except Exception as error:
                    print(f"robot {number}: {type(error).__name__}: {error}", file=sys.stderr)
                    apart = np.inf
                with self.lock:
                    self.seconds.append(time.perf_counter() - started)
                    self.wrong += not apart < 1e-4
                    self.largest = max(self.largest, apart)

    def start(self, count: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=self.drive, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        return threads

    def quantiles(self) -> tuple[float, float]:
        p50, p99 = np.quantile(self.seconds, (0.5, 0.99)) * 1000
        return round(float(p50), 2), round(float(p99), 2)


def plant(fault: str, server: Server, expected: Expected) -> None:
    """Be a faulty robot for a moment."""
    connection = connect(server.address, proxy=None, compression=None, max_size=None).__enter__()
    connection.recv(30)
    if fault == "garbage":
        connection.send(os.urandom(1000))
        connection.recv(30)
        connection.close()
        return
    if fault == "oversized":
        with suppress(ConnectionClosed):
            connection.send(b"\0" * 2_500_000)
    elif fault == "slow":
        # 65,535 bytes are announced
        connection.socket.sendall(b"\x82\xfe\xff\xff\0\0\0\0" + b"x" * 1000)
        time.sleep(0.5)
    else:
        connection.send(encode(expected.seen[0]))
    with suppress(OSError):  # the server was quicker
        connection.socket.shutdown(socket.SHUT_RDWR)
    connection.socket.close()


def load(folder: Path, expected: Expected, requests: int, robots: int) -> dict[str, Any]:
    """Sound robots beside faulty ones, and one robot alone."""
    server = Server(folder)
    alone = Robots(server.address, expected, min(500, requests // 4))
    alone.drive(0)
    time.sleep(0.5)
    before = server.open_files()
    sizes = {}
    fleet = Robots(server.address, expected, requests)
    threads = fleet.start(robots)
    planted = 0
    while any(thread.is_alive() for thread in threads):
        done = requests - fleet.left
        if done >= requests // 5:
            sizes.setdefault("early", server.resident_mb())
        if done >= FAULT_EVERY * (planted + 1):
            plant(FAULTS[planted % len(FAULTS)], server, expected)
            planted += 1
        else:
            time.sleep(0.01)
    sizes["late"] = server.resident_mb()
    time.sleep(2)
    leaked = server.open_files() - before
    assert server.end() == 0
    one = alone.quantiles()
    several = fleet.quantiles()
    return {
        "requests": requests,
        "wrong": fleet.wrong + alone.wrong,
        "largest_difference": fleet.largest,
        "faults": planted,
        "leaked_fds": leaked,
        "grown_mb": round(sizes["late"] - sizes["early"], 1),
        "p50_ms": {"1": one[0], str(robots): several[0]},
        "p99_ms": {"1": one[1], str(robots): several[1]},
        "robots_per_s": round(len(fleet.seconds) / sum(fleet.seconds) * robots, 1),
    }


def restart(folder: Path, expected: Expected, requests: int, robots: int) -> dict[str, Any]:
    """SIGKILL under load, and a new server at the same port."""
    server = Server(folder)
    fleet = Robots(server.address, expected, requests)
    threads = fleet.start(robots)
    while fleet.left > requests // 2:
        time.sleep(0.01)
    server.kill()
    server = Server(folder, server.port)
    for thread in threads:
        thread.join()
    assert server.end() == 0
    return {
        "restart_requests": requests,
        "restart_wrong": fleet.wrong,
        "restart_longest_s": round(max(fleet.seconds), 2),
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--robots", type=int, default=8)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = write_arm_policy(Path(place) / "policy")
        expected = Expected(folder)
        found = load(folder, expected, options.requests, options.robots)
        found |= restart(folder, expected, max(200, options.requests // 10), options.robots)
    print(
        json.dumps(found)
        if options.json
        else "\n".join(f"{name:22} {value}" for name, value in found.items())
    )


if __name__ == "__main__":
    main()
