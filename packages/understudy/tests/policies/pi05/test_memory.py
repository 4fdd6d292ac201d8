"""Past frames in the vision encoder: the naive formulation, masks, causality and times, with
controls.
"""

from collections.abc import Callable
from dataclasses import asdict, replace

import pytest
import torch
from torch import Tensor

from understudy.distributed.activation_checkpoint import apply_activation_checkpointing
from understudy.policies.pi05 import network as siglip
from understudy.policies.pi05.config import BASE, TINY, VisionSizes
from understudy.policies.pi05.network import Frames, Pi0Network, VisionEncoder
from understudy.policies.pi05.released_keys import released_key
from understudy.testing.naive_pi05 import NaivePi0
from understudy.testing.pi05 import SMALL
from understudy_base.testing.refusals import refused

SIZES = replace(
    SMALL,
    vision=VisionSizes(width=12, depth=5, mlp=20, heads=3, patch=3, image=6, temporal_every=2),
)
SIDE = SIZES.vision.image
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])


def network(dtype: torch.dtype = torch.float32) -> Pi0Network:
    """A network with temporal layers 1 and 3 of 5, in which every parameter matters."""
    made = Pi0Network(SIZES, dtype)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            scale = 0.3 if parameter.ndim == 1 else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn(parameter.shape, generator=draw) * scale)
    return made


def videos(count: int, frames: int, seed: int = 1) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.rand(count, frames, 3, SIDE, SIDE, generator=draw) * 2 - 1


def features(
    net: Pi0Network, video: Tensor, valid: Tensor | None = None, times: tuple[float, ...] = ()
) -> Tensor:
    """Features [M, n, width] of videos [M, T, ...] with one frame a second."""
    times = times or tuple(float(t) for t in range(1 - video.shape[1], 1))
    with torch.no_grad():
        marks = None if valid is None else valid[:, None]
        return net.image_features(video[:, None], Frames(times, marks))[:, 0]


def distance(found: Tensor, reference: Tensor) -> float:
    found = found.detach()
    reference = reference.detach()
    return float((found.double() - reference.double()).abs().max() / reference.double().abs().max())


MASKS = [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 0, 1], [1, 0, 1, 1]]


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
def test_encoder_equals_the_naive_loops(frames: int) -> None:
    net = network()
    weights = {
        released_key(name): value.detach().double() for name, value in net.named_parameters()
    }
    slow = NaivePi0(weights, asdict(SIZES))
    valid = torch.tensor(MASKS).bool()[:, -frames:]
    video = videos(len(valid), frames)
    found = features(net, video, valid)
    wanted = [
        slow.video_features(list(each.double()), row.tolist(), every=2)
        for each, row in zip(video, valid, strict=True)
    ]
    assert distance(found, torch.stack(wanted)) < 1e-6
    if frames > 1:  # temporal layers elsewhere are another encoder
        other = slow.video_features(list(video[0].double()), valid[0].tolist(), every=3)
        assert distance(found[0], other) > 1e-3


def test_temporal_layers_are_every_fourth_of_the_released_encoder() -> None:
    assert list(BASE.vision.temporal_layers) == [3, 7, 11, 15, 19, 23]
    assert list(TINY.vision.temporal_layers) == [2]  # fewer layers: the last
    assert list(SIZES.vision.temporal_layers) == [1, 3]


