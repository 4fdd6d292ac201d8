"""Images as 4:2:0 planes, half the bytes of RGB: packed on the host, converted on the device.

A packed image is uint8 [1, 3 H / 2 + 1, W]: Y (H rows), U and V (H / 4 rows each), then a row whose first bytes are 1
(0 of a missing image, which becomes black), the number of the color matrix, and 1 for the full range of values.

`planes_to_rgb` has the integer arithmetic of swscale's x86 code, so on such a processor its colors are those of
`video/color.py` to the bit. Elsewhere swscale rounds differently; `check_conversion` compares the two.

RGB images from batches of 4:2:0 planes, on the device of the batch.
"""

import ctypes
from collections.abc import Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import av
import numpy as np
import torch
from torch import Tensor

from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.video.color import Converter, ImageSize
from understudy.video.native.swscale import make_noise

_FORMATS = ("yuv420p", "yuvj420p")
_FULL, _J = 2, "yuvj420p"
_DEFAULT = (104597, 132201, 25675, 53279)
_MATRICES = {
    1: (117489, 138438, 13975, 34925),
    4: (104448, 132798, 24759, 53109),
    7: (117579, 136230, 16907, 35559),
    9: (110013, 140363, 12277, 42626),
    10: (110013, 140363, 12277, 42626),
}
"""FFmpeg's color spaces -> 65536 times the weights of V in red, U in blue, U and V in green; `_DEFAULT` is BT.601."""
_MOST = 11  # color spaces that differ
_CHUNK = 1 << 25  # values that are converted at once


