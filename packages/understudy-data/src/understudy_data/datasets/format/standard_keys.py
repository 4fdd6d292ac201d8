"""Standard keys: one naming of features shared by a policy and all datasets of a mixture.

A mapping goes from standard key to the dataset's own,
`{"action": "actions.joint", "observation.images.front": "observation.images.cam_0"}`. The result is
another `Catalog` over the same files. Its features, videos and recorded statistics have the
standard keys. Only readers of parquet columns look up `Catalog.stored_names`. Keys that are not
mapped keep their names. One key of the dataset may serve as two (a state that is also the action,
one frame later). An action or a state may be several columns, "action.joint_velocity +
action.gripper_position" (`features.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain

from understudy_base import DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import (
    INDEX_KEYS,
    Feature,
    join_features,
    joined_name,
    key_parts,
)

_IMAGES = "observation.image"  # `observation.images.<camera>`, `observation.image`
_VECTORS = ("action", "observation.state")
_FIXED = (*INDEX_KEYS, "task")


@dataclass(frozen=True)
class StandardKeys:
    """Standard keys of the features of a dataset."""

    names: Mapping[str, str]
    """Standard key -> key in the dataset."""

    def rename(self, catalog: Catalog) -> Catalog:
        """Return the catalog under these keys (`rename_keys`). Raises DatasetError where a key
        cannot be mapped.
        """
        return rename_keys(catalog, self.names)

    @staticmethod
    def suggest(key: str, keys: Sequence[str]) -> str:
        """Suggest one of the known keys for an unknown one, or list them (`suggest_key`)."""
        return suggest_key(key, keys)


def rename_keys(
    catalog: Catalog,
    names: Mapping[str, str],
    missing_cameras: Mapping[str, tuple[int, int]] | None = None,
) -> Catalog:
    """Return the catalog under standard keys; `catalog` itself where there is nothing to rename.

    Args:
        names: standard key -> key in this dataset. The mapped feature hides another one that
            already has the standard key.
        missing_cameras: standard key -> (height, width), for cameras that this dataset lacks.

    Raises:
        DatasetError: all errors of the mapping at once: keys that info.json does not declare (with
            a suggestion), index keys, a camera mapped to a feature that is none, an action or state
            that is not a vector, a missing camera that exists, an invalid size.
    """
    for name, mapping in (("names", names), ("missing_cameras", missing_cameras or {})):
        if not isinstance(mapping, Mapping):
            raise DatasetError(
                f"{name} is {str(mapping)[:80]}", fix=f"give an object, as in {_EXAMPLES[name]}"
            )
    wrong: list[str] = []
    for key, source in names.items():
        wrong += _mapping_errors(catalog, key, source)
    for key, size in (missing_cameras or {}).items():
        wrong += _missing_camera_errors(catalog, names, key, size)
    if wrong:
        fix = (
            "correct the mapping: `names`, or --data.action, --data.state and data.cameras; "
            "`check` lists the keys"
        )
        raise DatasetError("; ".join(wrong), where=catalog.root, fix=fix)
    if all(key == source for key, source in names.items()):
        return catalog
    features = catalog.features
    videos = catalog.episodes.videos
    parts = {key: key_parts(source, features) for key, source in names.items()}
    joined: dict[str, tuple[Feature, ...]] = {}
    for key, own_parts in parts.items():
        if len(own_parts) > 1:
            joined[key] = tuple(features[part] for part in own_parts)
    mapped = set(chain.from_iterable(parts.values()))
    unmapped = [key for key in features if key not in names and key not in mapped]
    places: dict[str, list[str]] = {key: [key] for key in unmapped}  # in the dataset's own order
    for key, own_parts in parts.items():
        places.setdefault(own_parts[0], []).append(key)
    source_of: dict[str, str] = {}
    for source in features:
        source_of |= dict.fromkeys(places.get(source, []), source)
    stored = {key: catalog.stored_names.get(source, source) for key, source in source_of.items()}
    renamed: dict[str, Feature] = {}
    for key, source in source_of.items():
        feature = features[source]
        if key in joined:
            feature = join_features(joined[key])
            stored[key] = joined_name([part.key for part in joined[key]])
        renamed[key] = replace(feature, key=key)
    kept_joins = {
        key: catalog.joined[source] for key, source in source_of.items() if source in catalog.joined
    }
    own_videos = {key: videos[source] for key, source in source_of.items() if source in videos}
    return replace(
        catalog,
        features=renamed,
        episodes=replace(catalog.episodes, videos=own_videos),
        stored_names={key: name for key, name in stored.items() if name != key},
        joined=kept_joins | joined,
    )


_EXAMPLES = {
    "names": 'names={"action": "actions.joint"}, standard key first',
    "missing_cameras": 'missing_cameras={"observation.images.wrist": (240, 320)}',
}


def _mapping_errors(catalog: Catalog, key: object, source: object) -> list[str]:
    """Errors of one entry of `names`."""
    if not isinstance(key, str) or not isinstance(source, str) or not key:
        return [f"{key!r} is mapped to {source!r}, both must be keys"]
    for fixed_key in dict.fromkeys((key, source)):
        if fixed_key in _FIXED:
            return [
                f"{key!r} is mapped to {source!r}: {fixed_key!r} is the same in every dataset and "
                "cannot be mapped"
            ]
    parts = key_parts(source, catalog.features)
    if len(parts) > 1 and all(part in catalog.features for part in parts):
        return _joined_errors(catalog, key, parts)
    if source in catalog.skipped_features:
        return [f"{key!r} is mapped to {source!r}, which {catalog.skipped_features[source]}"]
    feature = catalog.features.get(source)
    if feature is None:
        if key in catalog.features and (source in _VECTORS or source.startswith(_IMAGES)):
            return [
                f"{key!r} is mapped to {source!r}, which is not a feature (the other way round? "
                "standard key first)"
            ]
        unknown = next(part for part in parts if part not in catalog.features)
        hint = suggest_key(unknown, list(catalog.features))
        subject = f"{unknown!r} of it" if len(parts) > 1 else "which"
        return [f"{key!r} is mapped to {source!r}, {subject} is not a feature{hint}"]
    problem = f"{key!r} is mapped to {source!r}, which is {_kind(feature)}"
    if key.startswith(_IMAGES) and not feature.is_camera:
        cameras = ", ".join(catalog.camera_keys) or "none"
        return [f"{problem}, not a camera: the cameras are {cameras}"]
    if key in _VECTORS and (feature.is_camera or feature.is_text or len(feature.shape) != 1):
        return [f"{problem}, not a vector of numbers"]
    return []


def _joined_errors(catalog: Catalog, key: str, parts: Sequence[str]) -> list[str]:
    """Errors of a vector of several columns."""
    problem = f"{key!r} is mapped to {joined_name(parts)!r}"
    if key not in _VECTORS:
        return [f"{problem}: only {' and '.join(_VECTORS)} may be several columns"]
    if len(set(parts)) < len(parts):
        return [f"{problem}, which repeats a column"]
    for part in parts:
        feature = catalog.features[part]
        if part in _FIXED or part in catalog.stored_names or part in catalog.joined:
            return [f"{problem}: {part!r} is not a column that the dataset stores"]
        if feature.is_camera or feature.is_text or len(feature.shape) != 1:
            return [f"{problem}: {part!r} is {_kind(feature)}, not a vector of numbers"]
    return []


def _missing_camera_errors(
    catalog: Catalog, names: Mapping[str, str], key: object, size: object
) -> list[str]:
    if not isinstance(key, str) or not key or key in _FIXED or key in _VECTORS:
        return [f"missing_cameras names {key!r}, which is not a camera"]
    if key in names or (key in catalog.features and key not in names.values()):
        source = f" ({names[key]!r})" if key in names else ""
        return [f"missing_cameras names {key!r}, which exists{source}"]
    pair = list(size) if isinstance(size, (list, tuple)) else []
    if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
        return [f"missing_cameras[{key!r}] is {size!r}, not (height, width) in pixels"]
    return []


def _kind(feature: Feature) -> str:
    return f"{feature.dtype} {feature.shape}"


def suggest_key(key: str, keys: Sequence[str]) -> str:
    """Suggest a known key for an unknown one: " (did you mean 'action'?)", or list the known keys.

    A key whose last part equals the unknown key counts as similar.
    """
    near = [name for name in keys if name.rpartition(".")[2] == key] or get_close_matches(
        key, keys, n=1, cutoff=0.6
    )
    if len(near) == 1:
        return f" (did you mean {near[0]!r}?)"
    return f" (there are {', '.join(keys) or 'none'})"
