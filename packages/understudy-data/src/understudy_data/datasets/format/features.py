"""Declared columns and cameras of a dataset (`features` in meta/info.json), checked. Reads no file.

Depth has one of these forms; `Feature.unreadable` says why another one cannot be read exactly:

stored as                                             delivered as
video of 12-bit codes, with `video.depth_min` etc.    float32, meters
video of 16-bit numbers (gray16le), without them      uint16, as stored
images of 16-bit integers                             uint16, as stored; millimeters by LeRobot's
                                                      convention
images of 32-bit floats, `depth_unit` "m"             float32, meters
ordinary 8-bit video, or images of three channels     uint8 color: their pixels are not distances

With a requested unit, all of them but color are float32 in that unit, as LeRobot delivers them.

A key may name several columns, `action.joint_velocity + action.gripper_position`. The values of the
columns follow each other in each frame. A column of one number is a vector of one.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from typing import Any, ClassVar

import numpy as np

from understudy_base import DatasetError, Record
from understudy_data.video.depth import RGB, DepthCodes, Pixels
from understudy_data.video.encode import check_size

_SCALE = ("depth_min", "depth_max", "shift", "use_log")
_COLOR_FORMATS = re.compile(r"(yuvj?4\d\dp|nv12|gray|rgb24|bgr24|gbrp)")


def _codes(info: Record) -> DepthCodes | None:
    """Scale of quantized depth; None where info.json names none of it."""
    scale = {name: info.get(f"video.{name}") for name in _SCALE}
    if all(value is None for value in scale.values()):
        return None
    if lacking := [f"video.{name}" for name, value in scale.items() if value is None]:
        raise ValueError(f"is depth video whose scale lacks {', '.join(lacking)}")
    low, high, shift = (_number(name, scale[name]) for name in _SCALE[:3])
    if not isinstance(scale["use_log"], bool):
        raise ValueError(
            f"is depth video with video.use_log {scale['use_log']!r}, which is neither true nor "
            "false"
        )
    if not low < high or (scale["use_log"] and low + shift <= 0):
        raise ValueError(
            f"is depth video of an impossible scale: from {low} to {high} m, with shift {shift} m"
        )
    return DepthCodes(low, high, shift, scale["use_log"])


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"is depth video with video.{name} {value!r}, which is not a number")
    return float(value)


INDEX_KEYS = ("index", "episode_index", "frame_index", "timestamp", "task_index")
"""Keys of every sample; the reader computes those that the rows lack."""

CODEC_NAMES = {"libx264": "h264", "avc1": "h264", "libx265": "hevc", "h265": "hevc", "hvc1": "hevc"}
CODEC_NAMES |= {
    "libsvtav1": "av1",
    "libaom-av1": "av1",
    "av01": "av1",
    "hev1": "hevc",
    "avc3": "h264",
}
CODEC_NAMES |= {"mp4v": "mpeg4", "libxvid": "mpeg4", "vp09": "vp9", "libvpx-vp9": "vp9"}
"""Encoder or tag -> FFmpeg's name of the codec."""
NUMBERS = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "float32",
    "float64",
)
"""Numeric dtypes that can be written."""

_IMAGES = ("video", "image")
_TEXTS = ("string", "language")
_AUDIO = "audio"
_LARGE = 1 << 23  # pixels of a 4K image, 24 MB
_NAME = "name it with letters, digits, dots and underscores"


