"""The world-action model: given streams stay and count nothing, padding reaches nothing, modes lead
where they say.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch

from understudy.policies.common.settings import TaskMode
from understudy.policies.common.towers import TowerSizes
from understudy.policies.draws import make_draws
from understudy.policies.losses import scalar
from understudy.policies.pi05.config import Pi05PolicyConfig, Sizes, VisionSizes
from understudy.policies.pi05.policy import Pi05Policy
from understudy_zoo.world_action.config import WorldActionConfig
from understudy_zoo.world_action.network import CHANGE, to_images, to_patches
from understudy_zoo.world_action.policy import WorldActionPolicy

CAMERAS = ("front", "wrist")
UNITS = {
    "action": {"offset": [0.0] * 3, "spread": [1.0] * 3},
    "observation.state": {"offset": [0.5] * 2, "spread": [2.0] * 2},
}
TOWER = {"depth": 2, "mlp_dim": 32, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
SIZES = Sizes(
    vision=VisionSizes(width=16, depth=1, mlp=32, heads=2, patch=8, image=16),
    vlm=TowerSizes(width=24, **TOWER),
    expert=TowerSizes(width=16, **TOWER),
    vocab=64,
    chunk=4,
    dim=4,
)
PATCHES = 4
"""Of a future image, of 3 * 4 * 4 numbers each."""


def policy(**changes: Any) -> WorldActionPolicy:
    """A tiny network with fresh weights in training; those that start at 0 are drawn."""
    settings: dict[str, Any] = {
        "action_dim": 3,
        "state_dim": 2,
        "chunk": 4,
        "future": True,
        "cameras": CAMERAS,
    }
    settings |= {
        "dimensions": asdict(SIZES),
        "future_images": 2,
        "future_patch": 8,
        "noise_samples": 2,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return drawn(WorldActionPolicy(WorldActionConfig(**(settings | changes)), UNITS))


def drawn(made: Any) -> Any:
    for parameter in made.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return made


def lessons(modes: list[str]) -> dict[str, Any]:
    count = len(modes)
    generator = torch.Generator().manual_seed(3)
    batch: dict[str, Any] = {"task": [f"task {number % 2}" for number in range(count)]}
    batch["action"] = torch.randn(count, 4, 3, generator=generator)
    batch["action_is_pad"] = torch.zeros(count, 4, dtype=torch.bool)
    batch["observation.state"] = torch.randn(count, 5, 2, generator=generator)
    batch["observation.state_is_pad"] = torch.zeros(count, 5, dtype=torch.bool)
    for camera in CAMERAS:
        batch[camera] = torch.randint(
            0, 256, (count, 3, 3, 16, 16), generator=generator, dtype=torch.uint8
        )
        batch[f"{camera}_is_pad"] = torch.zeros(count, 3, dtype=torch.bool)
    batch["prompt_tokens"] = torch.randint(4, 64, (count, 6), generator=generator)
    batch["prompt_is_pad"] = torch.arange(6) >= torch.tensor([4, 6, 5, 4])[:count, None]
    batch["mode"] = torch.tensor([TaskMode.ALL.index(mode) for mode in modes])
    return batch


def now(batch: Mapping[str, Any]) -> dict[str, Any]:
    """A batch to act on: the present alone."""
    kept = {
        key: value
        for key, value in batch.items()
        if not key.endswith("_is_pad") or key.startswith("prompt")
    }
    kept |= {
        "observation.state": batch["observation.state"][:, 0],
        **{key: batch[key][:, 0] for key in CAMERAS},
    }
    del kept["mode"], kept["action"]
    return kept


def numbers(model: WorldActionPolicy, count: int, use: Any = "train") -> dict[str, torch.Tensor]:
    return make_draws(model.random_spec(use), 7, torch.arange(count))


def losses(
    model: WorldActionPolicy, batch: dict[str, Any], **changed: Any
) -> dict[str, tuple[list[float], list[int]]]:
    found = model.losses(batch | changed, numbers(model, len(batch["task"])))
    return {term: (each.sum.tolist(), each.count.tolist()) for term, each in found.items()}


def test_patches_are_the_lower_half_of_cosines() -> None:
    """An image of low frequencies survives; of any other the mean of each patch does, and decoding
    is the transpose.
    """
    images = torch.randn(2, 5, 3, 16, 24)
    patches = to_patches(images, 8)
    assert patches.shape == (2, 5, 6, 48)
    means = images[0, 0, :, 8:, 8:16].mean(dim=(1, 2))
    torch.testing.assert_close(patches[0, 0, 4].view(3, 4, 4)[:, 0, 0], 8 * means)
    smooth = to_images(patches, 16, 8)
    assert smooth.shape == images.shape
    torch.testing.assert_close(to_patches(smooth, 8), patches)
    torch.testing.assert_close((images * smooth).sum(), smooth.square().sum())


def test_each_mode_trains_its_streams_alone() -> None:
    """A given stream has no elements; `joint` is a mixture of modes, so each loss has fewer
    samples.
    """
    batch = lessons([TaskMode.POLICY, TaskMode.FORWARD, TaskMode.INVERSE])
    for made, acts in ((policy().eval(), False), (policy(), True)):
        found = made.losses(batch, numbers(made, 3))
        for term, loss in found.items():
            trained = [
                term in TaskMode.TRAINS[mode] or (acts and term == "flow")
                for mode in (TaskMode.POLICY, TaskMode.FORWARD, TaskMode.INVERSE)
            ]
            assert (loss.count > 0).tolist() == (loss.sum > 0).tolist() == trained
            assert torch.equal(loss.count, made.counts(batch, numbers(made, 3))[term])
        assert tuple(found) == made.loss_terms == ("flow", "dynamics", "images")
    plain = policy(acts=False)  # a run without mode `policy` trains no policy
    flow = plain.losses(batch, numbers(plain, 3))["flow"]
    assert (flow.count > 0).tolist() == [True, False, True]


def test_policy_computes_as_pi05_whatever_the_future_adds() -> None:
    """In training, in validation and to act: loss, gradients of the action loss, and actions."""
    model = policy()
    batch = lessons([TaskMode.POLICY, TaskMode.POLICY, TaskMode.POLICY])
    config = {
        k: v
        for k, v in vars(model.config).items()
        if k in Pi05PolicyConfig.__dataclass_fields__ and k != "type"
    }
    plain = drawn(Pi05Policy(Pi05PolicyConfig(**config | {"future": False}), UNITS))
    weights = {
        name: value for name, value in model.state_dict().items() if not name.startswith("future.")
    }
    plain.load_state_dict(weights)
    draws = numbers(model, 3)
    both = [
        made.losses(batch if made is model else now(batch) | _actions(batch), draws)["flow"]
        for made in (model, plain)
    ]
    torch.testing.assert_close(both[0].sum, both[1].sum, rtol=1e-5, atol=1e-5)
    assert torch.equal(both[0].count, both[1].count)
    for loss in both:
        loss.sum.sum().backward()
    for name, parameter in plain.named_parameters():
        other = model.get_parameter(name).grad
        if parameter.grad is not None and other is not None:
            torch.testing.assert_close(other, parameter.grad, rtol=1e-4, atol=1e-5)
    noise = numbers(model, 3, "act")
    torch.testing.assert_close(
        model.act(now(batch), noise, steps=3), plain.act(now(batch), noise, steps=3)
    )


def _actions(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {key: batch[key] for key in ("action", "action_is_pad")}


def test_packed_tokens_have_the_losses_of_padded_ones() -> None:
    model = policy()
    batch = lessons([TaskMode.POLICY, TaskMode.FORWARD, TaskMode.INVERSE])
    batch["wrist_is_missing"] = torch.tensor([False, True, False])
    padded = losses(model, batch)
    sizes = model.tokens(batch)
    model.packs = True
    packed = losses(model, batch)
    for term, (sums, counts) in padded.items():
        assert packed[term][0] == pytest.approx(sums, rel=1e-5)
        assert packed[term][1] == counts
    ahead = 2 * (4 + 4 + 4 + 2 * 2 * PATCHES)
    assert sizes == [2 * 4 + 4 + ahead, 4 + 6 + ahead, 2 * 4 + 5 + ahead]


@pytest.mark.parametrize("packs", [False, True])
def test_the_future_is_sampled_by_the_function_that_is_trained(
    packs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second block predicts the same next to the policy's block, in training, as alone, in
    sampling.
    """
    model = policy(noise_samples=1).eval()
    batch = lessons([TaskMode.FORWARD, TaskMode.FORWARD])
    model.packs = packs
    calls: dict[str, Any] = {}

    def keep(owner: Any, name: str) -> Any:
        plain = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] = (arguments, plain(*arguments, **named))
            return calls[name][1]

        monkeypatch.setattr(owner, name, call)
        return plain

    suffix = keep(model.future, "suffix")
    read = keep(model.future, "read")
    _ = keep(model, "run")
    model.losses(batch, numbers(model, 2))
    trained, _ = calls["read"][1]
    alone = suffix(*calls["suffix"][0][:4])
    sampled, _ = read(model, model.expert_alone(calls["run"][0][0])(alone), 1)
    assert set(sampled) == {"flow", "dynamics", "images"}
    for term, predicted in trained.items():
        torch.testing.assert_close(sampled[term], predicted, rtol=1e-4, atol=1e-5)


