"""docs/policies.md: its example runs."""

import re
from pathlib import Path

import numpy as np
import pytest

from understudy.policies.flow.config import FlowPolicyConfig
from understudy.policies.flow.model import FlowPolicy

PAGE = (Path(__file__).parents[1] / "docs" / "policies.md").read_text()


def test_page_loads_a_policy_that_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    unit = {"offset": np.zeros(4, np.float32), "spread": np.ones(4, np.float32)}
    config = FlowPolicyConfig(4, 4, ("observation.images.front",), chunk=3)
    FlowPolicy(config, {"action": unit, "observation.state": unit}).save(tmp_path / "POLICY")
    monkeypatch.chdir(tmp_path)
    exec(block, found := {})
    assert found["actions"].shape == (3, 4)
