"""Settings and folders of `lerobot-act` without LeRobot: rules, types of other packages, the files of the export."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.lerobot_act import NORMALIZATION, SMALL, config
from support.refusals import refused
from understudy.errors import ConfigError
from understudy.optional_packages import MissingExtraError
from understudy.policies import folder_formats, policy_folder
from understudy.policies.folder_formats import describe_folder, save_folder
from understudy.policies.lerobot.config import LerobotActSettings
from understudy.policies.registry import policy_type, stored_type


@pytest.mark.parametrize(
    "change",
    [{"dim_model": 10}, {"dropout": 1.0}, {"image_std": (1.0, 0.0, 1.0)}, {"image_size": (16, 64)}, {"n_heads": 0}],
)
def test_wrong_settings_are_named(change: dict[str, Any]) -> None:
    problems = LerobotActSettings(**(SMALL | change)).problems()
    assert any(line.partition(":")[0] in change for line in problems)
    assert LerobotActSettings(**SMALL).problems() == []


@pytest.mark.parametrize(("change", "field"), [({"compute": "bfloat16"}, "compute"), ({"cameras": ()}, "cameras")])
def test_facts_that_the_network_cannot_take_are_named(change: dict[str, Any], field: str) -> None:
    assert [line.partition(":")[0] for line in config(**change).fact_problems()] == [field]
    assert config().fact_problems() == []


def test_exported_folder_is_read_back(tmp_path: Path) -> None:
    folder = describe_folder("lerobot", config(dropout=0.0), NORMALIZATION, {})
    save_folder(tmp_path / "act", folder, {"model.action_head.weight": torch.ones(2, 16)})
    stored = json.loads((tmp_path / "act" / "config.json").read_text())
    assert stored["type"] == "act"
    saved = policy_folder.load(tmp_path / "act")
    assert saved.config == config(dropout=0.0)
    assert saved.normalization["action"]["offset"] == [[1.0, 2.0]]
    assert np.allclose(saved.normalization["action"]["spread"], [[0.5, 0.0]], atol=1e-7)
    assert saved.normalization["observation.state"]["spread"] == [[1.0, 2.0, 1.0]]


def test_type_of_another_package_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    save_folder(tmp_path / "act", describe_folder("lerobot", config(), NORMALIZATION, {}), {"a": torch.ones(1)})
    path = tmp_path / "act" / "config.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "input_features": {**stored["input_features"], **change}}))
    with pytest.raises(ValueError, match="input_features"):
        policy_folder.load(tmp_path / "act")


def test_policies_without_an_equal_are_not_exported() -> None:
    delta = NORMALIZATION | {"delta": [[True, False]]}
    narrow = NORMALIZATION | {"dims": {"action": [1], "observation.state": [3]}}
    for normalization in (delta, narrow):
        with pytest.raises(ConfigError):
            folder_formats.describe_folder("lerobot", config(), normalization, {})


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "lerobot"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "lerobot", None)
    with refused("lerobot", kind=MissingExtraError):
        policy_type("lerobot-act").build(config(), NORMALIZATION)