def test_a_policy_without_a_future_predicts_actions_alone() -> None:
    """`mode: policy` is the default of a run: no loss of a future is trained beside the actions."""
    model = policy(future=False)
    batch = lessons([TaskMode.POLICY])
    assert (model.loss_terms, model.modes) == (("flow",), (TaskMode.POLICY,))
    assert not [name for name, _ in model.named_parameters() if name.startswith("future.")]
    assert list(losses(model, now(batch) | _actions(batch))) == ["flow"]
    for mode in (TaskMode.FORWARD, TaskMode.POLICY):
        with pytest.raises(ValueError, match=mode):
            model.imagine(now(batch), numbers(model, 1, "act"), mode=mode)


def test_given_streams_reach_the_others_without_noise() -> None:
    """The noise of the given stream changes nothing; its content changes the others. Predicted
    streams are noisy.
    """
    model = policy().eval()
    batch = lessons([TaskMode.FORWARD, TaskMode.INVERSE])
    draws = numbers(model, 2)
    plain = model.losses(batch, draws)
    for name, row in (("flow noise", 0), ("dynamics noise", 1), ("images noise", 1)):
        other = model.losses(batch, draws | {name: draws[name] + 1.0})
        same = [torch.equal(plain[term].sum[row], other[term].sum[row]) for term in plain]
        assert all(same), name
        assert any(
            not torch.equal(plain[term].sum[1 - row], other[term].sum[1 - row]) for term in plain
        )
    moved = model.losses(batch | {"action": batch["action"] + 1.0}, draws)
    assert not torch.equal(plain["images"].sum[0], moved["images"].sum[0])
    shown = batch["front"].clone()
    shown[:, 2] = 0
    assert not torch.equal(
        plain["flow"].sum[1], model.losses(batch | {"front": shown}, draws)["flow"].sum[1]
    )


