"""Numbers, texts and images of one sample: a ROS message, a row of an array, or encoded bytes.

Images become RGB, uint8 (height, width, 3), turned as the EXIF data of an encoded one ask
(`video/orientation.py`). Errors lack stream and time, which `frames.py` adds.
"""

import io
import warnings
from typing import Any

import numpy as np
from PIL import Image

from understudy_base import summarize
from understudy_data import upright
from understudy_tools.imports.limits import MAX_PIXELS
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import Part

MAX_TEXT = 2000
"""Characters of a task text."""
_MODES = ("RGB", "RGBA", "L", "LA", "P", "PA", "1")
_CHANNELS = {"rgb8": 3, "bgr8": 3, "rgba8": 4, "bgra8": 4, "mono8": 1, "8UC3": 3}


def is_image(key: str, value: Any) -> bool:
    """Return whether the first value of a feature is an image."""
    if kind := getattr(value, "__msgtype__", ""):
        return kind.endswith(("/Image", "/CompressedImage"))
    return key.startswith("observation.image") or (
        getattr(value, "ndim", 0) == 3 and value.shape[2] in (1, 3)
    )


def to_image(value: Any, color: str = "", is_unit: bool = False) -> np.ndarray:
    """Decode an image.

    Args:
        value: a message, encoded bytes, or an array.
        color: sequence of the channels (`Part.color`).
        is_unit: whether an array is of 0 to 1.

    Raises:
        RecordingError: it is not 8-bit color or gray, or is broken.
    """
    if hasattr(value, "encoding"):
        return _from_raw(value, value.encoding, color)
    if "compressedDepth" in getattr(value, "format", ""):
        raise RecordingError("image", "is depth (compressedDepth), which is not imported")
    if hasattr(value, "format"):
        value = getattr(value, "data", value)
    pixels = np.asarray(value)
    if pixels.ndim == 1:
        return _to_rgb(_from_file(pixels), color == "bgr")  # in ALOHA, with zeros behind
    if pixels.ndim == 3:
        _require_pixels(pixels.shape[1], pixels.shape[0])
    if pixels.dtype.kind == "f" and pixels.shape[2:] == (1,):
        problem = (
            f"is {pixels.dtype} {pixels.shape}, expected 3 channels of floats: one may be "
            "depth, which is not imported"
        )
        raise RecordingError(
            "image",
            problem,
            fix="write gray images as uint8 and masks as bools, or leave the stream out",
        )
    is_good = (pixels >= 0) & (pixels <= 1) if is_unit else pixels == pixels.astype(np.uint8)
    if pixels.ndim != 3 or pixels.shape[2] not in (1, 3) or not is_good.all():
        odd = "".join(f" with {number:g}" for number in pixels[~is_good][:1])
        rule = "whole numbers of 0 to 255, or of 3 floats of 0 to 1"
        if is_unit:
            rule = "0 to 1, as in the first recording"
        problem = (
            f"is {pixels.dtype} {pixels.shape}{odd}, expected (height, width, 3 or 1) of {rule}"
        )
        raise RecordingError(
            "image", problem, fix="write one of both in all recordings, or leave the stream out"
        )
    if is_unit:
        pixels = np.rint(pixels * 255.0)
    return _to_rgb(pixels.astype(np.uint8), color == "bgr")


def _from_raw(message: Any, encoding: str, color: str) -> np.ndarray:
    channels = _CHANNELS.get(encoding, 0)
    if not channels or (encoding == "8UC3" and not color):
        fix = f"imported are {', '.join(_CHANNELS)}; the last needs `color`"
        raise RecordingError("image", f"has encoding {encoding!r}", fix=fix)
    height = message.height
    width = message.width
    step = message.step
    data = np.asarray(message.data, np.uint8)
    if step < width * channels or data.size != step * height or not height * width:
        raise RecordingError(
            "image",
            f"has {data.size} bytes for {width}x{height} {encoding} in lines of {step} bytes",
        )
    _require_pixels(width, height)
    lines = data.reshape(height, step)[:, : width * channels]
    return _to_rgb(
        lines.reshape(height, width, channels), encoding.startswith("bgr") or color == "bgr"
    )


def _to_rgb(pixels: np.ndarray, is_bgr: bool) -> np.ndarray:
    if pixels.shape[2] == 1:
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    else:
        pixels = pixels[..., :3]
    if is_bgr:
        pixels = pixels[..., ::-1]
    return np.ascontiguousarray(pixels)


