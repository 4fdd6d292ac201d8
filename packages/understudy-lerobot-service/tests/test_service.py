"""LeRobot's service: chunks of the local policy, skipped observations, and faulty, greedy, vanished
robots.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")
if not entry_points(group="understudy.services", name="lerobot"):
    pytest.skip("understudy-lerobot-service is not installed: make setup", allow_module_level=True)

import grpc

import understudy as us
from support.lerobot_client import (
    FEATURES,
    MODULE,
    Client,
    TimedAction,
    TimedObservation,
    pickled,
    raw,
    standard,
)
from understudy import Past
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_client import MessageError, RemotePolicy
from understudy_client.testing.arm import NAMES, Observation
from understudy_lerobot_service import messages, service
from understudy_lerobot_service.messages import Instructions
from understudy_lerobot_service.robots import compare_policy
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.server import PolicyServer
from understudy_robot.testing.serving import outcomes, served


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "WAIT_S", 0.2)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[PolicyServer]:
    with served(folder, lerobot_port=0) as running:
        yield running


@contextmanager
def failing(code: str, *words: str) -> Iterator[None]:
    """Expect a call to fail with a code of gRPC, and these words."""
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code().name == code, caught.value
    assert all(word in caught.value.details() for word in words), caught.value.details()


def client(server: PolicyServer, **options: Any) -> Client:
    return Client(str(server.lerobot_address), **options)


def values(actions: list[TimedAction]) -> np.ndarray:
    return torch.stack([each.action for each in actions]).numpy()


def wait_for(condition: Any) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it does not happen"
        time.sleep(0.005)


def test_chunks_are_those_of_the_local_policy_to_the_bit(
    folder: Path, seen: list[Observation]
) -> None:
    """Also beside a robot on the websocket, with the numbers and times of LeRobot's server."""
    robot = us.load_policy(folder, head="arm")
    generator = torch.Generator().manual_seed(9)
    robot.reset()
    with served(folder, lerobot_port=0, seed=9, max_batch=1) as server, client(server) as arm:
        arm.start(actions_per_chunk=12)
        with RemotePolicy(server.address) as other:
            for step, observation in enumerate(seen[:3]):
                found = arm.act(observation, 10 * step)
                other.act(seen[3])
                expected = robot.act(standard(observation), generator=generator)
                assert np.array_equal(values(found), expected[:12])
                assert [each.timestep for each in found] == list(range(10 * step, 10 * step + 12))
                assert [each.timestamp for each in found] == [
                    1000.5 + row / 30 for row in range(12)
                ]
        assert arm.actions() == []
        assert outcomes(server) == {"ok": 7}


def test_two_robots_have_their_own_chunks(folder: Path, seen: list[Observation]) -> None:
    with (
        served(folder, lerobot_port=0, seed=3, max_batch=1) as server,
        client(server) as one,
        client(server) as two,
    ):
        for arm in (one, two):
            arm.start()
        with ThreadPoolExecutor(2) as pool:
            found = [
                future.result()
                for future in [pool.submit(one.act, seen[0]), pool.submit(two.act, seen[1])]
            ]
        for number, actions in enumerate(found):
            robot = us.load_policy(folder, head="arm")
            generator = torch.Generator().manual_seed(3 + number)
            assert np.array_equal(
                values(actions), robot.act(standard(seen[number]), generator=generator)
            )
        assert "understudy_connections 2" in server.metrics.text(
            {"understudy_connections": server._engine.connected}
        )


def skipped(server: PolicyServer) -> dict[str, int]:
    counts = {
        reason: int(
            server.metrics.value("understudy_skipped_observations_total", f'reason="{reason}"')
        )
        for reason in ("predicted", "similar", "replaced")
    }
    return {reason: count for reason, count in counts.items() if count}


