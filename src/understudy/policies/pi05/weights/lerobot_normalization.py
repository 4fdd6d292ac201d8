"""Normalization in LeRobot's policy_preprocessor.json and the file that it names. No torch.

    QUANTILES    2 (x - q01) / (q99 - q01) - 1; QUANTILE10 and MIN_MAX alike
    MEAN_STD     (x - mean) / (std + eps)

LeRobot divides by eps where a range is 0. This is kept, because the policy was trained with it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from understudy.batch_keys import ACTION, STATE
from understudy.errors import ConfigError
from understudy.policies.pi05.weights.stored_figures import Stored, map_deviation, map_range, read_figures, read_object

LEROBOT, LEROBOT_OUT = "policy_preprocessor.json", "policy_postprocessor.json"
"""Files beside weights."""
RANGES = {"QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90"), "MIN_MAX": ("min", "max")}
"""LeRobot's modes that map a range to -1..1, and its ends."""
KINDS = {STATE: "STATE", ACTION: "ACTION"}
"""LeRobot's types of features."""


def read_lerobot(folder: Path) -> Stored:
    """Read the processors of a folder.

    Raises:
        ConfigError: a file is damaged, or the two contradict each other.
    """
    path = folder / LEROBOT
    step = _step(path, "normalizer_processor")
    figures = _statistics(path, step)
    maps, padding = _maps(path, step, figures, (STATE, ACTION))
    if (folder / LEROBOT_OUT).is_file():
        back = _step(folder / LEROBOT_OUT, "unnormalizer_processor")
        other, _ = _maps(folder / LEROBOT_OUT, back, _statistics(folder / LEROBOT_OUT, back), (ACTION,))
        if other.get(ACTION) != maps.get(ACTION):
            raise ConfigError(
                f"{folder}: {LEROBOT} and {LEROBOT_OUT} normalize 'action' differently; restore the files"
            )
    return Stored(path, maps, padding, _delta(path, maps))


def _step(path: Path, name: str) -> Mapping[str, Any]:
    """Return the only step of this name, by its registry name or its class."""
    steps = read_object(path).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ConfigError(f"{path}: has no list of steps; restore the file")
    plain = name.replace("_", "")
    own = [
        step
        for step in steps
        if step.get("registry_name") == name or str(step.get("class", "")).lower().rpartition(".")[2].startswith(plain)
    ]
    if len(own) != 1:
        raise ConfigError(f"{path}: has {len(own)} steps {name}; expected one")
    config = own[0].get("config")
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: the step {name} has no config; restore the file")
    return own[0]


def _statistics(path: Path, step: Mapping[str, Any]) -> dict[str, dict[str, np.ndarray]]:
    """Return the statistics of a step by key and name; none where it has no file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    name = step.get("state_file")
    if not name:
        return {}
    file = path.parent / Path(str(name)).name  # never outside of the folder
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: its file {name} cannot be read: {error}; restore it") from error
    found: dict[str, dict[str, np.ndarray]] = {}
    for flat, values in tensors.items():
        key, _, figure = flat.rpartition(".")
        found.setdefault(key, {})[figure] = values
    return found


def _maps(
    path: Path, step: Mapping[str, Any], figures: Mapping[str, Mapping[str, Any]], keys: Sequence[str]
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return offset and spread of each key that the step normalizes, and its dimensions of padding."""
    config = step["config"]
    modes, features, eps = config.get("norm_map") or {}, config.get("features") or {}, float(config.get("eps", 1e-8))
    maps, padding = {}, {}
    for key in keys:
        if key not in features and key not in figures:
            continue
        mode, where = str(modes.get(KINDS[key], "IDENTITY")), f"{path}: {key!r}"
        if mode == "IDENTITY":
            width = int(np.prod((features.get(key) or {}).get("shape") or [len(next(iter(figures[key].values())))]))
            maps[key] = {"offset": [0.0] * width, "spread": [1.0] * width}
            padding[key] = np.ones(width, bool)
            continue
        if key not in figures:
            raise ConfigError(
                f"{where} has no statistics, and is normalized by {mode}; add those that the weights were trained "
                "with, or compute them from this data, with which the weights have to be trained further: "
                "--policy.normalization data"
            )
        if mode == "MEAN_STD":
            own = read_figures(figures[key], ("mean", "std"), where)
            maps[key] = map_deviation(own["mean"], own["std"] + eps)
            padding[key] = (own["mean"] == 0) & ((own["std"] == 0) | (own["std"] == 1))
        elif mode in RANGES:
            low, high = RANGES[mode]
            own = read_figures(figures[key], (low, high), where)
            size = own[high] - own[low]
            maps[key] = map_range(own[low], own[high], np.where(size == 0, eps, size))
            padding[key] = (own[low] == 0) & (own[high] == 0) | (own[low] == -1) & (own[high] == 1)
        else:
            raise ConfigError(f"{where} is normalized by {mode}, which is unknown here")
    return maps, padding


def _delta(path: Path, maps: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the action dimensions that the processors make differences to the state."""
    own = [step for step in read_object(path)["steps"] if step.get("registry_name") == "relative_actions_processor"]
    config: Mapping[str, Any] = (own[0].get("config") if own else None) or {}
    if not config.get("enabled") or ACTION not in maps:
        return ()
    width = len(maps[ACTION]["offset"])
    names = [str(name).lower() for name in config.get("action_names") or []]
    without = [str(name).lower() for name in config.get("exclude_joints") or [] if name]
    return tuple(dim for dim in range(width) if dim >= len(names) or not any(token in names[dim] for token in without))
