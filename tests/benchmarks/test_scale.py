"""lab/benchmarks/scale.py reads its dataset right, and notices a wrong row or a sample that comes
twice.
"""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import scale


@pytest.mark.long
def test_a_run_starts_on_the_synthetic_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    lengths = scale.write(tmp_path / "data", 2_300)
    found = scale.start(tmp_path / "data", batch=48, world=6, ranks=(1, 6), statistics=20)
    assert found["frames"] == int(np.resize(lengths, 2_300).sum())
    assert found["samples"] == 8
    assert found["right"]
    assert {count: own["union"] for count, own in found["ranks"].items()} == {"1": True, "6": True}
    assert found["statistics_us_per_frame"] > 0
    assert len(found["stages"]) == 5
    assert found["stages"]["first batch of one rank"]["wall_s"] > 0


def test_a_sample_that_comes_twice_is_noticed() -> None:
    def locate(positions: np.ndarray) -> tuple[np.ndarray, ...]:
        return np.zeros_like(positions), positions // 10, positions % 10

    def repeated(positions: np.ndarray) -> tuple[np.ndarray, ...]:
        return locate(np.where(positions % 64 == 63, positions - 1, positions))

    assert scale.simulate(SimpleNamespace(locate=locate), 640, 64, 8)["union"]
    assert not scale.simulate(SimpleNamespace(locate=repeated), 640, 64, 8)["union"]
