"""LeRobot's SmolVLA through our trainer: LeRobot's losses, tokens and actions, frozen parts,
folders both ways.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")
pytest.importorskip("transformers", reason="needs transformers: nox -s lerobot")
pytest.importorskip("num2words", reason="needs num2words: nox -s lerobot")

import understudy as us
from understudy.policies.draws import make_draws
from understudy.testing.runs import series
from understudy.train import run
from understudy.train.checkpoint.export import ExportConfig, export
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_zoo.lerobot.settings import LerobotSmolvlaSettings
from understudy_zoo.lerobot.smolvla import TOKENS, TOKENS_MASK, LerobotSmolvla, resize_image
from understudy_zoo.testing.lerobot_policies import (
    CAMERA,
    MOVING,
    SMALL_SMOLVLA,
    Recorder,
    batch_of,
    run_config,
    settings_of,
    smolvla_config,
    their_losses,
    write_vlm,
)


@pytest.fixture(scope="module")
def vlm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vlm(tmp_path_factory.mktemp("vlm") / "tiny")


def policy(vlm: Path, **changes: Any) -> LerobotSmolvla:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LerobotSmolvla(smolvla_config(vlm, **changes), MOVING)


def draws(own: LerobotSmolvla, count: int, use: Any = "train") -> dict[str, torch.Tensor]:
    return make_draws(own.random_spec(use), 3, np.arange(count), use)


def theirs_of(own: LerobotSmolvla) -> Any:
    """LeRobot's policy of the same config and weights."""
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    with torch.random.fork_rng(devices=[]):
        theirs = SmolVLAPolicy(own.model.config)
    theirs.load_state_dict(own.state_dict())
    return theirs


def their_inputs(own: LerobotSmolvla, data: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The batch as LeRobot's processor makes it."""
    tokens = own.preprocess(dict(data))
    return {
        CAMERA: data[CAMERA].float() / 255,
        "observation.state": own.normalizer.state.normalize(data["observation.state"], None),
        "observation.language.tokens": tokens[TOKENS],
        "observation.language.attention_mask": tokens[TOKENS_MASK],
        "action": own.normalizer.action.normalize(data["action"], None),
        "action_is_pad": data["action_is_pad"],
    }


@pytest.mark.parametrize(
    "change", [{}, {"attention_mode": "self_attn", "add_image_special_tokens": True}]
)
def test_loss_of_each_sample_is_that_of_lerobot(vlm: Path, change: dict[str, Any]) -> None:
    own = policy(vlm, **change)
    data = batch_of(3) | {"task": ["lift", "put it down", ""]}
    numbers = draws(own, 3)
    noise = numbers["flow noise"]
    time = numbers["flow time"][:, 0]
    wanted, _ = theirs_of(own).forward(their_inputs(own, data), noise, time, reduction="none")
    found = own.losses(data, numbers, detail=True)["flow"]
    assert torch.allclose(found.sum / found.count, wanted, atol=1e-6)
    assert torch.equal(found.count, own.counts(data, numbers)["flow"])
    assert found.detail is not None
    assert torch.allclose(found.detail.sum.sum((1, 2)), found.sum)
    assert torch.equal(found.detail.count.sum(1), found.count)
    assert own.losses(data, numbers, terms=()) == {}


@pytest.mark.parametrize("content", [1e4, float("nan")])
def test_padded_actions_count_nothing(vlm: Path, content: float) -> None:
    own = policy(vlm)
    data = batch_of(3)
    wild = {
        **data,
        "action": torch.where(data["action_is_pad"][..., None], content, data["action"]),
    }
    found, wanted = (own.losses(each, draws(own, 3))["flow"].sum for each in (wild, data))
    assert torch.equal(found, wanted)
    found.sum().backward()
    assert all(p.grad.isfinite().all() for p in own.parameters() if p.grad is not None)


def test_actions_are_those_of_lerobot(vlm: Path) -> None:
    own = policy(vlm)
    data = batch_of(2)
    numbers = draws(own, 2, "act")
    wanted = theirs_of(own).predict_action_chunk(their_inputs(own, data), noise=numbers["noise"])
    found = own.act(data, numbers)
    assert found.shape == (2, 4, 2)
    assert torch.allclose(found, own.normalizer.action.unnormalize(wanted, None), atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"train_expert_only": False, "train_state_proj": False},
        {"train_expert_only": False, "freeze_vision_encoder": False},
    ],
)
def test_frozen_parts_are_those_of_lerobot(vlm: Path, change: dict[str, Any]) -> None:
    own = policy(vlm, **change)
    wanted = {name: each.requires_grad for name, each in theirs_of(own).named_parameters()}
    assert {name: each.requires_grad for name, each in own.named_parameters()} == wanted
    own.losses(batch_of(2), draws(own, 2))["flow"].sum.sum().backward()
    trained = {name for name, each in own.named_parameters() if each.requires_grad}
    with_gradient = {name for name, each in own.named_parameters() if each.grad is not None}
    assert with_gradient <= trained
    assert any("lm_expert" in name for name in with_gradient)


