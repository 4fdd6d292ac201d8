"""pi0.5 and pi0 as a policy: losses and counts of a batch, insulation, bad values, saving,
acting.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

pytest.importorskip("sentencepiece", reason="needs the extra pi05")
pytest.importorskip("tokenizers", reason="needs the extra pi05")

from understudy.config.train import OptimConfig
from understudy.optim.param_groups import freeze
from understudy.policies.common.fast_tokenizer import FastTokenizer
from understudy.policies.common.flow_matching import euler
from understudy.policies.common.images import letterbox
from understudy.policies.common.layers import token_cross_entropy
from understudy.policies.draws import generate_draws, make_draws
from understudy.policies.inference import RobotPolicy, load_policy
from understudy.policies.losses import Loss, scalar
from understudy.policies.pi05.config import Pi05PolicyConfig, Pi05Settings
from understudy.policies.pi05.policy import Pi05Policy
from understudy.policies.pi05.targets import cut, padded_length, respond
from understudy.policies.registry import policy_type
from understudy.testing.pi05_policy import CAMERAS, batch, policy
from understudy.testing.policies import editable
from understudy.testing.sentences import write_model
from understudy_base.testing.refusals import refused

BOTH = pytest.mark.parametrize("adaptive", [True, False], ids=["pi05", "pi0"])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def fast(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("fast")
    time = np.linspace(0, 1, 4)[:, None]
    FastTokenizer.fit(
        [np.sin(time * rate + np.arange(3)) for rate in np.linspace(0, 3, 200)], vocab_size=60
    ).save(folder)
    return str(folder)


def losses(
    made: Pi05Policy, given: dict[str, Any], use: Any = "train", **more: Any
) -> dict[str, Loss]:
    ready = made.preprocess(given)
    draws = generate_draws(
        made.random_spec(use), len(given["task"]), torch.Generator().manual_seed(3)
    )
    found = made.losses(ready, draws, **more)
    counts = made.counts(ready, draws)
    for term, loss in found.items():
        assert loss.sum.shape == loss.count.shape == (len(given["task"]),)
        assert torch.equal(loss.count, counts[term])
    return found


def grads(made: Pi05Policy, loss: Tensor) -> dict[str, Tensor | None]:
    made.zero_grad()
    loss.backward()
    return {name: parameter.grad for name, parameter in made.named_parameters()}


def of_tower(name: str) -> bool:
    return name.startswith(("vision", "projector", "embedding", "vlm_norm")) or ".vlm." in name


@BOTH
def test_garbage_in_padded_places_changes_no_bit(tokenizer: Path, adaptive: bool) -> None:
    made = policy(tokenizer, adaptive)
    given = batch()
    given["action_dim_is_pad"] = torch.tensor([[False, False, True]] * 4)
    wrong = {
        key: value.clone() if isinstance(value, Tensor) else value for key, value in given.items()
    }
    wrong["action"][given["action_is_pad"]] = torch.nan
    wrong["action"][..., 2] = torch.inf
    wrong[CAMERAS[1]][1] = 200
    one = losses(made, given)["flow"]
    two = losses(made, wrong)["flow"]
    assert torch.equal(one.sum, two.sum)
    assert torch.isfinite(one.sum).all()
    before = grads(made, one.sum.sum())
    after = grads(made, two.sum.sum())
    for name, grad in before.items():
        assert grad is None or torch.equal(grad, after[name])  # type: ignore[arg-type]
    shown = losses(
        made, {key: value for key, value in wrong.items() if not key.endswith("_is_missing")}
    )["flow"]
    assert not torch.equal(shown.sum, one.sum)


def test_extents_on_the_host_change_nothing(tokenizer: Path) -> None:
    made = policy(tokenizer)
    given = batch()
    ready = made.preprocess(given)
    draws = make_draws(made.random_spec("train"), 0, torch.arange(4))
    without = {key: value for key, value in ready.items() if key != "extents"}
    assert torch.equal(
        made.losses(ready, draws)["flow"].sum, made.losses(without, draws)["flow"].sum
    )
    holes = without | {"prompt_is_pad": without["prompt_is_pad"].roll(1, dims=1)}
    holes["prompt_is_pad"][:, 0] = True
    with pytest.raises(ValueError, match="prompt_is_pad"):
        made.losses(holes, draws)


def test_details_add_up_and_change_nothing(tokenizer: Path) -> None:
    made = policy(tokenizer)
    given = batch()
    plain = losses(made, given, "validation")["flow"]
    full = losses(made, given, "validation", detail=True)["flow"]
    assert torch.equal(plain.sum, full.sum)
    assert full.detail is not None
    torch.testing.assert_close(full.detail.sum.sum(dim=(1, 2)), full.sum)
    assert torch.equal(full.detail.count.sum(dim=1) * made.validation_draws, full.count)
    assert full.detail.order is not None


def test_delays_of_training_are_drawn_evenly(tokenizer: Path) -> None:
    made = policy(tokenizer, max_delay=3)
    many = make_draws(made.random_spec("train"), 0, torch.arange(400))["flow delay"]
    assert many.dtype == torch.int64
    assert torch.bincount(many).min() > 60
    assert set(many.tolist()) == {0, 1, 2, 3}
    assert "flow delay" not in made.random_spec("validation")


def test_flow_times_are_those_of_the_released_training(tokenizer: Path) -> None:
    released, beta = (
        policy(tokenizer, flow_time=kind).random_spec("train") for kind in ("released", "beta")
    )
    at = torch.arange(4000)
    one, two = (make_draws(spec, 0, at)["flow time"] for spec in (released, beta))
    torch.testing.assert_close(one, 0.999 * two + 0.001)
    assert abs(two.mean().item() - 0.6) < 0.01  # Beta(1.5, 1)


# -- text ------------------------------------------------------------------------------------------


def talker(tokenizer: Path, fast: str, **changes: Any) -> Pi05Policy:
    return policy(tokenizer, response_tokens=24, fast=fast, action_tokens=40, **changes)


@pytest.mark.parametrize("insulation", [True, False])
def test_insulation_divides_the_training(tokenizer: Path, fast: str, insulation: bool) -> None:
    made = talker(tokenizer, fast, insulation=insulation)
    given = batch(response=True)
    found = losses(made, given)
    flow = grads(made, found["flow"].sum.sum())
    reached = {name for name, grad in flow.items() if grad is not None and grad.any()}
    assert any(of_tower(name) for name in reached) is not insulation
    assert any(name.startswith("action_in_proj") for name in reached)
    tokens = grads(
        made, losses(made, given)["text"].sum.sum() + losses(made, given)["fast"].sum.sum()
    )
    trained = {name for name, grad in tokens.items() if grad is not None and grad.any()}
    assert trained
    assert all(of_tower(name) for name in trained)
    everything = grads(made, scalar(losses(made, given)))
    assert all(grad is not None for grad in everything.values())


def test_batches_without_responses_use_every_weight(tokenizer: Path, fast: str) -> None:
    made = talker(tokenizer, fast)
    given = batch()
    given["action_is_pad"][:] = True  # no action tokens either
    found = losses(made, given)
    assert not found["text"].count.any()
    assert not found["fast"].count.any()
    everything = grads(made, torch.stack([loss.sum.sum() for loss in found.values()]).sum())
    assert all(grad is not None for grad in everything.values())


def test_cross_entropy_in_parts_equals_the_whole() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(23, 8, generator=generator, requires_grad=True)
    table = torch.randn(31, 8, generator=generator, requires_grad=True)
    targets = torch.randint(0, 31, (23,), generator=generator)
    whole = F.cross_entropy(hidden @ table.T, targets, reduction="none")
    expected = torch.autograd.grad(whole.square().sum(), (hidden, table))
    found = token_cross_entropy(hidden, table, targets, part=5)
    torch.testing.assert_close(found, whole)
    for one, two in zip(torch.autograd.grad(found.square().sum(), (hidden, table)), expected):
        torch.testing.assert_close(one, two)
    empty = token_cross_entropy(hidden[:0], table, targets[:0])
    assert empty.shape == (0,)
    grad = torch.autograd.grad(empty.sum(), table)[0]
    assert not grad.any()


@pytest.mark.parametrize("grad", [True, False])
def test_the_logits_of_one_part_alone_exist(monkeypatch: pytest.MonkeyPatch, grad: bool) -> None:
    """The backward pass computes them again, part by part."""
    hidden = torch.randn(12, 8, requires_grad=True)
    table = torch.randn(31, 8)
    found: list[int] = []
    linear = F.linear

    def counted(x: Tensor, weight: Tensor) -> Tensor:
        found.append(len(x))
        return linear(x, weight)

    monkeypatch.setattr(F, "linear", counted)
    with torch.set_grad_enabled(grad):
        losses = token_cross_entropy(hidden, table, torch.arange(12), part=5)
    if grad:
        losses.sum().backward()
    assert max(found) == 5
    assert sum(found) == (24 if grad else 12)


def test_policy_responds_before_it_acts(tokenizer: Path, fast: str) -> None:
    made = talker(tokenizer, fast)
    given = {key: value for key, value in batch().items() if not key.startswith("action")}
    ready = made.preprocess(given)
    draws = generate_draws(made.random_spec("act"), 4, torch.Generator().manual_seed(0))
    observed = made.observe(
        *_pixels(given), *cut(ready["prompt_tokens"], (~ready["prompt_is_pad"]).sum(1).tolist())
    )
    tail = respond(made, observed, 24, end=1)
    assert tail.tokens.shape[1] > 1
    said = ready | {"response_tokens": tail.tokens, "response_is_pad": ~tail.masks}
    del said["extents"]
    torch.testing.assert_close(made.act(ready, draws), made.act(said, draws))
    other = said | {"response_tokens": (tail.tokens + 5) % 200}
    assert not torch.allclose(made.act(ready, draws), made.act(other, draws), atol=1e-3)


def _pixels(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    has = torch.ones(4, 2, dtype=torch.bool)
    has[1, 1] = False
    return torch.stack([letterbox(given[camera], 8) for camera in CAMERAS], dim=1), has


def test_losses_are_described(tokenizer: Path, fast: str) -> None:
    one = policy(tokenizer).describe_losses(["flow"])
    two, three = (
        talker(tokenizer, fast, insulation=on).describe_losses(["flow", "fast"])
        for on in (True, False)
    )
    assert "expert" in one[0]
    assert "expert alone" in two[0]
    assert "expert alone" not in three[0]


# -- images ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "bars"), [((6, 12), (3, 0)), ((12, 6), (0, 3)), ((12, 12), (0, 0)), ((24, 48), (3, 0))]
)
def test_letterbox_keeps_the_aspect_ratio(size: tuple[int, int], bars: tuple[int, int]) -> None:
    white = torch.full((2, 3, *size), 255, dtype=torch.uint8)
    found = letterbox(white, 12)
    assert found.shape == (2, 3, 12, 12)
    inner = torch.full_like(found, -1.0)
    inner[:, :, bars[0] : 12 - bars[0], bars[1] : 12 - bars[1]] = 1.0
    assert torch.equal(found, inner)


def test_letterbox_antialiases() -> None:
    """Control: plain bilinear sampling at half the size keeps stripes of one pixel."""
    stripes = (torch.arange(48) % 4 == 0).to(torch.uint8).mul(255).expand(1, 3, 48, 48)
    found = letterbox(stripes, 12)[0, 0, 6]
    assert found.std() < 0.05
    plain = F.interpolate(stripes.float(), size=(12, 12), mode="nearest")[0, 0, 6] / 127.5 - 1
    assert (plain == 1).all()


@BOTH
def test_sampling_stays_on_the_path_of_training_in_padded_dimensions(
    tokenizer: Path, adaptive: bool
) -> None:
    """Control: the network's own velocity leaves that path, since no loss trains it there."""
    made = policy(tokenizer, adaptive)
    ready = made.preprocess(
        {key: value for key, value in batch().items() if not key.startswith("action")}
    )
    draws = generate_draws(made.random_spec("act"), 4, torch.Generator().manual_seed(0))
    noise = draws["noise"]
    seen = list[Tensor]()
    made.action_in_proj.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].view(noise.shape))
    )
    made.act(ready, draws, 4)
    for k, x in enumerate(seen):
        torch.testing.assert_close(x[..., 3:], (1 - k / 4) * noise[..., 3:])
    assert len(seen) == 4
    observed = made.observe(*_pixels(batch()), ready["prompt_tokens"], ~ready["prompt_is_pad"])
    state = None if adaptive else torch.zeros(4, 6)
    with torch.no_grad():
        euler(made.field(observed, state), noise, 4)
    assert len(seen) == 8
    assert (seen[-1] - noise / 4)[..., 3:].abs().max() > 0.1


