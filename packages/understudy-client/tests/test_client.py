"""`RemotePolicy` against a small server: requests, answers, errors, reconnections and hostile
servers.
"""

import json
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from understudy_base.testing.refusals import absent, refused, warned
from understudy_client import client
from understudy_client.async_chunks import AsyncChunks
from understudy_client.client import PastObservations, RemotePolicy
from understudy_client.contract.declared import declare
from understudy_client.contract.facts import RobotFacts
from understudy_client.contract.mismatch import ContractError, ContractWarning, Mismatch
from understudy_client.protocol import DeadlineError, MessageError, Noise, RemoteError, encode
from understudy_client.testing.small_server import (
    CHUNK,
    METADATA,
    Answer,
    Close,
    Late,
    Vanish,
    scripted_chunk,
    small_server,
)

SEEN: dict[str, Any] = {"observation.state": np.array([0.5, -1.0]), "task": "push"}
UNLIKE = Mismatch("instruction", "task", "2 others", "'dance'", "give an instruction of training")

# -- connections and requests ----------------------------------------------------------------------

CODE = """
import json, sys
first = set(sys.modules)
import numpy as np
from understudy_client.async_chunks import AsyncChunks
from understudy_client.client import RemotePolicy

policy = RemotePolicy(sys.argv[1])
policy.reset(seed=5)
action = policy.select_action({"observation.state": np.zeros(2), "task": "push"})
with AsyncChunks(policy, delay=0) as chunks:
    chunks.reset(seed=5)
    first_of_chunk = chunks.select_action({"observation.state": np.zeros(2), "task": "push"})
    assert (first_of_chunk == action).all()
packages = {name.partition(".")[0] for name in set(sys.modules) - first}
packages -= set(sys.stdlib_module_names)
print(json.dumps([action.shape, sorted(packages)]))
"""
OWN = {"understudy_base", "understudy_client"}
# which msgspec and msgpack bring where they are installed
OPTIONAL = {"typing_extensions", "cython_runtime"}


def test_the_client_imports_four_packages_and_uses_no_proxy_on_loopback() -> None:
    environment = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    environment |= dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    with small_server() as server:
        command = [sys.executable, "-W", "ignore", "-c", CODE, server.address]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    shape, packages = json.loads(done.stdout)
    assert shape == [2]
    found = {name for name in packages if not name.startswith("_")} - OPTIONAL
    assert found == {"msgpack", "msgspec", "numpy", "websockets", *OWN}


def test_import_of_the_client_alone_imports_none_of_them() -> None:
    code = "import sys, understudy_client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(done.stdout.split()) & {"msgpack", "msgspec", "numpy", "websockets"}


def test_the_greeting_is_the_metadata() -> None:
    with small_server() as server:
        for address in (server.address, f"127.0.0.1:{server.port}"):
            with RemotePolicy(address) as policy:
                assert policy.metadata == METADATA
                assert (policy.chunk, policy.action_dim, policy.reconnects) == (8, 2, 0)


def test_an_observation_comes_to_the_server_to_the_bit() -> None:
    image = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)[:, ::-1]
    seen = {**SEEN, "observation.images.front": image, "fast": True, "names": ["a", "b"]}
    with small_server() as server, RemotePolicy(server.address) as policy:
        actions = policy.act(seen, time=3, steps=4)
    (came,) = server.observations
    assert np.array_equal(came["observation.images.front"], image)
    assert came["observation.state"].tolist() == [0.5, -1.0]
    assert (came["task"], came["fast"], came["names"]) == ("push", True, ["a", "b"])
    (control,) = server.controls
    assert (control["op"], control["step"], control["time"], control["steps"]) == ("act", 0, 3.0, 4)
    assert 0 < control["deadline_s"] <= 30
    assert not {"previous", "noise", "executed", "horizon"} & set(control)
    assert np.array_equal(actions, scripted_chunk(0))
    actions[:] = 0  # its own memory


def test_the_rest_of_a_chunk_travels_with_the_request() -> None:
    previous = [[1.0, 2.0], [3.0, 4.0]]
    with small_server() as server, RemotePolicy(server.address) as policy:
        policy.act(SEEN, previous=previous, delay=1, horizon=2)
    (control,) = server.controls
    assert (control["previous"].dtype, control["previous"].tolist()) == (np.float32, previous)
    assert (control["delay"], control["horizon"]) == (1, 2)


def test_each_call_is_a_control_step() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        policy.act(SEEN)
        policy.observe(SEEN)
        policy.act(SEEN)
        assert server.steps == [0, 2]
        policy.reset()
        policy.act(SEEN)
        assert server.steps == [0, 2, 0]


