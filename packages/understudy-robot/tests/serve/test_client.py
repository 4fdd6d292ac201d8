"""`RemotePolicy`: without torch, past restarts of the server, and with the history of the local
policy.
"""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")

from understudy.policies.acting import predict
from understudy.policies.draws import make_draws
from understudy.policies.inference import RobotPolicy
from understudy_base.testing.refusals import refused, warned
from understudy_client import (
    ContractError,
    ContractWarning,
    DeadlineError,
    MessageError,
    RemotePolicy,
    declare,
)
from understudy_client.testing.arm import NAMES, Observation
from understudy_client.testing.small_server import METADATA
from understudy_robot.cli.contract import ContractConfig, contract
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.requests import Request, read_request
from understudy_robot.serve.server import PolicyServer, running_server
from understudy_robot.serve.session import Session
from understudy_robot.testing.serving import held_passes, outcomes, plain, reply, served

CODE = """
import json, sys
first = set(sys.modules)
import numpy as np
import understudy as us

policy = us.RemotePolicy(sys.argv[1])
policy.reset(seed=5)
seen = {"joints": np.zeros(7), "task": "open the drawer"}
seen |= {key: np.zeros((96, 128, 3), np.uint8) for key in ("cam_front", "cam_wrist_left")}
action = policy.select_action(seen)
with us.AsyncChunks(policy, delay=0) as chunks:
    chunks.reset(seed=5)
    assert (chunks.select_action(seen) == action).all()
packages = {name.partition(".")[0] for name in set(sys.modules) - first}
packages -= set(sys.stdlib_module_names)
print(json.dumps([action.shape, sorted(packages)]))
"""


def test_the_client_imports_four_packages(server: PolicyServer) -> None:
    """A proxy of the environment does not divert loopback."""
    import os

    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE, server.address],
        capture_output=True,
        text=True,
        env={key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
        | proxies,
    )
    assert done.returncode == 0, done.stderr
    shape, packages = json.loads(done.stdout)
    assert shape == [7]
    # which msgspec and msgpack bring where they are installed
    optional = {"typing_extensions", "cython_runtime"}
    found = {name for name in packages if not name.startswith("_")} - optional
    own = {"understudy", "understudy_base", "understudy_client"}
    assert found == {"msgpack", "msgspec", "numpy", "websockets", *own}


