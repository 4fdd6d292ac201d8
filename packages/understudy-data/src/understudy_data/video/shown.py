"""What a container says of how its video is to be shown, beside the pixels. The rule is in
`orientation.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from understudy_data.plain_values import storable

IDENTITY: tuple[int, ...] = (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
"""The matrix that changes nothing, in the fixed point numbers of ISO/IEC 14496-12 (16.16, in each
third place 2.30).
"""
UNSPECIFIED = (2, 2, 2, 0)
"""Colors that a container does not name."""


def multiply(track: Sequence[int], movie: Sequence[int]) -> tuple[int, ...]:
    """Combine the display matrices of a track and of its movie, in the integers of FFmpeg's
    demuxer.
    """
    shifts = (16, 16, 30)
    product = []
    for row in range(3):
        for column in range(3):
            terms = (track[3 * row + k] * movie[3 * k + column] >> shifts[k] for k in range(3))
            product.append(sum(terms))
    return tuple(product)


@storable
@dataclass(frozen=True)
class Shown:
    """What a container says of how its video is to be shown.

    Attributes:
        matrix: display matrix, nine integers as in `IDENTITY`.
        aspect: width and height of a pixel, as a ratio; (1, 1) for square ones.
        colors: primaries, transfer and matrix by ITU-T H.273, and FFmpeg's number of the range.
        crop: clean aperture, as stored; b"" without one.
    """

    matrix: tuple[int, ...] = IDENTITY
    aspect: tuple[int, int] = (1, 1)
    colors: tuple[int, int, int, int] = UNSPECIFIED
    crop: bytes = b""

    @cached_property
    def turns(self) -> int:
        """Quarter turns to the left, 0 to 3, that show the decoded frames as torchcodec does."""
        angle = self._angle
        return (
            0 if angle is None else int(math.copysign(math.floor(abs(angle) / 90 + 0.5), angle)) % 4
        )

    @property
    def _angle(self) -> float | None:
        """Angle in degrees to the left; None for a matrix without one."""
        a, b, _, c, d, *_ = self.matrix
        wide = math.hypot(a, c)
        tall = math.hypot(b, d)
        if (
            (a, d, self.matrix[8]) == (IDENTITY[0], IDENTITY[4], IDENTITY[8])
            or not wide
            or not tall
        ):
            return None
        return -math.degrees(math.atan2(b / tall, a / wide))

    @property
    def unmet(self) -> list[str]:
        """Properties that are not met when the video is shown, in words."""
        a, b, _, c, d, *_ = self.matrix
        words = ["is to be mirrored"] if a * d - b * c < 0 else []
        angle = self._angle
        if angle is not None and abs(angle / 90 - round(angle / 90)) > 1 / 90:
            words.append(f"is to be turned by {angle:.0f} degrees, which is no quarter turn")
        if self.aspect[0] != self.aspect[1]:
            words.append(f"has pixels that are not square, {self.aspect[0]}:{self.aspect[1]}")
        if self.crop:
            words.append("is to be cropped to a clean aperture")
        return words


def turned_size(height: int, width: int, turns: int) -> tuple[int, int]:
    """Return (height, width) after quarter turns."""
    return (width, height) if turns % 2 else (height, width)
