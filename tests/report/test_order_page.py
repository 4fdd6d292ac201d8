"""The table of docs/order.md has the figures of `understudy order explain` today."""

from pathlib import Path

import pytest

from understudy.report.order import ExplainConfig, compare, read_tables

PAGE = Path(__file__).parents[2] / "docs" / "order.md"


def rows_of_the_page() -> dict[str, list[str]]:
    rows = [line.strip("| \n").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return {row[0].strip(): [cell.strip(" *") for cell in row[1:]] for row in rows}


@pytest.mark.long
def test_the_table_of_the_page() -> None:
    rows = rows_of_the_page()
    config = ExplainConfig()
    figures = [side.figures for side in compare(read_tables(config), config).sides]
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
        assert [float(cell.replace(",", "")) for cell in rows[label]] == pytest.approx(values, rel=0.02), label
    openings = [cell.split(" / ") for cell in rows["opened in a step, mean / most"]]
    assert [float(mean) for mean, _ in openings] == pytest.approx([a.touches_mean for a in figures], rel=0.02)
    assert [int(most) for _, most in openings] == [a.touches_peak for a in figures]


def test_the_picture_is_there_and_small() -> None:
    picture = PAGE.parent / "img" / "order_deff.png"
    assert "img/order_deff.png" in PAGE.read_text()
    assert picture.stat().st_size < 150_000
