"""Depth features as info.json declares them: which dtype and unit they have, or why they cannot be read exactly.

stored as                                             delivered as
video of 12-bit codes, with `video.depth_min` etc.    float32, meters
video of 16-bit numbers (gray16le), without them      uint16, as stored
images of 16-bit integers                             uint16, as stored; millimeters by LeRobot's convention
images of 32-bit floats, `depth_unit` "m"             float32, meters
ordinary 8-bit video, or images of three channels     uint8 color: their pixels are no distances

With a requested unit, all of them but color are float32 in that unit, as LeRobot delivers them.
"""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from understudy.video.depth.codes import DepthCodes
from understudy.video.depth.pixels import RGB, Pixels

_SCALE = ("depth_min", "depth_max", "shift", "use_log")
_UNITS = (None, "m", "mm")
_COLOR_FORMATS = re.compile(r"(yuvj?4\d\dp|nv12|gray|rgb24|bgr24|gbrp)")


def is_depth(info: Mapping[str, Any]) -> bool:
    """Whether the info of a camera declares depth."""
    return any(info.get(key) is True for key in ("is_depth_map", "video.is_depth_map"))


def depth_unit(info: Mapping[str, Any]) -> str | None:
    """Recorded unit, "m" or "mm"; None where there is none. Recorded statistics have it."""
    unit = info.get("depth_unit")
    return unit if isinstance(unit, str) else None


def depth_pixels(is_video: bool, info: Mapping[str, Any], unit: str = "") -> Pixels:
    """Channels and dtype of the images of a camera; color without depth.

    Args:
        is_video: whether the images are stored as video.
        info: `info` of the camera in meta/info.json.
        unit: "m" or "mm", to deliver; "" for meters from codes, and other numbers as stored.

    Raises:
        ValueError: depth that cannot be read exactly. The message is the rest of a sentence about the camera.
    """
    if not is_depth(info):
        return RGB
    if info.get("depth_unit") not in _UNITS:
        raise ValueError(f"is depth in depth_unit {info['depth_unit']!r}, which is neither 'm' nor 'mm'")
    stored_unit = depth_unit(info) or ""
    codes, pixel_format = None, ""
    if is_video:
        codes = _codes(info)
        pixel_format = "gray16le" if codes is None else "gray12le"
        recorded = info.get("video.pix_fmt")
        if recorded not in (None, pixel_format):
            why = "without a recorded scale" if codes is None else "with a recorded scale"
            raise ValueError(f"is depth video {why} in pixel format {recorded}; {pixel_format} is read")
    if codes is not None:
        return Pixels(1, "float32", codes, pixel_format, unit=unit or "m")
    if unit and not stored_unit:
        raise ValueError(f"is depth without a depth_unit in meta/info.json, so it cannot be delivered in {unit!r}")
    is_float = bool(unit) or (stored_unit == "m" and not is_video)
    return Pixels(
        1, "float32" if is_float else "uint16", None, pixel_format, stored_unit, "m" if is_float and not unit else unit
    )


def stores_color(is_video: bool, info: Mapping[str, Any], channels: int | None) -> bool:
    """Whether a camera declared as depth stores color: video of 8 bits without a scale, or images of three channels."""
    recorded = str(info.get("video.pix_fmt"))
    if not is_depth(info) or any(info.get(f"video.{name}") is not None for name in _SCALE):
        return False
    return _COLOR_FORMATS.fullmatch(recorded) is not None if is_video else channels == 3


def depth_statistics(
    entry: dict[str, np.ndarray], pixels: Pixels, info: Mapping[str, Any]
) -> dict[str, np.ndarray] | None:
    """Convert recorded statistics of a depth camera to the unit of its images; None where their unit is unknown."""
    recorded = depth_unit(info)
    if not pixels.unit or recorded == pixels.unit:
        return entry
    if recorded is None:
        return None
    factor = 1000 if pixels.unit == "mm" else 1 / 1000
    return {name: value if name == "count" else value * factor for name, value in entry.items()}


def _codes(info: Mapping[str, Any]) -> DepthCodes | None:
    """Scale of quantized depth; None where info.json names none of it."""
    scale = {name: info.get(f"video.{name}") for name in _SCALE}
    if all(value is None for value in scale.values()):
        return None
    if lacking := [f"video.{name}" for name, value in scale.items() if value is None]:
        raise ValueError(f"is depth video whose scale lacks {', '.join(lacking)}")
    low, high, shift = (_number(name, scale[name]) for name in _SCALE[:3])
    if not isinstance(scale["use_log"], bool):
        raise ValueError(f"is depth video with video.use_log {scale['use_log']!r}, which is neither true nor false")
    if not low < high or (scale["use_log"] and low + shift <= 0):
        raise ValueError(f"is depth video of an impossible scale: from {low} to {high} m, with shift {shift} m")
    return DepthCodes(low, high, shift, scale["use_log"])


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"is depth video with video.{name} {value!r}, which is not a number")
    return float(value)
