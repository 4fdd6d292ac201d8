"""LeRobot's Diffusion Policy through our trainer: LeRobot's losses and actions, its windows,
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
pytest.importorskip("diffusers", reason="needs diffusers: nox -s lerobot")

import understudy as us
from understudy.policies.draws import make_draws
from understudy.testing.runs import series
from understudy.train import run
from understudy.train.checkpoint.export import ExportConfig, export
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_zoo.lerobot.adapter import GivenNoise
from understudy_zoo.lerobot.diffusion import LerobotDiffusion, cropped, spread_steps
from understudy_zoo.lerobot.settings import LerobotDiffusionSettings
from understudy_zoo.testing.lerobot_policies import (
    CAMERA,
    MOVING,
    SMALL_DIFFUSION,
    Recorder,
    batch_of,
    diffusion_config,
    run_config,
    settings_of,
    their_losses,
)


def policy(**changes: Any) -> LerobotDiffusion:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LerobotDiffusion(diffusion_config(**changes), MOVING)


def batch(count: int, seed: int = 0) -> dict[str, Any]:
    data = batch_of(count, slots=8, times=2, seed=seed)
    for actions, is_pad in zip(data["action"], data["action_is_pad"]):
        actions[is_pad] = actions[~is_pad][-1]  # as in LeRobot's datasets
    return data


def draws(own: LerobotDiffusion, count: int, use: Any = "train") -> dict[str, torch.Tensor]:
    return make_draws(own.random_spec(use), 3, np.arange(count), use)


def their_inputs(own: LerobotDiffusion, data: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The batch as LeRobot's processor makes it."""
    images = (data[CAMERA].float() / 255 - own.image_mean) / (own.image_std + 1e-8)
    return {
        "observation.images": images[:, :, None],
        "observation.state": own.normalizer.state.normalize(data["observation.state"], None),
        "action": own.normalizer.action.normalize(data["action"], None),
        "action_is_pad": data["action_is_pad"],
    }


@contextmanager
def drawn(numbers: dict[str, torch.Tensor]) -> Iterator[None]:
    """LeRobot's loss draws these numbers."""
    with pytest.MonkeyPatch.context() as patch, GivenNoise(numbers["noise"][:, 0]):
        patch.setattr(torch, "randint", lambda **_: numbers["timestep"][:, 0])
        yield


@pytest.mark.parametrize(
    "change", [{}, {"do_mask_loss_for_padding": True}, {"prediction_type": "sample"}]
)
def test_loss_is_that_of_lerobot(change: dict[str, Any]) -> None:
    own = policy(**change)
    data = batch(3)
    numbers = draws(own, 3)
    with drawn(numbers):
        wanted = own.diffusion.compute_loss(their_inputs(own, data))
    found = own.losses(data, numbers)["diffusion"]
    assert torch.allclose(found.sum.sum() / found.count.sum(), wanted, atol=1e-6)
    assert torch.equal(found.count, own.counts(data, numbers)["diffusion"])


@pytest.mark.parametrize("change", [{}, {"noise_scheduler_type": "DDIM", "num_inference_steps": 5}])
def test_actions_are_those_of_lerobot(change: dict[str, Any]) -> None:
    own = policy(**change)
    data = batch(2)
    numbers = draws(own, 2, "act")
    own.diffusion.config.n_action_steps = own.config.chunk  # LeRobot returns those that it executes
    with torch.no_grad(), GivenNoise(*(numbers["step noise"].unbind(1) if not change else ())):
        own.diffusion.num_inference_steps = own.inference_steps
        theirs = own.diffusion.generate_actions(their_inputs(own, data), noise=numbers["noise"])
    found = own.act(data, numbers)
    assert found.shape == (2, 7, 2)
    assert torch.allclose(found, own.normalizer.action.unnormalize(theirs, None), atol=1e-6)


def test_draws_alone_decide_the_losses() -> None:
    own = policy(crop_shape=(24, 36))
    data = batch(4)
    numbers = draws(own, 4)
    state = torch.get_rng_state()
    whole = own.losses(data, numbers)["diffusion"].sum
    assert torch.equal(torch.get_rng_state(), state)
    for name, values in numbers.items():
        other = {**numbers, name: values.flip(0)}
        assert not torch.equal(own.losses(data, other)["diffusion"].sum, whole), name
    # A sample's loss does not depend on the others.
    one = own.losses({k: v[1:2] for k, v in data.items()}, {k: v[1:2] for k, v in numbers.items()})[
        "diffusion"
    ]
    assert torch.allclose(one.sum, whole[1:2], rtol=1e-5)


