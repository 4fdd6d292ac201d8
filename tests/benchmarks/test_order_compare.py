"""`lab/benchmarks/order_compare.py` compares all orders, and the table of docs/order.md has its
figures of today.
"""

from pathlib import Path

import numpy as np
import pytest

import order_compare
from order_compare import CompareConfig, compare, main
from understudy_data.load.explain import LengthTable
from understudy_tools.cli.order import explained

SMALL = {
    "batch_size": 32,
    "world_size": 2,
    "num_workers": 2,
    "episodes": 400,
    "frames_in_flight": 4096,
}
WORDS = [word for name, value in SMALL.items() for word in (f"--{name}", str(value))]
NAMES = ["clips", "uniform", "episode lanes", "block shuffle", "worker pool", "episode stream"]
PAGE = Path(__file__).parents[2] / "docs" / "order.md"


def test_compare_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(WORDS)
    text = capsys.readouterr().out
    assert "400 episodes" in text
    head = next(line for line in text.splitlines() if "clips" in line and "uniform" in line)
    assert head.split("  ")[-1].strip() == "episode stream"
    assert all(name in head for name in NAMES)
    row = next(line for line in text.splitlines() if line.startswith("deff over 1 batch"))
    assert len(row.split()) == 4 + len(NAMES)
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.long
def test_compare_omits_orders_with_fewer_episodes_than_workers(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([*WORDS, "--episodes", "3"])
    text = capsys.readouterr().out
    assert "omitted: worker_pool: 3 episodes" in text
    assert "omitted: episode_stream" in text
    assert "block shuffle" in text


def test_compare_weights_a_mixture() -> None:
    lengths = np.full(300, 100)
    config = CompareConfig(**SMALL, weights=(3, 1), paths=("a", "b"))
    tables = [
        LengthTable(name, lengths, 2, (0, 0), 30.0, cameras)
        for name, cameras in (("a", 1), ("b", 3))
    ]
    sides = compare(tables, config).sides
    episode, _, _ = sides[0].read(np.arange(2**16))
    assert (episode < 300).mean() == pytest.approx(0.75, abs=1e-3)


@pytest.mark.long
def test_compare_audits_a_bounded_number_of_positions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a clip of all data, or memory for all data, the audit stays short and notes that it is
    approximate.
    """
    config = CompareConfig(**SMALL | {"episodes": 40}, clip=10**12, lanes=32)
    assert compare(explained(config).tables, config).settled  # no more is held than there is
    monkeypatch.setattr(order_compare, "MOST", 1 << 16)
    for kwargs in ({"frames_in_flight": 10**9}, {"clip": 10**12, "lanes": 32}):
        config = CompareConfig(**SMALL | kwargs)
        comparison = compare(explained(config).tables, config)
        assert not comparison.settled
        assert {side.figures.stretch for side in comparison.sides if side.figures} == {
            (1 << 16, 1 << 17)
        }
    main([*WORDS, "--clip", str(10**12), "--lanes", "1"])
    text = capsys.readouterr().out
    assert "their figures are approximate" in text
    assert "omitted: audit: 'clips' opens nothing" in text


def rows_of_the_page() -> dict[str, list[str]]:
    rows = [
        line.strip("| \n").split("|")
        for line in PAGE.read_text().splitlines()
        if line.startswith("| ")
    ]
    return {row[0].strip(): [cell.strip(" *") for cell in row[1:]] for row in rows}


@pytest.mark.long
def test_the_table_of_the_page() -> None:
    rows = rows_of_the_page()
    config = CompareConfig()
    figures = [side.figures for side in compare(explained(config).tables, config).sides]
    found = {
        "episodes in a batch": [a.distinct_episodes for a in figures],
        "deff over 1 batch": [a.deff[0] for a in figures],
        "deff over 8 batches": [a.deff[1] for a in figures],
        "deff over 64 batches": [a.deff[2] for a in figures],
        "pieces open, most": [a.open_max for a in figures],
        "frames in flight": [a.frames_in_flight for a in figures],
        "ranks that open a piece": [a.opens_per_piece for a in figures],
        "frames decoded per sample": [a.amplification for a in figures],
    }
    for label, values in found.items():
        assert [float(cell.replace(",", "")) for cell in rows[label]] == pytest.approx(
            values, rel=0.02
        ), label
    openings = [cell.split(" / ") for cell in rows["opened in a step, mean / most"]]
    assert [float(mean) for mean, _ in openings] == pytest.approx(
        [a.touches_mean for a in figures], rel=0.02
    )
    assert [int(most) for _, most in openings] == [a.touches_peak for a in figures]


def test_the_picture_is_there_and_small() -> None:
    picture = PAGE.parent / "img" / "order_deff.png"
    assert "img/order_deff.png" in PAGE.read_text()
    assert picture.stat().st_size < 150_000
