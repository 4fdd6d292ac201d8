"""Standard keys: a dataset under the names that a policy and the other datasets of a mixture use for the same things.

A mapping goes from standard key to the dataset's own, `{"action": "actions.joint", "observation.images.front":
"observation.images.cam_0"}`. It makes another `Catalog` over the same files, in which features, videos and recorded
statistics bear the standard keys, so that nothing behind it knows of a mapping; only who reads parquet columns asks
`Catalog.stored` what they are called there. Keys that are not mapped keep their names. One key of the dataset may serve
as two (a state that is the action, too, in a window one frame later).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import INDEX_KEYS, Feature
from understudy.errors import DatasetError

_PICTURES = "observation.image"  # `observation.images.<camera>`, `observation.image`
_VECTORS = ("action", "observation.state")
_FIXED = (*INDEX_KEYS, "task")


def in_standard_keys(
    catalog: Catalog, names: Mapping[str, str], absent: Mapping[str, tuple[int, int]] | None = None
) -> Catalog:
    """The dataset under standard keys; `catalog` itself where there is nothing to rename.

    Args:
        names: standard key -> key in this dataset. A feature of the dataset that already has the standard key is hidden
            by the one that is mapped to it.
        absent: camera under its standard key -> (height, width), of cameras that this dataset lacks.

    Raises:
        DatasetError: all that is wrong with the mapping, at once: keys that info.json does not declare (with what is
            meant, perhaps), keys of the index, a camera mapped to what is no picture or the reverse, an action or a
            state that is no vector of numbers, an absent camera that is there, a size that is none.
    """
    for name, mapping in (("names", names), ("absent", absent or {})):
        if not isinstance(mapping, Mapping):
            raise DatasetError(f"{name} is {str(mapping)[:80]}", fix=f"give an object, as in {_EXAMPLES[name]}")
    wrong = [problem for key, own in names.items() for problem in _wrong(catalog, key, own)]
    wrong += [problem for key, size in (absent or {}).items() for problem in _wrong_absent(catalog, names, key, size)]
    if wrong:
        fix = "correct the mapping; `inspect` lists the keys"
        raise DatasetError("; ".join(wrong), where=catalog.root, fix=fix)
    if all(key == own for key, own in names.items()):
        return catalog
    features, videos = catalog.features, catalog.episodes.videos
    mapped = {own for key, own in names.items()}
    kept = [key for key in features if key not in names and key not in mapped]
    places: dict[str, list[str]] = {key: [key] for key in kept}  # in the dataset's own sequence
    for key, own in names.items():
        places.setdefault(own, []).append(key)
    now = [(key, own) for own in features for key in places.get(own, [])]
    return replace(
        catalog,
        features={key: replace(features[own], key=key) for key, own in now},
        episodes=replace(catalog.episodes, videos={key: videos[own] for key, own in now if own in videos}),
        stored={key: stored for key, own in now if (stored := catalog.stored.get(own, own)) != key},
    )


_EXAMPLES = {
    "names": 'names={"action": "actions.joint"}, standard key first',
    "absent": 'absent={"observation.images.wrist": (240, 320)}',
}


def _wrong(catalog: Catalog, key: object, own: object) -> list[str]:
    """What is wrong with one entry of a mapping."""
    if not isinstance(key, str) or not isinstance(own, str) or not key:
        return [f"{key!r} is mapped to {own!r}, both must be keys"]
    for one in dict.fromkeys((key, own)):
        if one in _FIXED:
            return [f"{key!r} is mapped to {own!r}: {one!r} is the same in every dataset and cannot be mapped"]
    if own in catalog.left_out:
        return [f"{key!r} is mapped to {own!r}, which {catalog.left_out[own]}"]
    feature = catalog.features.get(own)
    if feature is None:
        if key in catalog.features and (own in _VECTORS or own.startswith(_PICTURES)):
            return [f"{key!r} is mapped to {own!r}, which is no feature (the other way round? standard key first)"]
        return [f"{key!r} is mapped to {own!r}, which is no feature{meant(own, list(catalog.features))}"]
    what = f"{key!r} is mapped to {own!r}, which is {_kind(feature)}"
    if key.startswith(_PICTURES) and not feature.is_picture:
        cameras = ", ".join(catalog.camera_keys) or "none"
        return [f"{what}, no camera: its cameras are {cameras}"]
    if key in _VECTORS and (feature.is_picture or feature.is_text or len(feature.shape) != 1):
        return [f"{what}, no vector of numbers"]
    return []


def _wrong_absent(catalog: Catalog, names: Mapping[str, str], key: object, size: object) -> list[str]:
    if not isinstance(key, str) or not key or key in _FIXED or key in _VECTORS:
        return [f"absent names {key!r}, which is no camera"]
    if key in names or (key in catalog.features and key not in names.values()):
        return [f"absent names {key!r}, which is there" + (f" ({names[key]!r})" if key in names else "")]
    pair = list(size) if isinstance(size, (list, tuple)) else []
    if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
        return [f"absent[{key!r}] is {size!r}, not (height, width) in pixels"]
    return []


def _kind(feature: Feature) -> str:
    return f"{feature.dtype} {feature.shape}"


def meant(key: str, known: Sequence[str]) -> str:
    """What is meant by an unknown key, perhaps: " (did you mean 'action'?)", or what is known where nothing is like
    it. The last part of a key is like the key."""
    near = [name for name in known if name.rpartition(".")[2] == key] or get_close_matches(key, known, n=1, cutoff=0.6)
    if len(near) == 1:
        return f" (did you mean {near[0]!r}?)"
    return f" (there are {', '.join(known) or 'none'})"