def test_observations_are_skipped_unless_the_robot_has_no_action_left(
    folder: Path, seen: list[Observation]
) -> None:
    still = {**seen[1], "joints": seen[0]["joints"] + 1e-4}
    with served(folder, lerobot_port=0) as server, client(server) as arm:
        arm.start()
        assert arm.act(seen[0], 0, must_go=False)  # the first one always counts
        assert arm.act(seen[1], 0, must_go=False) == []
        assert skipped(server) == {"predicted": 1}
        assert arm.act(still, 1, must_go=False) == []
        assert skipped(server) == {"predicted": 1, "similar": 1}
        assert arm.act(still, 1, must_go=True)
        assert arm.act(seen[1], 2, must_go=False)
        arm.send(TimedObservation(0, 3, raw(seen[2]), False))
        arm.send(TimedObservation(0, 4, raw(seen[3]), False))  # the newer one takes its place
        assert arm.actions()[0].timestep == 4
        assert arm.actions() == []
        assert skipped(server) == {"predicted": 1, "similar": 1, "replaced": 1}
        arm.start()  # an episode begins
        assert arm.act(seen[1], 2, must_go=False)


def test_after_a_failure_no_observation_is_skipped(folder: Path, seen: list[Observation]) -> None:
    """The client sends `must_go` once: it would wait for ever."""
    with served(folder, lerobot_port=0) as server, client(server) as arm:
        arm.start()
        assert arm.act(seen[0], 0)
        lacking = {key: value for key, value in raw(seen[1]).items() if key != NAMES[2]}
        with failing("INVALID_ARGUMENT", NAMES[2]):
            arm.send(TimedObservation(0, 0, lacking, True))
        assert arm.act(seen[1], 0, must_go=False)
        broken = {**raw(seen[2]), NAMES[0]: float("nan")}
        arm.send(TimedObservation(0, 1, broken, True))
        with failing("INVALID_ARGUMENT", "observation.state"):
            arm.actions()
        assert arm.act(seen[1], 0, must_go=False)
        assert outcomes(server) == {"ok": 4, "message": 1, "value": 1}


@pytest.mark.parametrize(
    ("reaction", "code"), [("off", "INVALID_ARGUMENT"), ("strict", "FAILED_PRECONDITION")]
)
def test_absurd_values_are_errors(
    reaction: Any, code: str, folder: Path, seen: list[Observation]
) -> None:
    """Of a chunk that is not finite, of an image without pixels, and of one whose shape is
    absurd.
    """
    with served(folder, lerobot_port=0, contract=reaction) as server, client(server) as arm:
        for number, change in enumerate(
            (
                {NAMES[0]: 1e38},
                {"front": np.zeros((0, 0, 3), np.uint8)},
                {"front": np.zeros((1, 100_000, 3), np.uint8)},
            )
        ):
            arm.start()
            arm.send(TimedObservation(0, number, {**raw(seen[0]), **change}, True))
            with failing(code):
                arm.actions()
            arm.start()
            assert np.isfinite(values(arm.act(seen[1]))).all()


def test_clamped_dimensions_are_in_the_metadata_of_the_answer(
    folder: Path, seen: list[Observation]
) -> None:
    local = us.load_policy(folder, head="arm", action_bounds="clamp")
    with (
        served(folder, lerobot_port=0, seed=9, action_bounds="clamp") as server,
        client(server) as arm,
    ):
        for net in (local.policy, server.robot.policy):
            net.act = lambda *args, act=net.act, **options: (  # type: ignore[method-assign]
                6 * act(*args, **options)
            )
        local.act(standard(seen[0]), generator=torch.Generator().manual_seed(9))
        arm.start()
        arm.send(TimedObservation(0, 0, raw(seen[0]), True))
        _, call = arm.channel.unary_unary("/transport.AsyncInference/GetActions").with_call(
            b"", timeout=10
        )
        metadata = dict(call.trailing_metadata())
        assert local.clamped
        assert json.loads(metadata[service.CLAMPED]) == local.clamped
    with served(folder, lerobot_port=0, action_bounds="error") as server, client(server) as arm:
        server.robot.policy.act = lambda *args, act=server.robot.policy.act, **options: (
            6 * act(*args, **options)
        )  # type: ignore[method-assign]
        arm.start()
        with failing("INVALID_ARGUMENT", "action_bounds"):
            arm.act(seen[0])


FORGED = "x\n2026 INFO robot 7 connected \x1b[2J"


