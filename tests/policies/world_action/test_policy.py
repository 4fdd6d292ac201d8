"""The world-action model: given streams stay and count nothing, padding reaches nothing, modes lead where they say."""

import math
from typing import Any

import pytest
import torch

from understudy.policies.common.settings import FORWARD, INVERSE, MODES, POLICY, TRAINS
from understudy.policies.draws import make_draws
from understudy.policies.losses import scalar
from understudy.policies.world_action.config import WorldActionConfig
from understudy.policies.world_action.network import CHANGE, CLOSED, to_images, to_patches
from understudy.policies.world_action.policy import WorldActionPolicy

CAMERAS = ("front", "wrist")
UNITS = {
    "action": {"offset": [0.0] * 3, "spread": [1.0] * 3},
    "observation.state": {"offset": [0.5] * 2, "spread": [2.0] * 2},
}


def policy(**changes: Any) -> WorldActionPolicy:
    """A tiny network with fresh weights; those that start at 0 are drawn."""
    sizes = {"width": 16, "layers": 2, "heads": 2, "channels": 8, "blocks": 1, "keypoints": 4}
    images = {"cameras": CAMERAS, "image_size": (16, 24), "patch": 8, "future_patch": 8, "future_images": 2}
    settings: dict[str, Any] = {"action_dim": 3, "state_dim": 2, "chunk": 4, "future": True, **sizes, **images}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = WorldActionPolicy(WorldActionConfig(**(settings | changes)), UNITS)
        for parameter in made.parameters():
            if not parameter.any():
                torch.nn.init.normal_(parameter, std=0.1)
    return made


def lessons(modes: list[str]) -> dict[str, Any]:
    count, generator = len(modes), torch.Generator().manual_seed(3)
    batch: dict[str, Any] = {"task": [f"task {number % 2}" for number in range(count)]}
    batch["action"] = torch.randn(count, 4, 3, generator=generator)
    batch["action_is_pad"] = torch.zeros(count, 4, dtype=torch.bool)
    batch["observation.state"] = torch.randn(count, 5, 2, generator=generator)
    batch["observation.state_is_pad"] = torch.zeros(count, 5, dtype=torch.bool)
    for camera in CAMERAS:
        batch[camera] = torch.randint(0, 256, (count, 3, 3, 32, 48), generator=generator, dtype=torch.uint8)
        batch[f"{camera}_is_pad"] = torch.zeros(count, 3, dtype=torch.bool)
    batch["mode"] = torch.tensor([MODES.index(mode) for mode in modes])
    return batch


def numbers(model: WorldActionPolicy, count: int, use: Any = "train") -> dict[str, torch.Tensor]:
    return make_draws(model.random_spec(use), 7, torch.arange(count))


def losses(model: WorldActionPolicy, batch: dict[str, Any], **changed: Any) -> dict[str, tuple[list[float], list[int]]]:
    found = model.losses(batch | changed, numbers(model, len(batch["task"])))
    return {term: (each.sum.tolist(), each.count.tolist()) for term, each in found.items()}


def test_patches_and_images_are_inverse() -> None:
    images = torch.randn(2, 5, 3, 16, 24)
    patches = to_patches(images, 8)
    assert patches.shape == (2, 5, 6, 192)
    assert torch.equal(patches[0, 0, 4].view(3, 8, 8), images[0, 0, :, 8:, 8:16])
    assert torch.equal(to_images(patches, 16, 8), images)


def test_each_mode_trains_its_streams_alone() -> None:
    """A given stream has no elements; `joint` is a mixture of modes, so each loss has fewer samples."""
    model, batch = policy(), lessons([POLICY, FORWARD, INVERSE])
    found = model.losses(batch, numbers(model, 3))
    for term, loss in found.items():
        trained = [term in TRAINS[mode] for mode in (POLICY, FORWARD, INVERSE)]
        assert (loss.count > 0).tolist() == (loss.sum > 0).tolist() == trained
        assert torch.equal(loss.count, model.counts(batch, numbers(model, 3))[term])
    assert tuple(found) == model.loss_terms == ("flow", "dynamics", "images")


