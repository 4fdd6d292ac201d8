"""A picture depends on its file alone, whatever parameter sets other packets brought along."""

import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from support.videos import moving_pictures, rgb
from understudy.errors import DatasetError
from understudy.video import codec_pool
from understudy.video.codec_pool import Kind
from understudy.video.decoder import PictureDecoder
from understudy.video.native import loops
from understudy.video.packets import open_packets
from understudy.video.parameter_sets import InBand

COUNT, GOP = 16, 4
ENCODERS = {
    "h264": ("libx264", {"x264-params": "repeat-headers={repeat}:range={range}:colormatrix={matrix}:bframes=0"}),
    "hevc": (
        "libx265",
        {
            "x265-params": "log-level=none:pools=none:frame-threads=1:bframes=0:open-gop=0"
            ":repeat-headers={repeat}:range={range}:colormatrix={matrix}"
        },
    ),
}
OTHER = {"h264": {"range": "pc", "matrix": "smpte170m"}, "hevc": {"range": "full", "matrix": "smpte170m"}}
PLAIN = {"h264": {"range": "tv", "matrix": "bt709"}, "hevc": {"range": "limited", "matrix": "bt709"}}


def encoded(path: Path, codec: str, colours: dict[str, str], repeat: int, seed: int) -> Path:
    name, options = ENCODERS[codec]
    filled = {key: value.format(repeat=repeat, **colours) for key, value in options.items()}
    with av.open(str(path), "w") as out:
        stream = out.add_stream(name, rate=10, options={"g": str(GOP), "preset": "ultrafast", **filled})
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt, stream.thread_count = 48, 64, "yuv420p", 1
        for picture in moving_pictures(COUNT, seed=seed):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
    return path


def spliced(path: Path, index_of: Path, groups: list[Path]) -> Path:
    """A file with the index of one and, group after group, the packets of others."""
    packets = {source: open_packets(str(source)) for source in groups}
    with av.open(str(index_of)) as template, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(template.streams.video[0], opaque=True)
        for number, source in enumerate(groups):
            for i in range(number * GOP, (number + 1) * GOP):
                packet = packets[source].packet(i, COUNT - 1)
                packet.pts = packet.dts = i
                packet.duration, packet.time_base = 1, Fraction(1, 10)
                packet.is_keyframe, packet.stream = i % GOP == 0, stream
                out.mux(packet)
    return path


@pytest.fixture(params=["compiled", "Python"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_pool, "_spare", codec_pool._Spare())
    if request.param == "Python":
        monkeypatch.setattr(loops, "compiled", lambda: None)
    elif loops.compiled() is None:
        pytest.skip("understudy was installed without a C compiler")


def decoder_of(path: Path) -> PictureDecoder:
    return PictureDecoder(open_packets(str(path)), str(path))


def take(decoder: PictureDecoder, wanted: list[int], at_once: int) -> np.ndarray:
    return np.stack([rgb(frame) for _, frame in decoder.pictures(np.array(wanted), at_once)])


def fresh(path: Path, position: int) -> np.ndarray:
    """A picture by a decoder of its own, in a thread that has decoded nothing before."""
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(take(decoder_of(path), [position], 1)[0]))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(params=sorted(ENCODERS))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A video; one with its index, whose packets bring other sets; one of which every other group does."""
    codec = request.param
    plain = encoded(tmp_path / "plain.mp4", codec, PLAIN[codec], 0, 1)
    other = encoded(tmp_path / "other.mp4", codec, OTHER[codec], 1, 2)
    hostile = spliced(tmp_path / "hostile.mp4", plain, [other] * 4)
    mixed = spliced(tmp_path / "mixed.mp4", plain, [plain, other, plain, other])
    assert open_packets(str(hostile)).index.extradata == open_packets(str(plain)).index.extradata
    return plain, hostile, mixed


@pytest.mark.parametrize("at_once", [1, 6])
def test_the_video_before_leaves_nothing(files: tuple[Path, Path, Path], ways: None, at_once: int) -> None:
    plain, hostile, mixed = files
    alone = take(decoder_of(plain), list(range(COUNT)), at_once)
    for before in (hostile, mixed):
        decoder = decoder_of(before)
        take(decoder, list(range(COUNT)), at_once)
        decoder.park()
        assert np.array_equal(take(decoder_of(plain), list(range(COUNT)), at_once), alone)


@pytest.mark.parametrize("at_once", [1, 6])
def test_a_picture_is_the_same_whatever_was_read_before(
    files: tuple[Path, Path, Path], ways: None, at_once: int
) -> None:
    """Of one file, too: sets that one group brings are none of the next group's, wherever reading begins."""
    for path in files:
        alone = np.stack([fresh(path, position) for position in range(COUNT)])
        assert np.array_equal(take(decoder_of(path), list(range(COUNT)), at_once), alone)
        decoder, rng = decoder_of(path), np.random.default_rng(0)
        for _ in range(12):
            start = int(rng.integers(0, COUNT))
            wanted = list(range(start, min(COUNT, start + int(rng.integers(1, 9)))))
            assert np.array_equal(take(decoder, wanted, at_once), alone[wanted])
            if rng.random() < 0.4:
                decoder.park()


