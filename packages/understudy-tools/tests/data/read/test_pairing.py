"""Rows whose place and columns name different episodes: refused beside videos until a setting names
the right side.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import DatasetError
from understudy_data.datasets.check_files import FileCheck
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, Truth, edit_column, identity, write_dataset
from understudy_kit import main
from understudy_tools.check.examine import check_dataset

CAMERA = "observation.images.top"
LENGTHS = (6, 6, 6, 6)


def made(root: Path, version: str, **more: object) -> Truth:
    spec = Spec(
        version=version, lengths=LENGTHS, chunks_size=1000, foreign=False, per_data_file=4, **more
    )  # type: ignore[arg-type]
    return write_dataset(root, spec)


def data_file(root: Path, number: int) -> Path:
    return root / f"data/chunk-000/episode_{number:06d}.parquet"


def rename_rows(root: Path, old: int, new: int) -> None:
    data_file(root, old).rename(data_file(root, new))


def without_first(root: Path) -> None:
    """Remove the rows of episode 1, and rename the later data files."""
    data_file(root, 1).unlink()
    rename_rows(root, 2, 1)
    rename_rows(root, 3, 2)


def exchange(root: Path) -> None:
    """Exchange the data files of episodes 1 and 2."""
    rename_rows(root, 1, 9)
    rename_rows(root, 2, 1)
    rename_rows(root, 9, 2)


def count_from_zero(root: Path) -> None:
    """Give each file the column of a first episode, as a recorder that starts anew for each."""
    for number in range(1, len(LENGTHS)):
        edit_column(data_file(root, number), "episode_index", lambda ids: np.zeros_like(ids))


def joined(root: Path) -> None:
    """Give rows of a file the ids of two episodes."""
    edit_column(
        data_file(root, 2), "episode_index", lambda ids: np.where(np.arange(len(ids)) < 3, 2, 1)
    )


def without_ids(root: Path) -> None:
    """Exchange two files that have `index` alone."""
    exchange(root)
    for path in (root / "data").rglob("*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(["episode_index"]), path)


def pairs(catalog: Catalog, truth: Truth, episode: int) -> bool:
    """Whether the first frame of an episode has rows and image of the same recorded episode."""
    sample = EpisodeArrays(catalog).sample(episode, 0)
    _, shown, _ = identity(sample[CAMERA])
    return bool(np.array_equal(sample["action"], truth.rows[shown]["action"][0]))


FAULTS = {
    without_first: [1, 2],
    exchange: [1, 2],
    count_from_zero: [1, 2, 3],
    joined: [2],
    without_ids: [1, 2],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_pairing_is_refused_until_named(
    tmp_path: Path, fault: object, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    out = tmp_path / "out"
    truth, doubtful = made(root, "v2.1"), FAULTS[fault]  # type: ignore[index]
    fault(root)  # type: ignore[operator]
    catalog = Catalog.open(root)
    assert pairs(catalog, truth, 0)
    for episode in doubtful:
        with pytest.raises(DatasetError) as error:
            EpisodeArrays(catalog).sample(episode, 0)
        assert "--pairing files" in error.value.fix
        assert "--pairing columns" in error.value.fix
    broken = FileCheck(catalog).broken_episodes([], [], np.arange(len(LENGTHS)))
    assert [int(gap.rows[0]) for gap in broken] == doubtful
    report = check_dataset(root)
    finding = next(finding for finding in report.findings if finding.rule == "rows.episode")
    assert finding.severity == "error"
    assert list(finding.place.episodes) == doubtful
    assert set(doubtful) <= set(report.bad_episodes)
    assert not any(
        set(doubtful) & set(f.place.episodes) for f in report.findings if f.rule == "rows.index"
    )
    assert main(["edit", str(root), str(out)]) == 2
    assert not out.exists()
    assert main(["segment", str(root), str(out), "--times", times(tmp_path)]) == 2
    assert not out.exists()
    assert main(["publish", str(root), str(out)]) == 2
    assert not out.exists()
    assert main(["edit", str(root), str(out), "--skip-bad"]) == 1
    written = Catalog.open(out)
    assert written.num_episodes <= len(LENGTHS) - len(doubtful)
    assert all(pairs(written, truth, episode) for episode in range(written.num_episodes))
    capsys.readouterr()


def times(folder: Path) -> str:
    path = folder / "times.json"
    path.write_text(json.dumps({str(episode): [0.3] for episode in range(len(LENGTHS))}))
    return str(path)


@pytest.mark.parametrize("fault", [without_first, exchange, without_ids])
def test_pairing_columns_of_data_files_that_were_renamed_alone(
    tmp_path: Path, fault: object
) -> None:
    truth = made(tmp_path / "data", "v2.1")
    fault(tmp_path / "data")  # type: ignore[operator]
    catalog = Catalog.open(tmp_path / "data", pairing="columns")
    there = [0, 2, 3] if fault is without_first else [0, 1, 2, 3]
    assert all(pairs(catalog, truth, episode) for episode in there)
    for episode in set(range(4)) - set(there):
        with pytest.raises(DatasetError):
            EpisodeArrays(catalog).sample(episode, 0)
    assert main(
        [
            "edit",
            str(tmp_path / "data"),
            str(tmp_path / "out"),
            "--pairing",
            "columns",
            "--skip-bad",
        ]
    ) == (len(there) < 4)
    out = Catalog.open(tmp_path / "out")
    assert out.num_episodes == len(there)
    assert all(pairs(out, truth, episode) for episode in range(out.num_episodes))
    assert check_dataset(tmp_path / "out").is_sound


@pytest.mark.parametrize("fault", [count_from_zero, exchange])
def test_pairing_files_of_a_copy_renamed_with_its_videos(tmp_path: Path, fault: object) -> None:
    root = tmp_path / "data"
    truth = made(root, "v2.1")
    fault(root)  # type: ignore[operator]
    if fault is exchange:
        videos = root / f"videos/chunk-000/{CAMERA}"
        for old, new in ((1, 9), (2, 1), (9, 2)):
            (videos / f"episode_{old:06d}.mp4").rename(videos / f"episode_{new:06d}.mp4")
    catalog = Catalog.open(root, pairing="files")
    assert all(pairs(catalog, truth, episode) for episode in range(4))
    assert check_dataset(root, pairing="files").is_sound
    assert main(["edit", str(root), str(tmp_path / "out"), "--pairing", "files"]) == 0
    out = tmp_path / "out"
    assert check_dataset(out).is_sound
    assert all(pairs(Catalog.open(out), truth, episode) for episode in range(4))


def test_pairing_columns_of_two_files_for_one_episode(tmp_path: Path) -> None:
    made(tmp_path / "data", "v2.1")
    count_from_zero(tmp_path / "data")
    with pytest.raises(DatasetError) as error:
        Catalog.open(tmp_path / "data", pairing="columns")
    assert "'files'" in error.value.fix
    with pytest.raises(DatasetError):
        Catalog.open(tmp_path / "data", pairing="names")


@pytest.mark.parametrize("where", ["none", "rows"])
def test_pairing_without_videos_is_a_warning(tmp_path: Path, where: str) -> None:
    made(tmp_path / "data", "v2.1", cameras=(), images=(CAMERA,) if where == "rows" else ())
    exchange(tmp_path / "data")
    with pytest.warns(UserWarning, match="name"):
        EpisodeArrays(tmp_path / "data").sample(1, 0)
    report = check_dataset(tmp_path / "data")
    assert report.is_sound
    assert any(finding.rule == "rows.episode" for finding in report.findings)


def test_pairing_lengths_favor_a_side(tmp_path: Path) -> None:
    spec = Spec(version="v2.1", lengths=(6, 5, 7, 6), chunks_size=1000, foreign=False)
    write_dataset(tmp_path / "data", spec)
    exchange(tmp_path / "data")
    finding = next(f for f in check_dataset(tmp_path / "data").findings if f.rule == "rows.episode")
    assert "lengths favor columns" in finding.fix
    assert check_dataset(tmp_path / "data", pairing="columns").is_sound


def relabel(root: Path, old: int, new: int) -> None:
    """Exchange the column episode_index of two episodes of a packed file."""
    path = root / "data/chunk-000/file-000.parquet"
    edit_column(
        path, "episode_index", lambda ids: np.where(ids == old, new, np.where(ids == new, old, ids))
    )


def test_pairing_in_packed_files(tmp_path: Path) -> None:
    """The column alone was changed: `index`, meta/ and the videos name the other episode."""
    root = tmp_path / "data"
    truth = made(root, "v3.0")
    relabel(root, 1, 2)
    catalog = Catalog.open(root)
    for episode in (1, 2):
        with pytest.raises(DatasetError) as error:
            EpisodeArrays(catalog).sample(episode, 0)
        assert "--pairing files" in error.value.fix
    assert check_dataset(root).bad_episodes == (1, 2)
    assert all(pairs(catalog, truth, episode) for episode in (0, 3))
    assert main(["edit", str(root), str(tmp_path / "bad")]) == 2
    assert main(["edit", str(root), str(tmp_path / "out"), "--pairing", "files"]) == 0
    out = Catalog.open(tmp_path / "out")
    assert all(pairs(out, truth, episode) for episode in range(4))


def test_pairing_in_packed_files_whose_column_starts_anew(tmp_path: Path) -> None:
    root = tmp_path / "data"
    truth = made(root, "v3.0")
    edit_column(root / "data/chunk-000/file-000.parquet", "episode_index", lambda ids: ids + 7)
    with pytest.raises(DatasetError) as error:
        EpisodeArrays(root).sample(1, 0)
    assert "--pairing files" in error.value.fix
    catalog = Catalog.open(root, pairing="files")
    assert all(pairs(catalog, truth, episode) for episode in range(4))
    assert not [f for f in check_dataset(root, pairing="files").findings if f.severity == "error"]


def test_pairing_of_rows_in_another_order_is_sound_where_index_confirms(tmp_path: Path) -> None:
    root = tmp_path / "data"
    truth = made(root, "v3.0")
    path = root / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    pq.write_table(pa.concat_tables([table.slice(6 * k, 6) for k in (2, 0, 3, 1)]), path)
    assert all(pairs(Catalog.open(root), truth, episode) for episode in range(4))
    assert not [f for f in check_dataset(root).findings if f.rule == "rows.episode"]


def test_pairing_of_times_that_exchange_episodes_and_fit_no_frame(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write_dataset(root, Spec(lengths=LENGTHS, foreign=False, per_data_file=4, per_video_file=4))
    meta = next((root / "meta/episodes").rglob("*.parquet"))
    edit_column(
        meta, f"videos/{CAMERA}/from_timestamp", lambda times: np.where(times == 1.2, 0.3, times)
    )
    with pytest.raises(DatasetError):
        EpisodeArrays(root).sample(2, 0)
    assert check_dataset(root).bad_episodes == (0, 1, 2, 3)
    shutil.rmtree(root)
    truth = write_dataset(
        root,
        Spec(
            lengths=LENGTHS, foreign=False, per_data_file=4, per_video_file=4, reverse_videos=True
        ),
    )
    assert all(pairs(Catalog.open(root), truth, episode) for episode in range(4))