@BOTH
def test_robot_policy_continues_a_chunk(tokenizer: Path, adaptive: bool) -> None:
    """`act(previous=...)` equals `continue_chunk`; control: without it the actions are others."""
    made = policy(tokenizer, adaptive, max_delay=2)
    given = batch()
    robot = RobotPolicy(made, {})
    observation = {key: given[key] for key in (*CAMERAS, "observation.state", "task")}

    def act(**more: Any) -> np.ndarray:
        return robot.act(observation, steps=3, generator=torch.Generator().manual_seed(0), **more)

    plain = act()
    executing = plain[:, 1:] + np.float32([0.5, 0.0, 0.05])
    draws = generate_draws(made.random_spec("act"), 4, torch.Generator().manual_seed(0))
    ready = made.preprocess({**observation})
    for horizon in (None, 3):
        found = act(previous=executing, delay=2, horizon=horizon)
        expected = made.continue_chunk(ready, draws, torch.tensor(executing), 2, 3, horizon)
        np.testing.assert_array_equal(found, expected.numpy())
        assert not np.allclose(found, plain, atol=1e-3)
    np.testing.assert_allclose(
        act(previous=executing, delay=2)[:, :2], executing[:, :2], rtol=1e-5, atol=1e-6
    )
    one = {key: value[0] for key, value in observation.items()}
    alone = robot.act(one, steps=3, previous=executing[0].tolist(), delay=2)
    assert alone.shape == plain.shape[1:]
    np.testing.assert_allclose(alone[:2], executing[0, :2], rtol=1e-5, atol=1e-6)
    wrong = executing.copy()
    wrong[0, 0, 0] = np.nan
    twice = np.concatenate([plain, plain], axis=1)
    for more, named in (
        ({"delay": 1}, ("delay", 1, "previous")),
        ({"horizon": 1}, ("horizon", 1, "previous")),
        ({"previous": executing, "delay": 3}, ("delay=3", "max_delay")),
        ({"previous": executing, "delay": 4}, ("delay", 4)),
        ({"previous": executing, "delay": -1}, ("delay", -1)),
        ({"previous": executing, "delay": 2, "horizon": 1}, ("delay", 2, "horizon", 1)),
        ({"previous": executing[0], "delay": 1}, ("previous", executing[0].shape)),
        ({"previous": executing[..., :2], "delay": 1}, ("previous", executing[..., :2].shape)),
        ({"previous": twice, "delay": 1}, ("previous", twice.shape)),
        ({"previous": wrong, "delay": 1}, ("previous",)),
    ):
        with refused(*named, kind=ValueError):
            act(**more)


