"""`RemotePolicy.respond`: the texts of the local policy, and nothing else for other clients."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import torch

pytest.importorskip("websockets", reason="needs the extra serve")
pytest.importorskip("msgpack", reason="needs the extra serve")
pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.policies.inference import RobotPolicy
from understudy.testing.pi05_policy import policy
from understudy.testing.sentences import write_model
from understudy_base.testing.refusals import refused
from understudy_client import MessageError, RemotePolicy
from understudy_client.testing.arm import Observation
from understudy_robot.serve.config import ServeConfig
from understudy_robot.serve.requests import read_request
from understudy_robot.serve.server import PolicyServer, running_server
from understudy_robot.testing.serving import held_passes, plain, reply

LENGTH = 9


def waiting(server: PolicyServer) -> int:
    """Length of the queue, as `/metrics` says it."""
    address = server.address.replace("ws", "http", 1)
    with urlopen(f"{address}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return int(re.findall(r"^understudy_queue (\d+)", text, re.MULTILINE)[0])


def planner(tokenizer: Any, **changes: Any) -> RobotPolicy:
    net = policy(tokenizer, response_tokens=LENGTH, **changes)
    with torch.no_grad():  # otherwise a token predicts itself, whatever is before it
        net.embedding.weight.mul_(0.02)
    return RobotPolicy(net.eval(), {"heads": {"": {"fps": 10}}})


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> RobotPolicy:
    return planner(write_model(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def texts(robot: RobotPolicy) -> Iterator[PolicyServer]:
    options = ServeConfig(policy="", port=0, warm_up=0, contract="off", max_batch=8)
    with running_server(robot, options) as server:
        yield server


def test_texts_are_those_of_the_local_policy(
    texts: PolicyServer, robot: RobotPolicy, moments: list[dict[str, Any]]
) -> None:
    with RemotePolicy(texts.address) as remote:
        assert remote.metadata["response_tokens"] == LENGTH
        for moment in moments[:4]:
            assert remote.respond(moment) == robot.respond(moment)
            assert remote.respond(moment, length=2) == robot.respond(moment, length=2)
        remote.reset(seed=4, position=7)
        robot.reset(seed=4, position=7)
        drawn = [each.respond(moments[0], temperature=2.0) for each in (remote, robot)]
        assert drawn[0] == drawn[1]
        assert np.array_equal(remote.act(moments[0]), robot.act(moments[0]))  # the same step
        assert "infer_ms" in remote.timing


def test_eight_robots_share_a_pass(
    texts: PolicyServer, robot: RobotPolicy, moments: list[dict[str, Any]]
) -> None:
    remotes = [RemotePolicy(texts.address) for _ in range(9)]
    with held_passes(robot.policy) as passes, ThreadPoolExecutor(9) as pool:
        futures = [pool.submit(remotes[0].respond, moments[0])]
        passes.begun.wait(30)
        for remote, moment in zip(remotes[1:], moments[1:]):
            futures.append(pool.submit(remote.respond, moment))
        end = time.monotonic() + 30
        while waiting(texts) < 8:
            assert time.monotonic() < end
            time.sleep(0.005)
        passes.free.set()
        found = [future.result(60) for future in futures]
    assert found == [robot.respond(moment) for moment in moments[:9]]
    assert max(passes.sizes) == 8
    for remote in remotes:
        remote.close()


def test_other_clients_get_actions_alone(
    texts: PolicyServer, moments: list[dict[str, Any]]
) -> None:
    with plain(texts) as connection:
        answer = reply(connection, moments[0])
        assert "response" not in answer
        assert answer["actions"].shape[1:] == (3,)


def test_wrong_numbers_are_refused_as_by_the_local_policy(
    texts: PolicyServer, moments: list[dict[str, Any]]
) -> None:
    with RemotePolicy(texts.address) as remote:
        with refused("length", LENGTH + 1, kind=ValueError):
            remote.respond(moments[0], length=LENGTH + 1)
        with refused("understudy.temperature", kind=MessageError):
            remote.respond(moments[0], temperature=-1)
        assert remote.respond(moments[0])
    for wrong in ({"op": "respond", "length": 1.5}, {"op": "respond", "temperature": "hot"}):
        with pytest.raises(MessageError):
            read_request({"understudy": wrong, "task": ""})


def test_a_policy_without_text_says_so(server: PolicyServer, seen: list[Observation]) -> None:
    with RemotePolicy(server.address) as remote:
        kind = remote.metadata["type"]
        with refused(kind, kind=ValueError):
            remote.respond(seen[0])
    with plain(server) as connection:
        answer = reply(connection, {**seen[0], "understudy": {"op": "respond"}})
        assert answer["error"]["fault"] == "value"
        assert kind in answer["error"]["message"]


def test_a_planner_with_a_history_sees_the_same_past(
    tmp_path_factory: pytest.TempPathFactory, moments: list[dict[str, Any]]
) -> None:
    tokenizer = write_model(tmp_path_factory.mktemp("tokenizer"))
    local = planner(tokenizer, history=(0.2, 0.5), state_history=True)
    options = ServeConfig(policy="", port=0, warm_up=0, contract="off")
    with running_server(local, options) as server, RemotePolicy(server.address) as remote:
        for each in (local, remote):
            each.reset(seed=1)
        for step, moment in enumerate(moments[:8]):
            if step % 3 == 2:
                assert remote.respond(moment) == local.respond(moment)
            if step % 4 == 3:
                assert np.array_equal(remote.act(moment), local.act(moment))
            else:
                remote.observe(moment)
                local.observe(moment)
