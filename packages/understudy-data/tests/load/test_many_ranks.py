"""Loaders of many ranks in turn: together the batch of the order, and none reads much more than its
own files.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest

import scale_out
from understudy_data.testing.caches import own_cache
from understudy_data.testing.datasets import Spec, write_dataset

WORLD = 64
BATCH = 2048
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="counts reads in /proc"
)


def test_ranks_in_turn_make_one_batch_and_read_their_own_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small videos are read once or twice by a rank, in this batch and ahead; columns are mapped,
    not read.
    """
    own_cache(tmp_path, monkeypatch)
    write_dataset(
        tmp_path / "set", Spec(lengths=(110,) * 20, gop=10, per_video_file=1, per_data_file=5)
    )
    scale_out.load_first_batch(tmp_path / "set", BATCH, 0, WORLD)  # makes the columns of the host
    ranks = [
        scale_out.load_first_batch(tmp_path / "set", BATCH, rank, WORLD) for rank in range(WORLD)
    ]
    found = Counter(sample for one in ranks for sample in one["samples"])
    assert found == Counter(scale_out.named_batch(tmp_path / "set", BATCH, WORLD))
    assert set(found.values()) == {1}
    kinds = ("mp4", "parquet")
    sizes = {
        kind: sum(path.stat().st_size for path in (tmp_path / "set").rglob(f"*.{kind}"))
        for kind in kinds
    }
    assert max(one["video"] for one in ranks) < 3 * sizes["mp4"]
    assert max(one["others"] for one in ranks) < sizes["parquet"]
