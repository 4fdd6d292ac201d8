"""Episodes that a training cannot use: a file is missing, cut, or contradicts the metadata."""

from pathlib import Path

import numpy as np

from understudy_data.datasets.bad_episodes import BadEpisodes
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, edit_column, write_dataset

TOP = "observation.images.top"
SPEC = Spec(version="v2.1", lengths=(4, 5, 3, 6))


def found(root: Path, ids: list[int], opened: list[int] | None) -> BadEpisodes:
    chosen = None if opened is None else np.array(opened, np.int64)
    bad = BadEpisodes.find(Catalog.open(root), np.array(ids), [TOP], ["action"], chosen)
    assert bad is not None
    return bad


def test_missing_files_are_found_without_opening_any(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", SPEC)
    assert found(tmp_path / "d", [0, 1, 2, 3], None) == BadEpisodes((), ())
    [video] = (tmp_path / "d").rglob("episode_000002.mp4")
    video.unlink()
    bad = found(tmp_path / "d", [0, 1, 2, 3], None)
    assert bad.ids == (2,)
    assert len(bad.reasons) == 1
    assert video.name in bad.reasons[0]
    assert found(tmp_path / "d", [0, 1, 3], None) == BadEpisodes((), ())


def test_broken_files_are_found_among_the_opened_episodes(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", SPEC)
    [video] = (tmp_path / "d").rglob("episode_000001.mp4")
    video.write_bytes(video.read_bytes()[:100])
    assert found(tmp_path / "d", [0, 1, 2, 3], None).ids == ()
    assert found(tmp_path / "d", [0, 1, 2, 3], [0, 2]).ids == ()
    assert found(tmp_path / "d", [0, 1, 2, 3], [0, 1, 2, 3]).ids == (1,)


def test_rows_that_contradict_the_metadata(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", SPEC)
    [rows] = (tmp_path / "d").rglob("episode_000003.parquet")
    edit_column(rows, "episode_index", lambda ids: [number + 1 for number in ids])
    catalog = Catalog.open(tmp_path / "d")
    assert BadEpisodes.contradicting(catalog, np.array([0, 1, 2])).ids == ()
    bad = BadEpisodes.contradicting(catalog, np.array([2, 3]))
    assert bad.ids == (3,)
    assert bad.reasons
    assert BadEpisodes.doubt(catalog) == ""
