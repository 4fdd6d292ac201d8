"""A frame depends on its file alone, whatever parameter sets other packets carry."""

import threading
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from understudy_base import DatasetError
from understudy_data.testing.videos import moving_pictures, rgb
from understudy_data.video import codec_pool
from understudy_data.video.codec_pool import CodecKey
from understudy_data.video.decoder import FrameDecoder
from understudy_data.video.native import loops
from understudy_data.video.packets import open_packets
from understudy_data.video.parameter_sets import InBand

COUNT = 16
GOP = 4
ENCODERS = {
    "h264": (
        "libx264",
        {"x264-params": "repeat-headers={repeat}:range={range}:colormatrix={matrix}:bframes=0"},
    ),
    "hevc": (
        "libx265",
        {
            "x265-params": "log-level=none:pools=none:ctu=32:frame-threads=1:bframes=0:open-gop=0"
            ":repeat-headers={repeat}:range={range}:colormatrix={matrix}"
        },
    ),
}
OTHER = {
    "h264": {"range": "pc", "matrix": "smpte170m"},
    "hevc": {"range": "full", "matrix": "smpte170m"},
}
PLAIN = {
    "h264": {"range": "tv", "matrix": "bt709"},
    "hevc": {"range": "limited", "matrix": "bt709"},
}


def encode(path: Path, codec: str, colors: dict[str, str], repeat: int, seed: int) -> Path:
    name, options = ENCODERS[codec]
    filled = {key: value.format(repeat=repeat, **colors) for key, value in options.items()}
    with av.open(str(path), "w") as out:
        stream = out.add_stream(
            name, rate=10, options={"g": str(GOP), "preset": "ultrafast", **filled}
        )
        assert isinstance(stream, av.VideoStream)
        stream.height = 48
        stream.width = 64
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        for image in moving_pictures(COUNT, seed=seed):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode(None))
    return path


def splice(path: Path, index_of: Path, groups: list[Path]) -> Path:
    """A file with the index of one file and, GOP by GOP, the packets of others."""
    packets = {source: open_packets(str(source)) for source in groups}
    with av.open(str(index_of)) as template, av.open(str(path), "w") as out:
        stream = out.add_stream_from_template(template.streams.video[0], opaque=True)
        for number, source in enumerate(groups):
            for i in range(number * GOP, (number + 1) * GOP):
                packet = packets[source].packet(i, COUNT - 1)
                packet.pts = packet.dts = i
                packet.duration, packet.time_base = 1, Fraction(1, 10)
                packet.is_keyframe = i % GOP == 0
                packet.stream = stream
                out.mux(packet)
    return path


@pytest.fixture(params=["compiled", "Python"])
def ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    codec_pool.spare.contexts.clear()
    if request.param == "Python":
        monkeypatch.setattr(loops, "load_loops", lambda: None)
    elif loops.load_loops() is None:
        pytest.skip("understudy was installed without a C compiler")


def decoder_of(path: Path) -> FrameDecoder:
    return FrameDecoder(open_packets(str(path)), str(path))


def take(decoder: FrameDecoder, wanted: list[int], run_length: int) -> np.ndarray:
    return np.stack([rgb(frame) for _, frame in decoder.frames(np.array(wanted), run_length)])