def test_robots_write_no_line_of_their_own(
    folder: Path, seen: list[Observation], caplog: pytest.LogCaptureFixture
) -> None:
    names = {**FEATURES["observation.state"], "names": [FORGED * 200] * 7}
    instructions = [
        {"policy_type": FORGED * 1000, "pretrained_name_or_path": FORGED * 1000},
        {"lerobot_features": FEATURES | {"observation.state": names}},
        {"rename_map": {"observation.images.front": FORGED}},
    ]
    observations = [{FORGED: 1.0}, {FORGED: [1]}, {"task": FORGED}, {"task": "t" * 1_000_000}]
    with (
        served(folder, lerobot_port=0) as server,
        caplog.at_level(logging.INFO, "understudy.serve"),
    ):
        for changes, values in [
            *((each, {}) for each in instructions),
            *(({}, each) for each in observations),
        ]:
            with client(server) as arm, suppress(grpc.RpcError):
                arm.start(**changes)
                arm.send(TimedObservation(0, 0, {**raw(seen[0]), **values}, True))
                arm.actions()
    records = [
        record.getMessage() for record in caplog.records if record.name == "understudy.serve"
    ]
    assert sum(FORGED.encode("unicode_escape").decode() in text for text in records) >= 5
    assert all(text.isprintable() and len(text) < 3000 for text in records)


class Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


