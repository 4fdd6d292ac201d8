"""Bytes of decoded pixels, against frames of real encoders."""

from pathlib import Path

import av
import numpy as np
import pytest

from understudy_data.video.codec_pool import frame_bytes, pixel_bytes
from understudy_data.video.encode import preserve_scheduling
from understudy_data.video.packets import open_packets


@pytest.mark.parametrize(
    ("codec", "pixel_format", "expected"),
    [
        ("libx264", "yuv420p", 1.5),
        ("libx264", "yuv422p", 2.0),
        ("libx264", "yuv444p", 3.0),
        ("libx264", "yuv420p10le", 3.0),
        ("libx264", "yuv444p10le", 6.0),
        ("libx265", "yuv420p", 1.5),
        ("libx265", "yuv444p", 3.0),
        ("libx265", "gray12le", 2.0),
        ("libsvtav1", "yuv420p", 1.5),
        ("libsvtav1", "yuv420p10le", 3.0),
        ("mpeg4", "yuv420p", 1.5),
        ("libvpx-vp9", "yuv444p", None),
    ],
)
def test_pixel_bytes_are_those_of_decoded_frames(
    codec: str, pixel_format: str, expected: float | None, tmp_path: Path
) -> None:
    path = tmp_path / "video.mp4"
    with preserve_scheduling(), av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=10)
        stream.width = 128
        stream.height = 128
        stream.pix_fmt = pixel_format
        for number in range(3):
            frame = av.VideoFrame.from_ndarray(
                np.full((128, 128, 3), 80 * number, np.uint8), format="rgb24"
            )
            output.mux(stream.encode(frame.reformat(format=pixel_format)))
        output.mux(stream.encode())
    packets = open_packets(str(path))
    packets.close()
    index = packets.index
    assert pixel_bytes(index.codec, index.extradata) == expected
    assert frame_bytes(index) >= 128 * 128 * (expected or 1.5)


@pytest.mark.parametrize("extradata", [b"", b"\1", b"\1\x64\0\x0b\xff\xe1", b"\x81"])
def test_a_damaged_configuration_gives_no_error(extradata: bytes) -> None:
    for codec in ("h264", "hevc", "av1", "vp9"):
        assert pixel_bytes(codec, extradata) in (None, 1.5)