def test_padded_slots_and_missing_cameras_reach_nothing() -> None:
    model = policy()
    batch = lessons([TaskMode.POLICY, TaskMode.POLICY])
    batch["action_is_pad"][0, 3:] = batch["observation.state_is_pad"][0, 4:] = True
    batch["front_is_pad"][0, 2:] = batch["wrist_is_pad"][0, 2:] = True
    batch["wrist_is_missing"] = torch.tensor([False, True])
    plain = losses(model, batch)
    action = batch["action"].clone()
    state = batch["observation.state"].clone()
    action[0, 3:] = state[0, 4:] = float("nan")
    front = batch["front"].clone()
    wrist = batch["wrist"].clone()
    front[0, 2] = wrist[0, 2] = 255
    wrist[1] = 255
    hidden = {"action": action, "observation.state": state, "front": front, "wrist": wrist}
    assert losses(model, batch, **hidden) == plain
    # draws x frames (or cameras) left x patches x numbers
    assert plain["images"][1] == [2 * 2 * PATCHES * 48] * 2
    front = front.clone()
    front[0, 1] = 0
    assert losses(model, batch, **(hidden | {"front": front})) != plain


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    model = policy()
    batch = lessons([TaskMode.POLICY, TaskMode.FORWARD, TaskMode.INVERSE])
    draws = numbers(model, 3)
    together = model.losses(batch, draws)
    for row in range(3):
        one = {key: value[row : row + 1] for key, value in batch.items()}
        alone = model.losses(one, {key: value[row : row + 1] for key, value in draws.items()})
        for term, loss in alone.items():
            torch.testing.assert_close(loss.sum[0], together[term].sum[row], rtol=1e-5, atol=1e-5)


def test_fresh_weights_imagine_the_present() -> None:
    model = policy()
    torch.nn.init.zeros_(model.get_parameter("future.out_proj.images.weight"))
    torch.nn.init.zeros_(model.get_parameter("future.out_proj.images.bias"))
    batch = lessons([TaskMode.FORWARD, TaskMode.FORWARD])
    seen = now(batch) | {"action": batch["action"]}
    found = model.imagine(seen, numbers(model, 2, "act"), steps=3)
    assert found.images is not None
    assert found.images.shape == (2, 2, 2, 3, 16, 16)
    assert torch.equal(found.images[:, :, 0], seen["front"][:, None].expand(-1, 2, -1, -1, -1))
    assert torch.allclose(found.actions, batch["action"], atol=1e-6)
    assert found.states.shape == (2, 4, 2)


def test_futures_of_mode_policy_follow_its_own_actions() -> None:
    model = policy()
    batch = lessons([TaskMode.POLICY])
    draws = numbers(model, 1, "act")
    own = model.imagine(now(batch), draws, steps=2, mode=TaskMode.POLICY)
    actions = model.act(now(batch), draws, steps=2)
    assert torch.allclose(own.actions, actions, atol=1e-6)
    assert torch.equal(
        own.states, model.imagine(now(batch) | {"action": actions}, draws, steps=2).states
    )


