"""Depth features as info.json declares them: which dtype and unit they have, or why they cannot be read exactly.

stored as                                             delivered as
video of 12-bit codes, with `video.depth_min` etc.    float32, meters
video of 16-bit numbers (gray16le), without them      uint16, as stored
images of 16-bit integers                             uint16, as stored; millimeters by LeRobot's convention
images of 32-bit floats, `depth_unit` "m"             float32, meters
"""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np

from understudy.video.depth.codes import DepthCodes
from understudy.video.depth.pixels import RGB, Pixels

_SCALE = ("depth_min", "depth_max", "shift", "use_log")
_UNITS = (None, "m", "mm")


def is_depth(info: Mapping[str, Any]) -> bool:
    """Whether the info of a camera declares depth."""
    return any(info.get(key) is True for key in ("is_depth_map", "video.is_depth_map"))


def depth_unit(info: Mapping[str, Any]) -> str | None:
    """Recorded unit, "m" or "mm"; None where there is none. Recorded statistics have it."""
    unit = info.get("depth_unit")
    return unit if isinstance(unit, str) else None


def depth_pixels(is_video: bool, info: Mapping[str, Any]) -> Pixels:
    """Channels and dtype of the images of a camera; color where `info` declares no depth.

    Raises:
        ValueError: depth that cannot be read exactly. The message is the rest of a sentence about the camera.
    """
    if not is_depth(info):
        return RGB
    if info.get("depth_unit") not in _UNITS:
        raise ValueError(f"is depth in depth_unit {info['depth_unit']!r}, which is neither 'm' nor 'mm'")
    if not is_video:
        return Pixels(1, "float32" if depth_unit(info) == "m" else "uint16")
    codes = _codes(info)
    needed = "gray16le" if codes is None else "gray12le"
    found = info.get("video.pix_fmt")
    if found not in (None, needed):
        why = "without a recorded scale" if codes is None else "with a recorded scale"
        raise ValueError(f"is depth video {why} in pixel format {found}; {needed} is read")
    return Pixels(1, "uint16" if codes is None else "float32", codes, needed)


def depth_statistics(
    entry: dict[str, np.ndarray], pixels: Pixels, info: Mapping[str, Any]
) -> dict[str, np.ndarray] | None:
    """Convert recorded statistics of a depth camera to the unit of its images; None where their unit is unknown."""
    if pixels.codes is None or depth_unit(info) == "m":
        return entry
    if depth_unit(info) is None:
        return None
    return {name: value if name == "count" else value / 1000 for name, value in entry.items()}


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
