"""LeRobot's ACT through our trainer: LeRobot's losses on the same batches, exact resume, folders
both ways.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")

import understudy as us
from understudy.policies.draws import make_draws
from understudy.testing.runs import series
from understudy.train import run
from understudy.train.checkpoint.export import ExportConfig, export
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_zoo.lerobot.act import LerobotAct
from understudy_zoo.lerobot.settings import LerobotActSettings
from understudy_zoo.testing.lerobot_policies import (
    CAMERA,
    MOVING,
    SMALL,
    Recorder,
    batch_of,
    config,
    run_config,
    settings_of,
    their_losses,
)

batch = batch_of


def policy(**changes: Any) -> LerobotAct:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LerobotAct(config(**changes), MOVING)


def draws(own: LerobotAct, count: int) -> dict[str, torch.Tensor]:
    return make_draws(own.random_spec("train"), 3, np.arange(count), "train")


def test_draws_and_the_generator_decide_the_losses() -> None:
    own = policy(dropout=0.5)

    def losses(numbers: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return {term: loss.sum for term, loss in own.losses(batch(3), numbers).items()}

    first = losses(draws(own, 3), 1)
    again = losses(draws(own, 3), 1)
    other = losses({name: 1 - values for name, values in draws(own, 3).items()}, 1)
    masked = losses(draws(own, 3), 2)
    for term in own.loss_terms:
        assert torch.equal(first[term], again[term])
        assert not torch.equal(first[term], masked[term])
    assert not torch.equal(first["l1"], other["l1"])
    # the divergence is of the distribution, not of what is drawn from it
    assert torch.equal(first["kl"], other["kl"])


def test_validation_and_action_use_no_latent_variable() -> None:
    own = policy(dropout=0.5)
    one = own.losses(batch(3), {})
    two = own.losses(batch(3), {})
    assert torch.equal(one["l1"].sum, two["l1"].sum)
    assert not one["kl"].sum.any()
    # otherwise a verdict would compare l1 + kl in training with l1
    assert not one["kl"].count.any()
    assert own.losses(batch(3), draws(own, 3))["kl"].count.tolist() == [1] * 3
    assert torch.equal(own.act(batch(2), {}), own.act(batch(2), {}))


@pytest.mark.parametrize("content", [1e6, float("nan")])
@pytest.mark.parametrize("use_vae", [True, False])
def test_padded_actions_count_nothing(use_vae: bool, content: float) -> None:
    own = policy(dropout=0.0, use_vae=use_vae)
    data = batch(3)
    wild = {
        **data,
        "action": torch.where(data["action_is_pad"][..., None], content, data["action"]),
    }
    found, wanted = (own.losses(each, draws(own, 3)) for each in (wild, data))
    for term in own.loss_terms:
        assert torch.equal(found[term].sum, wanted[term].sum)
    torch.stack([loss.sum.sum() for loss in found.values()]).sum().backward()
    assert all(p.grad.isfinite().all() for p in own.parameters() if p.grad is not None)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("act") / "set"
    write_dataset(root, Spec(lengths=(9, 7, 11, 8, 6, 10), gop=4, foreign=False))
    return root


def act_config(data: Path, out: Path, dropout: float = 0.1, **changes: Any) -> Any:
    policy = settings_of(LerobotActSettings, SMALL, image_size=(32, 32), dropout=dropout)
    return run_config(data, out, policy, **changes)


def test_series_of_losses_is_that_of_lerobots_trainer(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Same batches, first weights and latent noise; dropout 0. LeRobot's processor, policy,
    optimizer and step.
    """
    from lerobot.policies.act.modeling_act import ACTPolicy

    with monkeypatch.context() as patch:
        seen = Recorder(patch, LerobotAct, "latent")
        assert run.train(act_config(data, tmp_path / "run", dropout=0.0)) == run.DONE
    export(
        ExportConfig(
            run=str(tmp_path / "run"), format="lerobot", output_dir=str(tmp_path / "theirs")
        )
    )
    theirs = ACTPolicy.from_pretrained(tmp_path / "theirs")  # a folder of ours loads in LeRobot
    trained = {name: value.clone() for name, value in theirs.state_dict().items()}
    theirs.load_state_dict(seen.weights)
    theirs.train()

    @contextmanager
    def drawn(draws: dict[str, torch.Tensor]) -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randn_like", lambda like: draws["latent"])
            yield

    wanted = their_losses(theirs, tmp_path / "theirs", seen, drawn, (32, 32))
    found = [record["loss"] for record in series(tmp_path / "run")]
    assert np.abs(np.subtract(found, wanted)).max() < 1e-5
    assert len(found) == 4
    # After the same steps the weights are those that our run exported.
    for name, value in theirs.state_dict().items():
        assert torch.allclose(value, trained[name], atol=1e-5), name


@pytest.mark.long
def test_folder_of_lerobot_acts_as_in_lerobot(tmp_path: Path) -> None:
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.act.processor_act import make_act_pre_post_processors

    inputs = {
        CAMERA: PolicyFeature(FeatureType.VISUAL, (3, 32, 40)),
        "observation.state": PolicyFeature(FeatureType.STATE, (3,)),
    }
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (2,))}
    sizes = {
        name: value
        for name, value in SMALL.items()
        if name not in ("image_size", "pretrained_backbone_weights")
    }
    theirs = ACTPolicy(
        ACTConfig(
            input_features=inputs, output_features=outputs, chunk_size=4, n_action_steps=4,
            device="cpu", pretrained_backbone_weights=None, **sizes,
        )
    ).eval()  # fmt: skip
    rng = np.random.default_rng(0)
    stats = {
        key: {
            name: torch.from_numpy(rng.uniform(0.5, 1.5, shape).astype(np.float32))
            for name in ("mean", "std")
        }
        for key, shape in ((CAMERA, (3, 1, 1)), ("observation.state", (3,)), ("action", (2,)))
    }
    before, behind = make_act_pre_post_processors(theirs.config, stats)
    for part in (theirs, before, behind):
        part.save_pretrained(tmp_path / "theirs")
    data = batch(2)
    images = {CAMERA: data[CAMERA].float() / 255, "observation.state": data["observation.state"]}
    with torch.no_grad():
        wanted = behind(theirs.predict_action_chunk(before(images))).numpy()
    ours = us.load_policy(tmp_path / "theirs")
    assert ours.config.type == "lerobot-act"
    found = ours.act(
        {CAMERA: data[CAMERA], "observation.state": data["observation.state"], "task": data["task"]}
    )
    assert np.abs(found - wanted).max() < 1e-5
