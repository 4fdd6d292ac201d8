"""`meta/sensors.json`: signals that are sampled at their own rates, in files next to the data.

    {"imu": {"path": "sensors/imu.parquet", "dtype": "float32", "shape": [6], "names": ["ax", ...],
             "interpolation": "hold", "max_age": 0.05}}

`path` is one file for all episodes, or one for each:
"sensors/imu/episode-{episode_index:06d}.parquet". Optional are `names`, `interpolation` ("hold"
without it) and `max_age` (no limit without it).
"""

from collections.abc import Collection
from dataclasses import dataclass
from difflib import get_close_matches
from math import isfinite
from typing import Any

from understudy_base import DatasetError
from understudy_data.datasets.format.features import INDEX_KEYS, Feature, parse_features
from understudy_data.datasets.format.meta_files import check_template, read_json
from understudy_data.storage.dataset_root import Files

SENSORS = "meta/sensors.json"
_FIELDS = ("path", "dtype", "shape", "names", "interpolation", "max_age")


@dataclass(frozen=True)
class Sensor:
    """One entry of meta/sensors.json.

    Attributes:
        feature: key, dtype, shape and names of one sample.
        path: path of its file, or the template of one file per episode.
        linear: whether values between two samples are interpolated; otherwise the earlier one is
            held.
        max_age: seconds after which a sample no longer counts; None: no limit.
    """

    feature: Feature
    path: str
    linear: bool = False
    max_age: float | None = None

    @property
    def per_episode(self) -> bool:
        """Whether each episode has its own file."""
        return "{" in self.path


def read_sensors(files: Files, taken: Collection[str]) -> dict[str, Sensor]:
    """Read the sensors of a dataset; {} where it declares none. Opens no sensor file.

    Args:
        files: the dataset's files.
        taken: keys of its features.

    Raises:
        DatasetError: an entry is not valid, or has the key of a feature.
    """
    if not files.exists(SENSORS):
        return {}
    where = files.where(SENSORS)
    return {
        key: _parse(key, entry, taken, where) for key, entry in read_json(files, SENSORS).items()
    }


def _parse(key: str, entry: Any, taken: Collection[str], where: str) -> Sensor:
    def refuse(problem: str, fix: str = "repair this entry") -> DatasetError:
        return DatasetError(f"sensor {key!r}: {problem}", where=where, fix=fix)

    if key in taken or key in INDEX_KEYS or key == "task":
        raise refuse("is the key of a feature, too", "give it another key")
    if not isinstance(entry, dict):
        raise refuse(f"is {str(entry)[:60]!r}, not an object")
    for name in entry:
        if name not in _FIELDS:
            near = get_close_matches(name, _FIELDS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else ", ".join(_FIELDS)
            raise refuse(f"{name!r} is not a field", hint)
    feature = parse_features(
        {key: {name: entry.get(name) for name in ("dtype", "shape", "names")}}, where
    )[key]
    if feature.is_encoded or feature.is_text or not feature.shape or 0 in feature.shape:
        raise refuse(f"{feature.dtype} of shape {feature.shape} is not a vector of numbers")
    path = entry.get("path")
    interpolation = entry.get("interpolation", "hold")
    age = entry.get("max_age")
    try:
        check_template(path, {"episode_index"})
    except ValueError as error:
        raise refuse(f"path is {path!r}: {error}", 'as in "sensors/imu.parquet"') from error
    if interpolation not in ("hold", "linear"):
        raise refuse(f"interpolation is {interpolation!r}", "write 'hold' or 'linear'")
    if interpolation == "linear" and not feature.dtype.startswith("float"):
        raise refuse(
            f"interpolation is 'linear', and {feature.dtype} has no values between two",
            "write 'hold'",
        )
    if age is not None and (
        isinstance(age, bool) or not isinstance(age, (int, float)) or not 0 <= age < 1e9
    ):
        raise refuse(f"max_age is {age!r}", "give seconds, or leave it out")
    assert isinstance(path, str)
    max_age = None if age is None or not isfinite(age) else float(age)
    return Sensor(feature, path, interpolation == "linear", max_age)
