"""Loaders of many ranks in turn: together the batch of the order, and none reads much more than its own files."""

from collections import Counter
from pathlib import Path

import pytest

import scale_out
from support.caches import own_cache
from support.datasets import Spec, write_dataset

WORLD, BATCH = 64, 2048


def test_ranks_in_turn_make_one_batch_and_read_their_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each small file is read about once by a rank, although it has several samples; columns are mapped, not read."""
    own_cache(tmp_path, monkeypatch)
    write_dataset(tmp_path / "set", Spec(lengths=(110,) * 20, gop=10, per_video_file=1, per_data_file=5))
    scale_out.load_first_batch(tmp_path / "set", BATCH, 0, WORLD)  # makes the columns of the host
    ranks = [scale_out.load_first_batch(tmp_path / "set", BATCH, rank, WORLD) for rank in range(WORLD)]
    found = Counter(sample for one in ranks for sample in one["samples"])
    assert found == Counter(scale_out.named_batch(tmp_path / "set", BATCH, WORLD))
    assert set(found.values()) == {1}
    videos = sum(path.stat().st_size for path in (tmp_path / "set/videos").rglob("*.mp4"))
    assert all(one["read"].keys() == {".mp4"} for one in ranks)
    assert max(one["read"][".mp4"] for one in ranks) < 1.5 * videos