# -- its parts -------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("part", ["vision", "vlm", "expert"])
def test_each_part_can_be_frozen(tokenizer: Path, adaptive: bool, part: str) -> None:
    made = policy(tokenizer, adaptive)
    freeze(made, OptimConfig(freeze=(f"{part}.*",)), parts=made.config.PARTS)
    frozen = {name for name, parameter in made.named_parameters() if not parameter.requires_grad}
    if part == "expert":
        expected = {name for name, _ in made.named_parameters() if not of_tower(name)}
    else:
        expected = {name for name, _ in made.named_parameters() if of_tower(name)}
        expected = {name for name in expected if name.startswith("vision.") == (part == "vision")}
    assert frozen == expected


# -- a policy as a whole ---------------------------------------------------------------------------


@BOTH
def test_saved_policy_acts_the_same(tokenizer: Path, adaptive: bool, tmp_path: Path) -> None:
    made = policy(tokenizer, adaptive)
    made.save(tmp_path / "policy", metadata={"heads": {"": {"cameras": list(CAMERAS)}}})
    loaded = load_policy(tmp_path / "policy")
    assert replace(loaded.policy.config, tokenizer=made.config.tokenizer) == made.config
    for name, parameter in loaded.policy.named_parameters():
        assert torch.equal(parameter, made.get_parameter(name))
    given = batch()
    observation = {key: given[key] for key in (*CAMERAS, "observation.state", "task")}
    found = loaded.act(observation, steps=3, generator=torch.Generator().manual_seed(0))
    assert found.shape == (4, 4, 3)
    draws = generate_draws(made.random_spec("act"), 4, torch.Generator().manual_seed(0))
    expected = made.act(made.preprocess({**observation}), draws, 3)
    np.testing.assert_array_equal(found, expected.numpy())
    assert (found[..., 1] == -1.0).all()  # a dimension that never moves