def test_a_policy_without_a_future_predicts_actions_alone() -> None:
    """`mode: policy` is the default of a run: no loss of a future is trained beside the actions."""
    model, batch = policy(future=False), lessons([POLICY])
    assert (model.loss_terms, model.modes) == (("flow",), (POLICY,))
    now = {"observation.state": batch["observation.state"][:, 0], **{key: batch[key][:, 0] for key in CAMERAS}}
    with pytest.raises(ValueError, match="mode"):
        losses(model, batch, **now)
    del batch["mode"]
    assert list(losses(model, batch, **now)) == ["flow"]
    with pytest.raises(ValueError, match=FORWARD):
        model.imagine(batch | now, numbers(model, 1, "act"))


def test_given_streams_reach_the_others_without_noise() -> None:
    """The noise of the given stream changes nothing; its content changes the others. Predicted streams are noisy."""
    model, batch = policy(), lessons([FORWARD, INVERSE])
    draws = numbers(model, 2)
    plain = model.losses(batch, draws)
    for name, row in (("flow noise", 0), ("future noise", 1), ("image noise", 1)):
        other = model.losses(batch, draws | {name: draws[name] + 1.0})
        same = [torch.equal(plain[term].sum[row], other[term].sum[row]) for term in plain]
        assert all(same), name
        assert any(not torch.equal(plain[term].sum[1 - row], other[term].sum[1 - row]) for term in plain)
    moved = model.losses(batch | {"action": batch["action"] + 1.0}, draws)
    assert not torch.equal(plain["images"].sum[0], moved["images"].sum[0])
    shown = batch["front"].clone()
    shown[:, 2] = 0
    assert not torch.equal(plain["flow"].sum[1], model.losses(batch | {"front": shown}, draws)["flow"].sum[1])


def test_padded_slots_and_missing_cameras_reach_nothing() -> None:
    model, batch = policy(), lessons([POLICY, POLICY])
    batch["action_is_pad"][0, 3:] = batch["observation.state_is_pad"][0, 4:] = True
    batch["front_is_pad"][0, 2:] = batch["wrist_is_pad"][0, 2:] = True
    batch["wrist_is_missing"] = torch.tensor([False, True])
    plain = losses(model, batch)
    action, state = batch["action"].clone(), batch["observation.state"].clone()
    action[0, 3:] = state[0, 4:] = float("nan")
    front, wrist = batch["front"].clone(), batch["wrist"].clone()
    front[0, 2] = wrist[0, 2] = 255
    wrist[1] = 255
    hidden = {"action": action, "observation.state": state, "front": front, "wrist": wrist}
    assert losses(model, batch, **hidden) == plain
    assert plain["images"][1] == [
        2 * 2 * 6 * 192,
        2 * 2 * 6 * 192,
    ]  # draws x frames (or cameras) left x patches x pixels
    front = front.clone()
    front[0, 1] = 0
    assert losses(model, batch, **(hidden | {"front": front})) != plain


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    model, batch = policy(), lessons([POLICY, FORWARD, INVERSE])
    draws = numbers(model, 3)
    together = model.losses(batch, draws)
    for row in range(3):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        alone = model.losses(one, {key: value[row : row + 1] for key, value in draws.items()})
        for term, loss in alone.items():
            torch.testing.assert_close(loss.sum[0], together[term].sum[row], rtol=1e-5, atol=1e-5)