@pytest.mark.parametrize("content", [9.0, float("nan")])
@pytest.mark.parametrize("masked", [True, False])
def test_content_of_padding_reaches_nothing(masked: bool, content: float) -> None:
    """The network sees copies of the last action, as in LeRobot; unmasked they count, too."""
    data = batch(3)
    is_pad = data["action_is_pad"][..., None]
    data["observation.state_is_pad"] = torch.tensor([[True, False], [False, False], [True, False]])
    state = data["observation.state"]
    is_past = data["observation.state_is_pad"][..., None]
    wild = {
        **data,
        "action": torch.where(is_pad, content, data["action"]),
        "observation.state": torch.where(is_past, content, state),
    }
    own = policy(do_mask_loss_for_padding=masked, prediction_type="sample")
    numbers = {**draws(own, 3), "timestep": torch.zeros(3, 1, dtype=torch.int64)}
    counts = own.counts(data, numbers)["diffusion"]
    assert counts.tolist() == ([16, 14, 12] if masked else [16] * 3)
    sums = []
    gradients = []
    for each in (data, wild):
        own.zero_grad()
        loss = own.losses(each, numbers)["diffusion"].sum
        loss.sum().backward()
        sums.append(loss)
        gradients.append([p.grad for p in own.parameters() if p.grad is not None])
    assert torch.equal(*sums)
    assert all(map(torch.equal, *gradients))
    other = {**data, "action": data["action"] + 1}
    assert not torch.equal(own.losses(other, numbers)["diffusion"].sum, sums[0])


def test_steps_of_diffusion_are_spread() -> None:
    found = spread_steps(torch.tensor([[0.0, 0.0, 0.999, 0.999]]), 100)
    assert found.tolist() == [[0, 25, 74, 99]]
    assert spread_steps(torch.tensor([[1 - 2**-24]]), 3).tolist() == [[2]]


def test_crops_are_those_of_torchvision() -> None:
    import torchvision

    images = torch.rand(2, 2, 3, 9, 12)
    places = torch.tensor([[0.0, 0.999], [0.5, 0.25]])
    found = cropped(images, (6, 7), places)
    for row, (top, left) in enumerate([(0, 5), (2, 1)]):
        assert torch.equal(
            found[row], torchvision.transforms.functional.crop(images[row], top, left, 6, 7)
        )
    assert torch.equal(
        cropped(images, (6, 7), None), torchvision.transforms.CenterCrop((6, 7))(images)
    )


def test_batch_statistics_stay() -> None:
    own = policy(use_group_norm=False)
    before = {name: value.clone() for name, value in own.state_dict().items() if "running" in name}
    own.train()
    own.losses(batch(3), draws(own, 3))["diffusion"].sum.sum().backward()
    after = own.state_dict()
    assert before
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("diffusion") / "set"
    write_dataset(root, Spec(lengths=(9, 7, 11, 8, 6, 10), gop=4, foreign=False))
    return root


def settings(**changes: Any) -> LerobotDiffusionSettings:
    return settings_of(
        LerobotDiffusionSettings, SMALL_DIFFUSION | {"image_size": (32, 32)}, **changes
    )


@pytest.mark.parametrize(
    "change", [{}, {"n_obs_steps": 1, "crop_shape": (28, 24), "crop_is_random": False}]
)
def test_series_of_losses_is_that_of_lerobots_trainer(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]
) -> None:
    """Same batches, first weights, noise and diffusion steps. LeRobot's processor, policy,
    optimizer and step.
    """
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    with monkeypatch.context() as patch:
        seen = Recorder(patch, LerobotDiffusion, "noise")
        assert run.train(run_config(data, tmp_path / "run", settings(**change))) == run.DONE
    export(
        ExportConfig(
            run=str(tmp_path / "run"), format="lerobot", output_dir=str(tmp_path / "theirs")
        )
    )
    # a folder of ours loads in LeRobot
    theirs = DiffusionPolicy.from_pretrained(tmp_path / "theirs")
    trained = {name: value.clone() for name, value in theirs.state_dict().items()}
    theirs.load_state_dict(seen.weights)
    if theirs.config.n_obs_steps == 1:  # LeRobot's dataset gives it a dimension of time
        for own in seen.batches:
            own.update({key: own[key][:, None] for key in (CAMERA, "observation.state")})
    wanted = their_losses(theirs, tmp_path / "theirs", seen, drawn, (32, 32))
    found = [record["loss"] for record in series(tmp_path / "run")]
    assert len(found) == 4
    assert np.abs(np.subtract(found, wanted)).max() < 1e-5
    for name, value in theirs.state_dict().items():
        assert torch.allclose(value, trained[name], atol=1e-5), name


