"""lab/benchmarks/bucket_sizes.py: readings from a bucket beside the disk, with bytes over bytes
needed.
"""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import bucket_sizes
import rows
from understudy_data.order import Order


def test_bytes_needed_are_those_of_groups_of_pictures_and_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "PER_DATA", 4)
    monkeypatch.setattr(rows, "LENGTH", 40)
    rows.write(tmp_path / "set", 320, 10**9, per_video=2, group=40)
    from understudy import EpisodeDataset

    data = EpisodeDataset(tmp_path / "set")
    order = Order.from_datasets([data], batch_size=8, seed=0)
    some, all_of = (
        bucket_sizes.needed(tmp_path / "set", order.to_json(), 0, count) for count in (8, 320)
    )
    videos = sum(path.stat().st_size for path in (tmp_path / "set/videos").rglob("*.mp4"))
    tables = sum(path.stat().st_size for path in (tmp_path / "set/data").rglob("*.parquet"))
    assert all_of["videos"] == videos
    assert 0.98 * tables < all_of["rows"] <= tables
    assert some["videos"] < 0.9 * videos
    assert some["rows"] <= all_of["rows"]


@pytest.mark.long
def test_a_round_compares_the_bucket_with_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bucket_sizes, "PER_VIDEO", 4)
    monkeypatch.setattr(bucket_sizes, "LATENCY", 0.001)
    monkeypatch.setattr(
        bucket_sizes,
        "make_video",
        lambda recorded, encoding, path, frames: rows.draw_video(path, frames),
    )
    out = tmp_path / "out.json"
    arguments = [
        "--millions",
        "0.002",
        "--only",
        "h264",
        "--seconds",
        "0.2",
        "--warm",
        "0",
        "--real",
        "",
    ]
    monkeypatch.setattr(
        sys, "argv", ["", *arguments, "--folder", str(tmp_path), "--out", str(out), "--json"]
    )
    bucket_sizes.main()
    table = json.loads(capsys.readouterr().out)["rows"]
    assert [row["place"] for row in table] == ["disk", "first", "second", "middle"]
    first = table[1]
    second = table[2]
    assert first["video_used_over_needed"] >= 0.99
    assert np.isfinite(first["requests"])
    assert second["used_over_needed"] < 0.1
    assert len(json.loads(out.read_text())) == 1
