"""Dtype of a frozen base that a plan does not load."""

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support import jax_tree, pi05_policy
from support.pi05 import SMALL
from understudy.config.lora import LoraConfig
from understudy.config.train import DataConfig, TrainConfig
from understudy.policies.pi05.config import Pi05PolicyConfig, Pi05Settings
from understudy.train.profiling.plan import with_known_base

STORED = Path(__file__).parents[2] / "policies" / "pi05" / "golden" / "jax"
"""A tree in float32; `test_jax_tree.py` has its origin."""
TENSORSTORE = pytest.mark.skipif(find_spec("tensorstore") is None, reason="needs the extra jax-weights (tensorstore)")


def base_of(weights: Path) -> str:
    network: dict[str, Any] = {"action_dim": 3, "state_dim": 2, "cameras": pi05_policy.CAMERAS, "chunk": SMALL.chunk}
    made = Pi05PolicyConfig(**network, dimensions=asdict(SMALL), weights=str(weights))
    data: Any = SimpleNamespace(policy_config=lambda _: made)
    policy = Pi05Settings(weights=str(weights))
    config = TrainConfig(data=DataConfig(root="d"), policy=policy, lora=LoraConfig(4))
    assert config.lora.base == "stored"
    return with_known_base(config, data, pi05_policy.NORMALISATION).lora.base


@TENSORSTORE
def test_known_base_is_float32_of_a_float32_tree() -> None:
    assert base_of(STORED) == "float32"


@TENSORSTORE
def test_known_base_is_bfloat16_of_a_bfloat16_tree(tmp_path: Path) -> None:
    assert base_of(jax_tree.write_zarr(tmp_path, jax_tree.tree(jax_tree.weights()), "bfloat16")) == "bfloat16"


def test_known_base_without_its_file_is_float32_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert base_of(tmp_path / "absent") == "float32"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert str(tmp_path / "absent") in caplog.text