def fresh(path: Path, position: int) -> np.ndarray:
    """Decode a frame with a fresh decoder, in a thread that has decoded nothing before."""
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(take(decoder_of(path), [position], 1)[0]))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(params=sorted(ENCODERS))
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A video; one with its index, whose packets carry other sets; one with other sets in every
    second GOP.
    """
    codec = request.param
    plain = encode(tmp_path / "plain.mp4", codec, PLAIN[codec], 0, 1)
    other = encode(tmp_path / "other.mp4", codec, OTHER[codec], 1, 2)
    hostile = splice(tmp_path / "hostile.mp4", plain, [other] * 4)
    mixed = splice(tmp_path / "mixed.mp4", plain, [plain, other, plain, other])
    assert open_packets(str(hostile)).index.extradata == open_packets(str(plain)).index.extradata
    return plain, hostile, mixed


@pytest.mark.parametrize("run_length", [1, 6])
def test_parameter_sets_of_the_video_before_have_no_effect(
    files: tuple[Path, Path, Path], ways: None, run_length: int
) -> None:
    plain, hostile, mixed = files
    alone = take(decoder_of(plain), list(range(COUNT)), run_length)
    for before in (hostile, mixed):
        decoder = decoder_of(before)
        take(decoder, list(range(COUNT)), run_length)
        decoder.park()
        assert np.array_equal(take(decoder_of(plain), list(range(COUNT)), run_length), alone)


@pytest.mark.parametrize("run_length", [1, 6])
def test_parameter_sets_of_earlier_reads_have_no_effect(
    files: tuple[Path, Path, Path], ways: None, run_length: int
) -> None:
    """Also within one file: the sets of one GOP do not apply to the next GOP, wherever reading
    begins.
    """
    for path in files:
        alone = np.stack([fresh(path, position) for position in range(COUNT)])
        assert np.array_equal(take(decoder_of(path), list(range(COUNT)), run_length), alone)
        decoder = decoder_of(path)
        rng = np.random.default_rng(0)
        for _ in range(12):
            start = int(rng.integers(0, COUNT))
            wanted = list(range(start, min(COUNT, start + int(rng.integers(1, 9)))))
            assert np.array_equal(take(decoder, wanted, run_length), alone[wanted])
            if rng.random() < 0.4:
                decoder.park()


@pytest.mark.parametrize("repeat", [0, 1])
@pytest.mark.parametrize("codec", sorted(ENCODERS))
def test_parameter_sets_that_repeat_the_index_cost_no_context(
    codec: str, repeat: int, ways: None, tmp_path: Path, created: list[CodecKey]
) -> None:
    path = encode(tmp_path / "a.mp4", codec, PLAIN[codec], repeat, 1)
    for _ in range(3):
        decoder = decoder_of(path)
        take(decoder, [0, 1, 9], 4)
        decoder.park()
    assert len(created) == 1


def test_in_band_sees_settings_of_mpeg4(tmp_path: Path) -> None:
    path = tmp_path / "a.avi"  # a container without an index for them: each key frame carries them
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=10, options={"g": str(GOP)})
        assert isinstance(stream, av.VideoStream)
        stream.height = 48
        stream.width = 64
        stream.pix_fmt = "yuv420p"
        stream.thread_count = 1
        coded = [
            p
            for image in moving_pictures(6)
            for p in stream.encode(av.VideoFrame.from_ndarray(image))
        ]
        coded += stream.encode(None)
    packets = [bytes(packet) for packet in coded if packet.size]
    expected = [b"\0\0\1\x20" in packet for packet in packets]
    assert 0 < sum(expected) < len(expected)
    assert [InBand("mpeg4", b"").changes(packet) for packet in packets] == expected
    assert not any(InBand("mpeg4", packets[0]).changes(packet) for packet in packets)


def test_in_band_distrusts_bytes_that_are_no_units() -> None:
    avc = InBand("h264", b"\x01\x64\x00\x0a\xff\xe1")
    assert not avc.changes(b"\0\0\0\2\x65\x01")
    assert not avc.changes(b"\0\0\0\2\x65\x01\0\0")  # padding
    assert avc.changes(b"\0\0\0\3\x65\x01")
    # a packet that is an index itself
    assert avc.changes(b"\x01\x64\0\x0a\xff\xe1\0\2\x67\x64\1\0\2\x68\xee")
    assert avc.changes(b"\0\0\0\1\x67\x64\0\x0a\0\0\0\1\x65\x88")  # start codes


@pytest.mark.parametrize("run_length", [1, 6])
def test_in_band_takes_an_hevc_packet_without_a_frame_for_damage(
    tmp_path: Path, ways: None, run_length: int
) -> None:
    path = encode(tmp_path / "a.mp4", "hevc", PLAIN["hevc"], 0, 1)
    packets = open_packets(str(path))
    index = packets.index  # type: ignore[attr-defined]
    at, size = int(index.offset[5]), int(index.size[5])
    data = bytearray(path.read_bytes())
    data[at : at + size] = (size - 4).to_bytes(4, "big") + b"\x4c\x01".ljust(size - 4, b"\xff")
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(data)
    sound = take(decoder_of(path), list(range(COUNT)), run_length)
    assert np.array_equal(take(decoder_of(broken), list(range(5)), run_length), sound[:5])
    for position in (5, 6):
        with pytest.raises(DatasetError):
            take(decoder_of(broken), [position], run_length)
    assert np.array_equal(take(decoder_of(broken), list(range(8, COUNT)), run_length), sound[8:])
