"""Features of the output: renamed, dropped and cast, and equal in all sources.

The changes are made to a source's `Catalog`, so its readers deliver rows under the new keys and
dtypes.

A size of encoded images is `224` for the longer side, or `WIDTHxHEIGHT`.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from understudy_base import DatasetError
from understudy_data import DEFAULTS, Catalog, Feature, StandardKeys


def edit_features(
    catalogs: Sequence[Catalog],
    rename: Mapping[str, str],
    drop: Sequence[str],
    cast: Mapping[str, str],
) -> tuple[Catalog, ...]:
    """Return the sources with changed features.

    Args:
        catalogs: the sources.
        rename: key -> new key, for the sources that have the key.
        drop: keys to leave out, of the sources that have them.
        cast: new key -> numeric dtype. `cast_values` refuses values that the dtype cannot hold,
            when they are written.

    Raises:
        DatasetError: no source has a key, a new key exists or is not valid, or a feature cannot be
            cast.
    """
    found_keys = dict[str, None]()
    droppable = set[str]()
    for catalog in catalogs:
        found_keys.update(dict.fromkeys(catalog.features))
        droppable.update(catalog.skipped_features, catalog.sensors)
    all_keys = [key for key in found_keys if key not in DEFAULTS]
    for name, keys in (("rename", rename), ("drop_features", drop)):
        for key in keys:
            if key not in all_keys and not (name == "drop_features" and key in droppable):
                hint = StandardKeys.suggest(key, all_keys)
                raise DatasetError(
                    f"{name} names {key!r}, which no source has{hint}", where=catalogs[0].root
                )
    renamed = [rename.get(key, key) for key in all_keys if key not in drop]
    for key in cast:
        if key not in renamed:
            hint = StandardKeys.suggest(key, renamed)
            problem = f"cast names {key!r}, which the output does not have{hint}"
            raise DatasetError(
                problem, where=catalogs[0].root, fix="name features as they are after --rename"
            )
    for key in rename.values():
        if (
            not key.strip(".")
            or not key.isprintable()
            or "/" in key
            or ".." in key
            or key == "task"
            or key in DEFAULTS
        ):
            fix = "name it with letters, digits, dots and underscores"
            raise DatasetError(f"rename gives {key!r}, which is not a valid feature name", fix=fix)
    return tuple(_edit(catalog, rename, drop, cast) for catalog in catalogs)


def _edit(
    catalog: Catalog, rename: Mapping[str, str], drop: Sequence[str], cast: Mapping[str, str]
) -> Catalog:
    features = {key: feature for key, feature in catalog.features.items() if key not in drop}
    sensors = {key: sensor for key, sensor in catalog.sensors.items() if key not in drop}
    catalog = replace(catalog, features=features, sensors=sensors)
    new_names = {old: new for old, new in rename.items() if old in features and old != new}
    for old, new in new_names.items():
        if (new in features and new not in new_names) or list(new_names.values()).count(new) > 1:
            problem = f"rename gives {old!r} the name of another feature, {new!r}"
            raise DatasetError(problem, where=catalog.root, fix=f"drop or rename {new!r}, too")
    keys = StandardKeys({new: old for old, new in new_names.items()})
    catalog = keys.rename(catalog)
    changed = {
        key: _cast(feature, cast[key], catalog)
        for key, feature in catalog.features.items()
        if key in cast
    }
    return replace(catalog, features={**catalog.features, **changed})


def _cast(feature: Feature, dtype: str, catalog: Catalog) -> Feature:
    if dtype not in Feature.NUMBERS:
        raise DatasetError(
            f"cast gives {feature.key!r} the dtype {dtype!r}",
            fix=f"give one of {', '.join(Feature.NUMBERS)}",
        )
    if feature.is_encoded or feature.is_text:
        problem = f"cast names {feature.key!r}, which is {feature.dtype}, not numbers"
        raise DatasetError(problem, where=catalog.root, fix="cast numeric features only")
    return replace(feature, dtype=dtype)


def with_declared_dtypes(catalog: Catalog) -> Catalog:
    """Return the catalog with the dtypes that info.json declares, under its own keys."""
    features = {}
    for key, feature in catalog.features.items():
        entry = catalog.info["features"].get(catalog.stored_names.get(key, key), {})
        features[key] = replace(feature, dtype=entry.get("dtype", feature.dtype))
    return replace(catalog, features=features)


def cast_values(values: np.ndarray, dtype: str, key: str, where: str) -> np.ndarray:
    """Convert numbers to another dtype; fractions may be rounded to the precision of a float.

    Args:
        values: numbers of any shape.
        dtype: a numeric dtype.
        key: their feature, for errors.
        where: name of the episode, for errors.

    Raises:
        DatasetError: an integer would change, a fraction would be cut off, or a number would become
            infinite.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        result = values.astype(dtype)
        if values.dtype.kind == "f" and result.dtype.kind == "f":
            lost = np.isfinite(values) != np.isfinite(result)
        else:
            lost = result.astype(values.dtype) != values
    if lost.any():
        problem = (
            f"{key!r} holds {values[lost].flat[0].item()!r} ({values.dtype}), which {dtype} "
            "cannot hold"
        )
        raise DatasetError(problem, where=where, fix=f"cast {key!r} to a wider dtype")
    return result