def test_contract_command_reads_a_server_and_disconnects(
    server: PolicyServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed: list[RemotePolicy] = []
    monkeypatch.setattr(
        RemotePolicy, "close", lambda policy: closed.append(policy) or RemotePolicy._drop(policy)
    )
    assert (
        contract(ContractConfig(paths=(f"ws://{server.address.removeprefix('ws://')}",), json=True))
        == 0
    )
    assert list(json.loads(capsys.readouterr().out)["contract"]["robots"]) == ["arm"]
    assert len(closed) == 1


def test_the_small_server_of_the_tests_greets_as_this_one(server: PolicyServer) -> None:
    assert set(METADATA) == set(server.metadata)


def test_errors_have_the_types_of_the_local_policy(
    server: PolicyServer, seen: list[Observation]
) -> None:
    with RemotePolicy(server.address) as policy:
        with refused("observation.state", kind=ValueError):
            policy.act({**seen[0], "joints": np.full(7, np.inf)})
        with refused("task", kind=MessageError):
            policy.act({**seen[0], "task": 3})
        with refused(kind=MessageError):
            policy.act({**seen[0], "joints": object()})
        with refused("understudy", kind=ValueError):
            policy.act({**seen[0], "understudy": {}})
        with warned("open", kind=ContractWarning):
            policy.act({**seen[0], "task": "open"})
        assert [(each.kind, each.key) for each in policy.mismatches] == [("instruction", "task")]
        policy.reset()
        assert policy.mismatches == []
        assert policy.act(seen[0]).shape == (16, 7)
        assert policy.reconnects == 0


def test_statements_are_compared_at_the_handshake(folder: Path) -> None:
    with served(folder, contract="strict") as server:
        RemotePolicy(server.address, declaration=declare(fps=30, state_names=NAMES)).close()
        with refused(kind=ContractError) as caught:
            RemotePolicy(server.address, declaration=declare(fps=15, state_names=NAMES[::-1]))
        found = [(mismatch.kind, mismatch.key) for mismatch in caught.value.mismatches]
        assert found == [("rate", ""), ("dimension order", "joints")]
        assert outcomes(server) == {"ok": 1, "contract": 1}
    stated = declare(fps=30).to_json()
    for damaged in ({**stated, "fps": "fast"}, {**stated, "cameras": []}, {"fps": 30}, "arm", 3):
        with refused("understudy.declaration", kind=MessageError):
            read_request({"understudy": {"op": "hello", "declaration": damaged}})


def test_a_missing_server_is_waited_for(folder: Path, seen: list[Observation]) -> None:
    with served(folder, seed=3) as server:
        port = server.port
    found: list[np.ndarray] = []

    def drive() -> None:
        with RemotePolicy(f"127.0.0.1:{port}", timeout_s=20) as policy:
            found.append(policy.act(seen[0]))

    thread = threading.Thread(target=drive)
    thread.start()
    with served(folder, seed=3, port=port):
        thread.join(60)
    assert found[0].shape == (16, 7)


def test_a_restarted_server_is_found_again(folder: Path, seen: list[Observation]) -> None:
    """The actions of an episode are those of a server that never ended."""
    with served(folder) as server, RemotePolicy(server.address) as whole:
        whole.reset(seed=1)
        expected = [whole.select_action(observation, horizon=1) for observation in seen]
    with served(folder) as server:
        policy = RemotePolicy(server.address)
        port = server.port
        policy.reset(seed=1)
        found = [policy.select_action(observation, horizon=1) for observation in seen[:3]]
    with served(folder, port=port):
        found += [policy.select_action(observation, horizon=1) for observation in seen[3:]]
        assert np.array_equal(found, expected)
        assert policy.reconnects == 1
        policy.close()


# -- policies with a history -----------------------------------------------------------------------


Moments = list[dict[str, Any]]


def local_actions(robot: RobotPolicy, observations: Moments, horizon: int) -> list[np.ndarray]:
    robot.reset()
    found: list[np.ndarray] = []
    for step, observation in enumerate(observations):
        if step % horizon:
            robot.observe(observation)
            continue
        draws = make_draws(robot.policy.random_spec("act"), 2, np.array([step]), "rollout")
        prepared = robot.prepare(observation, draws=draws)
        robot.accept(prepared)
        found += list(predict(robot.policy, [prepared])[0][:horizon])
    return found[: len(observations)]


def test_the_past_travels_with_the_chunk_to_the_bit(
    remembering: RobotPolicy, moments: Moments
) -> None:
    """Also over a restart of the server, and after a reset."""
    seen = moments
    expected = local_actions(remembering, moments, 3)
    settings = {"policy": "small", "warm_up": 1}
    with running_server(remembering, ServeConfig(port=0, **settings)) as server:
        policy = RemotePolicy(server.address)
        port = server.port
        for _ in range(2):
            policy.reset(seed=2)
            found = [policy.select_action(observation, horizon=3) for observation in seen]
            assert np.array_equal(found, expected)
        policy.reset(seed=2)
        found = [policy.select_action(observation, horizon=3) for observation in seen[:8]]
    with running_server(remembering, ServeConfig(port=port, **settings)):
        found += [policy.select_action(observation, horizon=3) for observation in seen[8:]]
        assert np.array_equal(found, expected)
        policy.close()


def test_a_gap_in_the_steps_is_refused_and_not_misaligned(
    remembering: RobotPolicy, moments: Moments
) -> None:
    """A client that observes every fifth step only has no observation of 0.2 s ago."""
    with (
        running_server(remembering, ServeConfig(policy="small", port=0, warm_up=0)) as server,
        plain(server) as connection,
    ):
        for step, fault in ((0, None), (5, "value")):
            answer = reply(connection, {**moments[0], "understudy": {"step": step}})
            assert answer.get("error", {}).get("fault") == fault
        assert isinstance(reply(connection, moments[0]), str)  # no step at all


def test_more_past_than_the_policy_sees_is_refused(
    remembering: RobotPolicy, moments: Moments
) -> None:
    seen = moments[0]
    with (
        running_server(remembering, ServeConfig(policy="small", port=0, warm_up=0)) as server,
        plain(server) as connection,
    ):
        for count, fault in ((200, "message"), (12, None)):
            control = {"step": 0, "past": [[step, None, seen] for step in range(-count, 0)]}
            answer = reply(connection, {**seen, "understudy": control})
            assert answer.get("error", {}).get("fault") == fault


@pytest.mark.parametrize("several", [False, True])
def test_times_that_hardly_advance_fill_no_memory(
    several: bool, remembering: RobotPolicy, moments: Moments
) -> None:
    session = Session(remembering, "off")
    seen = moments[0]
    now = 0.0
    with refused("reset", kind=ValueError):
        for _ in range(10 * session.most_past):
            now += 1e-6
            past = ((None, now, seen),) if several else ()
            session.accept(session.prepare(Request(time=now + 1e-7, past=past), seen))
    assert session.robot.num_past <= session.most_past + 1
    session.reset()
    session.prepare(Request(time=now), seen)


def test_a_deadline_leaves_no_hole_in_the_past(remembering: RobotPolicy, moments: Moments) -> None:
    seen = moments[:9]
    expected = local_actions(remembering, seen, 3)
    with (
        running_server(remembering, ServeConfig(policy="small", port=0, warm_up=0)) as server,
        held_passes(remembering.policy) as passes,
        RemotePolicy(server.address) as policy,
    ):
        passes.free.set()
        policy.reset(seed=2)
        found = [policy.select_action(observation, horizon=3) for observation in seen[:6]]
        passes.free.clear()
        policy.timeout_s = 0.2
        with refused(kind=DeadlineError):
            policy.act(seen[6])
        passes.free.set()
        policy.timeout_s = 10
        found += [policy.select_action(observation, horizon=3) for observation in seen[6:]]
        assert np.array_equal(found, expected)