def test_a_reset_is_sent_once_something_was_seen() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        policy.reset()
        policy.reset()
        assert server.controls == []
        policy.act(SEEN)
        policy.reset()
        policy.reset()
        assert [control["op"] for control in server.controls] == ["act", "reset"]


def test_the_noise_of_a_step_is_that_of_its_position() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        policy.reset(seed=5, position=100)
        policy.act(SEEN)
        policy.act(SEEN)
        policy.act(SEEN, noise=Noise(7, 3, "evaluation"))
        policy.reset()
        policy.act(SEEN)
    noises = [control.get("noise") for control in server.controls if control["op"] == "act"]
    assert noises == [
        {"seed": 5, "position": 100, "purpose": "rollout"},
        {"seed": 5, "position": 101, "purpose": "rollout"},
        {"seed": 7, "position": 3, "purpose": "evaluation"},
        None,
    ]


@pytest.mark.parametrize(
    ("horizon", "steps"), [(1, [0, 1, 2, 3]), (3, [0, 3]), (8, [0]), (None, [0])]
)
def test_select_action_executes_chunks(horizon: int | None, steps: list[int]) -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        actions = [policy.select_action(SEEN, horizon=horizon) for _ in range(4)]
        assert [action[0] for action in actions] == [0, 1, 2, 3]
        assert server.steps == steps
        policy.reset()  # forgets the chunk in execution
        policy.select_action(SEEN, horizon=horizon)
        assert server.steps == [*steps, 0]


@pytest.mark.parametrize("horizon", [0, -1, CHUNK + 1])
def test_a_horizon_outside_the_chunk_is_refused(horizon: int) -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        with refused("horizon", horizon, CHUNK, kind=ValueError):
            policy.select_action(SEEN, horizon=horizon)
        assert server.controls == []


def test_the_executed_actions_are_reported_once() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        policy.act(SEEN)
        policy.report_delay(3)
        policy.act(SEEN)
        policy.act(SEEN)
    assert [control.get("executed") for control in server.controls] == [None, 3, None]


def test_an_answer_has_bounds_timing_and_differences() -> None:
    answer = {
        "clamped": {"x": 0.25},
        "server_timing": {"infer_ms": 2.5, "queue_ms": 0.5, "total_ms": 3.0},
        "mismatches": [vars(UNLIKE)],
    }
    with small_server(script=[answer]) as server, RemotePolicy(server.address) as policy:
        with warned("task", "'dance'", kind=ContractWarning) as seen:
            policy.act(SEEN)
        assert len(seen) == 1
        assert policy.mismatches == [UNLIKE]
        assert policy.clamped == {"x": 0.25}
        assert policy.timing == answer["server_timing"]
        policy.act(SEEN)
        assert (policy.clamped, policy.timing) == ({}, {})
        assert policy.mismatches == [UNLIKE]  # of this episode
        policy.reset()
        assert policy.mismatches == []


def test_threads_wait_for_each_other() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        with ThreadPoolExecutor(4) as pool:
            chunks = list(pool.map(lambda _: policy.act(SEEN), range(20)))
        assert sorted(chunk[0, 0] for chunk in chunks) == list(range(20))
        assert server.steps == list(range(20))
        assert server.connections == 1


def test_a_closed_client_asks_nothing_more() -> None:
    with small_server() as server:
        with RemotePolicy(server.address) as policy:
            policy.act(SEEN)
        with refused(kind=RemoteError) as caught:
            policy.act(SEEN)
        assert caught.value.fault == "closing"
        assert server.connections == 1


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "http://127.0.0.1:8000", "ws://", "wss://:8000"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with refused(url.partition(":")[0], kind=ValueError):
        RemotePolicy(url)


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, float("nan")])
def test_a_timeout_is_positive(timeout_s: float) -> None:
    with refused("timeout_s", timeout_s, kind=ValueError):
        RemotePolicy("ws://127.0.0.1:9", timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"understudy": {}}, ValueError, ["'understudy'"]),
        ({"observation.state": object()}, MessageError, ["object"]),
        ({"observation.state": np.array([None])}, MessageError, ["dtype"]),
        ({"observation.state": {1, 2}}, MessageError, ["set"]),
    ],
)
def test_values_that_cannot_be_sent_are_refused_before_they_are(
    change: dict[str, Any], kind: type[Exception], words: list[str]
) -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        with refused(*words, kind=kind):
            policy.act({**SEEN, **change})
        assert server.controls == []
        assert np.array_equal(policy.act(SEEN), scripted_chunk(0))  # the refused one is no step


