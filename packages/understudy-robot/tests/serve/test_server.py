"""The server gives the actions of the local policy, and outlives broken, slow, greedy and vanished
robots.
"""

import errno
import http.client
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")

from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

import understudy as us
from understudy.policies.draws import make_draws
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client import DeadlineError, Noise, RemoteError, RemotePolicy, encode
from understudy_client.protocol import decode
from understudy_client.testing.arm import Observation, arm_observations
from understudy_kit import main
from understudy_robot.cli.serve import serve
from understudy_robot.contracts.trace import TraceWriter, diagnose
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.server import PolicyServer
from understudy_robot.testing.serving import held_passes, outcomes, plain, reply, served


def expected(folder: Path, observation: Observation, seed: int, position: int) -> np.ndarray:
    """The local policy's chunk, with the noise of a position."""
    robot = us.load_policy(folder, head="arm", contract="warn")
    robot.reset()
    draws = make_draws(robot.policy.random_spec("act"), seed, np.array([position]), "rollout")
    return robot.policy.act(robot.prepare(observation, draws=draws).batch, draws)[0].numpy()


def answers(connection: ClientConnection, observation: Observation) -> bool:
    answer = reply(connection, observation)
    return not isinstance(answer, str) and answer["actions"].shape == (16, 7)


def test_actions_are_those_of_the_local_policy_to_the_bit(
    server: PolicyServer, folder: Path, seen: list[Observation]
) -> None:
    with RemotePolicy(server.address) as policy:
        policy.reset(seed=5, position=100)
        for step, observation in enumerate(seen[:3]):
            assert np.array_equal(
                policy.act(observation), expected(folder, observation, 5, 100 + step)
            )
        actions = policy.act(seen[0], noise=Noise(7, 3, "rollout"))
        assert np.array_equal(actions, expected(folder, seen[0], 7, 3))
        assert (actions.dtype, policy.chunk, policy.action_dim) == (np.float32, 16, 7)
        assert policy.metadata["cameras"]["observation.images.front"] == [96, 128, 3]


def test_the_local_policy_takes_the_noise_of_an_episode_as_the_remote_one(
    server: PolicyServer, folder: Path, seen: list[Observation]
) -> None:
    local = us.load_policy(folder, head="arm")
    with RemotePolicy(server.address) as remote:
        for _ in range(2):
            for policy in (local, remote):
                policy.reset(seed=5, position=100)
            for observation in seen[:5]:
                actions = [
                    policy.select_action(observation, horizon=2) for policy in (local, remote)
                ]
                assert np.array_equal(*actions)
    local.reset(seed=5)
    batch = {key: [value] if key == "task" else value[None] for key, value in seen[0].items()}
    with refused("generator", kind=ValueError):
        local.act(batch)


def test_select_action_executes_chunks(
    server: PolicyServer, folder: Path, seen: list[Observation]
) -> None:
    with RemotePolicy(server.address) as policy:
        policy.reset(seed=5)
        found = [policy.select_action(observation, horizon=2) for observation in seen[:4]]
        chunks = [expected(folder, seen[step], 5, step) for step in (0, 2)]
        assert np.array_equal(found, np.concatenate([chunk[:2] for chunk in chunks]))
        with refused("horizon", 17, kind=ValueError):
            policy.select_action(seen[0], horizon=17)


def test_robots_share_passes_and_get_their_own_actions(
    folder: Path, seen: list[Observation]
) -> None:
    """Eight robots wait while the thread of the passes is held; then one pass serves them."""
    with served(folder, contract="off") as server:
        standard = [
            {
                "observation.state": each["joints"],
                "observation.images.front": each["cam_front"],
                "observation.images.wrist_left": each["cam_wrist_left"],
                "task": each["task"],
            }
            for each in arm_observations(9)
        ]
        policies = [RemotePolicy(server.address) for _ in range(9)]
        for number, policy in enumerate(policies):
            policy.reset(seed=number)
        with held_passes(server.robot.policy) as passes, ThreadPoolExecutor(9) as pool:
            futures = [pool.submit(policies[0].act, standard[0])]
            wait_for(passes.begun.is_set)
            futures += [
                pool.submit(policy.act, own) for policy, own in zip(policies[1:], standard[1:])
            ]
            wait_for(lambda: waiting(server) == 8)
            passes.free.set()
            found = [future.result() for future in futures]
        assert passes.sizes == [1, 8]
        for number, (own, actions) in enumerate(zip(standard, found)):
            np.testing.assert_allclose(
                actions, expected(folder, own, number, 0), rtol=1e-4, atol=1e-5
            )
        for policy in policies:
            policy.close()


