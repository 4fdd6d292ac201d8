"""lab/benchmarks/bucket_server.py: an S3 for readers, which counts bytes and requests."""

from pathlib import Path

import numpy as np

from bucket import Bucket
from understudy_data.storage.dataset_root import Files
from understudy_data.storage.remote_options import RemoteOptions


def test_bucket_gives_the_bytes_of_a_folder_and_counts_them(tmp_path: Path) -> None:
    data = np.random.default_rng(0).integers(0, 256, 300_000, np.uint8).tobytes()
    (tmp_path / "set/videos").mkdir(parents=True)
    (tmp_path / "set/videos/a.mp4").write_bytes(data)
    (tmp_path / "set/info.json").write_bytes(b"{}")
    bucket = Bucket(tmp_path, 0.0, 1e9)
    try:
        options = {"endpoint_url": bucket.url, "key": "reader", "secret": "reader"}
        for _ in range(2):  # the first process of a host, and the second
            files = Files(
                "s3://data/set",
                RemoteOptions(storage_options=options, cache=str(tmp_path / "cache")),
            )
            assert files.entries("") == [("info.json", False), ("videos", True)]
            assert files.source("videos/a.mp4").read(100_000, 150_000) == data[100_000:250_000]
            assert not files.exists("videos/b.mp4")
            counts = bucket.counts()
            spans = counts["paths"].get("set/videos/a.mp4", 0)
            assert (spans, counts["unchanged"]) in ((65_536 + 150_000, 0), (0, 1))
        assert spans == 0
    finally:
        bucket.close()
