"""A run of `lerobot-smolvla` from LeRobot's own folder, on a robot of other widths:
`policy.weights`.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")
pytest.importorskip("transformers", reason="needs transformers: nox -s lerobot")
pytest.importorskip("num2words", reason="needs num2words: nox -s lerobot")

from understudy.config.train import CheckpointConfig, ValConfig
from understudy.policies.policy import load
from understudy.testing.runs import same_run, series
from understudy.train import run
from understudy.train.checkpoint.export import ExportConfig, export
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_zoo.lerobot.settings import LerobotSmolvlaSettings
from understudy_zoo.lerobot.smolvla import EMBEDDING, HEAD, LerobotSmolvla
from understudy_zoo.testing.lerobot_policies import (
    SMALL_SMOLVLA,
    Recorder,
    run_config,
    their_losses,
    write_vlm,
)

STATE_DIM = 5
ACTION_DIM = 4
"""Widths of the robot of the folder, other than those of the data."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("smolvla") / "set"
    write_dataset(root, Spec(lengths=(9, 7, 11, 8, 6, 10), gop=4, foreign=False))
    return root


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a policy that LeRobot made and saved."""
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    folder = tmp_path_factory.mktemp("base")
    vlm = write_vlm(folder / "vlm")
    inputs = {
        f"observation.images.camera{number}": PolicyFeature(FeatureType.VISUAL, (3, 64, 64))
        for number in (1, 2, 3)
    }
    inputs["observation.state"] = PolicyFeature(FeatureType.STATE, (STATE_DIM,))
    outputs = {"action": PolicyFeature(FeatureType.ACTION, (ACTION_DIM,))}
    sizes = {name: value for name, value in SMALL_SMOLVLA.items() if name != "image_size"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        theirs = SmolVLAPolicy(
            SmolVLAConfig(
                input_features=inputs, output_features=outputs,
                chunk_size=4, n_action_steps=4, device="cpu", vlm_model_name=str(vlm), **sizes,
            )
        )  # fmt: skip
    theirs.save_pretrained(folder / "theirs")
    return folder / "theirs"


def config_of(data: Path, out: Path, base: Path, **changes: Any) -> Any:
    """A run on all episodes, so that its statistics are those of the dataset."""
    config = run_config(
        data, out, LerobotSmolvlaSettings(weights=str(base)), val=ValConfig(every=0), **changes
    )
    return replace(config, data=replace(config.data, val_fraction=0.0))


@pytest.mark.long
def test_series_of_losses_is_that_of_lerobot_from_the_same_folder(
    base: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `lerobot-train --policy.path` does: the folder's weights, the dataset's own features and
    statistics.
    """
    from lerobot.configs.policies import PreTrainedConfig
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy
    from lerobot.policies.smolvla.processor_smolvla import make_smolvla_pre_post_processors

    source = tmp_path / "source"
    shutil.copytree(base, source)
    with monkeypatch.context() as patch:
        seen = Recorder(patch, LerobotSmolvla, "flow noise")
        assert run.train(config_of(data, tmp_path / "run", source)) == run.DONE
    assert seen.weights.keys() == load_file(base / "model.safetensors").keys()
    for name, value in load_file(base / "model.safetensors").items():
        assert torch.equal(seen.weights[name], value), name

    stats = json.loads((data / "meta/stats.json").read_text())
    stats = {
        key: {name: np.asarray(own, np.float32) for name, own in stats[key].items()}
        for key in stats
    }
    widths = {key: stats[key]["mean"].size for key in ("action", "observation.state")}
    assert widths["action"] != ACTION_DIM
    assert widths["observation.state"] != STATE_DIM
    config: Any = PreTrainedConfig.from_pretrained(base)
    cameras = load(tmp_path / "run" / "policy").config.cameras
    images = {
        key: PolicyFeature(FeatureType.VISUAL, tuple(seen.batches[0][key].shape[1:]))
        for key in cameras
    }
    state = PolicyFeature(FeatureType.STATE, (widths["observation.state"],))
    config.input_features = {**images, "observation.state": state}
    config.output_features = {"action": PolicyFeature(FeatureType.ACTION, (widths["action"],))}
    theirs = SmolVLAPolicy.from_pretrained(base, config=config)
    for part in make_smolvla_pre_post_processors(config, {key: stats[key] for key in widths}):
        part.save_pretrained(tmp_path / "processors")

    @contextmanager
    def drawn(numbers: dict[str, torch.Tensor]) -> Iterator[None]:
        theirs.model.sample_noise = lambda shape, device: numbers["flow noise"]
        theirs.model.sample_time = lambda count, device: numbers["flow time"][:, 0]
        yield

    wanted = their_losses(theirs, tmp_path / "processors", seen, drawn)
    found = [record["loss"] for record in series(tmp_path / "run")]
    assert len(found) == 4
    assert np.abs(np.subtract(found, wanted)).max() < 1e-5

    shutil.rmtree(source)  # the run and its policy need it no longer
    for kind in ("understudy", "lerobot"):
        export(
            ExportConfig(
                run=str(tmp_path / "run"), format=kind, output_dir=str(tmp_path / f"out{kind}")
            )
        )
        own = load(tmp_path / f"out{kind}")
        assert (own.config.state_dim, own.config.action_dim) == (
            widths["observation.state"],
            widths["action"],
        )
        for name, value in theirs.state_dict().items():
            assert torch.allclose(own.state_dict()[name], value, atol=1e-5), name
        offset = own.normalizer.arrays()["action"]["offset"][0]
        assert np.allclose(offset, stats["action"]["mean"], atol=1e-5)


@pytest.mark.long
def test_run_resumes_without_the_folder(base: Path, data: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(base, source)
    assert run.train(config_of(data, tmp_path / "whole", source)) == run.DONE
    cut = config_of(data, tmp_path / "cut", source, steps=2, checkpoint=CheckpointConfig(every=2))
    assert run.train(cut) == run.DONE
    shutil.rmtree(source)
    assert run.resume(replace(run.RunDir(tmp_path / "cut").settings(), steps=4)) == run.DONE
    same_run(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("fault", ["missing", "extra", "shape"])
def test_tensors_of_another_network_are_named(
    base: Path, data: Path, tmp_path: Path, fault: str
) -> None:
    source = tmp_path / "source"
    name = "model.state_proj.weight"
    shutil.copytree(base, source)
    tensors = load_file(source / "model.safetensors")
    if fault == "missing":
        del tensors[name]
    elif fault == "extra":
        tensors[name := "model.other.weight"] = torch.ones(2)
    else:
        tensors[name] = torch.ones(2, 2)
    save_file(tensors, source / "model.safetensors")
    with refused("policy.weights", source, name, kind=ConfigError):
        run.train(config_of(data, tmp_path / "run", source))
    # the corrected command may use the folder
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_head_that_the_folder_lacks_is_the_embedding(
    base: Path, data: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(base, source)
    tensors = load_file(source / "model.safetensors")
    del tensors[HEAD]
    save_file(tensors, source / "model.safetensors")
    assert run.train(config_of(data, tmp_path / "run", source, steps=1)) == run.DONE
    own = load(tmp_path / "run" / "policy").state_dict()
    assert torch.equal(own[HEAD], tensors[EMBEDDING])