def waiting(server: PolicyServer) -> int:
    """Length of the queue, as `/metrics` says it."""
    text = get(server, "/metrics")[1]
    return int(
        next(line.split()[1] for line in text.splitlines() if line.startswith("understudy_queue "))
    )


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


def get(server: PolicyServer, path: str, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("GET", path, headers=headers)
    response = connection.getresponse()
    found = response.status, response.read().decode()
    connection.close()
    return found


def test_openpi_client_works_unchanged(server: PolicyServer, seen: list[Observation]) -> None:
    client = pytest.importorskip(
        "openpi_client.websocket_client_policy", reason="openpi-client is not installed"
    )
    policy = client.WebsocketClientPolicy("127.0.0.1", server.port)
    assert policy.get_server_metadata()["chunk"] == 16
    prompted = {("prompt" if key == "task" else key): value for key, value in seen[0].items()}
    assert policy.infer(prompted)["actions"].shape == (16, 7)
    with pytest.raises(RuntimeError, match="cam_front"):
        policy.infer({key: value for key, value in prompted.items() if key != "cam_front"})
    assert policy.infer(prompted)["server_timing"]["infer_ms"] > 0


def test_faulty_messages_are_answered_and_the_connection_stays(
    folder: Path, seen: list[Observation]
) -> None:
    faults: list[tuple[Any, str]] = [
        (b"\xc1", "message"),
        ("text", "message"),
        (encode([1]), "message"),
        (encode({**seen[0], "understudy": 3}), "message"),
        (encode({**seen[0], "understudy": {"steps": 0}}), "message"),
        (encode({**seen[0], "understudy": {"op": "stop"}}), "message"),
        (encode({**seen[0], "task": ["a", "b"]}), "message"),
        (encode({**seen[0], "joints": "zero"}), "message"),
        (encode({**seen[0], "joints": np.zeros((2, 3))}), "value"),
        (encode({**seen[0], "joints": np.full(7, np.nan)}), "value"),
        (encode({**seen[0], "cam_front": np.zeros((4, 4), np.uint8)}), "contract"),
        (encode({**seen[0], "understudy": {"delay": 2}}), "value"),
        *(
            (encode({**seen[0], "understudy": {"previous": previous, "delay": 1}}), "value")
            for previous in ({}, {"a": 1}, "text", b"bytes", True, np.zeros((2, 3)))
        ),
    ]
    with served(folder) as server, plain(server) as connection, plain(server) as other:
        counts: dict[str, int] = {}
        for number, (message, outcome) in enumerate(faults):
            connection.send(message)
            reply = connection.recv(5)
            if isinstance(reply, bytes):
                assert decode(reply)["error"]["fault"] == outcome
            counts[outcome] = counts.get(outcome, 0) + 1
            assert outcomes(server) == {**counts, **({"ok": number} if number else {})}
            assert answers(connection, seen[1])
        assert answers(other, seen[0])


def test_endless_garbage_ends_the_connection(server: PolicyServer) -> None:
    with plain(server) as connection:
        for _ in range(20):
            connection.send(b"\xc1")
            connection.recv(5)
        with pytest.raises(ConnectionClosed) as caught:
            connection.recv(5)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1007


def test_an_oversized_message_ends_its_connection_alone(
    folder: Path, seen: list[Observation]
) -> None:
    with served(folder, max_message_mb=0.5) as server, plain(server) as other:
        with plain(server) as connection:
            connection.send(b"\0" * 600_000)
            with pytest.raises(ConnectionClosed) as caught:
                connection.recv(5)
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009
        assert answers(other, seen[0])


@pytest.fixture
def slow(folder: Path) -> Iterator[tuple[PolicyServer, threading.Event]]:
    """A server whose passes wait for an event."""
    with served(folder, max_queue=2) as server, held_passes(server.robot.policy) as passes:
        yield server, passes.free


def test_a_deadline_holds_in_the_pass_and_in_the_queue(
    slow: tuple[PolicyServer, threading.Event], seen: list[Observation]
) -> None:
    server, held = slow
    with (
        RemotePolicy(server.address, timeout_s=0.3) as one,
        RemotePolicy(server.address, timeout_s=0.3) as two,
    ):
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(policy.act, seen[0]) for policy in (one, two)]
            for future in futures:
                with refused(kind=DeadlineError) as caught:
                    future.result()
                assert caught.value.fault == "deadline"
        assert outcomes(server) == {"deadline": 2}
        held.set()
        one.timeout_s = 10
        one.reset(seed=1)
        first = one.act(seen[0])  # the abandoned answers are not taken for this one
        two.timeout_s = 10
        two.reset(seed=1)
        assert np.array_equal(first, two.act(seen[0]))


