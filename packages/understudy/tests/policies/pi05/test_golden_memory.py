"""Memory encoder and noiseless leading actions against golden files of the naive formulation
(`golden_memory.py`).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import parity
from understudy.testing import golden_memory
from understudy.testing.naive_pi05 import NaivePi0

GOLDEN = Path(__file__).with_name("golden")
FAMILIES = pytest.mark.parametrize("family", ["pi05_memory", "pi0_memory"])
BOUND = 1e-6
FAR = 1e-2


def figures(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = parity.compare(parity.load(folder))
    assert found["missing"] == found["extra"] == []
    return found


@FAMILIES
def test_network_is_that_of_the_formulas(family: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parity.main(["--golden", str(GOLDEN / family), "--json", "--strict"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["missing"] == found["extra"] == []
    for name in ("clean_prefix", "memory"):
        assert 0 < found[name] <= BOUND, name


@FAMILIES
def test_other_inputs_are_far_off(family: str) -> None:
    """Other delays, a mask without effect, frames in another sequence: none of the inputs is
    idle.
    """
    golden = parity.load(GOLDEN / family)
    golden.inputs["delay"] = golden.inputs["delay"].flip(0)
    golden.inputs["video_mask"] = torch.ones_like(golden.inputs["video_mask"])
    found = parity.compare(golden)
    assert found["clean_prefix"] > FAR
    assert found["memory"] > FAR
    golden = parity.load(GOLDEN / family)
    golden.inputs["video"][0] = golden.inputs["video"][0][[1, 0, 2, 3]]
    assert parity.compare(golden)["memory"] > 10 * BOUND


class ShiftedAges(NaivePi0):
    """Ages that begin at 1: the embedding of the present frame is not zero."""

    def age_embedding(self, age: int, width: int) -> Tensor:  # type: ignore[override]
        return NaivePi0.age_embedding(age + 1, width)


class SeesLater(NaivePi0):
    """A mask over time that is not causal."""

    def frames_seen(self, frame: int, last: int) -> range:  # type: ignore[override]
        return range(last + 1)


@pytest.mark.long
@pytest.mark.parametrize("wrong", [ShiftedAges, SeesLater])
def test_other_formulas_are_far_off(wrong: type[NaivePi0], tmp_path: Path) -> None:
    golden_memory.write(tmp_path / "pi05_memory", wrong)
    found = figures(tmp_path / "pi05_memory")
    assert found["memory"] > 1e-3
    assert found["clean_prefix"] <= BOUND  # it has no video


@pytest.mark.long
def test_committed_files_are_those_of_the_script(tmp_path: Path) -> None:
    """Up to rounding: releases of torch may draw and sum otherwise."""
    for family in golden_memory.SEEDS:
        made = shutil.copytree(GOLDEN / family, tmp_path / family)
        golden_memory.write(made)
        assert (made / "sizes.json").read_text() == (GOLDEN / family / "sizes.json").read_text()
        for name in ("weights", "inputs", "reference"):
            fresh, stored = (
                load_file(folder / f"{name}.safetensors") for folder in (made, GOLDEN / family)
            )
            assert fresh.keys() == stored.keys()
            for key, value in stored.items():
                assert torch.allclose(fresh[key], value, rtol=1e-6, atol=1e-6), key
