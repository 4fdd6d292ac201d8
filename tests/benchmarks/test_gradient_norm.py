"""`lab/benchmarks/gradient_norm.py` in a tiny size: the orders, their deviations and the
picture.
"""

import json
from pathlib import Path

import numpy as np
import pytest

import gradient_norm


def test_fit_finds_the_correlations_that_made_the_values() -> None:
    distances = np.array([0, 1, 2, 4, 8, 16, 32, 64, 128])
    found = gradient_norm.fit(distances, 0.1 + 0.4 * np.exp(-distances / 12), np.full(9, 100))
    assert found.episode == pytest.approx(0.1, abs=0.01)
    assert found.near == pytest.approx(0.4, abs=0.01)
    assert found.frames == pytest.approx(12, rel=0.1)
    # Noise below 0 is no correlation.
    none = gradient_norm.fit(distances, np.full(9, -0.01), np.full(9, 100))
    assert (none.episode, none.near) == pytest.approx((0, 0))


def test_weights_of_samples_are_1_on_average() -> None:
    lengths = np.array([5, 40, 16])
    data = gradient_norm.Recordings(
        lengths, np.zeros((61, 13), np.float32), np.zeros((61, 4), np.float32)
    )
    every = np.concatenate([data.weights(np.arange(length, 0, -1)) for length in lengths])
    assert every.mean() == pytest.approx(1)
    assert every.max() == pytest.approx(16 * every.min())


@pytest.mark.long
def test_stored_order_on_every_rank_has_a_larger_norm_at_fixed_weights(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "norm.json"
    sizes = [
        "--episodes",
        "80",
        "--batch-size",
        "256",
        "--batches",
        "8",
        "--singles",
        "20",
        "--seeds",
        "0",
    ]
    command = [
        "--cache",
        str(tmp_path),
        *sizes,
        "--ages",
        "0",
        "60",
        "--jobs",
        "1",
        "--out",
        str(out),
    ]
    gradient_norm.main([*command, "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [(age["trained"], age["course"]) for age in found["ages"]] == [
        (0, 0),
        (20, 60),
        (60, 60),
    ]
    trained = found["ages"][-1]["orders"]
    assert trained["stored"]["ratio"] > 2
    assert trained["stored, same noise"]["ratio"] > 2
    assert 0.7 < trained["clips"]["ratio"] < 1.4
    assert trained["uniform"]["ratio"] == 1
    assert (
        trained["stored"]["episodes"]
        < 3
        < trained["episode stream"]["episodes"]
        < trained["clips"]["episodes"]
    )
    for row in trained.values():
        assert row["interval"][0] <= row["norm"] <= row["interval"][1]
        # DROID's frames are assumed to be more alike
        assert row["deff"]["fitted"] < row["deff"]["model"]
    # Finished seeds are not measured again.
    picture = tmp_path / "norm.png"
    gradient_norm.main([*command, "--draw", str(picture)])
    assert "60 steps" in capsys.readouterr().out
    assert picture.stat().st_size > 10_000