def test_a_folder_with_dimensions_alone_is_enough(tokenizer: Path, tmp_path: Path) -> None:
    """The documented way to a policy from released weights of any size."""
    made = policy(tokenizer)
    made.save(tmp_path)
    editable(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["dimensions"]["vlm"]["width"] == made.sizes.vlm.width
    short = {
        key: stored[key]
        for key in (
            "type",
            "dimensions",
            "action_dim",
            "state_dim",
            "cameras",
            "chunk",
            "tokenizer",
        )
    }
    (tmp_path / "config.json").write_text(json.dumps(short))
    loaded = load_policy(tmp_path).policy
    assert isinstance(loaded, Pi05Policy)
    assert loaded.sizes == made.sizes
    assert loaded.config.image_size == (8, 8)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"action_dim": 33}, "action_dim"),
        ({"max_delay": 4}, "max_delay"),
        ({"noise_samples": 0}, "noise_samples"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"chunk": 0}, "chunk"),
    ],
)
def test_config_names_the_wrong_field(changes: dict[str, Any], named: str) -> None:
    good: dict[str, Any] = {"action_dim": 3, "state_dim": 2, "chunk": 4, "size": "tiny"}
    Pi05PolicyConfig(**good)
    with pytest.raises(ValueError, match=named):
        Pi05PolicyConfig(**good | changes)