@dataclass(frozen=True)
class Feature:
    """One entry of `features`.

    Attributes:
        key: name, e.g. "observation.state".
        dtype: a numpy dtype name, or "video", "image", "string", "language", "audio".
        shape: as declared; (H, W, C) or (C, H, W) for images.
        names: names of the dimensions as declared (list, nested list, dict or None).
        info: encoding of the images (`info` or the older `video_info`), {} when there is none.
        is_vector: a value of shape (1,) is a vector of one number instead of a scalar as in
            LeRobot.
        depth_unit: unit in which depth images are delivered, "m" or "mm"; "": meters from codes,
            others as stored.
    """

    NUMBERS: ClassVar = NUMBERS
    """Dtypes of numbers."""

    key: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None
    info: Record = field(default_factory=dict)
    is_vector: bool = False
    depth_unit: str = ""

    @cached_property
    def is_camera(self) -> bool:
        """Whether this is a camera, stored as video, as encoded images, or as arrays in the
        rows.
        """
        return self.is_encoded or self.is_array

    @property
    def is_encoded(self) -> bool:
        """Whether this is a camera stored as video or encoded images."""
        return self.dtype in _IMAGES

    @property
    def is_array(self) -> bool:
        """Whether this is a camera stored as uint8 arrays, with three channels as the first or last
        axis.
        """
        return self.looks_like_images and 3 in (self.shape[0], self.shape[2])

    @property
    def is_video(self) -> bool:
        """Whether this is a camera stored as video."""
        return self.dtype == "video"

    @property
    def is_text(self) -> bool:
        """Whether values are strings or nested language records, delivered as Python values instead
        of tensors.
        """
        return self.dtype in _TEXTS

    @cached_property
    def looks_like_images(self) -> bool:
        """Whether the declaration is uint8 of (height, width, channels) or (channels, height,
        width).
        """
        sides = sorted(self.shape)
        return self.dtype == "uint8" and len(sides) == 3 and sides[0] in (1, 3, 4) and sides[1] >= 8

    @property
    def pixel_axes(self) -> tuple[int, int] | None:
        """Axes of height and width of numbers in the rows that are images; None for other features.

        They are uint8 of three axes that look like images, or of any dtype with axes named height
        and width, both of at least 8.
        """
        names = []
        if isinstance(self.names, (list, tuple)):
            names = [str(name).lower() for name in self.names]
        if (
            len(names) == len(self.shape)
            and {"height", "width"} <= set(names)
            and self.dtype in NUMBERS
        ):
            axes = names.index("height"), names.index("width")
            is_image = len(names) in (2, 3) and min(self.shape[axis] for axis in axes) >= 8
            return axes if is_image else None
        if not self.looks_like_images:
            return None
        is_first = self.shape[0] == 3 if self.is_array else self.shape[2] not in (1, 3, 4)
        return (1, 2) if is_first else (0, 1)

    @property
    def statistics_shape(self) -> tuple[int, ...]:
        """Shape of the statistics: (C, 1, 1) of images, (1, 1) without an axis of channels, else
        that of a value.
        """
        axes = self.pixel_axes
        if axes is None or len(self.shape) == 2:
            return self.shape if axes is None else (1, 1)
        return math.prod(self.shape) // (self.shape[axes[0]] * self.shape[axes[1]]), 1, 1

    @cached_property
    def is_depth(self) -> bool:
        """Whether this is a camera of depth images."""
        return self._declares_depth and not self.color_declared_as_depth

    @property
    def _declares_depth(self) -> bool:
        names = ("is_depth_map", "video.is_depth_map")
        return self.is_encoded and any(self.info.get(name) is True for name in names)

    @property
    def color_declared_as_depth(self) -> str:
        """Color images that info.json declares as depth, in words; "" where there are none. They
        stay color.

        They are video of 8 bits without a scale, or images of three channels.
        """
        if not self._declares_depth or any(
            self.info.get(f"video.{name}") is not None for name in _SCALE
        ):
            return ""
        if not self.is_video:
            return "images of three channels" if self.channels == 3 else ""
        recorded = str(self.info.get("video.pix_fmt"))
        return f"ordinary video ({recorded})" if _COLOR_FORMATS.fullmatch(recorded) else ""

    @cached_property
    def pixels(self) -> Pixels:
        """Channels and dtype of the images of a camera; color without depth.

        Raises:
            ValueError: depth that cannot be read exactly. The message is the rest of a sentence
                about the camera.
        """
        if not self.is_depth:
            return RGB
        unit = self.depth_unit
        stored_unit = self.info.get("depth_unit")
        if stored_unit not in (None, "m", "mm"):
            raise ValueError(
                f"is depth in depth_unit {stored_unit!r}, which is neither 'm' nor 'mm'"
            )
        codes = None
        pixel_format = ""
        if self.is_video:
            codes = _codes(self.info)
            pixel_format = "gray16le" if codes is None else "gray12le"
            recorded = self.info.get("video.pix_fmt")
            if recorded not in (None, pixel_format):
                why = "without a recorded scale" if codes is None else "with a recorded scale"
                raise ValueError(
                    f"is depth video {why} in pixel format {recorded}; {pixel_format} is read"
                )
        if codes is not None:
            return Pixels(1, "float32", codes, pixel_format, unit=unit or "m")
        if unit and stored_unit is None:
            raise ValueError(
                "is depth without a depth_unit in meta/info.json, so it cannot be delivered in "
                f"{unit!r}"
            )
        if not unit and stored_unit == "m" and not self.is_video:
            unit = "m"
        dtype = "float32" if unit else "uint16"
        return Pixels(1, dtype, None, pixel_format, stored_unit or "", unit)

    def convert_statistics(self, entry: dict[str, np.ndarray]) -> dict[str, np.ndarray] | None:
        """Convert recorded statistics of depth to the unit of its images; None where their unit is
        unknown.
        """
        unit = self.pixels.unit
        recorded = self.info.get("depth_unit")
        if not unit or recorded == unit:
            return entry
        if recorded is None:
            return None
        factor = 1000 if unit == "mm" else 1 / 1000
        converted = {}
        for name, value in entry.items():
            converted[name] = value if name == "count" else value * factor
        return converted

    @property
    def unreadable(self) -> str:
        """Why this feature cannot be read, as the rest of a sentence; "" where it can."""
        if self.dtype == _AUDIO:
            return "is audio, which is not read"
        if self.is_depth and self.channels not in (1, None):
            return f"is declared as depth and has {self.channels} channels"
        try:
            self.pixels  # noqa: B018
        except ValueError as error:
            return str(error)
        return ""

    @property
    def audio(self) -> str:
        """Facts about the audio stream in a camera's videos, as the rest of a sentence; "" without
        one.
        """
        if not (self.is_video and self.info.get("has_audio") is True):
            return ""
        facts = [self.info.get(f"audio.{name}") for name in ("codec", "sample_rate", "channels")]
        details = ", ".join(
            f"{fact}{unit}"
            for fact, unit in zip(facts, ("", " Hz", " channels"))
            if fact is not None
        )
        in_brackets = f" ({details})" if details else ""
        return f"has an audio stream{in_brackets}, which is not read"

    @property
    def value_shape(self) -> tuple[int, ...]:
        """Shape of one frame's value: (1,) is a scalar, as in LeRobot, unless `is_vector`."""
        return () if self.shape == (1,) and not self.is_vector else self.shape

    @property
    def dimension_names(self) -> list[str]:
        """Names of a vector's dimensions; "0", "1", ... where the declared names are not unique or
        not as many.

        Names are a list, nested (LeRobot's {"motors": [...]}, a list in a list, a list per limb),
        or {name: number}.
        """
        width = math.prod(self.shape)
        names = _flatten(self.names)
        if len(names) != width or len(set(names)) < width:
            return [str(number) for number in range(width)]
        return names

    @property
    def channels(self) -> int | None:
        """Channels of an image; None when the declared shape does not give them."""
        if not self.is_camera or len(self.shape) != 3:
            return None
        return self.shape[0] if self._channels_first else self.shape[2]

    @classmethod
    def text(cls, key: str) -> "Feature":
        """Return a feature of one text per frame. Raises ValueError for a key that LeRobot v3.0
        cannot hold.
        """
        check_name(key)
        return cls(key, "string", (1,))

    @classmethod
    def video(cls, key: str, size: tuple[int, int], codec: str) -> "Feature":
        """Return a feature of color video.

        Args:
            key: its name.
            size: (height, width) of the images.
            codec: encoder (see `VideoEncoder`).

        Raises:
            ValueError: LeRobot v3.0 cannot hold the key, or the encoder cannot write the size.
        """
        check_name(key)
        try:
            check_size(codec, *size)
        except ValueError as error:
            raise ValueError(f"feature {key!r}: video with {error}") from None
        return cls(key, "video", (*size, 3), ["height", "width", "channels"])

    @property
    def codec(self) -> str:
        """FFmpeg's name of the codec that info.json declares; "" for none."""
        declared = self.info.get("video.codec")
        return CODEC_NAMES.get(declared, declared) if isinstance(declared, str) else ""

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of an image; None when the declared shape does not give them."""
        if self.channels is None:
            return None
        height, width = self.shape[1:] if self._channels_first else self.shape[:2]
        return height, width

    @property
    def max_pixels(self) -> int:
        """Most pixels that one image may have: four times the declared size and at least 8 million.

        The margin is for info.json files with another size or axis order. Without a declared size:
        64 million.
        """
        sides = sorted(self.shape)[-2:] if len(self.shape) == 3 else [0]
        declared = math.prod(sides)
        return max(4 * declared, _LARGE) if declared else 1 << 26

    @property
    def _channels_first(self) -> bool:
        """Whether channels are the first axis: by the axes' names if declared; for arrays by the
        axis of size three.
        """
        if self.is_array:
            return self.shape[0] == 3
        if isinstance(self.names, (list, tuple)) and len(self.names) == 3:
            return str(self.names[0]).lower().startswith("c")
        return self.shape[2] not in (1, 3, 4)


def check_name(key: str) -> None:
    """Raise ValueError for the key of a feature that LeRobot v3.0 cannot hold."""
    if not key or "/" in key or key in INDEX_KEYS or key == "task":
        raise ValueError(
            f"feature {key!r}: a name without '/', and none of {', '.join(DEFAULTS)}, task"
        )


DEFAULTS = {
    "timestamp": Feature("timestamp", "float32", (1,)),
    "frame_index": Feature("frame_index", "int64", (1,)),
    "episode_index": Feature("episode_index", "int64", (1,)),
    "index": Feature("index", "int64", (1,)),
    "task_index": Feature("task_index", "int64", (1,)),
}
"""The five columns of every dataset, filled by its writer."""


def parse_features(entries: Any, where: str) -> dict[str, Feature]:
    """Parse the features of info.json, in its order.

    Raises:
        DatasetError: an entry has the wrong type, an unknown dtype, or a shape that is not a list
            of sizes.
    """
    if not isinstance(entries, dict) or not entries:
        raise DatasetError(
            f"'features' is {_shorten(entries)}, not an object of features",
            where=where,
            fix="repair info.json",
        )
    return {key: _parse(key, entry, where) for key, entry in entries.items()}


def _parse(key: str, entry: Any, where: str) -> Feature:
    def refuse(problem: str) -> DatasetError:
        return DatasetError(
            f"feature {key!r}: {problem}", where=where, fix="repair this entry of info.json"
        )

    if not key.isprintable() or not key or key.startswith("/") or ".." in key.split("/"):
        raise DatasetError(
            f"features names {_shorten(key)}, which is not a valid feature name",
            where=where,
            fix=_NAME,
        )
    if not isinstance(entry, dict):
        raise refuse(f"is {_shorten(entry)}, not an object with dtype and shape")
    dtype = entry.get("dtype")
    shape = entry.get("shape")
    if not isinstance(dtype, str) or not _is_known_dtype(dtype):
        raise refuse(
            f"dtype {_shorten(dtype)} is none of a numpy number type, bool, string, language, "
            "image, video"
        )
    if dtype == "video" and "/" in key:
        raise refuse("a camera name with a '/' would name folders of other cameras")
    if shape is None and dtype in _TEXTS:
        shape = [1]
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise refuse(f"shape {_shorten(shape)} is not a list of sizes")
    info = entry.get("info") or entry.get("video_info")
    if not isinstance(info, dict):
        info = {}
    return Feature(key, dtype, tuple(shape), entry.get("names"), info)


def _flatten(names: Any, depth: int = 8) -> list[str]:
    """Flatten nested lists and objects of names in order; an object of numbers gives its keys, by
    number.
    """
    if isinstance(names, dict):
        if names and sorted(map(repr, names.values())) == sorted(map(repr, range(len(names)))):
            return [str(name) for name in sorted(names, key=lambda name: int(names[name]))]
        names = list(names.values())
    if isinstance(names, (list, tuple)) and depth:
        flat = []
        for part in names:
            flat += _flatten(part, depth - 1)
        return flat
    return [] if names is None else [str(names)]


def _is_known_dtype(dtype: str) -> bool:
    if dtype in (*_IMAGES, *_TEXTS, _AUDIO):
        return True
    try:
        return np.dtype(dtype).kind in "biuf" and np.dtype(dtype).itemsize <= 8
    except TypeError:
        return False


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


SEPARATOR = "+"


def key_parts(key: str, features: Collection[str]) -> tuple[str, ...]:
    """Return the columns that a key names; a key in `features` names itself, also with a `+` in
    it.
    """
    return (key,) if key in features else tuple(part.strip() for part in key.split(SEPARATOR))


def joined_name(parts: Sequence[str]) -> str:
    """Name of a joined vector: the columns with ` + ` between them."""
    return f" {SEPARATOR} ".join(parts)


def join_features(parts: Sequence[Feature]) -> Feature:
    """Return the feature (D,) of joined vectors (D1,), (D2,), …; `joint_0`, … names where they are
    unique.
    """
    names: list[str] = []
    for part in parts:
        names += part.dimension_names
    if len(set(names)) < len(names):  # both have dimensions "0", "1", or arms of one kind
        names = []
        for part in parts:
            names += [f"{part.key}.{name}" for name in part.dimension_names]
    dtype = np.result_type(*(np.dtype(part.dtype) for part in parts)).name
    return Feature(
        joined_name([part.key for part in parts]), dtype, (len(names),), names, is_vector=True
    )


def join_stats(parts: Sequence[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the recorded statistics of a joined vector: those that all parts have; the count is
    the first one's.
    """
    joined: dict[str, np.ndarray] = {}
    for name, figure in parts[0].items():
        if not all(name in part for part in parts):
            continue
        if name == "count":
            joined[name] = figure
        else:
            joined[name] = np.concatenate([part[name].reshape(-1) for part in parts])
    return joined
