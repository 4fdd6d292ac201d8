"""All loss terms of the policy and their gradients on a batch of a loader, against the naive
formulation.
"""

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.draws import Draws, make_draws
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.released_keys import released_key
from understudy.testing.naive_pi05 import NaivePi0, Sample, paper_weights
from understudy.testing.pi05_policy import CAMERAS, batch, policy
from understudy.testing.sentences import write_model

BOTH = pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("fast")
    time = np.linspace(0, 1, 4)[:, None]
    chunks = [np.sin(time * rate + np.arange(3)) for rate in np.linspace(0, 3, 200)]
    FastTokenizer.fit(chunks, vocab_size=60).save(folder)
    return str(folder)


def naive_samples(made: Pi05Policy, ready: dict, draws: Draws) -> list[list[Sample]]:
    """By sample, one for each of its noises: everything in the network's units, without padding."""

    def widen(x: Tensor) -> Tensor:
        return F.pad(x, (0, made.sizes.dim - x.shape[-1])).double()

    def tokens(name: str, row: int, is_pad: str) -> list[int]:
        return ready[name][row][~ready[is_pad][row]].tolist()

    actions = widen(
        torch.where(ready["action_is_pad"][..., None], 0.0, made.normalizer.actions(ready))
    )
    states = widen(made.normalizer.states(ready, ready["observation.state"]))
    found = []
    for row in range(len(actions)):
        none = torch.zeros(len(actions), dtype=torch.bool)
        there = [camera for camera in CAMERAS if not ready.get(f"{camera}_is_missing", none)[row]]
        sample = Sample(
            images=[ready[camera][row].double() / 127.5 - 1 for camera in there],
            tokens=tokens("prompt_tokens", row, "prompt_is_pad"),
            state=states[row],
            actions=actions[row],
            noise=actions[row],
            time=0.0,
            response=tokens("response_tokens", row, "response_is_pad"),
            fast=tokens("action_tokens", row, "action_tokens_is_pad"),
        )
        pairs = zip(draws["flow noise"][row].double(), draws["flow time"][row].tolist())
        found.append([replace(sample, noise=noise, time=time) for noise, time in pairs])
    return found


@pytest.mark.parametrize(
    ("adaptive", "insulation"),
    [
        (True, True),
        (False, False),
        *(pytest.param(*pair, marks=pytest.mark.long) for pair in ((True, False), (False, True))),
    ],
)
def test_losses_and_gradients(tokenizer: Path, fast: str, adaptive: bool, insulation: bool) -> None:
    made = policy(
        tokenizer,
        adaptive,
        response_tokens=24,
        fast=fast,
        action_tokens=40,
        noise_samples=2,
        max_delay=2,
        insulation=insulation,
    )
    given = batch(response=True, size=(8, 8))  # the network's size: no resizing
    ready = made.preprocess(given)
    draws = make_draws(made.random_spec("train"), 0, torch.arange(4))
    draws["flow delay"] = torch.tensor([0, 2, 1, 2])
    found = made.losses(ready, draws)

    weights = {
        released_key(name): value.detach().double() for name, value in made.named_parameters()
    }
    slow = NaivePi0(
        {key: value.requires_grad_() for key, value in weights.items()}, asdict(made.sizes)
    )
    wanted: dict[str, list[Tensor]] = {"flow": [], "text": [], "fast": []}
    for row, data in enumerate(naive_samples(made, ready, draws)):
        delay = int(draws["flow delay"][row])
        real = ~ready["action_is_pad"][row] & (torch.arange(4) >= delay)
        flow = [slow.flow_loss(sample, delay, insulation)[real, :3].sum() for sample in data]
        wanted["flow"].append(torch.stack(flow).sum())
        tokens = slow.token_losses(data[0])
        for term, kind in (("text", "response"), ("fast", "fast")):
            wanted[term].append(
                tokens[kind].sum() if kind in tokens else torch.zeros((), dtype=torch.float64)
            )
    for term, sums in wanted.items():
        torch.testing.assert_close(
            found[term].sum.double(), torch.stack(sums), rtol=3e-6, atol=1e-6
        )
    assert found["flow"].count.tolist() == [24, 6, 6, 0]

    sum(loss.sum.sum() for loss in found.values()).backward()
    sum(torch.stack(sums).sum() for sums in wanted.values()).backward()
    for name, parameter in made.named_parameters():
        reference = slow.weights[released_key(name)].grad
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        reference = torch.zeros_like(gradient) if reference is None else reference
        # zero in exact arithmetic
        if name.startswith("vision.layers.") and name.endswith("k_proj.bias"):
            assert float(gradient.norm()) < 1e-3, name
        else:
            assert float((gradient - reference).norm()) <= 2e-5 * float(reference.norm()), name


@BOTH
@pytest.mark.parametrize(
    ("narrow", "horizon"),
    [(True, None), *(pytest.param(own, 3, marks=pytest.mark.long) for own in (True, False))],
)
def test_chunks_continue_in_the_own_dimensions_alone(
    tokenizer: Path, adaptive: bool, narrow: bool, horizon: int | None
) -> None:
    """The loss trains no other dimension, so the network may say anything there. Without a horizon:
    given actions.
    """
    made = policy(tokenizer, adaptive, max_delay=1)
    given = {key: value[:1] for key, value in batch(size=(8, 8)).items()}
    if narrow:
        given["action_dim_is_pad"] = torch.tensor([[False, False, True]])
    ready = made.preprocess(given)
    draws = {"noise": torch.randn(1, 4, made.sizes.dim, generator=torch.Generator().manual_seed(1))}
    executing = given["action"].clone()
    found = made.continue_chunk(ready, draws, executing, 1, steps=2, horizon=horizon)

    weights = {
        released_key(name): value.detach().double() for name, value in made.named_parameters()
    }
    slow = NaivePi0(weights, asdict(made.sizes))
    flow = {"flow noise": draws["noise"][:, None], "flow time": torch.zeros(1, 1)}
    plain = ready | {
        "response_tokens": torch.zeros(1, 0, dtype=torch.long),
        "response_is_pad": torch.zeros(1, 0).bool(),
    }
    plain |= {
        "action_tokens": plain["response_tokens"],
        "action_tokens_is_pad": plain["response_is_pad"],
    }
    sample = naive_samples(made, plain, flow)[0][0]
    ramp = torch.tensor(paper_weights(4, 1, horizon or 3), dtype=torch.float64)[:, None]

    def robot(dims: list[bool], path: Tensor | None) -> Tensor:
        if horizon is None:
            x = slow.sample(sample, 2, sample.actions[:1], path)
        else:
            x = slow.guided_sample(sample, sample.actions, ramp * torch.tensor(dims), 5.0, 2, path)
        return made.robot_actions(x[None].float(), ready)

    own = [True, True, not narrow, False, False, False]
    torch.testing.assert_close(found, robot(own, torch.tensor(own)), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(found, robot([True] * 6, None), rtol=1e-2, atol=1e-2)
