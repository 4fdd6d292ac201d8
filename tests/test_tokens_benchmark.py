"""benchmarks/tokens.py: figures of small images and layers."""

import importlib.util
from pathlib import Path

import pytest


@pytest.mark.long
def test_packing_saves_operations() -> None:
    path = Path(__file__).parents[1] / "benchmarks" / "tokens.py"
    spec = importlib.util.spec_from_file_location("tokens_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = module.measure(module.make_policy(32, image=28), module.make_batch(image=28), rounds=1)
    images = 4 * sum((1, 1, 2, 2, 3, 3))
    assert found["valid_share"] == (images + 3 * 210 + 6 * 50) / (6 * (12 + 200 + 50))
    packed, trimmed, padded = (found[f"{kind}_flops_per_sample"] for kind in ("packed", "trimmed", "padded"))
    assert packed < trimmed < padded
    assert found["cpu_ratio"] > 0