def test_an_oversized_observation_is_refused_before_it_is_sent() -> None:
    seen = {**SEEN, "observation.images.front": np.zeros((200, 300, 3), np.uint8)}
    with (
        small_server(greeting={"max_message_bytes": 50_000}) as server,
        RemotePolicy(server.address) as policy,
    ):
        with refused("50,000", kind=MessageError):
            policy.act(seen)
        assert server.controls == []
        assert policy.reconnects == 0


# -- statements of the robot -----------------------------------------------------------------------


def test_statements_are_made_at_each_handshake() -> None:
    stated = declare(fps=30, state_names=("x", "y"), cameras=["front"], robot_type="arm")
    with small_server(script=[Vanish()]) as server:
        with RemotePolicy(server.address, declaration=stated, head="arm") as policy:
            policy.act(SEEN)
        hellos = [control for control in server.controls if control["op"] == "hello"]
        assert len(hellos) == server.connections == 2
        for hello in hellos:
            assert RobotFacts.from_json(hello["declaration"]).to_json() == stated.to_json()
            assert hello["head"] == "arm"


def test_a_lenient_server_warns_of_statements() -> None:
    with (
        small_server(hello={"mismatches": [vars(UNLIKE)]}) as server,
        warned("task", kind=ContractWarning),
        RemotePolicy(server.address, head="arm") as policy,
    ):
        assert policy.mismatches == [UNLIKE]


def test_a_strict_server_refuses_statements() -> None:
    rate = Mismatch("rate", "", "30 steps per second", "15", "set the rate")
    with small_server(hello=ContractError([rate])) as server:
        with refused(kind=ContractError) as caught:
            RemotePolicy(server.address, declaration=declare(fps=15))
        assert caught.value.mismatches == (rate,)
        assert server.connections == 1  # refused for good


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "fault"),
    [
        (ContractError([UNLIKE]), ContractError, None),
        (ValueError("observation.state has 3 numbers"), ValueError, None),
        (MessageError("task is a list"), MessageError, None),
        (RemoteError("the queue is full", "busy"), RemoteError, "busy"),
        (DeadlineError("too late", "deadline"), DeadlineError, "deadline"),
        (RuntimeError("out of memory"), RemoteError, "server"),
    ],
)
def test_errors_of_the_server_have_the_types_of_the_local_policy(
    error: Exception, kind: type[Exception], fault: str | None
) -> None:
    with small_server(script=[error]) as server, RemotePolicy(server.address) as policy:
        with refused(kind=kind) as caught:
            policy.act(SEEN)
        assert str(caught.value) == str(error)
        assert getattr(caught.value, "fault", None) == fault
        if isinstance(error, ContractError):
            assert caught.value.mismatches == (UNLIKE,)
        # the connection stays, and the step was none
        assert np.array_equal(policy.act(SEEN), scripted_chunk(0))
        assert policy.reconnects == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("Traceback: a text of openpi's server", ["openpi's"]),
        (b"\xc1 no message", ["msgpack"]),
        (encode([1, 2]), ["list"]),
        (encode({"action": 1}), ["actions"]),
        ({"actions": [[1.0, 2.0]]}, ["actions"]),
        ({"actions": np.zeros(2, np.float32)}, ["actions"]),
        ({"actions": np.array([["a", "b"]])}, ["actions"]),
        ({"actions": np.array([[True, False]])}, ["actions"]),
    ],
)
def test_answers_of_another_kind_of_server_are_refused(answer: Answer, words: list[str]) -> None:
    with small_server(script=[answer]) as server, RemotePolicy(server.address) as policy:
        with refused(f"ws://127.0.0.1:{server.port}", *words, kind=RemoteError) as caught:
            policy.act(SEEN)
        assert caught.value.fault == "server"


@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf])
def test_actions_that_are_not_finite_reach_no_robot(broken: float) -> None:
    actions = scripted_chunk(0)
    actions[-1, -1] = broken
    script = [{"actions": actions}] * 3
    with small_server(script=script) as server, RemotePolicy(server.address) as policy:
        for call in (policy.act, policy.select_action):
            with refused("finite", kind=ValueError):
                call(SEEN)
        with AsyncChunks(policy, delay=0) as chunks, refused("finite", kind=ValueError):
            chunks.select_action(SEEN)


@pytest.mark.parametrize(
    "greeting", ["hello", b"\xc1", encode([1]), encode({}), encode({"chunk": 8})]
)
def test_a_greeting_of_another_kind_of_server_is_refused(greeting: Any) -> None:
    with small_server(greeting=greeting) as server:
        with refused(f"ws://127.0.0.1:{server.port}", "metadata", kind=RemoteError):
            RemotePolicy(server.address, timeout_s=5)
        assert server.connections == 1