@pytest.mark.parametrize("repeat", [0, 1])
@pytest.mark.parametrize("codec", sorted(ENCODERS))
def test_sets_that_repeat_the_index_cost_no_context(
    codec: str, repeat: int, ways: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, made, plain = encoded(tmp_path / "a.mp4", codec, PLAIN[codec], repeat, 1), list[Kind](), codec_pool._create

    def create(kind: Kind, where: str) -> av.VideoCodecContext:
        made.append(kind)
        return plain(kind, where)

    monkeypatch.setattr(codec_pool, "_create", create)
    for _ in range(3):
        decoder = decoder_of(path)
        take(decoder, [0, 1, 9], 4)
        decoder.park()
    assert len(made) == 1


def test_settings_of_mpeg4_in_a_packet_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"  # which has no index for them: each key frame brings them
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=10, options={"g": str(GOP)})
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt, stream.thread_count = 48, 64, "yuv420p", 1
        coded = [p for picture in moving_pictures(6) for p in stream.encode(av.VideoFrame.from_ndarray(picture))]
        coded += stream.encode(None)
    packets = [bytes(packet) for packet in coded if packet.size]
    brings = [b"\0\0\1\x20" in packet for packet in packets]
    assert 0 < sum(brings) < len(brings)
    assert [InBand("mpeg4", b"").changes(packet) for packet in packets] == brings
    assert not any(InBand("mpeg4", packets[0]).changes(packet) for packet in packets)


def test_bytes_that_are_no_units_are_not_believed() -> None:
    avc = InBand("h264", b"\x01\x64\x00\x0a\xff\xe1")
    assert not avc.changes(b"\0\0\0\2\x65\x01")
    assert not avc.changes(b"\0\0\0\2\x65\x01\0\0")  # padding
    assert avc.changes(b"\0\0\0\3\x65\x01")
    assert avc.changes(b"\x01\x64\0\x0a\xff\xe1\0\2\x67\x64\1\0\2\x68\xee")  # a packet that is an index itself
    assert avc.changes(b"\0\0\0\1\x67\x64\0\x0a\0\0\0\1\x65\x88")  # start codes


@pytest.mark.parametrize("at_once", [1, 6])
def test_a_packet_of_hevc_without_a_picture_is_damage(tmp_path: Path, ways: None, at_once: int) -> None:
    path = encoded(tmp_path / "a.mp4", "hevc", PLAIN["hevc"], 0, 1)
    packets = open_packets(str(path))
    at, size = int(packets.index.offset[5]), int(packets.index.size[5])  # type: ignore[attr-defined]
    data = bytearray(path.read_bytes())
    data[at : at + size] = (size - 4).to_bytes(4, "big") + b"\x4c\x01".ljust(size - 4, b"\xff")
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(data)
    sound = take(decoder_of(path), list(range(COUNT)), at_once)
    assert np.array_equal(take(decoder_of(broken), list(range(5)), at_once), sound[:5])
    for position in (5, 6):
        with pytest.raises(DatasetError):
            take(decoder_of(broken), [position], at_once)
    assert np.array_equal(take(decoder_of(broken), list(range(8, COUNT)), at_once), sound[8:])
