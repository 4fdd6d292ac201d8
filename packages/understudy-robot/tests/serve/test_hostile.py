"""Robots that send absurd values: an error for each request of this robot alone, and no line of its
own in the log.
"""

import logging
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")


import understudy as us
from understudy_base.testing.refusals import refused
from understudy_client import ContractError, ContractWarning, RemotePolicy, decode_message
from understudy_client.testing.arm import CAMERAS, Observation
from understudy_robot.serve.server import PolicyServer
from understudy_robot.testing.serving import held_passes, outcomes, plain, reply, served


def standard(seen: Observation, **changes: Any) -> Observation:
    """An observation in the policy's keys."""
    images = {f"observation.images.{name}": seen[f"cam_{name}"] for name in CAMERAS}
    return {"observation.state": seen["joints"], "task": seen["task"], **images, **changes}


def absurd(seen: Observation, value: float = 1e38) -> Observation:
    return standard(seen) | {
        "observation.state": np.where(np.arange(7) == 0, value, seen["joints"])
    }


@pytest.fixture(params=["off", "warn", "strict"])
def reaction(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.mark.filterwarnings("ignore::understudy_client.contract.mismatch.ContractWarning")
@pytest.mark.parametrize("method", ["act", "select_action"])
def test_a_chunk_that_is_not_finite_is_an_error(
    method: str, reaction: Any, folder: Path, seen: list[Any]
) -> None:
    policy = us.load_policy(folder, head="arm", contract=reaction)
    policy.reset()
    call = getattr(policy, method)
    with refused(kind=ContractError if reaction == "strict" else ValueError) as caught:
        call(absurd(seen[0]))
    assert ("range" if reaction == "strict" else "inf") in str(caught.value).replace("nan", "inf")
    policy.reset()
    assert np.isfinite(call(standard(seen[0]))).all()


def test_an_absurd_state_is_reported_at_once(folder: Path, seen: list[Any]) -> None:
    """Also where its chunk is finite."""
    with pytest.warns(ContractWarning, match="range"):
        us.load_policy(folder, head="arm").act(absurd(seen[0], 1e6))
    with refused("range", kind=ContractError):
        us.load_policy(folder, head="arm", contract="strict").act(absurd(seen[0], 1e6))


def test_the_server_answers_a_chunk_that_is_not_finite_with_an_error(
    reaction: Any, folder: Path, seen: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The robot that shares its pass gets its actions."""
    with served(folder, contract=reaction) as server:
        robots = [RemotePolicy(server.address) for _ in range(3)]
        with (
            held_passes(server.robot.policy) as passes,
            ThreadPoolExecutor(3) as pool,
            caplog.at_level(logging.WARNING),
        ):
            first = pool.submit(robots[0].act, standard(seen[0]))
            passes.begun.wait(60)
            broken = pool.submit(robots[1].act, absurd(seen[0]))
            sound = pool.submit(robots[2].act, standard(seen[1]))
            time.sleep(0.2)
            passes.free.set()
            with refused(kind=ContractError if reaction == "strict" else ValueError):
                broken.result()
            assert np.isfinite([first.result(), sound.result()]).all()
        for robot in robots:
            robot.close()
        assert outcomes(server) == {"ok": 2, "contract" if reaction == "strict" else "value": 1}
        named = server.metrics.value("understudy_mismatches_total", 'kind="range"')
        assert named == (0 if reaction == "off" else 1)


@pytest.mark.filterwarnings("ignore::understudy_client.contract.mismatch.ContractWarning")
def test_async_chunks_raise_the_error_of_a_chunk_that_is_not_finite(
    folder: Path, seen: list[Any]
) -> None:
    policy = us.load_policy(folder, head="arm")
    with us.AsyncChunks(policy, execute=2, delay=0) as chunks:
        chunks.reset()
        assert np.isfinite(chunks.select_action(seen[0])).all()
        assert np.isfinite(chunks.select_action(seen[1])).all()
        with refused("action", kind=ValueError):
            chunks.select_action(absurd(seen[2]))
        assert np.isfinite(chunks.select_action(seen[3])).all()


# -- messages --------------------------------------------------------------------------------------


def test_large_messages_are_decoded_off_the_event_loop(
    server: PolicyServer, seen: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def recorded(data: bytes) -> Any:
        threads.append(threading.current_thread().name)
        return decode_message(data)

    monkeypatch.setattr("understudy_robot.serve.server.decode_message", recorded)
    with plain(server) as connection:
        for size in (10, 1_000_000):
            reply(connection, {**seen[0], "task": "t" * size})
            reply(connection, {"task": "t" * size})
    assert threads[1] == "understudy-server"
    assert "understudy-server" not in (threads[0], threads[2], threads[3])


def test_past_observations_are_refused_where_the_policy_sees_none(
    server: PolicyServer, seen: list[Any]
) -> None:
    with plain(server) as connection:
        answer = reply(connection, {**seen[0], "understudy": {"past": [[-1, None, seen[0]]]}})
        assert answer["error"]["fault"] == "message"


@pytest.mark.parametrize(
    "shape", [(0, 0, 3), (0, 128, 3), (1, 100_000, 3), (100_000, 1, 3), (3000, 4000, 3)]
)
def test_absurd_images_are_refused_before_they_are_resized(
    shape: tuple[int, ...], reaction: Any, folder: Path, server: PolicyServer, seen: list[Any]
) -> None:
    observation = standard(seen[0], **{"observation.images.front": np.zeros(shape, np.uint8)})
    policy = us.load_policy(folder, head="arm", contract=reaction)
    with (
        warnings.catch_warnings(),
        refused(kind=ContractError if reaction == "strict" else ValueError) as caught,
    ):
        warnings.simplefilter("ignore", ContractWarning)
        policy.act(observation)
    assert "front" in str(caught.value)
    if reaction == "warn":
        with plain(server) as connection:
            assert "front" in reply(connection, observation)


@pytest.mark.parametrize(
    "control",
    [
        {"noise": {"seed": 1, "position": 2, "purpose": "p" * 10_000_000}},
        {"steps": 1000},
        {"steps": 1 << 60},
    ],
)
def test_costly_requests_are_refused_before_they_are_computed(
    control: Any, server: PolicyServer, seen: list[Any]
) -> None:
    before = outcomes(server).get("ok", 0)
    with plain(server) as connection:
        assert reply(connection, {**seen[0], "understudy": control})["error"]["fault"] == "message"
    assert outcomes(server).get("ok", 0) == before


# -- the log ---------------------------------------------------------------------------------------

FORGED = "x\n2026 INFO robot 7 connected \x1b[2J"


def test_robots_write_no_line_of_their_own(
    folder: Path, seen: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    names = [FORGED] * 500
    messages = [
        {**seen[0], FORGED: 1},
        {**seen[0], "k" * 100_000: 1},
        {**seen[0], **{f"key{number}": 0 for number in range(1000)}},
        {**seen[0], "task": FORGED},
        {**seen[0], "task": "t" * 9_000},
        {**seen[0], "task": "t" * 1_000_000},
        {FORGED: 1},
        {"understudy": {FORGED * 100: 1}},
        {
            "understudy": {
                "op": "hello",
                "declaration": {"state_names": names, "robot_type": FORGED, "cameras": names},
            }
        },
        {"understudy": {"op": "hello", "declaration": {FORGED: 1}}},
        {"understudy": {"op": "hello", "head": FORGED}},
    ]
    with served(folder) as server, caplog.at_level(logging.INFO):
        for message in messages:
            with plain(server) as connection:
                reply(connection, message)
                connection.close(1000, FORGED)
    records = [
        record.getMessage() for record in caplog.records if record.name == "understudy.serve"
    ]
    assert len(records) < 80
    for text in records:
        assert text.isprintable()
        assert len(text) < 3000


# -- explanations ----------------------------------------------------------------------------------


def test_an_error_is_explained_by_its_own_observation(
    server: PolicyServer, seen: list[Any]
) -> None:
    """A client without `reset` mends its robot step by step: each fault that is gone is not named
    again.
    """
    lacking = {key: value for key, value in seen[0].items() if key != "joints"}
    with plain(server) as connection:
        for _ in range(2):  # also where the difference was reported before
            assert "missing key" in reply(connection, lacking)
        answer = reply(connection, {**seen[0], "joints": np.zeros(9)})
        assert "missing key" not in answer
        assert "9" in answer
        assert reply(connection, seen[0])["actions"].shape == (16, 7)


# -- bounds of the actions -------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", ["off", "clamp", "error"])
def test_replies_name_the_actions_that_were_moved_to_their_bounds(
    bounds: Any, folder: Path, seen: list[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """The robot's own actions, which the policy multiplies."""
    local = us.load_policy(folder, head="arm", action_bounds="clamp")
    with served(folder, action_bounds=bounds) as server, RemotePolicy(server.address) as policy:
        for net in (local.policy, server.robot.policy):
            net.act = lambda *args, act=net.act, **options: (  # type: ignore[method-assign]
                6 * act(*args, **options)
            )
        for robot in (local, policy):
            robot.reset(seed=4)
        assert policy.metadata["action_bounds"] == bounds
        if bounds == "error":
            with refused("action_bounds", kind=ValueError):
                policy.act(seen[0])
            return
        with caplog.at_level(logging.WARNING):
            actions = policy.act(seen[0])
        expected = local.act(seen[0])
        assert np.array_equal(actions, expected) == (bounds == "clamp")
        assert policy.clamped == (local.clamped if bounds == "clamp" else {})
        assert local.clamped
        assert server.metrics.value("understudy_clamped_chunks_total") == (bounds == "clamp")
        assert sum("clamped" in line for line in caplog.messages) == len(policy.clamped)