def test_a_larger_answer_than_agreed_is_not_read() -> None:
    with (
        small_server() as server,
        RemotePolicy(server.address, timeout_s=1, max_message_mb=0.01) as policy,
    ):
        server.script += [{"actions": np.zeros((5000, 2), np.float32)}] * 20
        with refused(kind=DeadlineError) as caught:
            policy.act(SEEN)
        assert caught.value.fault == "lost"


# -- deadlines -------------------------------------------------------------------------------------


def test_a_late_answer_is_a_deadline_and_not_taken_for_the_next_one() -> None:
    with small_server() as server, RemotePolicy(server.address, timeout_s=0.1) as policy:
        server.script.append(Late(3))
        with refused(0.1, kind=DeadlineError) as caught:
            policy.act(SEEN)
        assert caught.value.fault == "deadline"
        policy.timeout_s = 10
        server.script.append({"actions": scripted_chunk(50)})
        assert np.array_equal(policy.act(SEEN), scripted_chunk(50))
        assert policy.reconnects == 1


def test_a_missing_server_is_a_deadline() -> None:
    with refused("0.2", kind=DeadlineError) as caught:
        RemotePolicy("ws://127.0.0.1:9", timeout_s=0.2)
    assert caught.value.fault == "lost"


def test_a_long_wait_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def waits() -> list[str]:
        return [str(record.args) for record in caplog.records if "ws://" in str(record.args)]

    monkeypatch.setattr(client, "PATIENCE_S", 1.0)
    with small_server() as server:
        RemotePolicy(server.address).close()
        time.sleep(1.1)
    assert waits() == []
    monkeypatch.setattr(client, "PATIENCE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # accepts, and says nothing
        for port in (9, silent.getsockname()[1]):
            caplog.clear()
            with refused("0.4", kind=DeadlineError):
                RemotePolicy(f"ws://127.0.0.1:{port}", timeout_s=0.4)
            assert len(waits()) == 1
            assert f"127.0.0.1:{port}" in waits()[0]


def test_a_server_without_a_greeting_is_a_deadline() -> None:
    with small_server(greeting=None) as server, refused("0.5", kind=DeadlineError) as caught:
        RemotePolicy(server.address, timeout_s=0.5)
    assert caught.value.fault == "lost"


def test_messages_have_no_password() -> None:
    with refused("0.2", kind=DeadlineError) as caught:
        RemotePolicy("ws://robot:s3cret@127.0.0.1:9", timeout_s=0.2)
    assert absent(str(caught.value), "127.0.0.1", "9") == []
    assert "s3cret" not in str(caught.value)


# -- reconnections ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault", [Vanish(), Close(1011), Close(1000), RemoteError("it restarts", "closing")]
)
def test_a_lost_connection_is_made_again_within_a_request(fault: Answer) -> None:
    with small_server(script=[fault]) as server, RemotePolicy(server.address) as policy:
        policy.reset(seed=1)
        actions = [policy.select_action(SEEN, horizon=1) for _ in range(3)]
        assert [action[0] for action in actions] == [0, 1, 2]
        assert server.steps == [0, 0, 1, 2]
        assert (policy.reconnects, server.connections) == (1, 2)
        positions = [control["noise"]["position"] for control in server.controls]
        assert positions == server.steps


def test_a_restarted_server_is_found_again() -> None:
    with small_server() as server:
        policy = RemotePolicy(server.address)
        policy.act(SEEN)
    with small_server(port=server.port) as restarted:
        assert np.array_equal(policy.act(SEEN), scripted_chunk(1))
        policy.reset()
        assert policy.reconnects == 1
        assert [control["op"] for control in restarted.controls] == ["act", "reset"]
        policy.close()


def test_a_reset_needs_no_server() -> None:
    """The next connection starts an episode by itself."""
    with small_server() as server:
        policy = RemotePolicy(server.address, timeout_s=10)
        policy.act(SEEN)
    policy.reset()
    with small_server(port=server.port) as restarted:
        policy.act(SEEN)
        assert restarted.steps == [0]
        policy.close()


def test_a_server_that_ends_each_connection_is_not_flooded() -> None:
    with small_server() as server, RemotePolicy(server.address, timeout_s=1) as policy:
        server.script += [Vanish()] * 100
        with refused(kind=DeadlineError) as caught:
            policy.act(SEEN)
        assert caught.value.fault == "lost"
        assert 2 <= policy.reconnects <= 8