def _from_file(data: np.ndarray) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # our limit is lower
            image = Image.open(io.BytesIO(data.astype(np.uint8).tobytes()))
        _require_pixels(*image.size)
        if image.mode in _MODES:
            return np.array(upright(image).convert("RGB"))
    except RecordingError:
        raise
    except Image.DecompressionBombError as error:
        raise RecordingError("size", f"{error}; the limit is {MAX_PIXELS:,}") from error
    except Exception as error:
        raise RecordingError("image", f"cannot be decoded: {summarize(error)}") from error
    is_deep = image.mode.startswith(("I", "F"))
    fix = "depth is not imported: leave the stream out" if is_deep else "write it as RGB or gray"
    kind = f"is {image.format} of mode {image.mode}"
    if is_deep:
        kind = f"has {image.mode}, more than 8 bits a pixel"
    raise RecordingError("image", f"{kind}; 8-bit RGB, RGBA, gray and palettes are read", fix=fix)


def _require_pixels(width: int, height: int) -> None:
    if width * height > MAX_PIXELS:
        problem = (
            f"an image of {width}x{height} has {width * height:,} pixels, the limit is "
            f"{MAX_PIXELS:,}"
        )
        raise RecordingError("size", problem, fix="write smaller images, or leave the stream out")


def _names(message: Any) -> list[str]:
    return list(getattr(message, "name", None) or getattr(message, "joint_names", None) or ())


def joint_names(part: Part, value: Any) -> tuple[str, ...]:
    """Return the joints of a part: those of the mapping, or of its first message; () where it has
    no names.
    """
    if part.joints:
        return part.joints
    is_whole = not part.names and part.field in (("position",), ("velocity",), ("effort",))
    return tuple(_names(value)) if is_whole else ()


def value_names(part: Part, count: int) -> list[str] | None:
    """Return the names of a part's values; None where the recording has none."""
    names = part.names or part.joints
    if not names and len(part.field) == count > 1:
        names = part.field
    return list(names) or None


def to_numbers(part: Part, value: Any) -> np.ndarray:
    """Return the numbers of a part, (D,).

    Raises:
        RecordingError: a field or joint is missing, or is no number.
    """
    if isinstance(value, np.ndarray | np.generic | int | float):
        return _as_vector(value, "a row")
    if not part.field:
        raise RecordingError(
            "value", f"is {getattr(value, '__msgtype__', 'text')}: name its numbers in `field`"
        )
    numbers = np.concatenate([_as_vector(follow(value, path), path) for path in part.field])
    if not part.joints:
        return numbers
    places = {name: place for place, name in enumerate(_names(value))}
    if len(numbers) != len(places):
        raise RecordingError(
            "names", f"has {len(numbers)} values for the names {', '.join(places)}"
        )
    if missing := [name for name in part.joints if name not in places]:
        raise RecordingError(
            "names", f"has no joint {', '.join(missing)}; it has {', '.join(places)}"
        )
    return numbers[[places[name] for name in part.joints]]


def to_text(part: Part, value: Any) -> str:
    """Return the text of a part.

    Raises:
        RecordingError: it is empty, too long, or not a text.
    """
    text = value if isinstance(value, str) else follow(value, *(part.field or ("data",)))
    if not isinstance(text, str) or not text.strip() or len(text) > MAX_TEXT:
        raise RecordingError(
            "task", f"is {str(text)[:20]!r}, expected a text of at most {MAX_TEXT} characters"
        )
    return text


def follow(value: Any, path: str) -> Any:
    """Return the value at a dotted path in a message; a row or text is its own value.

    Raises:
        RecordingError: there is none.
    """
    if not hasattr(value, "__msgtype__"):
        return value
    for name in path.split("."):
        try:
            value = value[int(name)] if name.isdecimal() else getattr(value, name)
        except (AttributeError, IndexError, TypeError) as error:
            fields = ", ".join(getattr(value, "__dataclass_fields__", ()))
            raise RecordingError(
                "value", f"has no {name!r} of {path!r}", fix=fields and f"it has {fields}"
            ) from error
    return value


def _as_vector(value: Any, path: str) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf" or array.ndim > 1:
        raise RecordingError("value", f"{path!r} is {array.dtype} {array.shape}, not numbers")
    return array.reshape(-1)