def test_missing_camera_reaches_nothing(vlm: Path) -> None:
    own = policy(vlm, cameras=(CAMERA, "observation.images.wrist"))
    data = batch_of(2)
    wrist = "observation.images.wrist"
    both = data | {wrist: data[CAMERA], f"{wrist}_is_missing": torch.tensor([True, False])}
    other = both | {wrist: both[wrist].flip(-1)}
    numbers = draws(own, 2)
    one, two = (own.losses(each, numbers)["flow"].sum for each in (both, other))
    assert one[0] == two[0]
    assert one[1] != two[1]


def test_files_that_cannot_be_read_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with refused("policy.config", "vlm_model_name", tmp_path / "none", kind=ConfigError):
        policy(tmp_path / "none")


def test_longest_prompt_counts_the_line_break(vlm: Path) -> None:
    assert policy(vlm).prompt_room(["lift", "down\n"]) == (5, 48, "tokenizer_max_length")


def test_loader_resizes_as_the_network() -> None:
    from lerobot.policies.common.vla_utils import resize_with_pad

    image = np.random.default_rng(0).integers(0, 256, (3, 30, 50), np.uint8)
    out = np.empty((3, 32, 40), np.uint8)
    resize_image(image, out)
    wanted = (
        resize_with_pad(torch.from_numpy(image)[None].float() / 255, 32, 40, pad_value=0)[0] * 255
    )
    assert np.abs(out - wanted.numpy()).max() <= 0.5 + 1e-4


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("smolvla") / "set"
    write_dataset(root, Spec(lengths=(9, 7, 11, 8, 6, 10), gop=4, foreign=False))
    return root


def settings(vlm: Path, **changes: Any) -> LerobotSmolvlaSettings:
    return settings_of(LerobotSmolvlaSettings, SMALL_SMOLVLA, vlm_model_name=str(vlm), **changes)


@pytest.mark.parametrize(
    "change", [{}, {"train_expert_only": False, "freeze_vision_encoder": False}]
)
def test_series_of_losses_is_that_of_lerobots_trainer(
    vlm: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Same batches, first weights, noise and flow times. LeRobot's processor, tokens, policy,
    optimizer and step.
    """
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    with monkeypatch.context() as patch:
        seen = Recorder(patch, LerobotSmolvla, "flow noise")
        assert run.train(run_config(data, tmp_path / "run", settings(vlm, **change))) == run.DONE
    export(
        ExportConfig(
            run=str(tmp_path / "run"), format="lerobot", output_dir=str(tmp_path / "theirs")
        )
    )
    theirs = SmolVLAPolicy.from_pretrained(tmp_path / "theirs")  # a folder of ours loads in LeRobot
    trained = {name: value.clone() for name, value in theirs.state_dict().items()}
    theirs.load_state_dict(seen.weights)

    @contextmanager
    def drawn(numbers: dict[str, torch.Tensor]) -> Iterator[None]:
        theirs.model.sample_noise = lambda shape, device: numbers["flow noise"]
        theirs.model.sample_time = lambda count, device: numbers["flow time"][:, 0]
        yield

    wanted = their_losses(theirs, tmp_path / "theirs", seen, drawn)
    found = [record["loss"] for record in series(tmp_path / "run")]
    assert len(found) == 4
    assert np.abs(np.subtract(found, wanted)).max() < 1e-5
    for name, value in theirs.state_dict().items():
        assert torch.allclose(value, trained[name], atol=1e-5), name


@pytest.mark.long
def test_folder_of_lerobot_acts_as_in_lerobot(vlm: Path, tmp_path: Path) -> None:
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

    sizes = {name: value for name, value in SMALL_SMOLVLA.items() if name != "image_size"}
    inputs = {
        CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 32, 40)),
        "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
    }
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
    theirs = SmolVLAPolicy(
        SmolVLAConfig(
            input_features=inputs, output_features=outputs, chunk_size=4, n_action_steps=4,
            device="cpu", vlm_model_name=str(vlm), **sizes,
        )
    ).eval()  # fmt: skip
    rng = np.random.default_rng(0)
    stats = {
        key: {
            name: torch.from_numpy(rng.uniform(0.5, 1.5, shape).astype(np.float32))
            for name in ("mean", "std")
        }
        for key, shape in (("observation.state", (3,)), ("action", (2,)))
    }
    before, behind = make_smolvla_pre_post_processors(theirs.config, stats)
    for part in (theirs, before, behind):
        part.save_pretrained(tmp_path / "theirs")
    data = batch_of(2) | {"task": ["lift", "put it down"]}
    noise = torch.randn(2, 4, 4)
    observation = {
        CAMERA: data[CAMERA].float() / 255,
        "observation.state": data["observation.state"],
    }
    with torch.no_grad():
        given = before({**observation, "task": data["task"]})
        wanted = behind(theirs.predict_action_chunk(given, noise=noise)).numpy()
    ours = us.load_policy(tmp_path / "theirs")
    assert ours.config.type == "lerobot-smolvla"
    prepared = ours.prepare(
        {key: data[key] for key in (CAMERA, "observation.state", "task")}, draws={"noise": noise}
    )
    tokens = ours.policy.preprocess(dict(prepared.batch))
    assert torch.equal(tokens[TOKENS], given["observation.language.tokens"])
    assert torch.equal(tokens[TOKENS_MASK], given["observation.language.attention_mask"])
    assert np.abs(ours.policy.act(tokens, prepared.draws).numpy() - wanted).max() < 1e-5
