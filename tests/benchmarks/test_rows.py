"""lab/benchmarks/rows.py: every row of a batch is the one that the order names, in files and in
links to them.
"""

from pathlib import Path

import numpy as np
import pytest

import rows
import understudy as us


@pytest.mark.parametrize("linked", [0, 10**9], ids=["links", "distinct files"])
def test_the_synthetic_rows_are_read_right(
    linked: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PER_DATA", 4)
    monkeypatch.setattr(rows, "LENGTH", 20)
    monkeypatch.setattr(rows, "DISTINCT", 2)
    rows.write(tmp_path / "set", 200, linked)
    data = us.EpisodeDataset(tmp_path / "set")
    assert len(data) == 200
    for episode in (0, 3, 5, 9):
        file, place = divmod(episode, 4)
        source = file % 2 if linked == 0 and file < 2 else file
        stored = np.stack(rows._rows(source, 4 if file < 2 else 2, False)["action"].to_numpy())
        sample = data.sample(episode, 7)
        assert np.array_equal(sample["action"], stored[20 * place + 7])
        assert sample["observation.images.wrist"].shape == (3, 224, 224)


@pytest.mark.long
def test_a_reader_reports_its_figures(tmp_path: Path) -> None:
    rows.write(tmp_path / "set", 2_000, 10**9)
    found = rows.read(str(tmp_path / "set"), seconds=0.2, warm=0)
    assert found["samples_s"] > 0
    assert found["cpu_ms"] > 0
    assert found["first_s"] > 0
    assert found["planned_mb"] > 0
