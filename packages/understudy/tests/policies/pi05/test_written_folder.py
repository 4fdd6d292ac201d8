"""A folder of a policy that is written by hand, as docs/pi05.md describes it, and errors in
it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("sentencepiece", reason="needs the extra pi05")

from understudy.policies.inference import RobotPolicy, load_policy
from understudy.testing.pi05 import SMALL
from understudy.testing.released import released_shapes
from understudy.testing.sentences import write_model
from understudy_base import ConfigError
from understudy_base.testing.refusals import refused

CAMERA = "observation.images.front"
BOTH = pytest.mark.parametrize("kind", ["pi05", "pi0"])


def write(
    folder: Path, kind: str = "pi05", cameras: tuple[str, ...] = (CAMERA,), **changes: Any
) -> Path:
    """Write the four files from their description alone."""
    sizes = replace(SMALL, adaptive=kind == "pi05", vocab=256)
    dimensions = asdict(sizes)
    del dimensions["adaptive"]
    folder.mkdir(exist_ok=True)
    config = {
        "type": kind,
        "dimensions": dimensions,
        "action_dim": 3,
        "state_dim": 2,
        "cameras": cameras,
        "chunk": 5,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    maps = {"action": {"offset": [0, 0, 1], "spread": [1, 1, 2]}}
    maps["observation.state"] = {"offset": [0, 0], "spread": [1, 1]}
    (folder / "normalisation.json").write_text(json.dumps(maps))
    generator = torch.Generator().manual_seed(0)
    weights = {
        key: torch.randn(shape, generator=generator) * 0.1
        for key, shape in released_shapes(sizes).items()
    }
    save_file(weights, folder / "model.safetensors")
    write_model(folder)
    return folder


def act(policy: RobotPolicy, **changes: Any) -> np.ndarray:
    seen = {camera: np.full((12, 10, 3), 90, np.uint8) for camera in policy.config.cameras}
    observation = {**seen, "observation.state": np.zeros(2, np.float32), "task": "push the block"}
    return policy.act(observation | changes, generator=torch.Generator().manual_seed(0))


@BOTH
def test_the_documented_files_are_enough_to_act(tmp_path: Path, kind: str) -> None:
    found = act(load_policy(write(tmp_path, kind)))
    assert found.shape == (5, 3)
    assert np.isfinite(found).all()
    assert not np.array_equal(act(load_policy(tmp_path), task="pick up"), found)
    (tmp_path / "tokenizer.model").unlink()
    policy = load_policy(tmp_path)
    with pytest.raises(ConfigError, match="tokenizer"):
        act(policy)


@BOTH
def test_a_policy_without_cameras_acts(tmp_path: Path, kind: str) -> None:
    policy = load_policy(write(tmp_path, kind, cameras=()))
    found = act(policy)
    assert np.isfinite(found).all()
    assert not np.array_equal(act(policy, task="pick up"), found)


@BOTH
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_state_that_is_not_finite_is_refused(tmp_path: Path, kind: str, bad: float) -> None:
    policy = load_policy(write(tmp_path, kind))
    with pytest.raises(ValueError, match=r"observation\.state"):
        act(policy, **{"observation.state": np.array([0, bad], np.float32)})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chunk", "5"),
        ("chunk", 5.0),
        ("chunk", True),
        ("action_dim", None),
        ("state_dim", [2]),
        ("cameras", CAMERA),
        ("cameras", [1]),
        ("compute", "float8"),
        ("compute", "int8"),
        ("dimensions", [1]),
        ("insulation", "yes"),
        ("image_size", [8]),
        ("tokenizer", 3),
        ("prompt", "both"),
        ("noise_samples", 1.5),
    ],
)
def test_a_value_of_another_type_is_named(tmp_path: Path, field: str, value: Any) -> None:
    with refused(tmp_path / "config.json", field, kind=ValueError):
        load_policy(write(tmp_path, **{field: value}))


@pytest.mark.parametrize("missing", ["action_dim"])
def test_a_missing_field_is_named(tmp_path: Path, missing: str) -> None:
    config = json.loads((write(tmp_path) / "config.json").read_text())
    del config[missing]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with refused(tmp_path / "config.json", missing, kind=ValueError):
        load_policy(tmp_path)


def _integers(weights: dict[str, torch.Tensor]) -> None:
    weights["action_in_proj.bias"] = weights["action_in_proj.bias"].long()


def _stray(weights: dict[str, torch.Tensor]) -> None:
    weights["action_in_proj.scale"] = torch.ones(1)


@pytest.mark.parametrize(
    ("change", "named"), [(_integers, "action_in_proj.bias"), (_stray, "action_in_proj.scale")]
)
def test_a_wrong_tensor_is_named(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor]], None], named: str
) -> None:
    from safetensors.torch import load_file

    weights = load_file(write(tmp_path) / "model.safetensors")
    change(weights)
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=named):
        load_policy(tmp_path)
