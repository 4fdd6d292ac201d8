"""Normalization of single dimensions: the setting `data.normalize` by the names of a run's
features.
"""

import difflib
import re
from collections.abc import Mapping, Sequence

import numpy as np

from understudy.config.data import REST, DataConfig
from understudy.train.data.run_data import RunData
from understudy_base import ACTION, STATE, ConfigError, Record
from understudy_data import DimensionMode

_MOST_LISTED = 40


def rest_mode(normalize: str | Mapping[str, str] | None, default: DimensionMode) -> str:
    """Return the mode of the dimensions that a setting does not name: its own, that of `*`, or the
    policy's.
    """
    if isinstance(normalize, Mapping):
        return normalize.get(REST, default)
    return normalize or default


def dimension_modes(
    config: DataConfig, data: RunData, default: DimensionMode
) -> list[dict[str, tuple[DimensionMode, ...]]]:
    """Return the normalization of each dimension of `ACTION` and `STATE`, by source.

    Args:
        config: the settings of the data.
        data: the sources.
        default: mode of the policy.

    Raises:
        ConfigError: a name is that of no dimension, or of two, or two names are of one dimension.
    """
    rest = rest_mode(config.normalize, default)
    chosen = {} if not isinstance(config.normalize, Mapping) else dict(config.normalize)
    chosen.pop(REST, None)
    configs = config.mixed()
    known = set[str]()
    candidates: dict[str, None] = {}
    by_source = []
    for run_source in data.sources:
        part = run_source.training
        source = configs[run_source.of]
        keys = {ACTION: source.action, STATE: source.state}
        modes: dict[str, tuple[DimensionMode, ...]] = {}
        places: dict[tuple[str, int], str] = {}
        for key in (ACTION, STATE):
            if key not in part.keys:
                continue
            names = part.catalog.features[key].dimension_names
            candidates |= dict.fromkeys(_candidates(key, names))
            of_key = [rest] * len(names)
            for name, mode in chosen.items():
                for dim in _matching(name, (key, keys[key]), names):
                    known.add(name)
                    if (key, dim) in places:
                        raise ConfigError(
                            f"data.normalize: {places[key, dim]!r} and {name!r} are both "
                            f"{key}[{dim}]; keep one of them"
                        )
                    places[key, dim] = name
                    of_key[dim] = mode
            modes[key] = tuple(of_key)  # type: ignore[arg-type]
        by_source.append(modes)
    for name in chosen:
        if name not in known:
            raise ConfigError(_unknown(name, list(candidates)))
    return by_source


def _matching(name: str, keys: Sequence[str], names: Sequence[str]) -> list[int]:
    """Return the dimensions of a vector that a name of the setting means.

    Args:
        name: of a dimension, or `KEY[i]`.
        keys: names of the vector.
        names: names of its dimensions.
    """
    if name in names and not name.isdigit():
        return [list(names).index(name)]
    place = re.fullmatch(r"(.+)\[(\d+)\]", name)
    if place is not None and place[1] in keys and int(place[2]) < len(names):
        return [int(place[2])]
    return []


def _candidates(key: str, names: Sequence[str]) -> list[str]:
    candidates = []
    for dim, name in enumerate(names):
        candidate = f"{key}[{dim}]" if name.isdigit() else name
        candidates.append(candidate)
    return candidates


def _unknown(name: str, candidates: Sequence[str]) -> str:
    """Describe a name that no source has; one that several dimensions end with or contain is
    ambiguous.
    """
    alike = [other for other in candidates if name.lower() in other.lower()]
    if len(alike) > 1 and not name.isdigit():
        return (
            f"data.normalize: {name!r} may be {', '.join(alike[:_MOST_LISTED])}; name each of "
            "them in full"
        )
    near = alike or difflib.get_close_matches(name, candidates, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    if name.isdigit():
        hint = f"; a number needs its key: action[{name}] or observation.state[{name}]"
    listed = ", ".join(candidates[:_MOST_LISTED])
    return (
        f"data.normalize: no dimension is named {name!r}{hint} (dimensions: {listed}; or "
        "KEY[i], as action[0])"
    )


def describe_modes(modes: Sequence[DimensionMode], names: Sequence[str]) -> str:
    """Return the normalization of a vector as a text: `quantile`, or
    `quantile (gripper: identity)`.
    """
    usual = max(dict.fromkeys(modes), key=list(modes).count, default="")
    others = [f"{name}: {mode}" for name, mode in zip(names, modes) if mode != usual]
    if not others:
        return usual
    return f"{usual} ({', '.join(others)})"


def check_identity(
    normalization: Record,
    data: RunData,
    modes: Sequence[Mapping[str, Sequence[DimensionMode]]],
    origin: str,
) -> None:
    """Refuse figures that normalize a dimension for which the settings name `identity`.

    Args:
        normalization: figures that weights were trained with.
        data: the sources.
        modes: by source, normalization of each dimension.
        origin: place of the figures, for the message.

    Raises:
        ConfigError: names the dimension.
    """
    for number, of_source in enumerate(modes):
        head = int(data.head_of_source[number])
        for key, of_key in of_source.items():
            if key not in normalization:
                continue
            offset, spread = (
                np.atleast_2d(np.asarray(normalization[key][name]))[head]
                for name in ("offset", "spread")
            )
            for dim, mode in enumerate(of_key):
                if mode == "identity" and (offset[dim], spread[dim]) != (0, 1):
                    name = data.training[number].catalog.features[key].dimension_names[dim]
                    raise ConfigError(
                        f"data.normalize: {key}[{dim}] ({name}) is identity, and {origin} was "
                        f"trained with (x - {offset[dim]:.6g}) / {spread[dim]:.6g}; leave it out "
                        "of data.normalize, or train with the figures of this data"
                    )
