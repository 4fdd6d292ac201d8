"""`RobotPolicy.respond`: the texts of a planner, as a naive twin without a cache writes them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.policies.common.images import letterbox
from understudy.policies.inference import RobotPolicy
from understudy.policies.pi05.network import Tail
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.targets import respond
from understudy.testing.pi05 import inputs, seen, small
from understudy.testing.pi05_policy import CAMERAS, batch, policy
from understudy.testing.sentences import write_model
from understudy_base.testing.refusals import refused

LENGTH = 12
COUNT = 8


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Pi05Policy:
    tokenizer = write_model(tmp_path_factory.mktemp("tokenizer"))
    made = policy(tokenizer, response_tokens=LENGTH)
    with torch.no_grad():  # otherwise a token predicts itself, whatever is before it
        made.embedding.weight.mul_(0.02)
    return made.eval()


@pytest.fixture(scope="module")
def robot(net: Pi05Policy) -> RobotPolicy:
    return RobotPolicy(net, {"heads": {"": {"fps": 10}}})


@pytest.fixture(scope="module")
def moments() -> list[dict[str, Any]]:
    """Observations of one moment each."""
    given = batch(COUNT)
    keys = ("observation.state", *CAMERAS)
    return [
        {key: given[key][row].numpy() for key in keys} | {"task": given["task"][row]}
        for row in range(COUNT)
    ]


def together(moments: list[dict[str, Any]]) -> dict[str, Any]:
    stacked = {
        key: np.stack([moment[key] for moment in moments]) for key in moments[0].keys() - {"task"}
    }
    return stacked | {"task": [moment["task"] for moment in moments]}


def naive(net: Pi05Policy, robot: RobotPolicy, moment: dict[str, Any], length: int) -> str:
    """The most likely text, by a whole pass for each token and for this observation alone."""
    ready = net.preprocess(dict(robot.prepare(moment).batch))
    pixels = torch.stack([letterbox(ready[camera], 8) for camera in CAMERAS], dim=1)
    has = torch.ones(1, len(CAMERAS), dtype=torch.bool)
    observed = net.observe(pixels, has, ready["prompt_tokens"], ~ready["prompt_is_pad"])
    model = net.texts.required().model
    ids: list[int] = []
    while len(ids) < length and ids[-1:] != [model.eos_id()]:
        tokens = torch.tensor([ids], dtype=torch.int64)
        whole = net.with_tail(
            observed, Tail(tokens, torch.ones_like(tokens, dtype=torch.bool), len(ids))
        )
        _, hidden = net.compute(whole, None, hidden=True)
        assert hidden is not None
        last = int(whole.valid[0].nonzero()[-1])
        ids.append(int(F.linear(hidden[0, last], net.embedding.weight).argmax()))
    return str(model.decode([token for token in ids if token < model.vocab_size()])).strip()


@torch.no_grad()
def test_greedy_texts_are_those_of_a_naive_twin(
    net: Pi05Policy, robot: RobotPolicy, moments: list[dict[str, Any]]
) -> None:
    wanted = [naive(net, robot, moment, LENGTH) for moment in moments]
    assert len(set(wanted)) > 2
    assert [robot.respond(moment) for moment in moments] == [[text] for text in wanted]
    assert robot.respond(together(moments)) == wanted  # a batch of eight
    short = [naive(net, robot, moment, 3) for moment in moments]
    assert short != wanted
    assert robot.respond(together(moments), length=3) == short


def test_drawn_texts_depend_on_seed_and_step_alone(
    robot: RobotPolicy, moments: list[dict[str, Any]]
) -> None:
    def drawn(seed: int, position: int = 0) -> list[list[str]]:
        robot.reset(seed=seed, position=position)
        return [robot.respond(moment, temperature=3.0) for moment in moments[:3]]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)
    assert drawn(1) != drawn(1, position=9)
    robot.reset()
    again = [
        robot.respond(
            together(moments), temperature=3.0, generator=torch.Generator().manual_seed(4)
        )
        for _ in range(2)
    ]
    assert again[0] == again[1] != robot.respond(together(moments))
    assert robot.respond(moments[0], temperature=1e-30) == robot.respond(moments[0])


def test_a_greedy_text_draws_nothing_and_is_no_step(
    robot: RobotPolicy, moments: list[dict[str, Any]]
) -> None:
    robot.reset(seed=3)
    plain = robot.act(moments[0])
    robot.reset(seed=3)
    state = torch.random.get_rng_state()
    robot.respond(moments[0])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert np.array_equal(robot.act(moments[0]), plain)


@torch.no_grad()
def test_drawn_tokens_have_the_distribution_of_the_logits() -> None:
    network = small(True)
    network.embedding.weight.mul_(0.2)
    given = {
        key: value[:1].expand(4000, *value.shape[1:]) for key, value in seen(inputs(1)).items()
    }
    one = {key: value[:1] for key, value in given.items()}
    observed = network.observe(*given.values())
    _, hidden = network.compute(network.observe(*one.values()), None, hidden=True)
    assert hidden is not None
    last = int(network.observe(*one.values()).valid[0].nonzero()[-1])
    shares = (F.linear(hidden[0, last], network.embedding.weight) / 1.5).softmax(0)
    uniform = ((torch.arange(4000) + 0.5) / 4000)[:, None]
    found = respond(network, observed, 1, -1, 1.5, uniform).tokens[:, 0]
    counted = torch.bincount(found, minlength=len(shares)) / 4000
    assert float((counted - shares).abs().max()) <= 1.01 / 4000


def test_policies_without_text_say_so_by_name(
    net: Pi05Policy, robot: RobotPolicy, moments: list[dict[str, Any]]
) -> None:
    silent = RobotPolicy(policy(Path(net.config.tokenizer)).eval(), {"heads": {"": {"fps": 10}}})
    assert silent.policy.response_length == 0
    with refused("pi05", "data.response", kind=ValueError):
        silent.respond(moments[0])
    with refused("pi05", kind=ValueError):
        silent.policy.respond({}, {})
    for length in (0, LENGTH + 1):
        with refused("length", length, LENGTH, kind=ValueError):
            robot.respond(moments[0], length=length)
    for temperature in (-1.0, float("nan"), float("inf")):
        with refused("temperature", temperature, kind=ValueError):
            robot.respond(moments[0], temperature=temperature)
