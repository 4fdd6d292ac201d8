"""Sample tables equal those of PyAV's demuxer, and a damaged index always raises a DatasetError."""

import io
import struct
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import DatasetError
from understudy_data.testing.videos import COUNT, KINDS, write_video
from understudy_data.video.mp4 import UnknownLayout, read_mp4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mp4")


@pytest.fixture(scope="module")
def clip(folder: Path) -> bytes:
    return write_video(
        folder / "clip.mp4", "h264-bframes", container={"movflags": "+faststart"}
    ).read_bytes()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("front", [False, True], ids=["index-last", "index-first"])
def test_read_mp4_equals_the_demuxer(kind: str, front: bool, folder: Path) -> None:
    path = write_video(
        folder / f"{kind}-{front}.mp4", kind, container={"movflags": "+faststart"} if front else {}
    )
    with open(path, "rb") as file:
        index = read_mp4(file, str(path))
    with av.open(str(path)) as source:
        stream = source.streams.video[0]
        packets = [packet for packet in source.demux(stream) if packet.size]
        assert index.codec == stream.codec.canonical_name
        assert (index.width, index.height, index.fps) == (stream.width, stream.height, 10.0)
        assert index.extradata == stream.codec_context.extradata
    assert index.offset.tolist() == [packet.pos for packet in packets]
    assert index.size.tolist() == [packet.size for packet in packets]
    assert index.keys.tolist() == [i for i, packet in enumerate(packets) if packet.is_keyframe]
    shown = np.argsort(np.array([packet.pts for packet in packets], np.int64))
    assert np.argsort(index.display).tolist() == shown.tolist()
    assert sorted(index.display.tolist()) == list(range(COUNT))


class Counting(io.BytesIO):
    """A file that counts reads and bytes."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads = 0
        self.bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.reads, self.bytes = self.reads + 1, self.bytes + len(data)
        return data


@pytest.mark.parametrize("front", [False, True], ids=["index-last", "index-first"])
def test_read_mp4_reads_headers_and_index_only(front: bool, folder: Path) -> None:
    options = {"movflags": "+faststart"} if front else {}
    path = write_video(folder / f"big-{front}.mp4", "h264-gop1", 60, options, height=240, width=320)
    file = Counting(path.read_bytes())
    read_mp4(file, "clip")
    assert file.reads <= 3
    assert file.bytes <= 3 << 16 < path.stat().st_size


def outcome(data: bytes) -> str:
    """Outcome of a damaged file: only these three are allowed, and a DatasetError must name the
    file.
    """
    try:
        index = read_mp4(io.BytesIO(data), "the-file.mp4")
    except UnknownLayout:
        return "container"
    except DatasetError as error:
        return "refused" if error.where == "the-file.mp4" else f"refused without a name: {error}"
    n = len(index.size)  # an accepted index lies inside the file and is consistent
    assert len(index.offset) == len(index.display) == n
    assert n == 0 or (index.offset.min() >= 0 and (index.offset + index.size).max() <= len(data))
    assert np.array_equal(np.sort(index.display), np.arange(n))
    return "read"


def test_read_mp4_refuses_every_truncation(clip: bytes) -> None:
    index_ends = clip.index(b"mdat")
    cuts = {*range(64), *range(64, index_ends, 7), index_ends + 4, len(clip) - 1}
    assert {outcome(clip[:cut]) for cut in cuts} == {"refused"}
    assert outcome(clip) == "read"


@given(data=st.data())
def test_read_mp4_handles_flipped_bytes_in_the_index(clip: bytes, data: st.DataObject) -> None:
    damaged = bytearray(clip)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, clip.index(b"mdat") + 8))] = data.draw(st.integers(0, 255))
    assert outcome(bytes(damaged)) in ("container", "refused", "read")


@pytest.mark.parametrize("box", [b"stsz", b"stts", b"ctts", b"stsc", b"stco", b"stss"])
@pytest.mark.parametrize("count", [0xFFFFFFFF, 0x7FFFFFFF, COUNT + 1])
def test_read_mp4_checks_counts_against_the_bytes(clip: bytes, box: bytes, count: int) -> None:
    at = clip.index(box) + 4 + (8 if box == b"stsz" else 4)
    assert outcome(clip[:at] + struct.pack(">I", count) + clip[at + 4 :]) == "refused"


def test_read_mp4_checks_uniform_sizes_against_the_file(clip: bytes) -> None:
    at = clip.index(b"stsz") + 8
    assert outcome(clip[:at] + struct.pack(">II", 1000, 0xFFFFFFF0) + clip[at + 8 :]) == "refused"


def test_read_mp4_refuses_samples_beyond_the_file(clip: bytes) -> None:
    at = clip.index(b"stco") + 12
    assert outcome(clip[:at] + struct.pack(">I", len(clip) - 10) + clip[at + 4 :]) == "refused"


def test_read_mp4_reads_wide_offsets(clip: bytes) -> None:
    """Box co64 in place of stco, with all enclosing sizes corrected."""
    at = clip.index(b"stco") - 4
    size = struct.unpack(">I", clip[at : at + 4])[0]
    rows = struct.unpack(">I", clip[at + 12 : at + 16])[0]
    old = np.frombuffer(clip, ">u4", rows, at + 16).astype(np.int64)
    grown = 4 * rows
    wide = (
        struct.pack(">I4sII", size + grown, b"co64", 0, rows)
        + (old + grown).astype(">u8").tobytes()
    )
    spliced = bytearray(clip[:at] + wide + clip[at + size :])
    for box in (b"moov", b"trak", b"mdia", b"minf", b"stbl"):
        start = spliced.index(box) - 4
        spliced[start : start + 4] = struct.pack(
            ">I", struct.unpack(">I", spliced[start : start + 4])[0] + grown
        )
    before = read_mp4(io.BytesIO(clip), "a")
    after = read_mp4(io.BytesIO(bytes(spliced)), "b")
    assert np.array_equal(after.offset, before.offset + grown)
    assert np.array_equal(after.size, before.size)


@pytest.mark.parametrize(("frames", "expected"), [(COUNT, "read"), (COUNT - 1, "container")])
def test_read_mp4_reads_a_file_whose_edit_list_keeps_all_frames(
    frames: int, expected: str, folder: Path
) -> None:
    data = bytearray(write_video(folder / "edits.mp4", "h264-gop2").read_bytes())
    at = data.index(b"elst") + 12  # its duration, behind version, flags and count
    (duration,) = struct.unpack(">I", data[at : at + 4])
    data[at : at + 4] = struct.pack(">I", duration * frames // COUNT)
    assert outcome(bytes(data)) == expected


def test_read_mp4_leaves_other_layouts_to_the_container(folder: Path) -> None:
    pieces = write_video(
        folder / "f.mp4", "h264-gop2", container={"movflags": "frag_keyframe+empty_moov"}
    )
    other = write_video(folder / "m.mkv", "h264-gop2")
    assert outcome(pieces.read_bytes()) == "container"
    assert outcome(other.read_bytes()) == "container"
    assert outcome(b"not a video at all, only text") == "container"


def test_read_mp4_refuses_a_video_without_an_index(clip: bytes) -> None:
    assert outcome(clip[: clip.index(b"moov") - 4]) == "refused"
    assert outcome(b"") == "refused"