@DTYPES
def test_one_frame_is_the_plain_encoder_to_the_bit(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    net = network(dtype)
    video = videos(3, 1)
    with torch.no_grad():
        plain = net.image_features(video)[:, 0]
    assert torch.equal(features(net, video), plain)
    # A masked past counts as absent, whatever its number of frames.
    longer = torch.cat([videos(3, 3, seed=2), video], dim=1)
    masked = torch.tensor([[False, False, False, True]]).expand(3, 4)
    assert distance(features(net, longer, masked), plain) < (
        1e-6 if dtype == torch.float32 else 2e-2
    )
    encoding = siglip.time_encoding  # control: e(0) is not 0
    monkeypatch.setattr(
        siglip, "time_encoding", lambda times, width: encoding(times, width) + torch.arange(width)
    )
    assert distance(features(net, longer, masked), plain) > 3e-2


@DTYPES
def test_a_masked_past_has_the_bits_of_images_alone(dtype: torch.dtype) -> None:
    """Of as many images: in some shapes another number of them rounds matrix products
    differently.
    """
    # its last layer is the temporal one
    net = Pi0Network(TINY, dtype).vision
    draw = torch.Generator().manual_seed(1)
    video = torch.rand(3, 4, 3, TINY.vision.image, TINY.vision.image, generator=draw) * 2 - 1
    valid = torch.tensor([[False, False, False, True]]).expand(3, 4)
    blank = torch.where(valid[..., None, None, None], video, 0.0)
    with torch.no_grad():
        alone = net(blank.flatten(0, 1), dtype).unflatten(0, (3, 4))[:, -1]
        frames = Frames((-3.0, -2.0, -1.0, 0.0), valid)
        assert torch.equal(net(video, dtype, frames), alone)
        assert not torch.equal(net(video, dtype, frames._replace(valid=None)), alone)


@DTYPES
def test_masked_frames_cannot_matter(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    net = network(dtype)
    video = videos(2, 4)
    valid = torch.tensor([[False, False, True, True], [False, True, True, True]])
    found = features(net, video, valid)
    for content in (
        video * 100,
        torch.full_like(video, torch.nan),
        torch.full_like(video, -torch.inf),
    ):
        assert torch.equal(
            features(net, torch.where(valid[..., None, None, None], video, content), valid), found
        )
    black = torch.where(valid[..., None, None, None], video, -1.0)
    assert distance(features(net, black), found) > 1e-2  # black pixels are no mask


def test_a_mask_alone_lets_nan_through() -> None:
    """Control of the test above: the frames must be replaced at the entrance."""
    q = k = torch.ones(2, 1, 1, 4)
    v = torch.tensor([torch.nan, 1.0])[:, None, None, None].expand(2, 1, 1, 4)
    mask = torch.tensor([[True, False], [False, True]])[None, None]
    assert siglip.attend_over_time(q, k, v, mask)[1].isnan().all()


def test_dropped_frames_are_not_computed() -> None:
    net = network()
    video = videos(2, 3)
    rows: list[int] = []
    for layer in net.vision.layers:
        layer.register_forward_pre_hook(lambda _, given: rows.append(len(given[0])))
    features(net, video)
    assert rows == [6, 6, 6, 6, 2]


def test_cameras_of_a_sample_are_videos() -> None:
    net = network()
    video = videos(4, 4)
    valid = torch.tensor(MASKS).bool()
    cameras = net.image_features(
        video.unflatten(0, (2, 2)), Frames((-3.0, -2.0, -1.0, 0.0), valid.unflatten(0, (2, 2)))
    )
    assert distance(cameras.flatten(0, 1), features(net, video, valid)) < 1e-6


def test_missing_cameras_have_no_past() -> None:
    net = network()
    video = videos(4, 3).unflatten(0, (2, 2))
    times = (-2.0, -1.0, 0.0)
    tokens = torch.ones(2, 1, dtype=torch.int64)
    valid = torch.tensor([[[True] * 3, [True] * 3], [[False, True, True], [False] * 3]])
    there = torch.tensor([[True, True], [True, False]])
    with torch.no_grad():
        found = net.observe(video, there, tokens, None, Frames(times, valid)).embeddings
        blank = video.clone()
        blank[1, 1] = torch.nan
        again = net.observe(blank, there, tokens, None, Frames(times, valid)).embeddings
    assert torch.equal(found, again)
    count = SIZES.vision.tokens
    assert not found[1, count : 2 * count].any()
    assert found[0, count : 2 * count].any()


@pytest.mark.parametrize("mode", ["full", "selective"])
def test_recomputed_gradients_are_equal_to_the_bit(mode: str) -> None:
    video = videos(2, 3)
    times = Frames((-2.0, -1.0, 0.0), torch.tensor([[True] * 3, [False, True, True]]))

    def gradients(change: Callable[[VisionEncoder], None]) -> list[Tensor]:
        vision = network().vision
        change(vision)
        vision(video, torch.float32, times).square().sum().backward()
        return [parameter.grad for parameter in vision.parameters() if parameter.grad is not None]

    def recompute(vision: VisionEncoder) -> None:
        apply_activation_checkpointing(list(vision.layers), mode)  # type: ignore[arg-type]

    plain = gradients(lambda vision: None)
    again = gradients(recompute)
    assert len(plain) == len(list(network().vision.parameters()))
    assert all(map(torch.equal, plain, again))


@pytest.mark.parametrize(
    ("images", "frames", "shape"),
    [
        (torch.zeros(2, 1, 3, 3, SIDE, SIDE), Frames((-1.0, 0.0)), (2, 1, 3, 3, SIDE, SIDE)),
        (torch.zeros(2, 1, 3, SIDE, SIDE), Frames((-1.0, 0.0)), (2, 1, 3, SIDE, SIDE)),
        (
            torch.zeros(2, 1, 2, 3, SIDE, SIDE),
            Frames((-1.0, 0.0), torch.ones(2, 2, dtype=torch.bool)),
            (2, 2),
        ),
        (torch.zeros(2, 1, 2, 3, SIDE, SIDE), None, (2, 1, 2, 3, SIDE, SIDE)),
    ],
)
def test_other_shapes_are_errors(
    images: Tensor, frames: Frames | None, shape: tuple[int, ...]
) -> None:
    with refused(shape, kind=ValueError):
        network().image_features(images, frames)
