"""Facts that an export prints come back with its folder, or a line says that they are missing."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.policies.common.folder_facts import FOLDER_FACTS
from understudy.policies.inference import RobotPolicy, load_policy
from understudy.policies.pi05.normalization import find_normalization
from understudy.policies.pi05.policy import Pi05Policy
from understudy.testing.pi05_policy import CAMERAS, NORMALISATION, policy
from understudy.testing.sentences import write_model
from understudy_base import ConfigError
from understudy_kit import main
from understudy_zoo.folder_formats import describe_folder, save_folder

WIDE = {"offset": [0.1, 0.2, 0.5], "spread": [2.0, 1.0, 0.0]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("tokenizer"))


def exported(made: Pi05Policy, normalization: dict[str, Any], path: Path, tool: str) -> Path:
    described = describe_folder(tool, made.config, normalization, {})
    save_folder(path, described, dict(made.state_dict()))
    return path


def act(robot: RobotPolicy, state: list[float]) -> np.ndarray:
    seen = {camera: np.full((12, 10, 3), 90, np.uint8) for camera in CAMERAS}
    observation = {
        **seen,
        "observation.state": np.array(state, np.float32),
        "task": "push the block",
    }
    return robot.act(observation, generator=torch.Generator().manual_seed(0))


FACTS_OF: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "differences": (
        {"state_dim": 3},
        {
            "delta": [[True, False, True]],
            "observation.state": {"offset": [0.0] * 3, "spread": [2.0] * 3},
        },
    ),
    "constant state": ({"state_dim": 3}, {"observation.state": WIDE}),
    "constant state of zeros": (
        {"state_dim": 2},
        {"observation.state": {"offset": [1.0, 0.0], "spread": [2.0, 0.0]}},
    ),
    "given actions": ({"max_delay": 2}, {}),
    "one camera": ({"cameras": CAMERAS[1:]}, {}),
}


@pytest.mark.parametrize("fact", FACTS_OF)
@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("tool", ["lerobot", "openpi"])
def test_each_fact_comes_back(
    fact: str, adaptive: bool, tool: str, tokenizer: Path, tmp_path: Path
) -> None:
    config, changed = FACTS_OF[fact]
    normalization = NORMALISATION | changed
    base = policy(tokenizer, adaptive)
    made = type(base)(replace(base.config, **config), normalization)
    weights = {
        name: value
        for name, value in base.state_dict().items()
        if name in dict(made.named_parameters())
    }
    made.load_state_dict(weights, strict=False)
    loaded = load_policy(exported(made, normalization, tmp_path / "w", tool))
    for name in ("cameras", "action_dim", "state_dim", "max_delay", "chunk"):
        assert getattr(loaded.config, name) == getattr(made.config, name), name
    state = [0.75, -0.25, 0.9][: made.config.state_dim]  # a constant dimension that moves after all
    expected = act(RobotPolicy(made.eval(), {}), state)
    assert np.allclose(
        act(loaded, state), expected, rtol=0, atol=1e-5 * max(1.0, np.abs(expected).max())
    )


def test_a_run_learns_the_differences_of_its_weights(tokenizer: Path, tmp_path: Path) -> None:
    made = policy(tokenizer)
    normalization = NORMALISATION | {"delta": [[True, False, False]]}
    stored = find_normalization(exported(made, normalization, tmp_path / "w", "openpi"))
    assert stored.delta == (0,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta", [7]),
        ("delta", [True]),
        ("delta", "0"),
        ("constant", [2]),
        ("cameras", "x"),
        ("what", 1),
    ],
)
def test_damaged_facts_are_named(name: str, value: Any, tokenizer: Path, tmp_path: Path) -> None:
    path = exported(policy(tokenizer), dict(NORMALISATION), tmp_path / "w", "openpi")
    facts = json.loads((path / FOLDER_FACTS).read_text())
    (path / FOLDER_FACTS).write_text(json.dumps({**facts, name: value}))
    (path / "understudy.sha256").unlink(missing_ok=True)
    with pytest.raises((ConfigError, ValueError), match=name):
        load_policy(path)


def test_a_folder_that_does_not_state_its_differences_gets_a_line(
    tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = exported(policy(tokenizer), dict(NORMALISATION), tmp_path / "w", "openpi")
    (path / "understudy.sha256").unlink(missing_ok=True)
    load_policy(path)
    assert FOLDER_FACTS not in caplog.text
    (path / FOLDER_FACTS).unlink()
    load_policy(path)
    assert str(path / FOLDER_FACTS) in caplog.text


@pytest.mark.parametrize("without", ["norm_map", "ACTION"])
def test_statistics_without_a_mode_get_a_line(
    without: str, tokenizer: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = exported(policy(tokenizer), dict(NORMALISATION), tmp_path / "w", "lerobot")
    (path / "understudy.sha256").unlink(missing_ok=True)
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        stored = json.loads((path / name).read_text())
        for step in stored["steps"]:
            if "normalizer" in step["registry_name"]:
                del (step["config"] if without == "norm_map" else step["config"]["norm_map"])[
                    without
                ]
        (path / name).write_text(json.dumps(stored))
    load_policy(path)
    assert "norm_map" in caplog.text


@pytest.mark.parametrize("tool", ["lerobot", "openpi"])
@pytest.mark.parametrize("adaptive", [True, False])
def test_contract_of_an_export_names_no_contradiction(
    tool: str, adaptive: bool, tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(policy(tokenizer, adaptive), dict(NORMALISATION), tmp_path / "w", tool)
    assert main(["contract", str(path)]) == 0, capsys.readouterr().out


def test_contract_still_names_statistics_that_the_used_mode_lacks(
    tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = exported(policy(tokenizer), dict(NORMALISATION), tmp_path / "w", "lerobot")
    (path / "understudy.sha256").unlink(missing_ok=True)
    for name in ("policy_preprocessor.json", "policy_postprocessor.json"):
        (path / name).write_text((path / name).read_text().replace("MEAN_STD", "QUANTILES"))
    assert main(["contract", str(path)]) == 1
    assert "q01" in capsys.readouterr().out
