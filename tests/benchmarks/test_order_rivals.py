"""benchmarks/order_rivals.py: the restated sampler of LeRobot shuffles all frames; rivals report the same figures."""

import mmap

import pytest

import order_rivals


def test_restated_sampler_draws_each_frame_once() -> None:
    starts, lengths = [0, 100, 250], [5, 40, 13]  # dataset indices; frames between the episodes were dropped
    drawn = list(order_rivals.PlainEpisodeSampler(starts, lengths, seed=3))
    assert sorted(drawn) == [s + i for s, n in zip(starts, lengths, strict=True) for i in range(n)]
    assert drawn != sorted(drawn)
    assert drawn == list(order_rivals.PlainEpisodeSampler(starts, lengths, seed=3))


@pytest.mark.long
@pytest.mark.parametrize("name", ["torch_randperm", "lerobot_sampler"])
def test_rival_reports_its_figures(name: str) -> None:
    figures = order_rivals.RIVALS[name](300_000)
    assert set(figures) == {"ns_per_index", "construct_ms", "peak_mb"}
    assert figures["ns_per_index"] > 0
    assert figures["construct_ms"] > 0
    assert figures["peak_mb"] < 100


def test_peak_growth_measures_memory() -> None:
    def grow() -> None:
        with mmap.mmap(-1, 50_000_000) as fresh:  # not from malloc, which may have free memory
            fresh.write(b"x" * 50_000_000)

    assert 40 < order_rivals.peak_growth_mb(grow) < 200