def test_fresh_weights_imagine_that_little_changes() -> None:
    """The mask of new content starts at 12 %: forward dynamics starts near a copy of the present."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = WorldActionPolicy(policy().config, UNITS)
    batch = lessons([FORWARD, FORWARD])
    batch = {key: value for key, value in batch.items() if "_is_pad" not in key and key != "mode"}
    batch |= {key: batch[key][:, 0] for key in CAMERAS} | {"observation.state": batch["observation.state"][:, 0]}
    found = model.imagine(batch, numbers(model, 2, "act"), steps=3)
    assert found.images is not None
    assert found.images.shape == (2, 2, 2, 3, 16, 24)
    area = torch.nn.functional.interpolate(batch["front"].float(), size=(16, 24), mode="area")
    share = 1 / (1 + math.exp(-CLOSED))
    expected = area + share * (127.5 - area)
    assert (found.images[:, :, 0].float() - expected[:, None]).abs().max() <= 1
    assert torch.allclose(found.actions, batch["action"])
    assert found.states.shape == (2, 4, 2)


def test_actions_that_a_future_implies_are_sampled_from_it() -> None:
    model, batch = policy(), lessons([INVERSE])
    draws = numbers(model, 1, "act")
    given = model.act(batch, draws, steps=2, mode=INVERSE)
    assert given.shape == (1, 4, 3)
    other = batch["observation.state"].clone()
    other[:, 1:] += 1
    assert not torch.equal(given, model.act(batch | {"observation.state": other}, draws, steps=2, mode=INVERSE))
    own = model.act(batch, draws, steps=2)
    assert torch.equal(own, model.act(batch | {"observation.state": other}, draws, steps=2))
    with pytest.raises(ValueError, match=FORWARD):
        model.act(batch, draws, mode=FORWARD)


def test_every_weight_is_trained() -> None:
    """No parameter is without a gradient, so nothing is stored, averaged and decayed that no loss reaches."""
    model, batch = policy(), lessons([POLICY, FORWARD, INVERSE])
    scalar(model.losses(batch, numbers(model, 3))).backward()  # type: ignore[no-untyped-call]
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_images_have_noisier_times_than_vectors_and_end_clean() -> None:
    """Half of the images' times lie above 0.9, of the others' an eighth. A sample ends at time 0."""
    model = policy()
    drawn = make_draws(model.random_spec("train"), 7, torch.arange(2000))
    shares = {term: float((drawn[f"{term} time"] > 0.9).double().mean()) for term in ("dynamics", "images")}
    assert shares["dynamics"] == pytest.approx(1 - 0.9**1.5, abs=0.02)
    assert shares["images"] == pytest.approx(1 - (0.9 / (8 - 7 * 0.9)) ** 1.5, abs=0.02)
    batch = lessons([FORWARD, FORWARD])
    clean = torch.full((2, 1, 2 * 2 * 6, 192), 0.5)

    def perfect(context: Any, points: dict[str, torch.Tensor], times: Any) -> dict[str, torch.Tensor]:
        return {term: clean if term == "images" else torch.zeros_like(x) for term, x in points.items()}

    model.network.predict = perfect  # type: ignore[method-assign, assignment]
    for steps in (1, 3):
        found = model.imagine(batch, numbers(model, 2, "act"), steps).images
        now = torch.stack([batch[key][:, 0] for key in CAMERAS], dim=1)
        shown = torch.nn.functional.interpolate(now.flatten(0, 1).float(), size=(16, 24), mode="area").view(
            2, 2, 3, 16, 24
        )
        expected = (shown + 0.5 * CHANGE * 127.5).round().clamp(0, 255)
        assert found is not None
        assert (found.float() - expected[:, None]).abs().max() <= 1


@pytest.mark.long
def test_a_few_samples_are_learnt_in_every_mode() -> None:
    """150 steps on three samples: each loss falls to less than a quarter."""
    model, batch = policy(width=32), lessons([POLICY, FORWARD, INVERSE])
    draws = numbers(model, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    series = []
    for _ in range(150):
        found = model.losses(batch, draws)
        series.append([(loss.sum.sum() / loss.count.sum()).item() for loss in found.values()])
        optimizer.zero_grad()
        scalar(found).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert all(last < first / 4 for first, last in zip(series[0], series[-1])), (series[0], series[-1])