def test_actions_that_a_future_implies_are_sampled_from_it() -> None:
    model = policy()
    batch = lessons([TaskMode.INVERSE])
    draws = numbers(model, 1, "act")
    given = model.act(batch, draws, steps=2, mode=TaskMode.INVERSE)
    assert given.shape == (1, 4, 3)
    other = batch["observation.state"].clone()
    other[:, 1:] += 1
    assert not torch.equal(
        given,
        model.act(batch | {"observation.state": other}, draws, steps=2, mode=TaskMode.INVERSE),
    )
    own = model.act(batch, draws, steps=2)
    assert torch.equal(own, model.act(batch | {"observation.state": other}, draws, steps=2))
    with pytest.raises(ValueError, match=TaskMode.FORWARD):
        model.act(batch, draws, mode=TaskMode.FORWARD)


def test_every_weight_of_the_future_is_trained() -> None:
    """Beside the last layer of the language tower, which the released files have, every parameter
    has a gradient.
    """
    model = policy()
    batch = lessons([TaskMode.POLICY, TaskMode.FORWARD, TaskMode.INVERSE])
    scalar(model.losses(batch, numbers(model, 3))).backward()  # type: ignore[no-untyped-call]
    idle = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert idle
    assert all(name.startswith(("layers.1.vlm.", "vlm_norm.")) for name in idle)


def test_images_have_noisier_times_than_vectors_and_end_clean() -> None:
    """Half of the images' times lie above 0.9, of the others' an eighth. A sample ends at time
    0.
    """
    model = policy()
    made = make_draws(model.random_spec("train"), 7, torch.arange(2000))
    shares = {
        term: float((made[f"{term} time"] > 0.9).double().mean()) for term in ("dynamics", "images")
    }
    assert shares["dynamics"] == pytest.approx(1 - 0.9**1.5, abs=0.02)
    assert shares["images"] == pytest.approx(1 - (0.9 / (8 - 7 * 0.9)) ** 1.5, abs=0.02)
    batch = lessons([TaskMode.FORWARD, TaskMode.FORWARD])
    target = (
        np.linspace(-0.5, 0.5, 16)[:, None, None]
        .repeat(3, 0)
        .reshape(16, 3, 1)
        .transpose(1, 0, 2)
        .repeat(16, 2)
    )
    clean = (
        to_patches(torch.from_numpy(target).float(), 8).repeat(4, 1).expand(2, 1, -1, -1) / CHANGE
    )

    def perfect(network: Any, result: torch.Tensor, count: int) -> Any:
        made = {
            "dynamics": torch.zeros(2, 1, 4, 4),
            "flow": torch.zeros(2, 1, 4, 4),
            "images": clean,
        }
        return made, None

    model.future.read = perfect  # type: ignore[method-assign]
    seen = (
        now(batch)
        | {"action": batch["action"]}
        | dict.fromkeys(CAMERAS, torch.full((2, 3, 16, 16), 128))
    )
    seen |= {camera: seen[camera].to(torch.uint8) for camera in CAMERAS}
    smooth = to_images(clean[0, 0, :PATCHES] * CHANGE, 16, 8)
    for steps in (1, 3):
        found = model.imagine(seen, numbers(model, 2, "act"), steps).images
        assert found is not None
        assert (found[0, 0, 0].float() - (128 + smooth * 127.5)).abs().max() <= 1


@pytest.mark.long
def test_a_few_samples_are_learnt_in_every_mode() -> None:
    """300 steps on three samples: each loss falls to less than a third."""
    model = policy()
    batch = lessons([TaskMode.POLICY, TaskMode.FORWARD, TaskMode.INVERSE])
    draws = numbers(model, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    series = []
    for _ in range(300):
        found = model.losses(batch, draws)
        series.append([(loss.sum.sum() / loss.count.sum()).item() for loss in found.values()])
        optimizer.zero_grad()
        scalar(found).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert all(last < first / 3 for first, last in zip(series[0], series[-1])), (
        series[0],
        series[-1],
    )


def test_text_to_predict_is_next_to_a_future() -> None:
    """Its loss joins the others, and every stream sees the response."""
    model = policy(response_tokens=3, insulation=False)
    batch = lessons([TaskMode.POLICY, TaskMode.FORWARD, TaskMode.INVERSE])
    batch["response_tokens"] = torch.tensor([[5, 6, 1], [7, 1, 0], [8, 9, 1]])
    batch["response_is_pad"] = batch["response_tokens"] == 0
    draws = numbers(model, 3)
    found = model.losses(batch, draws)
    assert set(found) == set(model.loss_terms) == {"flow", "text", "dynamics", "images"}
    for term, loss in found.items():
        assert torch.equal(loss.count, model.counts(batch, draws)[term])
    other = model.losses(
        batch | {"response_tokens": batch["response_tokens"].clone().fill_(11)}, draws
    )
    assert all(not torch.equal(found[term].sum, other[term].sum) for term in found)
