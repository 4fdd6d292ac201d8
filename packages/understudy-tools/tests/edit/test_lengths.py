"""Lengths that meta/ records wrong beside whole rows: `edit --lengths rows`."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, Truth, edit_column, identity, write_dataset
from understudy_kit import main
from understudy_tools.check.examine import check_dataset

CAMERA = "observation.images.top"
LENGTHS = (6, 5, 7, 6)
Change = Callable[[np.ndarray], np.ndarray]


def made(root: Path, version: str, cameras: tuple[str, ...] = (CAMERA,)) -> Truth:
    packed = {"per_data_file": 4, "per_video_file": 2} if version == "v3.0" else {}
    spec = Spec(
        version=version, lengths=LENGTHS, chunks_size=1000, foreign=False, cameras=cameras, **packed
    )  # type: ignore[arg-type]
    return write_dataset(root, spec)


def record(root: Path, change: Change, times: bool = False) -> None:
    """Change the recorded lengths, int64 (4,); with `times` also what a writer computes from
    them.
    """
    lines = root / "meta/episodes.jsonl"
    if lines.exists():
        entries = [json.loads(line) for line in lines.read_text().splitlines()]
        lengths = change(np.array([entry["length"] for entry in entries])).tolist()
        texts = [json.dumps(entry | {"length": length}) for entry, length in zip(entries, lengths)]
        lines.write_text("\n".join(texts))
        return
    wrong = change(np.array(LENGTHS))
    starts = np.cumsum(wrong) - wrong
    columns = {"length": wrong}
    if times:
        # two episodes in a video
        seconds = np.concatenate([starts[:2], starts[2:] - starts[2]]) / 10
        columns |= {"dataset_from_index": starts, "dataset_to_index": starts + wrong}
        columns |= {f"videos/{CAMERA}/from_timestamp": seconds}
    for path in (root / "meta/episodes").rglob("*.parquet"):
        ids = pq.read_table(path)["episode_index"].to_numpy()
        for name, values in columns.items():
            edit_column(path, name, lambda old, new=values[ids]: new)


def add_one(lengths: np.ndarray) -> np.ndarray:
    return lengths + 1


def second_is_short(lengths: np.ndarray) -> np.ndarray:
    return lengths - np.array([0, 2, 0, 0])


def is_whole(root: Path, truth: Truth, episodes: list[int]) -> bool:
    """Whether a dataset has exactly these episodes of the truth, each row beside its own image."""
    data = EpisodeArrays(root)
    if data.catalog.episodes.lengths.tolist() != [LENGTHS[episode] for episode in episodes]:
        return False
    for number, episode in enumerate(episodes):
        for frame in range(LENGTHS[episode]):
            sample = data.sample(number, frame)
            if not np.array_equal(sample["action"], truth.rows[episode]["action"][frame]):
                return False
            if CAMERA in sample and identity(sample[CAMERA])[1:] != (episode, frame):
                return False
    return True


def take(root: Path, out: Path, *more: str) -> int:
    return main(["edit", str(root), str(out), "--lengths", "rows", *more])


@pytest.mark.parametrize("change", [add_one, second_is_short])
@pytest.mark.parametrize(
    ("version", "cameras", "times"),
    [
        ("v2.1", (CAMERA,), False),
        ("v2.1", (), False),
        ("v3.0", (CAMERA,), False),
        ("v3.0", (CAMERA,), True),
        ("v3.0", (), False),
    ],
)
def test_stale_lengths_are_taken_from_whole_rows(
    tmp_path: Path, version: str, change: Change, cameras: tuple[str, ...], times: bool
) -> None:
    root = tmp_path / "data"
    truth = made(root, version, cameras)
    record(root, change, times)
    wrong = [finding for finding in check_dataset(root).findings if finding.rule == "rows.count"]
    stale = np.flatnonzero(change(np.array(LENGTHS)) != LENGTHS).tolist()
    assert sorted(episode for finding in wrong for episode in finding.place.episodes) == stale
    assert all("--lengths rows" in finding.fix for finding in wrong)
    assert main(["edit", str(root), str(tmp_path / "refused")]) == 2
    with pytest.warns(UserWarning, match="length"):
        assert take(root, tmp_path / "out") == 0
    assert is_whole(tmp_path / "out", truth, [0, 1, 2, 3])
    assert check_dataset(tmp_path / "out").is_sound


def drop_row(root: Path, row: int) -> None:
    for path in (root / "data").rglob("*.parquet"):
        table = pq.read_table(path)
        if path.stem == "episode_000001" or path.stem == "file-000":
            row += 6 if path.stem == "file-000" else 0
            keep = np.arange(len(table)) != row
            pq.write_table(table.filter(keep), path)


@pytest.mark.long
@pytest.mark.parametrize("row", [2, 4])
@pytest.mark.parametrize("cameras", [(CAMERA,), ()])
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_rows_that_were_lost_are_no_lengths(
    tmp_path: Path, version: str, cameras: tuple[str, ...], row: int
) -> None:
    """A row amid the episode leaves a gap in the columns; the last one, a frame of the video."""
    root = tmp_path / "data"
    truth = made(root, version, cameras)
    drop_row(root, row)
    if row == 4 and not cameras:  # nothing tells that a row is lost at the end
        return
    wrong = [finding for finding in check_dataset(root).findings if finding.rule == "rows.count"]
    assert [finding.place.episodes for finding in wrong] == [(1,)]
    assert "--lengths rows" not in wrong[0].fix
    assert take(root, tmp_path / "out") == 2
    assert take(root, tmp_path / "rest", "--skip-bad") == 1
    assert is_whole(tmp_path / "rest", truth, [0, 2, 3])


def test_stale_lengths_beside_a_lost_row_leave_out_one_episode(tmp_path: Path) -> None:
    root = tmp_path / "data"
    truth = made(root, "v2.1")
    record(root, add_one)
    drop_row(root, 2)
    with pytest.warns(UserWarning, match="length"):
        assert take(root, tmp_path / "out", "--skip-bad") == 1
    assert is_whole(tmp_path / "out", truth, [0, 2, 3])


def test_renamed_data_files_have_no_length_of_their_rows(tmp_path: Path) -> None:
    """The pairing is in doubt first: a length must not make it permanent."""
    root = tmp_path / "data"
    made(root, "v2.1")
    files = root / "data/chunk-000"
    (files / "episode_000001.parquet").rename(files / "episode_000009.parquet")
    (files / "episode_000002.parquet").rename(files / "episode_000001.parquet")
    (files / "episode_000009.parquet").rename(files / "episode_000002.parquet")
    record(root, lambda lengths: lengths + np.array([1, 0, 0, 0]))
    assert take(root, tmp_path / "out") == 2
    assert (
        main(
            ["edit", str(root), str(tmp_path / "two"), "--lengths", "rows", "--pairing", "columns"]
        )
        == 2
    )
    with pytest.warns(UserWarning, match="length"):
        assert take(root, tmp_path / "rest", "--skip-bad") == 1
    assert Catalog.open(tmp_path / "rest").num_episodes == 2


def test_sound_lengths_stay(tmp_path: Path) -> None:
    root = tmp_path / "data"
    truth = made(root, "v3.0")
    assert take(root, tmp_path / "out") == 0
    assert is_whole(tmp_path / "out", truth, [0, 1, 2, 3])
