"""A server whose policy has captured graphs, by the stand-in for a GPU."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import numpy as np
import pytest

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")

import understudy as us
from understudy.policies.flow.model import FlowPolicy
from understudy.testing.graphs import Tape, Uncaptured, recorder
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client import Noise, RemotePolicy
from understudy_client.testing.arm import Observation
from understudy_kit import main
from understudy_robot.cli.serve import serve
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.server import running_server
from understudy_robot.testing.serving import held_passes

COMMAND = """
import sys
from understudy.testing.graphs import Tape, recorder
from understudy_kit import main
with recorder(Tape):
    sys.exit(main(sys.argv[1:]))
"""


def options(folder: Path) -> ServeConfig:
    return ServeConfig(str(folder), port=0, warm_up=1, max_batch=4)


def test_requests_replay_what_was_captured_before_the_server_listens(
    folder: Path, seen: list[Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No request calls the network's Python, the first one neither; two servers share a policy."""
    with recorder(Uncaptured):
        local = us.load_policy(folder, head="arm", compile="graphs", max_batch=4)
    with recorder(Tape):
        robot = us.load_policy(folder, head="arm", compile="graphs", max_batch=4)
    monkeypatch.delattr(FlowPolicy, "_velocity")
    with (
        running_server(robot, options(folder)) as server,
        running_server(robot, options(folder)) as other,
        RemotePolicy(server.address) as first,
        RemotePolicy(other.address) as second,
    ):
        chunks = [
            each.act(observation, noise=Noise(5, number))
            for number, observation in enumerate(seen)
            for each in (first, second)
        ]
    monkeypatch.undo()
    for number, observation in enumerate(seen):
        local.reset(seed=5, position=number)
        expected = local.act(observation)
        assert np.allclose(chunks[2 * number], expected, atol=1e-4)
        assert np.array_equal(chunks[2 * number], chunks[2 * number + 1])


def test_robots_that_share_a_pass_are_padded_to_a_bucket(
    folder: Path, seen: list[Observation]
) -> None:
    """Three waiting robots have a pass of the bucket of four."""
    with recorder(Tape):
        robot = us.load_policy(folder, head="arm", compile="graphs", max_batch=4)
    plain = us.load_policy(folder, head="arm")
    expected = []
    for number in range(4):
        plain.reset(seed=0, position=number)
        expected.append(plain.act(seen[number]))
    with running_server(robot, options(folder)) as server, ThreadPoolExecutor(4) as pool:
        robots = [RemotePolicy(server.address) for _ in range(4)]
        with held_passes(robot.policy) as passes:
            answers = []
            for number, each in enumerate(robots):
                answers.append(pool.submit(each.act, seen[number], noise=Noise(0, number)))
                passes.begun.wait(30)
            page = f"http{server.address.removeprefix('ws')}/metrics"
            while "understudy_queue 3" not in urlopen(page, timeout=30).read().decode():
                time.sleep(0.01)
            passes.free.set()
            chunks = [answer.result(60) for answer in answers]
        for each in robots:
            each.close()
    assert passes.sizes == [1, 3]
    for chunk, usual in zip(chunks, expected, strict=True):
        assert np.allclose(chunk, usual, atol=1e-4)


def test_the_command_captures_before_it_prints_its_address(
    folder: Path, seen: list[Observation]
) -> None:
    words = ["serve", str(folder), "--head", "arm", "--port", "0", "--max-batch", "2"]
    words += ["--compile", "graphs", "--graph-memory", str(1 << 30)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdout=pipe, stderr=pipe, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        address = process.stdout.readline().split()[-1]
        with RemotePolicy(address) as policy:
            assert policy.act(seen[0]).shape == (16, 7)
        process.terminate()
        shown = process.stderr.read()
        assert process.wait(30) == 0
    assert "2 of 2 buckets" in shown


def test_a_device_that_captures_nothing_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with refused("compile", "graphs", "cpu", kind=ConfigError):
        serve(ServeConfig(str(folder), head="arm", compile="graphs"))
    assert main(["serve", str(folder), "--compile", "fast"]) == 2
    shown = capsys.readouterr().err
    assert all(word in shown for word in ("compile", "off", "graphs", "compiled"))