def test_a_full_queue_refuses_and_a_vanished_robot_frees_its_place(
    slow: tuple[PolicyServer, threading.Event], seen: list[Observation]
) -> None:
    server, held = slow
    message = encode({**seen[0], "understudy": {"op": "act"}})
    robots = [plain(server) for _ in range(4)]
    robots[0].send(message)
    wait_for(lambda: waiting(server) == 0)
    time.sleep(0.05)  # the first is in its pass
    for robot in robots[1:3]:
        robot.send(message)
    wait_for(lambda: waiting(server) == 2)
    robots[3].send(message)
    assert decode(robots[3].recv(5))["error"]["fault"] == "busy"
    robots[1].socket.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: outcomes(server).get("vanished") == 1)
    held.set()
    assert decode(robots[0].recv(5))["actions"].shape == (16, 7)
    assert decode(robots[2].recv(5))["actions"].shape == (16, 7)
    wait_for(lambda: "understudy_connections 3" in get(server, "/metrics")[1])
    assert outcomes(server) == {"busy": 1, "vanished": 1, "ok": 2}
    for robot in robots:
        robot.close()


def test_health_and_metrics(server: PolicyServer, seen: list[Observation]) -> None:
    assert get(server, "/healthz") == (200, "ok\n")
    with RemotePolicy(server.address) as policy:
        policy.act(seen[0])
        policy.report_delay(3)
        policy.act(seen[1])
    status, text = get(server, "/metrics", Host="localhost:1")
    assert status == 200
    lines = text.splitlines()
    assert "# TYPE understudy_request_seconds histogram" in lines
    assert 'understudy_delay_actions_bucket{le="2"} 0' in lines
    assert 'understudy_delay_actions_bucket{le="3"} 1' in lines
    for stage in ("wall", "queue", "compute"):
        assert any(
            line.startswith(f'understudy_request_seconds_count{{stage="{stage}"}}')
            for line in lines
        )
    for line in lines:
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/"])
def test_foreign_hosts_and_pages_are_refused_on_loopback(server: PolicyServer, path: str) -> None:
    assert get(server, path, Host="attacker.example")[0] == 403
    origin = "http://attacker.example"
    with pytest.raises(InvalidStatus) as caught:
        connect(server.address, origin=origin, proxy=None)  # type: ignore[arg-type]
    assert caught.value.response.status_code == 403


