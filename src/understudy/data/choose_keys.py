"""Features that a dataset delivers, the checks of their names, and the unit of depth."""

import warnings
from collections.abc import Collection, Sequence
from dataclasses import replace

from understudy.data.format.catalog import Catalog
from understudy.data.format.features import INDEX_KEYS
from understudy.errors import DatasetError
from understudy.storage.dataset_root import with_location


def choose_keys(catalog: Catalog, keys: Sequence[str] | None, missing_cameras: Collection[str]) -> tuple[str, ...]:
    """Return the keys to deliver: `keys`, or all declared features and sensors without it, and the missing cameras.

    A feature that cannot be read is left out with a warning.

    Raises:
        DatasetError: `keys` names such a feature, or one by its stored name.
    """
    features = catalog.features
    skipped_features = {key: why for key, why in catalog.skipped_features.items() if key not in missing_cameras}
    if keys is None:
        for key, why in skipped_features.items():
            warnings.warn(f"{catalog.root}: {key} {why}: left out", stacklevel=4)
        return (*features, *catalog.sensors, *missing_cameras)
    if isinstance(keys, str):
        raise DatasetError(f"keys is {keys!r}", fix="give a list of keys")
    for key, why in skipped_features.items():
        if key in keys:
            raise DatasetError(f"{key} {why}", where=catalog.root, fix="leave it out of keys")
    for key, own in catalog.stored_names.items():
        if own in keys and own not in features:
            what = f"keys names {own!r}, which is mapped to {key!r}"
            raise DatasetError(what, where=catalog.root, fix=f"give {key!r}, its standard key")
    return tuple(dict.fromkeys([*keys, *missing_cameras]))


def in_depth_unit(catalog: Catalog, keys: Sequence[str], unit: str) -> Catalog:
    """Return the catalog with the depth cameras among `keys` in `unit`, "m" or "mm": images and recorded statistics.

    Raises:
        DatasetError: another unit, or depth whose recorded unit is unknown.
    """
    if unit not in ("m", "mm"):
        raise DatasetError(f"depth_unit is {unit!r}", fix="give 'm' or 'mm', or leave it out for depth as stored")
    cameras = {key: replace(catalog.features[key], depth_unit=unit) for key in keys if key in catalog.features}
    cameras = {key: feature for key, feature in cameras.items() if feature.is_depth}
    for key, feature in cameras.items():
        if feature.unreadable:
            fix = "write its depth_unit into meta/info.json, leave depth_unit out, or leave the camera out of keys"
            raise DatasetError(f"{key} {feature.unreadable}", where=catalog.root, fix=fix)
    return replace(catalog, features={**catalog.features, **cameras})


def check_columns(catalog: Catalog, keys: Sequence[str], episode: int) -> None:
    """Refuse undeclared keys that the data file of an episode does not hold either.

    Raises:
        DatasetError: names the first such key.
    """
    if not keys:
        return
    path = catalog.data_path(catalog.episodes.row_of(episode))
    where = f"{catalog.files.where(path)} (episode {episode})"
    with with_location(where), catalog.files.parquet(path) as file:
        columns = file.schema_arrow.names
    for key in keys:
        if key not in columns:
            known = ", ".join(dict.fromkeys([*catalog.features, *catalog.sensors, *INDEX_KEYS, *columns]))
            raise DatasetError(f"keys names {key!r}", where=catalog.root, fix=f"the keys are {known}")
