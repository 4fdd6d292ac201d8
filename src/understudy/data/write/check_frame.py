"""Checks of recorded features and frames, made when a frame is added."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from understudy.data.format.features import Feature
from understudy.data.write.dataset_files import DEFAULTS
from understudy.video.encode import check_size

_NUMBERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "float32", "float64")


def check_features(features: Mapping[str, Mapping[str, Any]], codec: str = "libsvtav1") -> dict[str, Feature]:
    """Return the features to record, followed by the five default columns; `codec` encodes the videos.

    Raises:
        ValueError: LeRobot v3.0 cannot hold a feature; names the key and the rule.
    """
    checked: dict[str, Feature] = {}
    for key, entry in features.items():
        extra = set(entry) - {"dtype", "shape", "names"}
        if not key or "/" in key or key in DEFAULTS or key == "task":
            raise ValueError(f"feature {key!r}: a name without '/', and none of {', '.join(DEFAULTS)}, task")
        if extra or "dtype" not in entry:
            raise ValueError(f"feature {key!r}: give dtype, shape and names, not {', '.join(sorted(entry))}")
        dtype, names = str(entry["dtype"]), entry.get("names")
        shape = tuple(int(size) for size in entry.get("shape", (1,)))
        if dtype not in (*_NUMBERS, "string", "video", "image"):
            raise ValueError(
                f"feature {key!r}: dtype {dtype!r} is not one of {', '.join(_NUMBERS)}, string, video, image"
            )
        if not shape or min(shape) < 1 or len(shape) > 5:
            raise ValueError(f"feature {key!r}: shape {shape} must have one to five positive sizes; a scalar is (1,)")
        if dtype == "string" and shape != (1,):
            raise ValueError(f"feature {key!r}: strings have shape (1,), not {shape}")
        if dtype in ("video", "image"):
            if len(shape) != 3 or shape[2] != 3:
                raise ValueError(f"feature {key!r}: images have shape (height, width, 3), not {shape}")
            if dtype == "video":
                try:
                    check_size(codec, shape[0], shape[1])
                except ValueError as error:
                    raise ValueError(f"feature {key!r}: video with {error}") from None
            names = names or ["height", "width", "channels"]
        if isinstance(names, Sequence) and not isinstance(names, str):
            names = list(names)
        checked[key] = Feature(key, dtype, shape, names)
    if not checked:
        raise ValueError("features is empty: name at least one")
    return checked | DEFAULTS


def check_frame(values: Mapping[str, Any], features: Mapping[str, Feature], allow_nan: bool) -> dict[str, Any]:
    """Convert the values of one frame to their features' dtypes; images stay uint8 (H, W, 3) arrays.

    Lists and plain numbers are taken as arrays. Floats are rounded to the feature's precision. Integers are taken where
    the feature's dtype holds them exactly. Floats are no integers, and nothing but bool is a bool.

    Raises:
        ValueError: a value breaks a rule; names the key and the rule.
    """
    wanted = features.keys() - DEFAULTS.keys()
    if values.keys() != wanted:
        missing, extra = sorted(wanted - values.keys()), sorted(values.keys() - wanted)
        parts = [f"without {', '.join(missing)}"] * bool(missing) + [f"with unknown {', '.join(extra)}"] * bool(extra)
        raise ValueError(f"frame {' and '.join(parts)}: give exactly {', '.join(sorted(wanted))}")
    return {key: _check_value(key, values[key], features[key], allow_nan) for key in features if key in wanted}


def _check_value(key: str, value: Any, feature: Feature, allow_nan: bool) -> Any:
    if feature.dtype == "string":
        if not isinstance(value, str):
            raise ValueError(f"{key!r}: {type(value).__name__}, expected a string")
        return value
    array = np.asarray(value)
    if feature.shape == (1,) and array.shape == ():
        array = array.reshape(1)
    if array.shape != feature.shape:
        raise ValueError(f"{key!r}: shape {array.shape}, expected {feature.shape}")
    want = np.dtype(np.uint8 if feature.is_encoded else feature.dtype)
    if feature.is_encoded or want.kind == "b":
        if array.dtype != want:
            raise ValueError(f"{key!r}: dtype {array.dtype}, expected {want}")
        return array if feature.is_encoded else array.copy()  # images are encoded at once; other values are kept
    if array.dtype.kind not in ("iuf" if want.kind == "f" else "iu"):
        raise ValueError(f"{key!r}: dtype {array.dtype} cannot become {want}")
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(want)  # always a copy: the caller may reuse its buffer
        exact = (cast == array) & (cast.astype(array.dtype) == array)  # NumPy compares int64 with float64 as floats
    if array.dtype.kind in "iu" and not exact.all():
        raise ValueError(f"{key!r}: {array.flat[int(np.argmin(exact))]} does not fit into {want}")
    if want.kind == "f" and (wrong := ~np.isfinite(cast) & (np.isfinite(array) if allow_nan else True)).any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        fix = "its dtype has no such number" if np.isfinite(array[where]) else "allow_nan=True records it"
        raise ValueError(f"{key!r}: {array[where]} at {where} is not a finite {want} ({fix})")
    return cast


def encode_png(image: np.ndarray) -> bytes:
    """Encode uint8 (H, W, 3) as PNG at the fastest compression, since recording is time-critical."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()