@pytest.mark.parametrize(
    "change",
    [
        {"chunk": 4},
        {"action_dim": 3},
        {"state_dim": 3},
        {"head": "other"},
        {"cameras": {"observation.images.front": [4, 4, 3]}},
        {"history": {"observation.state": [-0.5]}},
        {"max_delay": 2},
    ],
)
def test_another_policy_behind_the_address_is_refused(change: dict[str, Any]) -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        policy.act(SEEN)
        server.greeting = {**METADATA, **change}
        server.script.append(Vanish())
        with refused("small", kind=RemoteError):
            policy.act(SEEN)
        server.greeting = {**METADATA, "policy": "another name"}
        assert np.array_equal(policy.act(SEEN), scripted_chunk(1))


# -- access ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["other", "s3cret2", ""])
def test_a_wrong_token_is_refused_for_good(token: str) -> None:
    with small_server(token="s3cret") as server:
        with refused(401, "UNDERSTUDY_SERVE_TOKEN", kind=RemoteError) as caught:
            RemotePolicy(server.address, token=token)
        assert caught.value.fault == "refused"
        assert "s3cret2" not in str(caught.value)
        assert len(server.tokens) == 1


def test_the_token_is_given_or_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with small_server(token="s3cret") as server:
        with RemotePolicy(server.address, token="s3cret") as policy:
            assert policy.act(SEEN).shape == (8, 2)
        monkeypatch.setenv("UNDERSTUDY_SERVE_TOKEN", "s3cret")
        RemotePolicy(server.address).close()
        assert server.tokens == ["Bearer s3cret"] * 2
        with refused(401, kind=RemoteError):  # the given one counts
            RemotePolicy(server.address, token="other")


def test_a_server_that_is_not_ready_is_waited_for() -> None:
    with (
        small_server(statuses=[503, 503]) as server,
        RemotePolicy(server.address, timeout_s=20) as policy,
    ):
        assert policy.reconnects == 0
        assert (len(server.tokens), server.connections) == (3, 1)


def test_a_forbidden_robot_is_not_sent_again_and_again() -> None:
    with small_server(statuses=[403]) as server:
        with refused(403, kind=RemoteError) as caught:
            RemotePolicy(server.address)
        assert caught.value.fault == "refused"
        assert len(server.tokens) == 1


# -- policies with a history -----------------------------------------------------------------------

HISTORY = {"history": {"observation.state": [-0.3, -0.1]}}


def moment(step: int) -> dict[str, Any]:
    return {"observation.state": np.array([step, 0.0]), "task": "push"}


def past_steps(control: dict[str, Any]) -> list[int]:
    """Control steps of the past observations of a request; each has its own state."""
    for step, _, observation in control["past"]:
        assert observation["observation.state"].tolist() == [step, 0.0]
    return [step for step, _, _ in control["past"]]


def test_the_past_travels_once_and_again_after_a_lost_connection() -> None:
    with small_server(greeting=HISTORY) as server, RemotePolicy(server.address) as policy:
        for step in range(7):
            if step == 6:
                server.script.append(Vanish())
            if step in (0, 3, 6):
                policy.act(moment(step))
            else:
                policy.observe(moment(step))
        assert list(map(past_steps, server.controls)) == [[], [1, 2], [4, 5], [2, 3, 4, 5]]
        policy.reset()
        policy.act(moment(0))
        assert past_steps(server.controls[-1]) == []


def test_the_past_is_a_copy() -> None:
    """Of a driver's buffer, which it fills again."""
    state = np.zeros(2)
    with small_server(greeting=HISTORY) as server, RemotePolicy(server.address) as policy:
        policy.observe({"observation.state": state})
        state[0] = 1
        policy.act({"observation.state": state})
    assert past_steps(server.controls[0]) == [0]


def test_a_policy_without_a_history_gets_no_past() -> None:
    with small_server() as server, RemotePolicy(server.address) as policy:
        policy.observe(moment(0))
        policy.act(moment(1))
    assert server.controls[0]["past"] == []


def test_past_observations_reach_back_as_far_as_the_policy() -> None:
    past = PastObservations(0.5, 10)
    for step in range(20):
        past.add(step, None, {"observation.state": np.full(1, step)})
    assert [step for step, _, _ in past.unsent()] == [14, 15, 16, 17, 18, 19]
    past.mark_sent()
    past.add(20, None, {})
    assert [step for step, _, _ in past.unsent()] == [20]
    past.mark_lost()
    assert [step for step, _, _ in past.unsent()] == [15, 16, 17, 18, 19, 20]
    by_time = PastObservations(1.0, None)
    for step in range(8):
        by_time.add(step, step / 2, {})
    assert [time for _, time, _ in by_time.unsent()] == [2.5, 3.0, 3.5]
