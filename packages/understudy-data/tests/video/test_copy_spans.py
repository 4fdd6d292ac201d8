"""Copies of packets from a key frame on decode to the same images as in the file they come from."""

from pathlib import Path

import numpy as np
import pytest

from understudy_data.storage.byte_source import LocalSource
from understudy_data.testing.videos import encode_video
from understudy_data.video.encode import copy_spans, find_span
from understudy_data.video.packets import open_packets
from understudy_data.video.reader import open_video

COUNT = 13
GOP = 4


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "0"}),
        ("libx264", {"bf": "2", "x264-params": "b-adapt=0"}),
        ("libx264", {"bf": "2", "x264-params": "b-adapt=0:open-gop=1"}),
        (
            "libx265",
            {
                "x265-params": "log-level=error:pools=none:frame-threads=1:bframes=2:b-adapt=0:"
                "open-gop=1"
            },
        ),
    ],
)
def test_spans_of_all_ranges_decode_as_in_their_file(
    codec: str, options: dict[str, str], tmp_path: Path
) -> None:
    images = (
        np.random.default_rng(0)
        .integers(0, 255, (COUNT, 8, 8, 3), np.uint8)
        .repeat(8, 1)
        .repeat(8, 2)
    )
    encode_video(tmp_path / "a.mp4", images, 10, codec, GOP, options=options)
    whole = open_video(tmp_path / "a.mp4").read(np.arange(COUNT))
    source = LocalSource(str(tmp_path / "a.mp4"))
    index = open_packets(source).index
    found = set()
    for start in range(COUNT):
        for stop in range(start + 1, COUNT + 1):
            span = find_span(source, index, start, stop)
            if span is not None:
                found.add((start, stop))
                copy_spans([span, span], tmp_path / "b.mp4", 10)
                copied = open_video(tmp_path / "b.mp4")
                assert copied.count == 2 * (stop - start)
                assert np.array_equal(
                    copied.read(np.arange(copied.count)), np.concatenate([whole[start:stop]] * 2)
                )
    assert (0, COUNT) in found
    keys = index.display[index.keys].tolist()
    assert {start for start, _ in found} <= set(keys)
    if index.reorder == 0:
        assert found == {(key, stop) for key in keys for stop in range(key + 1, COUNT + 1)}


def test_no_span_outside_the_video(tmp_path: Path) -> None:
    encode_video(tmp_path / "a.mp4", np.zeros((4, 32, 32, 3), np.uint8), 10, "libx264", 2)
    source = LocalSource(str(tmp_path / "a.mp4"))
    index = open_packets(source).index
    assert [find_span(source, index, *cut) for cut in ((0, 5), (2, 2), (-2, 2), (1, 3))] == [
        None
    ] * 4
