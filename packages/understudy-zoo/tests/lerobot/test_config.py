"""Settings and folders of LeRobot's policies: rules, types of other packages, the files of the
export.
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from understudy_zoo.lerobot.settings import (
    LerobotActSettings,
    LerobotDiffusionSettings,
    LerobotSmolvlaSettings,
)

pytest.importorskip("lerobot", reason="needs LeRobot: nox -s lerobot")

from understudy.policies import policy_folder
from understudy.policies.batch import from_present
from understudy.policies.capabilities.past import Past
from understudy.policies.registry import policy_type, stored_type
from understudy.policies.settings import network_differences
from understudy.testing.policies import editable
from understudy.train.data.run_data import open_data
from understudy.train.data.run_normalization import compute_normalization
from understudy_base import ConfigError, MissingExtraError
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_zoo import folder_formats
from understudy_zoo.folder_formats import describe_folder, save_folder
from understudy_zoo.testing.lerobot_policies import (
    CAMERA,
    NORMALIZATION,
    SMALL,
    SMALL_DIFFUSION,
    SMALL_SMOLVLA,
    batch_of,
    config,
    diffusion_config,
    run_config,
    settings_of,
    smolvla_config,
)


@pytest.mark.parametrize(
    ("kind", "small", "change"),
    [
        *((LerobotActSettings, SMALL, change) for change in (
            {"dim_modell": 10}, {"dropout": "much"}, {"image_std": (1.0, 0.0, 1.0)},
            {"image_size": (16, 64)}, {"vision_backbone": "vit"},
            {"chunk_size": 3}, {"n_obs_steps": 2}, {"optimizer_lr": 0.1},
        )),
        *((LerobotDiffusionSettings, SMALL_DIFFUSION, change) for change in (
            {"horizon": 10}, {"down_dims": 16}, {"crop_ratio": 0.0}, {"resize_shape": (0, 4)},
            {"noise_scheduler_type": "none"},
            {"pretrained_backbone_weights": "ResNet18_Weights.IMAGENET1K_V1"},
        )),
        *((LerobotSmolvlaSettings, SMALL_SMOLVLA, change) for change in (
            {"max_state_dim": "wide"}, {"empty_cameras": 1},
            {"resize_imgs_with_padding": (0, 4, 4)},
        )),
    ],
)  # fmt: skip
def test_wrong_settings_are_named(kind: Any, small: dict[str, Any], change: dict[str, Any]) -> None:
    problems = settings_of(kind, small, **change).problems()
    assert any(name in line for line in problems for name in change)
    assert settings_of(kind, small).problems() == []


def test_vectors_wider_than_the_network_are_named() -> None:
    with refused("action_dim", "max_action_dim", kind=ValueError):
        smolvla_config("vlm", action_dim=5)


def test_a_run_may_start_from_smolvla_with_other_cameras_and_frozen_parts() -> None:
    changed = {
        "cameras": (CAMERA, "observation.images.wrist"),
        "chunk": 7,
        "train_expert_only": False,
    }
    assert network_differences(smolvla_config("one"), smolvla_config("two", **changed)) == []
    different = network_differences(smolvla_config("one"), smolvla_config("one", max_action_dim=6))
    assert [line.partition(":")[0] for line in different] == ["config.max_action_dim"]


def test_folder_of_the_vision_language_model_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "vlm").mkdir()
    assert settings_of(LerobotSmolvlaSettings, vlm_model_name="vlm").resolved().config[
        "vlm_model_name"
    ] == str(tmp_path / "vlm")
    hub = LerobotSmolvlaSettings()
    assert hub.resolved() == hub


@pytest.mark.parametrize(
    "change", [{"empty_cameras": 1}, {"adapt_to_pi_aloha": True}, {"n_obs_steps": 2}]
)
def test_variants_of_smolvla_that_ours_lacks_are_refused(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    folder = describe_folder("lerobot", smolvla_config("vlm"), NORMALIZATION, {})
    save_folder(tmp_path / "smolvla", folder, {"a": torch.ones(1)})
    path = editable(tmp_path / "smolvla") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with refused(next(iter(change)), kind=ValueError):
        policy_folder.load(tmp_path / "smolvla")


def test_chunk_is_the_horizon_from_the_present_on() -> None:
    assert LerobotDiffusionSettings().stored_chunk() == 63  # horizon 64, two observations
    with refused("chunk", "horizon", 7, 8, kind=ValueError):
        diffusion_config(chunk=8)


@pytest.mark.parametrize("make", [config, diffusion_config, partial(smolvla_config, "vlm")])
@pytest.mark.parametrize(
    ("change", "field"), [({"compute": "bfloat16"}, "compute"), ({"cameras": ()}, "cameras")]
)
def test_facts_that_the_network_cannot_take_are_named(
    make: Any, change: dict[str, Any], field: str
) -> None:
    with refused(field, kind=ValueError):
        make(**change)
    assert make().fact_problems() == []


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("act", config(dropout=0.0)),
        ("smolvla", smolvla_config("vlm", add_image_special_tokens=True, prefix_length=70)),
        (
            "diffusion",
            diffusion_config(
                n_obs_steps=3, resize_shape=(64, 80), crop_ratio=0.5, num_inference_steps=4
            ),
        ),
    ],
)
def test_exported_folder_is_read_back(tmp_path: Path, kind: str, own: Any) -> None:
    folder = describe_folder("lerobot", own, NORMALIZATION, {})
    save_folder(tmp_path / "act", folder, {"a": torch.ones(2, 16)})
    stored = json.loads((tmp_path / "act" / "config.json").read_text())
    assert stored["type"] == kind
    saved = policy_folder.load(tmp_path / "act")
    assert saved.config == own
    assert saved.normalization["action"]["offset"] == [[1.0, 2.0]]
    assert np.allclose(saved.normalization["action"]["spread"], [[0.5, 0.0]], atol=1e-7)
    assert saved.normalization["observation.state"]["spread"] == [[1.0, 2.0, 1.0]]


def test_type_of_another_package_takes_precedence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = {"type": "act", "input_features": {}}
    assert stored_type(stored) == "lerobot-act"
    assert stored_type({"type": "act"}) == "act"  # not a folder of LeRobot
    info = tmp_path / "act_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: act-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[understudy.policies]\nact = act_package:ACT\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert stored_type(stored) == "act"


@pytest.mark.parametrize(
    "change",
    [
        {"observation.environment_state": {"type": "ENV", "shape": [3]}},
        {"observation.images.other": {"type": "VISUAL", "shape": [3, 64, 64]}},
    ],
)
def test_inputs_that_ours_lacks_are_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    save_folder(
        tmp_path / "act",
        describe_folder("lerobot", config(), NORMALIZATION, {}),
        {"a": torch.ones(1)},
    )
    path = editable(tmp_path / "act") / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(
        json.dumps({**stored, "input_features": {**stored["input_features"], **change}})
    )
    with pytest.raises(ValueError, match="input_features"):
        policy_folder.load(tmp_path / "act")


def test_policies_without_an_equal_are_not_exported() -> None:
    delta = NORMALIZATION | {"delta": [[True, False]]}
    narrow = NORMALIZATION | {"dims": {"action": [1], "observation.state": [3]}}
    for normalization in (delta, narrow):
        with pytest.raises(ConfigError):
            folder_formats.describe_folder("lerobot", config(), normalization, {})


def test_training_reads_the_actions_and_observations_before_the_present(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(9, 7, 11, 8), gop=4, foreign=False))
    config = run_config(
        tmp_path / "set",
        tmp_path / "run",
        settings_of(LerobotDiffusionSettings, SMALL_DIFFUSION, n_obs_steps=3),
    )
    data = open_data(config)
    part = data.training[0]
    assert list(part.offsets["action"]) == list(range(-2, 6))
    assert list(part.offsets[CAMERA]) == list(part.offsets["observation.state"]) == [-2, -1, 0]
    assert data.policy_config(config).chunk == 6
    rows = part.batch(part.segments[0, [0, 0]], [0, 6])
    actions = np.concatenate(
        [part.batch([part.segments[0, 0]], [n])["action"][:, 2] for n in range(7)]
    )  # the present's
    wanted = [np.clip(np.arange(frame - 2, frame + 6), 0, 100) for frame in (0, 6)]
    assert np.array_equal(rows["action"][0, :7], actions[wanted[0][:7]])
    assert rows["action_is_pad"][0, :3].tolist() == [True, True, False]
    assert np.array_equal(rows["action"][1, :3], actions[wanted[1][:3]])
    assert compute_normalization(data, "min_max")["action"]["offset"]


def test_actions_from_the_present_on() -> None:
    batch = batch_of(2, slots=8)
    found = from_present(batch, diffusion_config(n_obs_steps=3))
    assert torch.equal(found["action"], batch["action"][:, 2:])
    assert torch.equal(found["action_is_pad"], batch["action_is_pad"][:, 2:])
    assert from_present(batch, config())["action"].shape == batch["action"].shape


def test_past_steps_are_times_at_a_frame_rate() -> None:
    own = diffusion_config(n_obs_steps=3).past()
    assert own.times(10) == ((-0.2, -0.1, 0.0),) * 2
    assert own.times(None) == ((-2.0, -1.0, 0.0),) * 2
    assert (
        own.step_rate(10, 0.5),
        own.step_rate(None, None),
        Past.of(config()).step_rate(None, 0.5),
    ) == (10, 1.0, None)
    with refused("time", 0.5, kind=ValueError):
        own.step_rate(None, 0.5)
    assert Past.of(config()).times(10) == ((), ())


@pytest.mark.parametrize("make", [config, diffusion_config, partial(smolvla_config, "vlm")])
def test_missing_package_is_named(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with refused("lerobot", kind=MissingExtraError):
        policy_type(make().type).build(make(), NORMALIZATION)