class PlanePacker:
    """Packs decoded frames, in the place of a `Converter` that writes RGB. For one thread at a time."""

    size: tuple[int, int] | None = None
    """Frames are never resized on the host."""

    def write(self, frame: av.VideoFrame, out: np.ndarray) -> None:
        """Write one frame into `out`, uint8 (1, 3 H / 2 + 1, W).

        Raises:
            DatasetError: the frame has another pixel format than 8-bit 4:2:0.
            ValueError: `out` has another shape or dtype.
        """
        if isinstance(frame, np.ndarray) or frame.format.name not in _FORMATS:
            name = "RGB" if isinstance(frame, np.ndarray) else frame.format.name
            raise DatasetError(f"frames are {name}, not 8-bit 4:2:0", fix="load them with colors='rgb'")
        height, width = frame.height, frame.width
        if out.shape != packed_shape(height, width) or out.dtype != np.uint8:
            raise ValueError(f"a frame of {width}x{height} does not fit {out.dtype} {out.shape}")
        rows = out[0]
        rows[:height] = _lines(frame.planes[0], height)[:, :width]
        chroma = rows[height:-1].reshape(2, height // 2, width // 2)
        for number in (0, 1):
            chroma[number] = _lines(frame.planes[1 + number], height // 2)[:, : width // 2]
        space = int(frame.colorspace)
        full = frame.format.name == _J or int(frame.color_range) == _FULL
        rows[-1, :3] = 1, space if space in _MATRICES else 0, full

    def write_all(self, frames: Sequence[av.VideoFrame], places: Sequence[int], out: np.ndarray) -> None:
        """Write frames into their places in `out`, uint8 (n, 1, 3 H / 2 + 1, W)."""
        for frame, place in zip(frames, places):
            self.write(frame, out[place])


def packed_shape(height: int, width: int) -> tuple[int, int, int]:
    """Return the shape of a packed image.

    Raises:
        ValueError: a side is odd.
    """
    if height % 2 or width % 2:
        raise ValueError(f"{width}x{height}: 4:2:0 planes need even sides; load with colors='rgb'")
    return 1, height * 3 // 2 + 1, width


def planes_to_rgb(packed: Tensor, size: tuple[int, int] | None = None) -> Tensor:
    """Convert packed images to RGB on their device, and resize them by area averaging.

    Args:
        packed: uint8 [..., 1, 3 H / 2 + 1, W].
        size: height and width of the result; None: (H, W).

    Returns:
        uint8 [..., 3, height, width].
    """
    rows, width = packed.shape[-2:]
    height = (rows - 1) * 2 // 3
    flat = packed.reshape(-1, rows * width)
    high, wide = size or (height, width)
    out = torch.empty((len(flat), 3, high, wide), dtype=torch.uint8, device=packed.device)
    step = max(1, _CHUNK // (3 * height * width))
    for begin in range(0, len(flat), step):
        rgb = _convert(flat[begin : begin + step], height, width)
        if (high, wide) != (height, width):
            rgb = torch.nn.functional.interpolate(rgb.float(), size=(high, wide), mode="area").round()
        out[begin : begin + step] = rgb.to(torch.uint8)
    return out.view(*packed.shape[:-3], 3, high, wide)


def _convert(flat: Tensor, height: int, width: int) -> Tensor:
    """Packed images [N, rows * W] to int32 [N, 3, H, W] in 0..255."""
    area, half = height * width, (height // 2, width // 2)
    table = torch.from_numpy(_coefficients()).to(flat.device)
    head = flat[:, area * 3 // 2 : area * 3 // 2 + 3].long()
    coefficients = table[head[:, 2], head[:, 1]].view(-1, 6, 1, 1)  # [N, 6, 1, 1]
    y = (flat[:, :area].view(-1, height, width).int() * 8 - coefficients[:, 1]) * coefficients[:, 0] >> 16
    u, v = (flat[:, area + n * area // 4 : area + (n + 1) * area // 4].view(-1, *half).int() * 8 - 1024 for n in (0, 1))
    colors = torch.stack(
        [
            v * coefficients[:, 2] >> 16,
            (u * coefficients[:, 4] >> 16) + (v * coefficients[:, 5] >> 16),
            u * coefficients[:, 3] >> 16,
        ],
        dim=1,
    )
    luma = y.view(-1, 1, half[0], 2, half[1], 2)
    rgb = (luma + colors[:, :, :, None, :, None]).clamp_(0, 255)  # each chroma value serves 2 x 2 pixels
    return rgb.view(-1, 3, height, width) * head[:, 0].int().view(-1, 1, 1, 1)


@lru_cache(maxsize=1)
def _coefficients() -> np.ndarray:
    """int32 [2, _MOST, 6] by range and color space: of Y, its offset, V in red, U in blue, U and V in green.

    They are those of FFmpeg's `ff_yuv2rgb_c_init_tables`, in 1/8192.
    """
    table = np.empty((2, _MOST, 6), np.int32)
    for full in (0, 1):
        for space in range(_MOST):
            weights = _MATRICES.get(space, _DEFAULT)
            luma, offset = (65536, 0) if full else (65536 * 255 // 219, 16 << 16)
            red, blue, *green = (weight * 224 // 255 if full else weight for weight in weights)
            signed = (luma << 13, offset << 3, red << 13, blue << 13, -green[0] << 13, -green[1] << 13)
            table[full, space] = [(value + (1 << 15)) >> 16 for value in signed]
    return table


@lru_cache(maxsize=1)
def check_conversion() -> None:
    """Compare both ways to RGB on noise.

    Raises:
        ValueError: on this processor they differ by more than one level of 255.
    """
    frame = make_noise("yuv420p", 32, 64)
    direct, packed = np.empty((3, 32, 64), np.uint8), np.empty(packed_shape(32, 64), np.uint8)
    Converter().write(frame, direct)
    PlanePacker().write(frame, packed)
    from_planes = planes_to_rgb(torch.from_numpy(packed)).numpy()
    if (most := int(np.abs(from_planes.astype(int) - direct).max())) > 1:
        raise ValueError(f"colors='yuv': its colors differ by {most} of 255 on this processor; load with colors='rgb'")


def _lines(plane: av.video.plane.VideoPlane, height: int) -> np.ndarray:
    """View of a plane as uint8 (height, line), with the padding at the end of each line; valid as long as its frame.

    Not through the plane's own buffer, which is empty for frames that the compiled loops fill (`video/native`).
    """
    line = plane.line_size
    if line <= 0:
        raise DatasetError(f"a plane has lines of {line} bytes", fix="load them with colors='rgb'")
    memory = (ctypes.c_uint8 * (line * height)).from_address(plane.buffer_ptr)
    return np.ctypeslib.as_array(memory).reshape(height, line)


class PlaneDelivery:
    """Converts the video images of batches from planes to RGB of a size."""

    def __init__(self, datasets: Sequence[EpisodeDataset], size: tuple[int, int] | None) -> None:
        """Choose the cameras.

        Args:
            datasets: of the batches.
            size: (height, width) of the images; None keeps the recorded size.

        Raises:
            ValueError: a policy resizes images in its own way, another decoder than pyav delivers them as RGB, or this
                processor converts colors in another way.
        """
        if isinstance(size, ImageSize):
            raise ValueError(
                "colors='yuv': this policy resizes images in its own way on the host; load with colors='rgb'"
            )
        for data in datasets:
            if data.video_frames.backend != "pyav":
                raise ValueError(f"colors='yuv': {data.name} is decoded by {data.video_frames.backend}; give pyav")
        check_conversion()
        cameras = dict.fromkeys(camera for data in datasets for camera in (*data.video_keys, *data.missing_cameras))
        self._cameras = [camera for camera in cameras if not datasets[0].pixels(camera).is_depth]
        self._size = None if size is None else (int(size[0]), int(size[1]))

    def convert(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the batch with uint8 [B, (T,) 3, H, W] in place of its planes. Its type is kept."""
        converted = copy(batch)
        converted.update((key, planes_to_rgb(batch[key], self._size)) for key in self._cameras if key in batch)
        return converted
