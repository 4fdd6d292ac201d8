"""Networks of other dimensions, many candidates and given first actions against the naive formulation; its videos."""

from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor

from support.naive_pi05 import NaivePi0, Sample, paper_weights, samples
from understudy.policies.common.flow_matching import sample_given, sample_guided
from understudy.policies.common.settings import TowerSizes
from understudy.policies.pi05.config import Sizes, VisionSizes
from understudy.policies.pi05.network import Pi0Network
from understudy.policies.pi05.released_keys import released_key

TOWER = {"depth": 2, "num_heads": 6, "num_kv_heads": 3, "head_dim": 4}
SIZES = Sizes(
    vision=VisionSizes(width=12, depth=4, mlp=20, heads=3, patch=3, image=6),
    vlm=TowerSizes(width=20, mlp_dim=28, **TOWER),
    expert=TowerSizes(width=14, mlp_dim=18, **TOWER),
    vocab=30,
    chunk=4,
    dim=3,
)
BOTH = pytest.mark.parametrize("adaptive", [True, False])
NAMES = ("images", "image_masks", "tokens", "token_masks", "state")


def networks(adaptive: bool) -> tuple[Pi0Network, NaivePi0]:
    """(network with random parameters, naive network of the same weights)."""
    sizes = replace(SIZES, adaptive=adaptive)
    network, draw = Pi0Network(sizes), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in network.parameters():
            scale = 0.3 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * scale)
    weights = {released_key(name): value.detach().double() for name, value in network.named_parameters()}
    return network, NaivePi0(weights, asdict(sizes))


def draw_inputs() -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(4)
    return {
        "images": torch.rand(2, 2, 3, 6, 6, generator=draw) * 2 - 1,
        "image_masks": torch.tensor([[True, True], [False, True]]),
        "tokens": torch.randint(1, 30, (2, 5), generator=draw),
        "token_masks": torch.arange(5) < torch.tensor([[5], [2]]),
        "state": torch.randn(2, 3, generator=draw),
        "actions": torch.randn(2, 4, 3, generator=draw),
        "noise": torch.randn(2, 4, 3, generator=draw),
        "time": torch.tensor([0.3, 0.8]),
    }


def distance(found: Tensor, reference: Tensor) -> float:
    return float((found.double() - reference).detach().abs().max() / reference.detach().abs().max())


@BOTH
def test_several_heads_of_keys_and_values(adaptive: bool) -> None:
    network, slow = networks(adaptive)
    inputs = draw_inputs()
    found = network.flow_loss(*(inputs[name] for name in (*NAMES, "actions", "noise", "time")))
    wanted = torch.stack([slow.flow_loss(sample) for sample in samples(inputs)])
    assert distance(found, wanted) <= 1e-6


@BOTH
def test_candidates_share_a_cache(adaptive: bool) -> None:
    network, slow = networks(adaptive)
    inputs = draw_inputs()
    noise = torch.stack([inputs["noise"], inputs["actions"], inputs["noise"].flip(1)], dim=1)
    with torch.no_grad():
        found = network.sample(*(inputs[name] for name in NAMES), noise, steps=4)
    for i, sample in enumerate(samples(inputs)):
        for candidate, start in zip(found[i], noise[i].double()):
            assert distance(candidate, slow.sample(replace(sample, noise=start), 4)) <= 3e-6  # four steps


@BOTH
def test_times_per_action_beside_a_cache(adaptive: bool) -> None:
    network, slow = networks(adaptive)
    inputs, times = draw_inputs(), [0.0, 0.0, 0.7, 0.7]
    with torch.no_grad():
        field = network.field(network.observe(*(inputs[name] for name in NAMES[:4])), inputs["state"])
        found = field(inputs["noise"], torch.tensor([times, times]))
        times = torch.tensor(times).double().tolist()  # as float32 has them
        wanted = [slow.velocity(sample, sample.noise, times) for sample in samples(inputs)]
    assert distance(found, torch.stack(wanted)) <= 1e-6


# Real-time chunking


@BOTH
def test_sampling_behind_given_actions(adaptive: bool) -> None:
    network, slow = networks(adaptive)
    inputs = draw_inputs()
    with torch.no_grad():
        field = network.field(network.observe(*(inputs[name] for name in NAMES[:4])), inputs["state"])
        found = sample_given(field, inputs["noise"], inputs["actions"], 2, steps=4)
        plain = network.sample(*(inputs[name] for name in NAMES), inputs["noise"], steps=4)
    wanted = [slow.sample(sample, 4, clean=sample.actions[:2]) for sample in samples(inputs)]
    assert distance(found, torch.stack(wanted)) <= 1e-6
    assert distance(plain, torch.stack(wanted)) > 1e-2


@pytest.mark.long
@BOTH
def test_guided_sampling(adaptive: bool) -> None:
    network, slow = networks(adaptive)
    inputs = draw_inputs()
    with torch.no_grad():
        field = network.field(network.observe(*(inputs[name] for name in NAMES[:4])), inputs["state"])
        found = sample_guided(field, inputs["noise"], inputs["actions"], 1, 3, steps=3)
        # The whole chunk at hand with a weight, as a control.
        other = sample_guided(field, inputs["noise"], inputs["actions"], 1, 4, steps=3)
    weights = paper_weights(4, 1, 3)
    wanted = [slow.guided_sample(sample, sample.actions, weights, 5.0, 3) for sample in samples(inputs)]
    assert distance(found, torch.stack(wanted)) <= 1e-5
    assert distance(other, torch.stack(wanted)) > 1e-3


# The naive memory, which later tests may take as their reference


def frames(count: int) -> list[Tensor]:
    draw = torch.Generator().manual_seed(5)
    return [torch.rand(3, 6, 6, generator=draw, dtype=torch.float64) * 2 - 1 for _ in range(count)]


def test_memory_of_one_frame_is_the_plain_encoder() -> None:
    _, slow = networks(True)
    (image,) = frames(1)
    plain = slow.image_features(image)
    assert distance(slow.video_features([image], [True], every=2), plain) < 1e-12
    # Masked history counts as absent, and the age of a frame does not depend on it.
    assert distance(slow.video_features([*frames(3)[1:], image], [False, False, True], every=2), plain) < 1e-12


def test_memory_sees_valid_frames_and_their_age() -> None:
    _, slow = networks(True)
    one, two, last = frames(3)
    found = slow.video_features([one, two, last], [True] * 3, every=2)
    assert distance(slow.video_features([two, one, last], [True] * 3, every=2), found) > 1e-3
    assert distance(slow.video_features([one * 0, two, last], [True] * 3, every=2), found) > 1e-3
    assert distance(slow.video_features([one, two, last], [False, True, True], every=2), found) > 1e-3
    shorter = slow.video_features([two, last], [True] * 2, every=2)
    assert distance(slow.video_features([one, two, last], [False, True, True], every=2), shorter) < 1e-12


def test_naive_clean_actions_stay_as_given() -> None:
    _, slow = networks(True)
    sample: Sample = samples(draw_inputs())[0]
    found = slow.sample(sample, 3, clean=sample.actions[:2])
    assert torch.equal(found[:2], sample.actions[:2])
    assert distance(found[2:], slow.sample(sample, 3)[2:]) > 1e-3