def test_garbage_is_refused_and_the_robots_stay(
    folder: Path, seen: list[Observation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        served(folder, lerobot_port=0, max_message_mb=1) as server,
        client(server) as arm,
        client(server) as other,
    ):
        arm.start()
        other.start()
        for garbage in (pickled(Hostile()), pickled(TimedObservation(0, 0, {"value": Hostile()}))):
            with failing("INVALID_ARGUMENT", "system"):
                arm.send(garbage)
            with failing("INVALID_ARGUMENT", "it is refused"):
                arm.call(
                    "SendPolicyInstructions",
                    b"\x0a" + messages._write_varint(len(garbage)) + garbage,
                )
        for message in (b"\xff", b"\x08\x03\x12\x7f", b"\x08\x09", b"\x0b"):
            with failing("INVALID_ARGUMENT"):
                arm.send(iter([message]))
        with failing("INVALID_ARGUMENT"):
            arm.send(iter([b"\x08\x01"]))  # no last part
        with failing("INVALID_ARGUMENT", "1,000,000"):
            arm.send(iter([b"\x08\x02\x12\xa0\xc2\x1e" + bytes(500_000)] * 3))
        with failing("INVALID_ARGUMENT", "task"):
            arm.send(TimedObservation(0, 0, {**raw(seen[0]), "task": 3.0}, True))
        assert arm.act(seen[0])
        assert other.act(seen[0])
        assert list(tmp_path.iterdir()) == []


def test_the_contract_holds(
    folder: Path, seen: list[Observation], caplog: pytest.LogCaptureFixture
) -> None:
    names = {**FEATURES["observation.state"], "names": list(NAMES[::-1])}
    turned = FEATURES | {"observation.state": names}
    lacking = {key: value for key, value in FEATURES.items() if not key.endswith("front")}
    with served(folder, lerobot_port=0, contract="strict") as server, client(server) as arm:
        with failing("FAILED_PRECONDITION", "dimension order", NAMES[0]):
            arm.start(lerobot_features=turned)
        with failing("FAILED_PRECONDITION", "missing key", "cam_front"):
            arm.start(lerobot_features=lacking)
        with failing("FAILED_PRECONDITION", "'act'", "'flow'"):
            arm.start(policy_type="act")
        with failing("FAILED_PRECONDITION", "'user/model'", str(folder)):
            arm.start(pretrained_name_or_path="user/model")
        arm.start()
        arm.send(TimedObservation(0, 0, {**raw(seen[0]), "task": "dance"}, True))
        with failing("FAILED_PRECONDITION", "instruction"):
            arm.actions()
    with (
        served(folder, lerobot_port=0) as server,
        client(server) as arm,
        caplog.at_level(logging.WARNING),
    ):
        arm.start(policy_type="act", pretrained_name_or_path="user/model", lerobot_features=turned)
        assert arm.act(seen[0])
        for word in ("'act'", "'flow'", "'user/model'", "dimension order"):
            assert word in caplog.text


NAMED = [
    ("act", "user/model", "lerobot-act", "hf://user/model", 0),
    ("act", "/data/runs/table/", "act", "runs/table", 0),
    ("pi05", "./runs/table/policy", "pi05", "runs/table", 0),
    ("world_action", "table", "world-action", "runs/table/policy", 0),
    ("act", "runs/table", "flow", "runs/table", 1),
    ("flow", "runs/tables", "flow", "runs/table", 1),
    ("act", "other/model", "flow", "user/model", 2),
]


@pytest.mark.parametrize(("kind", "name", "own", "served_as", "differences"), NAMED)
def test_names_of_policies_are_compared(
    kind: str, name: str, own: str, served_as: str, differences: int
) -> None:
    robot: Any = SimpleNamespace(config=SimpleNamespace(type=own))
    found = compare_policy(Instructions(kind, name, {}, 1), robot, served_as)
    assert len(found) == differences
    assert all(repr(name) in line or repr(kind) in line for line in found)


def test_renamed_cameras_have_the_keys_of_the_policy(folder: Path, seen: list[Observation]) -> None:
    features = {key.replace("front", "top"): value for key, value in FEATURES.items()}
    renamed = {"observation.images.top": "observation.images.front"}
    observation = {("top" if key == "front" else key): value for key, value in raw(seen[0]).items()}
    with served(folder, lerobot_port=0, contract="strict", seed=2) as server, client(server) as arm:
        arm.start(lerobot_features=features, rename_map=renamed)
        arm.send(TimedObservation(0, 0, observation, True))
        robot = us.load_policy(folder, head="arm")
        expected = robot.act(standard(seen[0]), generator=torch.Generator().manual_seed(2))
        assert np.array_equal(values(arm.actions()), expected)


def test_a_restarted_server_needs_no_instructions(folder: Path, seen: list[Observation]) -> None:
    """LeRobot's client gives them once. Its values are those of training by name, or it must start
    again.
    """
    with served(folder, lerobot_port=0) as server, client(server) as arm:
        arm.start()
        assert arm.act(seen[0])
    port = int(str(server.lerobot_address).rpartition(":")[2])
    with (
        served(folder, lerobot_port=port, seed=2) as server,
        client(server) as arm,
        client(server) as other,
    ):
        arm.send(TimedObservation(0, 4, raw(seen[0])))
        robot = us.load_policy(folder, head="arm")
        expected = robot.act(standard(seen[0]), generator=torch.Generator().manual_seed(2))
        assert np.array_equal(values(arm.actions()), expected)
        for changed in (
            {key: value for key, value in raw(seen[0]).items() if key != "front"},
            {key: value for key, value in raw(seen[0]).items() if key != NAMES[0]},
            dict(reversed(raw(seen[0]).items())),
        ):
            with failing("INVALID_ARGUMENT"):
                other.send(TimedObservation(0, 0, changed, True))


@pytest.mark.long
def test_a_killed_server_is_found_again(folder: Path, seen: list[Observation]) -> None:
    """The command, ended without notice and started again at its port."""

    def start(port: str) -> tuple[subprocess.Popen[str], str]:
        arguments = [
            str(folder),
            "--head",
            "arm",
            "--port",
            "0",
            "--lerobot-port",
            port,
            "--seed",
            "2",
        ]
        command = [sys.executable, "-m", "understudy", "serve", *arguments, "--warm-up", "1"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        return process, process.stdout.readline().strip().rpartition("=")[2]

    process, address = start("0")
    try:
        with Client(address) as arm:
            arm.start()
            expected = values(arm.act(seen[0]))
            process.kill()
            process.wait()
            with failing("UNAVAILABLE"):
                arm.send(TimedObservation(0, 0, raw(seen[0])))
            process, again = start(address.rpartition(":")[2])
            assert again == address
            wait_for(lambda: is_answered(arm, seen[0]))
            assert np.array_equal(values(arm.actions()), expected)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()


def is_answered(arm: Client, observation: Observation) -> bool:
    """Send an observation; False where the connection is not made yet."""
    try:
        arm.send(TimedObservation(0, 0, raw(observation)))
    except grpc.RpcError:
        return False
    return True


def test_an_older_client_gets_the_classes_of_its_module(
    server: PolicyServer, seen: list[Observation]
) -> None:
    old = "lerobot.scripts.server.helpers"
    with client(server) as arm:
        arm.start()
        arm.send(pickled(TimedObservation(0, 0, raw(seen[0]), True), module=old))
        assert {type(each).__name__ for each in arm.actions(old)} == {"TimedAction"}
        assert old != MODULE


@pytest.fixture
def slow(folder: Path) -> Iterator[tuple[PolicyServer, threading.Event]]:
    """A server whose passes wait for an event."""
    with served(folder, lerobot_port=0, max_queue=1, deadline_s=1.5, max_connections=3) as server:
        held = threading.Event()
        original = server.robot.policy.preprocess

        def preprocess(batch: dict[str, Any]) -> dict[str, Any]:
            held.wait(10)
            return original(batch)

        server.robot.policy.preprocess = preprocess  # type: ignore[method-assign]
        yield server, held
        held.set()


def test_deadlines_and_a_full_queue_are_answered(
    slow: tuple[PolicyServer, threading.Event], seen: list[Observation]
) -> None:
    server, held = slow
    with client(server) as one, client(server) as two, client(server) as three:
        for arm in (one, two, three):
            arm.start()
            arm.send(TimedObservation(0, 0, raw(seen[0]), True))
        with ThreadPoolExecutor(3) as pool:
            futures = []
            for number, arm in enumerate((one, two, three)):
                futures.append(pool.submit(arm.actions))
                wait_for(lambda expected=number: server._engine.busy == min(expected + 1, 2))
                time.sleep(0.05)
            codes = []
            for future in futures:
                with pytest.raises(grpc.RpcError) as caught:
                    future.result()
                codes.append(caught.value.code().name)
        assert codes == ["ABORTED", "ABORTED", "RESOURCE_EXHAUSTED"]
        assert outcomes(server) == {"ok": 3, "deadline": 2, "busy": 1}
        held.set()
        wait_for(lambda: not server._engine.waiting)
        server.options = server._engine.options = replace(server.options, deadline_s=10)
        for arm in (one, two, three):
            assert arm.act(seen[0], 0, must_go=False)


def test_a_vanished_robot_frees_its_place(
    slow: tuple[PolicyServer, threading.Event],
    seen: list[Observation],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, held = slow
    monkeypatch.setattr(service, "WAIT_S", 30.0)
    server.options = server._engine.options = replace(server.options, deadline_s=30)
    robots = [client(server) for _ in range(3)]
    for robot in robots:
        robot.start()
    with client(server) as fourth, failing("RESOURCE_EXHAUSTED", "max_connections"):
        fourth.start()
    robots[0].send(TimedObservation(0, 0, raw(seen[0]), True))
    with ThreadPoolExecutor(2) as pool:
        # in its pass, and waiting for an observation
        futures = [pool.submit(robot.actions) for robot in robots[:2]]
        connected = server._lerobot._robots  # type: ignore[union-attr]
        wait_for(lambda: sum(own.serving.locked() for own in connected.values()) == 2)
        for robot in robots[:2]:
            robot.channel.close()
        for future in futures:
            # ValueError: of a call on a closed channel
            with pytest.raises((grpc.RpcError, ValueError)):
                future.result()
    wait_for(lambda: server._engine.connected == 1)
    held.set()
    wait_for(lambda: server._engine.busy == 0)
    with client(server) as fifth:
        fifth.start()
        assert fifth.act(seen[0])
    robots[2].channel.close()


def test_a_call_that_its_client_gives_up_costs_no_features(
    folder: Path, seen: list[Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WAIT_S", 30.0)
    features = {key.replace("front", "top"): value for key, value in FEATURES.items()}
    renamed = {"observation.images.top": "observation.images.front"}
    observation = {("top" if key == "front" else key): value for key, value in raw(seen[0]).items()}
    with served(folder, lerobot_port=0) as server, client(server) as arm:
        arm.start(lerobot_features=features, rename_map=renamed, actions_per_chunk=5)
        with failing("DEADLINE_EXCEEDED"):
            arm.call("GetActions", timeout=1)
        time.sleep(0.1)  # its end has reached the server
        arm.send(TimedObservation(0, 0, observation))
        assert len(arm.actions()) == 5
        assert server._engine.connected == 1


def test_cameras_and_joints_that_the_policy_lacks_are_left_out(
    folder: Path, seen: list[Observation]
) -> None:
    """A robot of LeRobot sends all that it has. Where a camera is lacking, it may be one of
    them.
    """
    more = FEATURES | {"observation.images.side": FEATURES["observation.images.front"]}
    observation = raw(seen[0]) | {"side": seen[1]["cam_front"]}
    with served(folder, lerobot_port=0, contract="strict") as server, client(server) as arm:
        arm.start(lerobot_features=more)
        arm.send(TimedObservation(0, 0, observation, True))
        assert len(arm.actions()) == 16
        with failing("FAILED_PRECONDITION", "camera map", "cam_front"):
            arm.start(
                lerobot_features={
                    key: own for key, own in more.items() if not key.endswith("front")
                }
            )


def test_idle_robots_give_up_their_places(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        served(folder, lerobot_port=0, max_connections=1) as server,
        client(server) as one,
        client(server) as two,
    ):
        one.start()
        with failing("RESOURCE_EXHAUSTED", "max_connections"):
            two.start()
        monkeypatch.setattr(service, "_IDLE_S", 0.0)
        two.start()
        assert server._engine.connected == 1


def test_a_token_is_needed(folder: Path, tmp_path: Path, seen: list[Observation]) -> None:
    (tmp_path / "token").write_text("s3cret")
    with served(folder, lerobot_port=0, token_file=str(tmp_path / "token")) as server:
        for given in ("", "other"):
            with client(server, token=given) as arm, failing("UNAUTHENTICATED", "authorization"):
                arm.start()
        with client(server, token="s3cret") as arm:
            arm.start()
            assert arm.act(seen[0])


def test_a_server_that_ends_lets_no_call_wait(
    folder: Path, seen: list[Observation], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "WAIT_S", 30.0)
    with ThreadPoolExecutor(1) as pool:
        with served(folder, lerobot_port=0) as server:
            arm = client(server)
            arm.start()
            future = pool.submit(arm.actions)
            time.sleep(0.2)
            started = time.monotonic()
        assert time.monotonic() - started < 3
        with failing("UNAVAILABLE"):
            future.result()
        with failing("UNAVAILABLE"):
            arm.start()
        arm.channel.close()


def test_settings_that_cannot_work_are_refused(folder: Path, server: PolicyServer) -> None:
    port = int(str(server.lerobot_address).rpartition(":")[2])
    with pytest.raises(OSError, match=str(port)), served(folder, lerobot_port=port):
        pass
    assert len(ServeConfig(policy="p", lerobot_port=0, tls_cert="c").problems()) == 1
    assert len(ServeConfig(policy="p", lerobot_port=8000).problems()) == 1
    assert ServeConfig(policy="p", lerobot_port=8080).problems() == []


@pytest.mark.parametrize("past", [Past((-0.1, 0.0)), Past(states=(-0.1, 0.0)), Past(steps=1)])
def test_a_policy_with_a_history_is_refused(past: Past) -> None:
    """LeRobot's client sends only some of its observations."""
    robot = SimpleNamespace(past=past)
    with refused("lerobot_port", kind=ConfigError):
        service.LeRobotService(SimpleNamespace(robot=robot), None)  # type: ignore[arg-type]


def test_messages_are_those_of_protobuf() -> None:
    assert messages.read_part(b"\x08\x03\x12\x02ab") == (messages.END, b"ab")
    assert messages.read_part(b"\x12\x02ab\x1a\x01x\x25abcd\x29abcdefgh\x08\x01") == (
        messages.BEGIN,
        b"ab",
    )  # unknown fields
    assert messages.read_bytes(messages.write_bytes(bytes(300)), 1) == bytes(300)
    assert messages.write_bytes(b"") == messages.read_bytes(b"", 1) == b""
    for broken in (
        b"\x08",
        b"\x08" + b"\xff" * 11,
        b"\x12\x05ab",
        b"\x13",
        b"\x25ab",
        b"\x08\x03\x10\x01",
        b"\x12\x00",
    ):
        with refused(kind=MessageError):
            messages.read_part(broken)