def test_a_token_is_needed(
    folder: Path, tmp_path: Path, seen: list[Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    with served(folder, token_file=str(file)) as server:
        for wrong in ("other", "", "s3cret2", "ä"):
            with refused(401, kind=RemoteError) as caught:
                RemotePolicy(server.address, token=wrong, timeout_s=5)
            assert caught.value.fault == "refused"
        assert get(server, "/healthz")[0] == 200
        assert get(server, "/metrics")[0] == 401
        assert get(server, "/metrics", Authorization="Api-Key s3cret")[0] == 200
        monkeypatch.setenv("UNDERSTUDY_SERVE_TOKEN", "s3cret")
        with RemotePolicy(server.address) as policy:
            assert policy.act(seen[0]).shape == (16, 7)


def test_connections_are_limited_before_and_after_their_handshake(folder: Path) -> None:
    with served(folder, max_connections=2, open_timeout_s=0.5) as server:
        robots = [plain(server) for _ in range(2)]
        with pytest.raises(InvalidStatus) as caught:
            connect(server.address, proxy=None)
        assert caught.value.response.status_code == 503
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
        for one in silent:
            one.settimeout(60)
        # of 20 at once, two have had their handshake
        assert all(one.recv(1) == b"" for one in silent[18:])
        started = time.monotonic()
        # the others have half a second
        assert all(one.recv(1000)[:0] == b"" for one in silent[:18])
        assert time.monotonic() - started < 30
        assert get(server, "/healthz")[0] == 200
        for robot in robots:
            robot.close()


def test_a_closed_server_leaves_no_connection(folder: Path, seen: list[Observation]) -> None:
    with served(folder) as server:
        robot = plain(server)
        assert answers(robot, seen[0])
    with pytest.raises(ConnectionClosed) as caught:
        robot.recv(5)
    assert caught.value.rcvd is not None
    assert caught.value.rcvd.code == 1001
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", server.port), 1)


INTERRUPTED = """
import os, signal, sys

class Deleted:
    def __del__(self):  # an exception in it is lost, as in C code that imports numpy
        os.kill(os.getpid(), signal.SIGINT)
        sum(range(1000))

def interrupt(event, args):
    if event == "import" and args[0] == "understudy_robot.serve.server":
        Deleted()

sys.addaudithook(interrupt)
from understudy_kit.cli.main import main
sys.exit(main(["serve", sys.argv[1], "--head", "arm", "--port", "0", "--warm-up", "0"]))
"""


def test_an_interrupt_during_imports_ends_the_command(folder: Path) -> None:
    command = [sys.executable, "-c", INTERRUPTED, str(folder)]
    found = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (found.returncode, found.stdout, found.stderr.splitlines()) == (
        130,
        "",
        ["understudy serve: interrupted"],
    )


def test_a_folder_that_is_missing_is_wrong_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", str(tmp_path / "nothing")]) == 2
    assert str(tmp_path / "nothing") in capsys.readouterr().err


def test_a_port_in_use_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with refused("--port", str(port), kind=ConfigError):
            serve(ServeConfig(str(folder), port=port, head="arm", warm_up=0))


@pytest.fixture
def certificate(tmp_path: Path) -> dict[str, str]:
    """Settings of a server with a certificate of its own for 127.0.0.1."""
    command = (
        "req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj "
        "/CN=localhost"
    )
    try:
        arguments = ["openssl", *command.split(), "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(arguments, cwd=tmp_path, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("makes a certificate with openssl, which is not installed")
    return {"tls_cert": str(tmp_path / "cert.pem"), "tls_key": str(tmp_path / "key.pem")}


def test_connections_are_limited_before_the_handshake_of_tls(
    folder: Path, certificate: dict[str, str]
) -> None:
    context = ssl.create_default_context(cafile=certificate["tls_cert"])
    reason = 'reason="unfinished handshakes"'
    limits = {"max_connections": 2, "open_timeout_s": 1}
    with served(folder, **limits, **certificate) as server:  # type: ignore[arg-type]
        for _ in range(3):  # ended ones leave no trace
            for one in [socket.create_connection(("127.0.0.1", server.port)) for _ in range(15)]:
                one.close()
            RemotePolicy(server.address, ssl=context).close()
        assert server.metrics.value("understudy_refused_connections_total", reason) == 0
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(30)]
        for one in silent:
            one.settimeout(60)
        assert all(one.recv(1) == b"" for one in silent[20:])  # there is no room
        assert server.metrics.value("understudy_refused_connections_total", reason) in (10, 11)
        assert all(one.recv(1) == b"" for one in silent[:20])  # the others have a second
        RemotePolicy(server.address, ssl=context).close()


def test_tls(folder: Path, certificate: dict[str, str], seen: list[Observation]) -> None:
    with served(folder, **certificate) as server:
        assert server.address.startswith("wss://")
        with refused(kind=RemoteError) as caught:
            RemotePolicy(server.address, timeout_s=5)
        assert caught.value.fault == "refused"
        with RemotePolicy(
            server.address, ssl=ssl.create_default_context(cafile=certificate["tls_cert"])
        ) as policy:
            assert policy.act(seen[0]).shape == (16, 7)


def test_warm_up_leaves_noise_and_numbers_as_they_are(
    folder: Path, seen: list[Observation]
) -> None:
    state = torch.get_rng_state()
    with served(folder, warm_up=1, seed=4) as one, served(folder, seed=4) as two:
        found = [RemotePolicy(server.address) for server in (one, two)]
        chunks = [policy.act(seen[0]) for policy in found]
        assert np.array_equal(*chunks)
        assert not np.array_equal(chunks[0], found[0].act(seen[0]))
        for policy in found:
            policy.close()
    assert torch.equal(state, torch.get_rng_state())


def test_a_trace_has_the_answers_and_replaces_no_file(
    folder: Path, seen: list[Observation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace.jsonl"
    with served(folder, trace=str(trace)) as server, RemotePolicy(server.address) as policy:
        policy.act(seen[0])
        policy.act(seen[1])
        with trace.open("a") as file:
            file.write('{"robot": "torn by a kill')
        assert len(diagnose(trace).steps) == 2

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(TraceWriter, "_write", full)
        chunks = [policy.act(seen[2]), policy.act(seen[3])]
        assert [chunk.shape for chunk in chunks] == [(16, 7)] * 2
    before = trace.read_bytes()
    for path in (trace, tmp_path / "absent" / "trace.jsonl"):
        with refused("trace", kind=ConfigError), served(folder, trace=str(path)):
            pass
    assert trace.read_bytes() == before
