"""The loop of docs/robots.md, in another process and another network namespace: the actions of a
rollout to the bit.
"""

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("mujoco", reason="the table needs the extra demo")
pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")

import understudy as us
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.policies import config
from understudy_client.access import VARIABLE
from understudy_robot.envs import registry
from understudy_robot.envs.env import Env
from understudy_robot.rollout.play import rollout

PAGE = Path(__file__).parents[4] / "docs/robots.md"
EPISODES = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny policy for the table, which moves at random."""
    affine = {"offset": [0.0] * 4, "spread": [1.0] * 4}
    shape = {"action_dim": 4, "state_dim": 4, "cameras": ("observation.images.front",), "chunk": 8}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = FlowPolicy(config(**shape), {"action": affine, "observation.state": affine})
    where = tmp_path_factory.mktemp("loop") / "policy"
    head = {"fps": 10, "cameras": list(shape["cameras"])}  # type: ignore[call-overload]
    policy.save(where, metadata={"heads": {"": head}})
    return where


class Watched:
    """An environment that keeps its actions and tasks."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.actions = []
        self.results = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def step(self, action: np.ndarray) -> Any:
        self.actions.append(np.array(action))
        observation, outcome = self._env.step(action)
        if outcome.done:
            self.results.append(outcome.completed_task)
        return observation, outcome


@pytest.fixture(scope="module")
def played(folder: Path) -> Watched:
    """The rollout in this process."""
    env = Watched(registry.open_env("tabletop"))
    rollout(FlowPolicy.load(folder).eval(), [env], EPISODES, 0, execute=4)
    return env


@contextmanager
def server(folder: Path, *prefix: str, host: str = "127.0.0.1") -> Iterator[str]:
    """`understudy serve` in a process of its own; yields its address."""
    words = [
        "serve",
        str(folder),
        "--host",
        host,
        "--port",
        "0",
        "--num-threads",
        "1",
        "--warm-up",
        "0",
    ]
    command = [*prefix, sys.executable, "-m", "understudy", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[-1]
        finally:
            process.terminate()
            code = process.wait(60)
        assert code == 0, "SIGTERM ends the command cleanly"


def drive(address: str, monkeypatch: pytest.MonkeyPatch) -> Watched:
    """Run the loop of the page against an address."""
    (code,) = (
        c
        for c in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        if "RemotePolicy" in c
    )
    assert len([line for line in code.splitlines() if line.strip()]) <= 14
    code = code.replace("ws://127.0.0.1:8000", address).replace("range(30)", f"range({EPISODES})")
    env = []
    original = registry.open_env

    def watched(name: str) -> Watched:
        env.append(Watched(original(name)))
        return env[0]

    monkeypatch.setattr(registry, "open_env", watched)
    names: dict[str, Any] = {"us": us}
    exec(compile(code, str(PAGE), "exec"), names)
    names["policy"].close()
    return env[0]


def same(one: Watched, two: Watched) -> None:
    assert len(one.actions) >= EPISODES
    assert np.array_equal(one.actions, two.actions)
    assert one.results == two.results


def test_the_loop_of_the_readme_is_the_rollout_to_the_bit(
    folder: Path, played: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with server(folder) as address:
        same(drive(address, monkeypatch), played)


def free_subnet() -> ipaddress.IPv4Network | None:
    """A private network of four addresses that no route of this machine overlaps."""
    routes = json.loads(
        subprocess.run(["ip", "-j", "route"], capture_output=True, check=True).stdout or b"[]"
    )
    known = [route["dst"] for route in routes if route["dst"] != "default"]
    taken = [ipaddress.ip_network(place, strict=False) for place in known]
    for third in range(255, 0, -1):
        for block in ("10.213", "172.29", "192.168"):
            found = ipaddress.IPv4Network(f"{block}.{third}.64/30")
            if not any(found.overlaps(other) for other in taken):
                return found
    return None


@contextmanager
def namespace() -> Iterator[tuple[str, str]]:
    """A network namespace with one cable to this one; yields its name and its address."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("another network namespace needs root and the program ip")
    name = f"understudy{os.getpid() % 100000}"
    cable = name[-7:]
    try:
        subnet = free_subnet()
        if subnet is None:
            pytest.skip("no private network is free")
        here, there = (f"{address}/{subnet.prefixlen}" for address in subnet.hosts())
        for command in (
            f"netns add {name}",
            f"link add {cable}a type veth peer name {cable}b netns {name}",
            f"addr add {here} dev {cable}a",
            f"link set {cable}a up",
            f"-n {name} addr add {there} dev {cable}b",
            f"-n {name} link set {cable}b up",
            f"-n {name} link set lo up",
        ):
            subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        subprocess.run(["ip", "netns", "del", name], capture_output=True)
        pytest.skip(f"no network namespace can be made here: {error.stderr.strip()}")
    try:
        yield name, there.partition("/")[0]
    finally:
        with suppress(OSError):
            # and with it the cable
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


@pytest.mark.long
def test_the_loop_works_from_another_network_namespace(
    folder: Path, played: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    with namespace() as (name, host):
        monkeypatch.setenv(VARIABLE, "token-of-this-test")
        for proxy in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
            monkeypatch.delenv(proxy, raising=False)
        with server(folder, "ip", "netns", "exec", name, host=host) as address:
            assert host in address
            same(drive(address, monkeypatch), played)
