"""Files with several video streams: a picture of a cover is never the video."""

import pickle
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from understudy_data.testing.videos import moving_pictures
from understudy_data.video.encode import concat_videos
from understudy_data.video.reader import open_video

PICTURES = list(moving_pictures(12))
SHORT = list(moving_pictures(5, seed=3))
OPTIONS = {"mp4": {}, "fragmented": {"movflags": "frag_keyframe+empty_moov"}, "mkv": {}}


def _write(
    path: Path, streams: list[tuple[str, list[np.ndarray]]], options: dict[str, str]
) -> Path:
    with av.open(str(path), "w", options=options) as out:
        made = []
        for codec, pictures in streams:
            stream = out.add_stream(
                codec, rate=10, options={"crf": "0", "bf": "0"} if codec == "libx264" else {}
            )
            stream.height, stream.width = pictures[0].shape[:2]
            stream.pix_fmt = (
                "yuv420p" if codec == "libx264" else {"mjpeg": "yuvj420p", "png": "rgb24"}[codec]
            )
            made.append(stream)
        for stream, (_, pictures) in zip(made, streams):
            for picture in pictures:
                out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            out.mux(stream.encode(None))
    return path


def _path(folder: Path, container: str, name: str = "clip") -> Path:
    return folder / f"{name}.{'mkv' if container == 'mkv' else 'mp4'}"


@pytest.mark.parametrize("container", OPTIONS)
@pytest.mark.parametrize("codec", ["mjpeg", "png"])
@pytest.mark.parametrize("count", [1, 12])
def test_a_cover_is_not_the_video(tmp_path: Path, container: str, codec: str, count: int) -> None:
    if (container, codec) == ("mkv", "png"):
        pytest.skip("Matroska holds no PNG stream")
    options = OPTIONS[container]
    cover = [np.full((80, 96, 3), 30, np.uint8)] * count
    alone = open_video(
        _write(_path(tmp_path, container, "alone"), [("libx264", PICTURES)], options)
    )
    both = open_video(
        _write(_path(tmp_path, container), [(codec, cover), ("libx264", PICTURES)], options)
    )
    assert (both.count, both.codec, both.height, both.width, both.streams) == (
        12,
        "h264",
        48,
        64,
        1,
    )
    wanted = np.array([11, 0, 5])
    assert np.array_equal(both.read(wanted), alone.read(wanted))


@pytest.mark.parametrize("container", OPTIONS)
def test_a_video_of_single_pictures_alone_is_the_video(tmp_path: Path, container: str) -> None:
    reader = open_video(
        _write(_path(tmp_path, container), [("mjpeg", PICTURES)], OPTIONS[container])
    )
    assert (reader.count, reader.codec, reader.streams) == (12, "mjpeg", 1)
    assert reader.read(np.array([3])).shape == (1, 48, 64, 3)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("container", ["mp4", "fragmented"])
@pytest.mark.parametrize("count", [12, 5])
def test_the_stream_with_the_wanted_number_of_frames_is_the_video(
    tmp_path: Path, first: int, count: int, container: str
) -> None:
    streams = [("libx264", PICTURES), ("libx264", SHORT)]
    path = _write(tmp_path / "clip.mp4", streams[:: 1 - 2 * first], OPTIONS[container])
    reader = pickle.loads(pickle.dumps(open_video(path, frames=count)))
    assert (reader.count, reader.streams) == (count, 2)
    expected = np.stack({12: PICTURES, 5: SHORT}[count])
    assert np.abs(reader.read(np.arange(count)).astype(int) - expected).mean() < 40
    run = next(iter(reader.cursor().runs(np.array([count - 1]))))
    assert run[0].pts == count - 1


def test_a_copy_of_a_video_with_a_cover_has_the_video(tmp_path: Path) -> None:
    cover = [np.full((80, 96, 3), 30, np.uint8)]
    part = _write(tmp_path / "part.mp4", [("mjpeg", cover), ("libx264", PICTURES)], {})
    assert concat_videos([part, part], tmp_path / "whole.mp4") == [12, 12]
    whole = open_video(tmp_path / "whole.mp4")
    assert np.array_equal(whole.read(np.arange(12, 24)), open_video(part).read(np.arange(12)))


@pytest.mark.parametrize("container", ["mkv", "fragmented"])
def test_frames_larger_than_wanted_are_not_decoded_at_opening(
    tmp_path: Path, container: str
) -> None:
    path = _write(
        _path(tmp_path, container),
        [("libx264", [np.zeros((3000, 3000, 3), np.uint8)] * 2)],
        OPTIONS[container],
    )
    command = (
        "import resource, sys; from understudy_data.video.reader import open_video; "
        "open_video(sys.argv[2]);before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;size "
        "= open_video(sys.argv[1], most_pixels=10_000); assert (size.height, size.width) == (3000, "
        "3000);print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    small = _write(_path(tmp_path, container, "small"), [("libx264", PICTURES)], OPTIONS[container])
    done = subprocess.run(
        [sys.executable, "-c", command, path, small], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 8_000  # kB; a frame has 13,500