def test_pi0_needs_a_state() -> None:
    make = policy_type("pi0").make_config
    assert not make(
        policy_type("pi0").settings(size="tiny"), action_dim=3, state_dim=2, chunk=4
    ).sizes.adaptive
    with pytest.raises(ValueError, match="state_dim"):
        make(policy_type("pi0").settings(size="tiny"), action_dim=3, chunk=4)


def test_another_image_size_is_refused() -> None:
    assert Pi05Settings(size="tiny", image_size=(64, 64)).problems() == []
    assert "image_size" in Pi05Settings(size="tiny", image_size=(96, 96)).problems()[0]


def test_float32_images_are_refused(tokenizer: Path) -> None:
    made = policy(tokenizer)
    given = batch()
    ready = made.preprocess(given | {CAMERAS[0]: given[CAMERAS[0]].float()})
    with pytest.raises(ValueError, match=CAMERAS[0]):
        made.losses(ready, generate_draws(made.random_spec("train"), 4))


@pytest.mark.parametrize("options", [{}, {"response_tokens": 20}], ids=["flow", "responses"])
def test_padded_lengths_change_no_loss(tokenizer: Path, options: dict[str, Any]) -> None:
    """Compiled runs pad texts to multiples: fewer lengths, the same losses, and the tokens are
    counted.
    """
    made = policy(tokenizer, **options)
    prepared = made.preprocess(batch(response=bool(options)))
    draws = generate_draws(made.random_spec("train"), 4, torch.Generator().manual_seed(3))
    plain = made.losses(prepared, draws)
    processed = made.processed_tokens(prepared)
    made.length_multiple = 16
    padded = made.losses(prepared, draws)
    counts = made.processed_tokens(prepared)
    assert padded.keys() == plain.keys()
    for term in plain:
        torch.testing.assert_close(padded[term].sum, plain[term].sum, rtol=1e-5, atol=1e-6)
        assert torch.equal(padded[term].count, plain[term].count)
    assert processed < counts <= processed + 4 * 2 * 15
    made.packs = True
    assert made.processed_tokens(prepared) < processed, "packed samples have no padding"


def test_padded_length_is_a_multiple_within_the_longest_text() -> None:
    assert [padded_length(length, 32, 80) for length in (0, 1, 32, 33, 79, 80)] == [
        0,
        32,
        32,
        64,
        80,
        80,
    ]
    assert [padded_length(length, 1, 0) for length in (0, 7)] == [0, 7]