@pytest.mark.long
def test_windows_are_those_of_lerobots_dataset(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Actions and their padding, and states of each sample, as LeRobot's dataset gives them; images
    as ours.
    """
    from lerobot.datasets.factory import resolve_delta_timestamps
    from lerobot.datasets.lerobot_dataset import LeRobotDataset, LeRobotDatasetMetadata
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig

    with monkeypatch.context() as patch:
        seen = Recorder(patch, LerobotDiffusion, "noise")
        own = settings(n_obs_steps=3)
        assert run.train(run_config(data, tmp_path / "run", own)) == run.DONE
    theirs = DiffusionConfig(
        n_obs_steps=3, horizon=8, n_action_steps=4, down_dims=(16, 32), device="cpu"
    )
    windows = resolve_delta_timestamps(theirs, LeRobotDatasetMetadata("local/set", root=data))
    recorded = LeRobotDataset("local/set", root=data, delta_timestamps=windows)
    place = {
        (int(x["episode_index"]), int(x["frame_index"])): n
        for n, x in enumerate(recorded.hf_dataset)
    }
    plain = us.EpisodeDataset(data)
    count = 0
    for each in seen.batches:
        for row, key in enumerate(
            zip(each["episode_index"].tolist(), each["frame_index"].tolist())
        ):
            sample = recorded[place[key]]
            for name in ("action", "observation.state"):
                assert torch.equal(each[name][row].float(), sample[name].float()), name
            assert torch.equal(each["action_is_pad"][row], sample["action_is_pad"])
            for time, image in enumerate(each[CAMERA][row]):
                assert torch.equal(image, plain.sample(key[0], max(0, key[1] + time - 2))[CAMERA])
            count += 1
    assert count == 16


@pytest.mark.long
@pytest.mark.parametrize("change", [{}, {"use_group_norm": False, "crop_shape": (28, 36)}])
def test_folder_of_lerobot_acts_as_in_lerobot(tmp_path: Path, change: dict[str, Any]) -> None:
    """Through LeRobot's `select_action` for an episode's first steps, and back into a folder of
    LeRobot.
    """
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
    from lerobot.policies.diffusion.processor_diffusion import make_diffusion_pre_post_processors

    sizes = (
        {n: v for n, v in SMALL_DIFFUSION.items() if n != "image_size"}
        | {"noise_scheduler_type": "DDIM"}
        | change
    )
    inputs = {
        CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 32, 40)),
        "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
    }
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
    theirs = DiffusionPolicy(
        DiffusionConfig(
            input_features=inputs,
            output_features=outputs,
            device="cpu",
            pretrained_backbone_weights=None,
            **sizes,
        )
    ).eval()
    rng = np.random.default_rng(0)
    low = {"mean": 0.3, "std": 0.2, "min": -1.0, "max": 1.0}
    stats = {
        key: {
            n: torch.from_numpy((v + rng.uniform(0, 0.1, shape)).astype(np.float32))
            for n, v in low.items()
        }
        for key, shape in ((CAMERA, (3, 1, 1)), ("observation.state", (3,)), ("action", (2,)))
    }
    before, behind = make_diffusion_pre_post_processors(theirs.config, stats)
    for part in (theirs, before, behind):
        part.save_pretrained(tmp_path / "theirs")
    ours = us.load_policy(tmp_path / "theirs")
    assert ours.config.type == "lerobot-diffusion"
    seen = batch_of(4)
    noise = torch.randn(1, 8, 2, generator=torch.Generator().manual_seed(0))
    ours.reset()
    theirs.reset()
    for step in range(4):  # LeRobot plans in the first step; a new plan in each is ours alone
        images = {CAMERA: seen[CAMERA][step][None].float() / 255}
        theirs._queues["action"].clear()
        with torch.no_grad():
            observation = before(
                {**images, "observation.state": seen["observation.state"][step][None]}
            )
            wanted = behind(theirs.select_action(observation, noise=noise)).numpy()[0]
        now = {
            CAMERA: seen[CAMERA][step],
            "observation.state": seen["observation.state"][step],
            "task": "",
        }
        prepared = ours.prepare(now, draws={"noise": noise})
        found = ours.policy.act(prepared.batch, prepared.draws).numpy()[0, 0]
        ours.accept(prepared)
        assert np.abs(found - wanted).max() < 1e-5, step
