"""Orientation outside the pixels: EXIF data of images, display matrices of videos, and what else a
container says.
"""

import io
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image, ImageOps

from understudy_data.testing.videos import (
    QUARTER_TURNS,
    container_decode,
    insert_in_entry,
    moving_pictures,
    rgb,
    set_matrix,
    write_video,
)
from understudy_data.video.encode import stream_settings
from understudy_data.video.orientation import turn_frame, upright
from understudy_data.video.packets import open_packets
from understudy_data.video.reader import open_video


def _image(kind: str, orientation: int, pixels: np.ndarray) -> bytes:
    exif = Image.Exif()
    out = io.BytesIO()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(
        out, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {})
    )
    return out.getvalue()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_upright_equals_pillow(kind: str, orientation: int) -> None:
    content = _image(kind, orientation, next(moving_pictures(1, 24, 40)))
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    with Image.open(io.BytesIO(content)) as image:
        image.load()
        turned = upright(image)
        assert np.array_equal(np.asarray(turned), expected)
        assert np.array_equal(np.asarray(upright(turned)), expected)  # applied once


def test_upright_without_readable_exif() -> None:
    out = io.BytesIO()
    Image.fromarray(next(moving_pictures(1, 24, 40))).save(out, "JPEG")
    content = out.getvalue()
    broken = content[:2] + b"\xff\xe1\x00\x10Exif\0\0garbage!" + content[2:]
    for data in (content, broken):
        with Image.open(io.BytesIO(data)) as image:
            assert upright(image) is image


@pytest.mark.parametrize("box", [b"tkhd", b"mvhd"])
@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("fragmented", [False, True])
def test_reader_turns_images_by_the_matrix(
    tmp_path: Path, turns: int, box: bytes, fragmented: bool
) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"} if fragmented else {}
    path = write_video(tmp_path / "clip.mp4", "h264-bframes", 24, options)
    plain = open_video(path).read(np.arange(24))
    reader = open_video(set_matrix(path, QUARTER_TURNS[turns], box))
    assert (reader.height, reader.width) == ((64, 48) if turns % 2 else (48, 64))
    wanted = np.array([7, 0, 23, 8])
    assert np.array_equal(reader.read(wanted), np.rot90(plain, turns, (1, 2))[wanted])
    frames = [frame for run in reader.cursor().runs(np.arange(3, 9), 4) for frame in run]
    assert [frame.pts for frame in frames] == list(range(3, 9))
    assert {(frame.height, frame.width) for frame in frames} == {(reader.height, reader.width)}


def test_reader_turns_images_of_matroska(tmp_path: Path) -> None:
    if not hasattr(av.VideoStream, "set_display_rotation"):
        pytest.skip("this PyAV writes no display matrix")
    path = tmp_path / "clip.mkv"
    pictures = list(moving_pictures(6))
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10)
        stream.height = 48
        stream.width = 64
        stream.pix_fmt = "yuv420p"
        stream.set_display_rotation(90)
        for picture in pictures:
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))
    reader = open_video(path)
    assert (reader.height, reader.width, reader.shown.turns) == (64, 48, 1)
    assert np.array_equal(reader.read(np.arange(6)), np.rot90(container_decode(path), 1, (1, 2)))


@pytest.mark.parametrize(
    ("matrix", "turns", "unmet"),
    [
        ((1 << 16, 0, 0, 0, 1 << 16, 0), 0, []),
        ((2 << 16, 0, 0, 0, 2 << 16, 0), 0, []),
        ((0, 0, 0, 0, 0, 0), 0, []),
        ((-1 << 16, 0, 0, 0, 1 << 16, 0), 2, ["mirrored"]),
        ((1 << 16, 0, 0, 0, -1 << 16, 0), 0, ["mirrored"]),
        ((56756, 32768, 0, -32768, 56756, 0), 0, ["-30 degrees"]),
        ((32768, 56756, 0, -56756, 32768, 0), 3, ["-60 degrees"]),
    ],
)
def test_shown_rounds_to_quarter_turns(
    tmp_path: Path, matrix: tuple[int, ...], turns: int, unmet: list[str]
) -> None:
    path = set_matrix(write_video(tmp_path / "clip.mp4", "h264-gop2", 2), matrix)
    shown = open_video(path).shown
    assert shown.turns == turns
    assert len(shown.unmet) == len(unmet)
    assert all(word in text for word, text in zip(unmet, shown.unmet))


@pytest.mark.parametrize(
    "name", ["yuv420p", "yuvj420p", "yuv444p", "yuv420p10le", "gray", "gray16le", "gray12le"]
)
@pytest.mark.parametrize("size", [(48, 64), (49, 63)])
def test_turned_frame_has_the_samples(name: str, size: tuple[int, int]) -> None:
    frame = av.VideoFrame(size[1], size[0], name)
    for plane in frame.planes:
        plane.update(
            np.random.default_rng(0).integers(0, 255, plane.buffer_size, np.uint8).tobytes()
        )
    frame.pts = 7
    frame.colorspace = 1
    frame.color_range = 2
    item = 2 if name.endswith("le") else 1
    for turns in (1, 2, 3):
        turned = turn_frame(frame, turns)
        assert (
            turned.format.name,
            turned.pts,
            int(turned.colorspace),
            int(turned.color_range),
        ) == (name, 7, 1, 2)
        for before, after in zip(frame.planes, turned.planes):
            lines = [
                np.frombuffer(memoryview(plane), f"<u{item}").reshape(plane.height, -1)[
                    :, : plane.width
                ]
                for plane in (before, after)
            ]
            assert np.array_equal(lines[1], np.rot90(lines[0], turns))


def test_turned_frame_of_other_formats_is_rgb() -> None:
    picture = av.VideoFrame.from_ndarray(next(moving_pictures(1)), format="rgb24")
    frame = picture.reformat(format="yuv422p")
    assert np.array_equal(rgb(turn_frame(frame, 1)), np.rot90(rgb(frame)))


def test_colors_of_the_container_are_used_where_the_stream_names_none(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", "h264-gop2", 4)
    plain = open_video(path).read(np.arange(4))
    colr = b"\0\0\0\x13colrnclx" + b"\0\x01\0\x01\0\x01\x00"
    insert_in_entry(path, colr)
    read = open_video(path).read(np.arange(4))
    assert not np.array_equal(read, plain)
    assert np.array_equal(read, container_decode(path))


def test_settings_of_a_copied_stream_differ_with_what_the_container_says(tmp_path: Path) -> None:
    boxes = {
        "plain": b"",
        "aspect": b"\0\0\0\x10pasp\0\0\0\x04\0\0\0\x03",
        "colors": b"\0\0\0\x13colrnclx\0\x01\0\x01\0\x01\0",
        "crop": b"\0\0\0\x28clap" + (32).to_bytes(4, "big") * 8,
    }
    settings = []
    for name, box in boxes.items():
        path = write_video(tmp_path / f"{name}.mp4", "h264-gop2", 2)
        settings.append(
            stream_settings(open_packets(str(insert_in_entry(path, box) if box else path)).index)
        )
    turned = set_matrix(write_video(tmp_path / "turned.mp4", "h264-gop2", 2), QUARTER_TURNS[2])
    settings.append(stream_settings(open_packets(str(turned)).index))
    assert len(set(settings)) == 5
    names = [open_video(tmp_path / f"{name}.mp4").shown.unmet for name in ("aspect", "crop")]
    assert ["4:3" in names[0][0], "aperture" in names[1][0]] == [True, True]
