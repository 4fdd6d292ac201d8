"""docs/policies.md: its example runs, and its config builds a policy of tiny dimensions."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.flow.model import FlowPolicy
from understudy.policies.inference import load_policy

PAGE = (Path(__file__).parents[1] / "docs" / "policies.md").read_text()


def test_page_loads_a_policy_that_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    unit = {"offset": np.zeros(4, np.float32), "spread": np.ones(4, np.float32)}
    config = FlowPolicyConfig(4, 4, ("observation.images.front",), chunk=3)
    FlowPolicy(config, {"action": unit, "observation.state": unit}).save(tmp_path / "POLICY")
    monkeypatch.chdir(tmp_path)
    exec(block, found := {})
    assert found["actions"].shape == (3, 4)


def test_page_has_a_config_of_tiny_dimensions(tmp_path: Path) -> None:
    (block,) = re.findall(r"```json\n(.*?)```", PAGE, flags=re.DOTALL)
    (tmp_path / "config.json").write_text(block)
    stored = json.loads(block)
    widths = {"action": stored["action_dim"], "observation.state": stored["state_dim"]}
    maps = {key: {"offset": [0] * width, "spread": [1] * width} for key, width in widths.items()}
    (tmp_path / "normalisation.json").write_text(json.dumps(maps))
    weights = Path(__file__).parent / "policies/pi05/golden" / stored["type"] / "weights.safetensors"
    shutil.copy(weights, tmp_path / "model.safetensors")
    assert load_policy(tmp_path).config.sizes.vlm.width == stored["dimensions"]["vlm"]["width"]