def common_features(catalogs: Sequence[Catalog], ignore_names: bool = False) -> dict[str, Feature]:
    """Return the features that all sources share, without the five default columns.

    Args:
        catalogs: the sources; the first decides the order and the names of dimensions.
        ignore_names: accept other names of dimensions.

    Raises:
        DatasetError: a source lacks a feature, or has it with another dtype, shape or names of
            dimensions.
    """
    first = catalogs[0]
    shared = {key: feature for key, feature in first.features.items() if key not in DEFAULTS}
    if not shared:
        raise DatasetError("no feature is left", where=first.root, fix="drop fewer features")
    for other in catalogs[1:]:
        others = {key: feature for key, feature in other.features.items() if key not in DEFAULTS}
        for key in [*shared, *others]:
            if key not in others or key not in shared:
                without, having = (other, first) if key not in others else (first, other)
                fix = f"leave it out with --drop-features {key}, or give it this name with --rename"
                raise DatasetError(
                    f"has no {key!r}, which {having.root} has", where=without.root, fix=fix
                )
            _compare(shared[key], others[key], first, other, ignore_names)
    return shared


def _compare(a: Feature, b: Feature, first: Catalog, other: Catalog, ignore_names: bool) -> None:
    if a.dtype != b.dtype:
        problem = f"{a.key!r} is {b.dtype}, in {first.root} {a.dtype}"
        raise DatasetError(
            problem, where=other.root, fix=f"make them equal with --cast {a.key}=DTYPE"
        )
    has_other_shape = a.shape != b.shape
    if a.is_encoded:
        has_other_shape = (a.size, a.channels) != (b.size, b.channels)
    if has_other_shape:
        fix = "leave it out with --drop-features, or merge other sets"
        if a.is_video:
            fix = "make them equal with --size"
        raise DatasetError(
            f"{a.key!r} has shape {b.shape}, in {first.root} {a.shape}", where=other.root, fix=fix
        )
    if (
        a.is_encoded
        or ignore_names
        or a.names is None
        or b.names is None
        or a.dimension_names == b.dimension_names
    ):
        return
    differ = next((n, m) for n, m in zip(a.dimension_names, b.dimension_names) if n != m)
    problem = f"a dimension of {a.key!r} is named {differ[1]!r}, in {first.root} {differ[0]!r}"
    raise DatasetError(
        problem, where=other.root, fix="give --ignore-names if the dimensions mean the same"
    )


def common_rate(catalogs: Sequence[Catalog]) -> float:
    """Return the frames per second of all sources. Raises DatasetError where they differ."""
    for other in catalogs[1:]:
        if float(other.fps) != float(catalogs[0].fps):
            problem = f"is recorded at {other.fps} fps, {catalogs[0].root} at {catalogs[0].fps}"
            raise DatasetError(problem, where=other.root, fix="merge datasets of one rate only")
    return catalogs[0].fps


def common_robot(catalogs: Sequence[Catalog], name: str) -> str | None:
    """Return `name`, or the robot type of all sources. Raises DatasetError where they differ."""
    if name:
        return name
    for other in catalogs[1:]:
        if other.robot_type != catalogs[0].robot_type:
            problem = (
                f"is of robot type {other.robot_type!r}, {catalogs[0].root} of "
                f"{catalogs[0].robot_type!r}"
            )
            raise DatasetError(
                problem, where=other.root, fix="name the robot of the output: --robot-type NAME"
            )
    return catalogs[0].robot_type


def bytes_per_frame(features: Mapping[str, Feature]) -> int:
    """Estimate the bytes of one row in a data file; an image counts half a byte per value."""
    total = 40
    for feature in features.values():
        if feature.dtype == "image":
            total += prod(feature.shape) // 2
        elif feature.is_text:
            total += 50
        elif not feature.is_video:
            total += prod(feature.shape) * np.dtype(feature.dtype).itemsize
    return total


_MOST = 8192  # pixels
_FORM = re.compile(r"(\d{1,5})(?:x(\d{1,5}))?")


def parse_size(text: str) -> tuple[int, int | None]:
    """Parse a size into (longer side, None) or (width, height). Raises DatasetError."""
    match = _FORM.fullmatch(text)
    sides = [int(side) for side in match.groups() if side] if match else []
    if not sides or min(sides) < 16 or max(sides) > _MOST or any(side % 2 for side in sides):
        raise DatasetError(
            f"size is {text!r}",
            fix=f"give even sides from 16 to {_MOST}: 224, or WIDTHxHEIGHT as in 224x168",
        )
    if len(sides) > 1:
        return sides[0], sides[1]
    return sides[0], None


def fit_size(size: tuple[int, int], goal: tuple[int, int | None]) -> tuple[int, int]:
    """Return (height, width) of images of `size` (height, width) for a parsed size.

    With the longer side alone the aspect ratio stays, up to rounding to even sides of at least 16,
    and images that are not larger keep their size.
    """
    side, second = goal
    if second is not None:
        return second, side
    if max(size) <= side:
        return size
    height, width = (max(16, 2 * round(side_length * side / max(size) / 2)) for side_length in size)
    return height, width


def resized(catalog: Catalog, sizes: Mapping[str, tuple[int, int]]) -> Catalog:
    """Return the catalog as if its cameras had the given (height, width)."""
    changed = {key: resized_feature(catalog.features[key], size) for key, size in sizes.items()}
    return replace(catalog, features={**catalog.features, **changed})


def resized_feature(feature: Feature, size: tuple[int, int]) -> Feature:
    """Return a camera of another (height, width)."""
    return replace(feature, shape=(*size, 3), names=["height", "width", "channels"])
