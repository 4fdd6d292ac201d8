"""benchmarks/order_rivals.py: the restated sampler of LeRobot shuffles all frames; rivals report the same figures."""

import importlib.util
import mmap
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def rivals() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "order_rivals.py"
    spec = importlib.util.spec_from_file_location("order_rivals", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_restated_sampler_draws_each_frame_once(rivals: ModuleType) -> None:
    starts, lengths = [0, 100, 250], [5, 40, 13]  # dataset indices; frames between the episodes were dropped
    drawn = list(rivals.PlainEpisodeSampler(starts, lengths, seed=3))
    assert sorted(drawn) == [s + i for s, n in zip(starts, lengths, strict=True) for i in range(n)]
    assert drawn != sorted(drawn)
    assert drawn == list(rivals.PlainEpisodeSampler(starts, lengths, seed=3))


@pytest.mark.long
@pytest.mark.parametrize("name", ["torch_randperm", "lerobot_sampler"])
def test_rival_reports_its_figures(rivals: ModuleType, name: str) -> None:
    figures = rivals.RIVALS[name](300_000)
    assert set(figures) == {"ns_per_index", "construct_ms", "peak_mb"}
    assert figures["ns_per_index"] > 0
    assert figures["construct_ms"] > 0
    assert figures["peak_mb"] < 100


def test_peak_growth_measures_memory(rivals: ModuleType) -> None:
    def grow() -> None:
        with mmap.mmap(-1, 50_000_000) as fresh:  # not from malloc, which may have free memory
            fresh.write(b"x" * 50_000_000)

    assert 40 < rivals.peak_growth_mb(grow) < 200
