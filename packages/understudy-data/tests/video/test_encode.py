"""Encoded and joined files decode to their input, and no unfinished file has a final name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused
from understudy_data.testing.videos import container_decode, encode_video, moving_pictures
from understudy_data.video.encode import VideoEncoder, concat_videos
from understudy_data.video.native.ffmpeg import PYAV_MAJOR
from understudy_data.video.reader import open_video

ENCODERS = {"libsvtav1": "av1", "libx264": "h264", "libx265": "hevc"}


def smooth(count: int, height: int = 64, width: int = 64) -> Iterator[np.ndarray]:
    """Images that any encoder preserves: a gradient that brightens, and a slow bright bar."""
    for i in range(count):
        image = np.zeros((height, width, 3), np.uint8)
        image[..., 0] = np.linspace(0, 200, width)[None]
        image[..., 1] = 8 * i
        image[2 * i : 2 * i + 8, :, 2] = 220
        yield image


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize("gop", [1, 2, 7])
def test_encode_video_round_trip(codec: str, gop: int, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    images = np.stack(list(smooth(20)))
    assert encode_video(path, images, 15, codec, gop) == 20
    video = open_video(path)
    assert (video.count, video.codec, video.fps, video.gop) == (20, ENCODERS[codec], 15.0, gop)
    error = np.abs(video.read(np.arange(20)).astype(int) - images).mean(axis=(1, 2, 3))
    assert error.max() < 6
    wrong_by_one = np.abs(video.read(np.arange(1, 20)).astype(int) - images[:-1]).mean(
        axis=(1, 2, 3)
    )
    assert wrong_by_one.min() > error.max()
    assert [item.name for item in tmp_path.iterdir()] == ["clip.mp4"]


@pytest.mark.parametrize("size", [(64, 64), (64, 80), (80, 64), (80, 80)], ids=str)
@pytest.mark.parametrize("codec", ENCODERS)
def test_same_images_give_the_same_bytes(codec: str, size: tuple[int, int], tmp_path: Path) -> None:
    """x265 with one coding block a row, and x264 with `mbtree` on AVX-512, read memory that they
    never filled.
    """
    images = np.stack(list(smooth(12, *size)))
    written = set()
    for number in range(6):
        # another state of the memory
        litter = [np.full(1 << (8 + k % 12), k, np.uint8) for k in range(40 * number)]
        encode_video(tmp_path / "clip.mp4", images, 15, codec, 7)
        written.add((tmp_path / "clip.mp4").read_bytes())
        del litter
    assert len(written) == 1


@pytest.mark.parametrize(
    ("codec", "size"),
    [
        ("libx265", (62, 64)),
        ("libx265", (64, 48)),
        ("libx264", (14, 16)),
        ("libsvtav1", (63, 64)),
        ("libx264", (64, 63)),
    ],
)
def test_sizes_that_an_encoder_cannot_write_are_refused(
    codec: str, size: tuple[int, int], tmp_path: Path
) -> None:
    with refused(f"{size[1]}x{size[0]}", kind=ValueError):
        VideoEncoder(tmp_path / "clip.mp4", 15, *size, codec)
    assert not list(tmp_path.iterdir())


def tabletop(count: int) -> Iterator[np.ndarray]:
    """Small robot images: a moving gripper with fingers of two pixels, and saturated blocks."""
    for i in range(count):
        x = 8 + 2 * i
        image = np.full((64, 64, 3), (200, 185, 160), np.uint8)
        image[10:24, x : x + 3] = image[24:27, x - 5 : x + 9] = (35, 35, 38)
        image[27:34, x - 4 : x - 2] = image[27:34, x + 5 : x + 7] = (210, 160, 30)
        image[29:37, x - 1 : x + 5] = (25, 55, 200)
        image[44:52, 40:48], image[46:54, 14:22] = (180, 25, 25), (25, 130, 40)
        yield image


def worst_block(path: Path, images: np.ndarray) -> float:
    """Largest error of the mean color of 4x4 pixels, apart from the error of 4:2:0 chroma
    itself.
    """
    yuv = [
        av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p")
        for image in images
    ]
    ideal = np.stack(
        [VideoReformatter().reformat(frame, format="rgb24").to_ndarray() for frame in yuv]
    )
    error = open_video(path).read(np.arange(len(images))) - ideal.astype(float)
    return float(np.abs(error.reshape(-1, 16, 4, 16, 4, 3).mean((2, 4))).max())


@pytest.mark.parametrize("codec", ENCODERS)
def test_encode_video_preserves_small_objects(codec: str, tmp_path: Path) -> None:
    images = np.stack(list(tabletop(20)))
    encode_video(tmp_path / "clip.mp4", images, 10, codec)
    assert worst_block(tmp_path / "clip.mp4", images) < 30


@pytest.mark.skipif(
    PYAV_MAJOR != 18, reason="each version of PyAV carries another SVT-AV1; this one's was measured"
)
@pytest.mark.parametrize(
    "settings", [{"crf": 30}, {"options": {"preset": "12"}}], ids=["coarse", "hasty"]
)
def test_encode_video_loses_small_objects_with_other_settings(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    images = np.stack(list(tabletop(20)))
    encode_video(tmp_path / "clip.mp4", images, 10, **settings)
    assert worst_block(tmp_path / "clip.mp4", images) > 30


def test_encode_video_defaults_equal_lerobot(tmp_path: Path) -> None:
    encode_video(tmp_path / "clip.mp4", smooth(6), 30)
    with av.open(str(tmp_path / "clip.mp4")) as file:
        stream = file.streams.video[0]
        assert (stream.codec.canonical_name, stream.codec_context.pix_fmt) == ("av1", "yuv420p")
        assert [packet.is_keyframe for packet in file.demux(stream) if packet.size] == [
            True,
            False,
        ] * 3


@pytest.mark.parametrize("codec", ENCODERS)
def test_encoders_print_nothing(
    codec: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    encode_video(tmp_path / "clip.mp4", smooth(4), 30, codec)
    encoder = VideoEncoder(tmp_path / "other.mp4", 30, 64, 64, codec)
    encoder.add(next(smooth(1)))
    encoder.abandon()
    assert capfd.readouterr() == ("", "")


def test_encode_and_concat_put_the_index_in_front(tmp_path: Path) -> None:
    encode_video(tmp_path / "a.mp4", smooth(4), 30, "libx264")
    concat_videos([tmp_path / "a.mp4"] * 3, tmp_path / "b.mp4")
    for name in ("a.mp4", "b.mp4"):
        data = (tmp_path / name).read_bytes()
        assert data.index(b"moov") < data.index(b"mdat")


@pytest.mark.parametrize("codec", ["libsvtav1", "libx264"])
@pytest.mark.parametrize(("height", "width"), [(16, 16), (18, 50)])
def test_encode_video_small_sizes(codec: str, height: int, width: int, tmp_path: Path) -> None:
    encode_video(tmp_path / "clip.mp4", smooth(3, height, width), 30, codec)
    assert open_video(tmp_path / "clip.mp4").read(np.arange(3)).shape == (3, height, width, 3)


def test_encode_video_leaves_no_file_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"

    def breaks() -> Iterator[np.ndarray]:
        yield from smooth(3)
        raise RuntimeError("unplugged")

    for frames, error, words in [
        ([], ValueError, [path, "image"]),
        (
            [*smooth(2), np.zeros((64, 32, 3), np.uint8)],
            ValueError,
            [path, (64, 32, 3), (64, 64, 3)],
        ),
        ([np.zeros((64, 64, 3), np.float32)], ValueError, [path, "float32", "uint8"]),
        (breaks(), RuntimeError, ["unplugged"]),
    ]:
        with refused(*words, kind=error):
            encode_video(path, frames, 30, "libx264")
        assert list(tmp_path.iterdir()) == []
    with refused("codec='h264_nvenc'", "libsvtav1, libx264, libx265", kind=ValueError):
        encode_video(path, smooth(2), 30, "h264_nvenc")
    with refused("fps=0", "gop=2", kind=ValueError):
        encode_video(path, smooth(2), 0)


def test_encoder_abandon_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    encode_video(path, smooth(3), 30, "libx264")
    before = path.read_bytes()
    encoder = VideoEncoder(path, 30, 64, 64, "libx264")
    for image in moving_pictures(80, 64, 64):
        encoder.add(image)
    assert len(list(tmp_path.iterdir())) == 2
    encoder.abandon()
    assert path.read_bytes() == before
    assert [item.name for item in tmp_path.iterdir()] == ["clip.mp4"]


@settings(max_examples=12)
@given(
    codec=st.sampled_from(sorted(ENCODERS)),
    gop=st.sampled_from([1, 2, 5, 250]),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    fps=st.sampled_from([10, 15, 30, 50]),
)
def test_concat_videos_equals_its_parts(
    codec: str, gop: int, lengths: list[int], fps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("join")
    side = 64 if codec == "libx265" else 32
    options = {"bf": "2"} if codec == "libx264" else {}
    paths = [folder / f"{k}.mp4" for k in range(len(lengths))]
    for k, (path, length) in enumerate(zip(paths, lengths)):
        encode_video(
            path, moving_pictures(length, side, side, seed=k), fps, codec, gop, options=options
        )
    out = folder / "out.mp4"
    assert concat_videos(paths, out) == lengths
    parts = np.concatenate([container_decode(path) for path in paths])
    assert np.array_equal(container_decode(out), parts)
    video = open_video(out)
    assert (video.count, video.fps) == (sum(lengths), fps)
    order = np.random.default_rng(0).permutation(sum(lengths))
    assert np.array_equal(video.read(order), parts[order])
    with av.open(str(out)) as file:  # frame i is shown at i / fps, exactly
        stream = file.streams.video[0]
        shown = sorted(
            packet.pts for packet in file.demux(stream) if packet.size and packet.pts is not None
        )
        assert stream.time_base is not None
        assert [(time - shown[0]) * stream.time_base * fps for time in shown] == list(
            range(sum(lengths))
        )


def test_concat_videos_refuses_parts_that_differ(tmp_path: Path) -> None:
    encode_video(tmp_path / "a.mp4", smooth(3), 30, "libx264")
    encode_video(tmp_path / "b.mp4", smooth(3, 32, 64), 30, "libx264")
    encode_video(tmp_path / "c.mp4", smooth(3), 15, "libx264")
    for other in ("b.mp4", "c.mp4"):
        with refused("a.mp4", where=other) as error:
            concat_videos([tmp_path / "a.mp4", tmp_path / other], tmp_path / "out.mp4")
        assert error.value.where == str(tmp_path / other)
    with refused(tmp_path / "out.mp4", kind=ValueError):
        concat_videos([], tmp_path / "out.mp4")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["a.mp4", "b.mp4", "c.mp4"]
