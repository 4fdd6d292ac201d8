"""LeRobot's processor files, read and written. No torch.

    policy_preprocessor.json           steps before the network; its safetensors file has the normalization
    policy_postprocessor.json          steps behind it

The files that we write normalize by MEAN_STD with the policy's own offset and spread: (x - mean) / (std + eps).
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from understudy.batch_keys import STATE
from understudy.errors import ConfigError
from understudy.records import Record

LEROBOT, LEROBOT_OUT = "policy_preprocessor.json", "policy_postprocessor.json"
"""Files next to weights."""
VISUAL = "VISUAL"
"""LeRobot's type of images."""

Step = tuple[str, dict[str, Any]]
"""Registered name of a processor's step, and its config."""
DEVICE: Step = ("device_processor", {"device": "cpu", "float_dtype": None})
BEFORE: tuple[Step, ...] = (("rename_observations_processor", {"rename_map": {}}), ("to_batch_processor", {}))
"""First steps of each preprocessor."""


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; ConfigError where the file is missing, damaged or holds something else."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; restore the file") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}, expected an object; restore the file")
    return value


def read_features(stored: Record, name: str) -> dict[str, tuple[str, list[int]]]:
    """Return type and shape of the features of a config.json by key.

    Args:
        stored: content of the file.
        name: `input_features` or `output_features`; none where they are missing.

    Raises:
        ValueError: they are not as LeRobot writes them.
    """
    features: dict[str, tuple[str, list[int]]] = {}
    try:
        for key, feature in (stored.get(name) or {}).items():
            first, *rest = feature["shape"]
            features[str(key)] = str(feature["type"]), [int(first), *map(int, rest)]
        return features
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{name}: {stored[name]!r}: must have `type` and `shape` of each feature") from error


def find_step(path: Path, name: str) -> Record:
    """Return the only step of this name, by its registry name or its class."""
    steps = read_object(path).get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise ConfigError(f"{path}: has no list of steps; restore the file")
    plain = name.replace("_", "")
    matching = [
        step
        for step in steps
        if step.get("registry_name") == name or str(step.get("class", "")).lower().rpartition(".")[2].startswith(plain)
    ]
    if len(matching) != 1:
        raise ConfigError(f"{path}: has {len(matching)} steps {name}; expected one")
    config = matching[0].get("config")
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: the step {name} has no config; restore the file")
    return matching[0]


def read_statistics(path: Path, step: Record) -> dict[str, dict[str, np.ndarray]]:
    """Return the statistics of a step by key and name; none where it has no file."""
    name = step.get("state_file")
    if not name:
        return {}
    file = path.parent / Path(str(name)).name  # never outside of the folder
    try:
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: its file {name} cannot be read: {error}; restore it") from error
    statistics: dict[str, dict[str, np.ndarray]] = {}
    for flat, values in tensors.items():
        key, _, figure = flat.rpartition(".")
        statistics.setdefault(key, {})[figure] = values
    return statistics


def to_json(value: Any) -> bytes:
    """Return a JSON file."""
    return (json.dumps(value, indent=2) + "\n").encode()


def map_figures(maps: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the statistics of the MEAN_STD mode, float32 [dim] each, of the offset and spread of each key."""
    figures: dict[str, np.ndarray] = {}
    for key, (offset, spread) in maps.items():
        # A constant state must stay finite where it varies after all; a constant action has its constant in reverse.
        std = np.where(spread == 0, 1.0, spread) if key == STATE else spread
        figures |= {f"{key}.mean": offset.astype(np.float32), f"{key}.std": std.astype(np.float32)}
    return figures


def processor_files(
    before: Sequence[Step], behind: Sequence[Step], figures: Mapping[str, np.ndarray]
) -> dict[str, bytes]:
    """Write both processor files, and the file of statistics of each step that normalizes.

    Args:
        before: steps of the preprocessor.
        behind: steps of the postprocessor.
        figures: statistics, by key and name.
    """
    statistics = save(dict(figures))
    files: dict[str, bytes] = {}
    for file, steps in ((LEROBOT, before), (LEROBOT_OUT, behind)):
        stem, entries = file.removesuffix(".json"), []
        for number, (name, content) in enumerate(steps):
            entry: dict[str, Any] = {"registry_name": name, "config": content}
            if "norm_map" in content:
                entry["state_file"] = f"{stem}_step_{number}_{name}.safetensors"
                files[entry["state_file"]] = statistics
            entries.append(entry)
        files[file] = to_json({"name": stem, "steps": entries})
    return files
