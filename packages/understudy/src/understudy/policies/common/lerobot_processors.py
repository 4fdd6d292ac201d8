"""LeRobot's processor files, as a policy's folder has them. No torch.

policy_preprocessor.json           steps before the network; its safetensors file has the
                                   normalization
policy_postprocessor.json          steps behind it
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from understudy_base import ACTION, STATE, ConfigError, Record


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object; ConfigError where the file is missing, damaged or holds something
    else.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; restore the file") from error
    if not isinstance(value, dict):
        raise ConfigError(
            f"{path} holds a {type(value).__name__}, expected an object; restore the file"
        )
    return value


class LerobotProcessor:
    """A processor file of LeRobot: steps before a network, or behind it.

    Attributes:
        path: the file, which need not exist.
    """

    BEFORE: Final = "policy_preprocessor.json"
    BEHIND: Final = "policy_postprocessor.json"
    """Files next to weights."""
    VISUAL: Final = "VISUAL"
    """LeRobot's type of images."""
    KINDS: Final = {STATE: "STATE", ACTION: "ACTION"}
    """LeRobot's types of vectors, by key."""
    RANGES: Final = {
        "QUANTILES": ("q01", "q99"),
        "QUANTILE10": ("q10", "q90"),
        "MIN_MAX": ("min", "max"),
    }
    """Modes that map a range to -1..1, and its ends."""

    def __init__(self, path: Path) -> None:
        """Name the file; nothing is read."""
        self.path = path

    def find(self, name: str) -> Record:
        """Return the only step of this name, by its registry name or its class.

        Raises:
            ConfigError: the file is missing or damaged, or has no such step, or several.
        """
        steps = read_object(self.path).get("steps")
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            raise ConfigError(f"{self.path}: has no list of steps; restore the file")
        matching = [step for step in steps if _is_step(step, name)]
        if len(matching) != 1:
            raise ConfigError(f"{self.path}: has {len(matching)} steps {name}; expected one")
        config = matching[0].get("config")
        if not isinstance(config, dict):
            raise ConfigError(f"{self.path}: the step {name} has no config; restore the file")
        return matching[0]

    def statistics(self, step: Record) -> dict[str, dict[str, np.ndarray]]:
        """Return the statistics of a step by key and name; none where it has no file.

        Raises:
            ConfigError: the file of the step cannot be read.
        """
        name = step.get("state_file")
        if not name:
            return {}
        file = self.path.parent / Path(str(name)).name  # never outside of the folder
        try:
            tensors = load_file(file)
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                f"{self.path}: its file {name} cannot be read: {error}; restore it"
            ) from error
        statistics: dict[str, dict[str, np.ndarray]] = {}
        for flat, values in tensors.items():
            key, _, figure = flat.rpartition(".")
            statistics.setdefault(key, {})[figure] = values
        return statistics

    @staticmethod
    def features(stored: Record, name: str) -> dict[str, tuple[str, list[int]]]:
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
            raise ValueError(
                f"{name}: {stored[name]!r}: must have `type` and `shape` of each feature"
            ) from error


def _is_step(step: Record, name: str) -> bool:
    """Whether a step has this name; a normalizer that leaves masked dimensions as they are is one,
    too.
    """
    registered = str(step.get("registry_name", ""))
    plain = name.replace("_", "")
    if registered == name or (
        is_masked(step) and registered.endswith("_" + name.removesuffix("_processor"))
    ):
        return True
    kind = str(step.get("class", "")).lower().rpartition(".")[2]
    return kind.startswith(plain) or (is_masked(step) and kind.endswith(f"masked{plain}step"))


def is_masked(step: Record) -> bool:
    """Whether a normalizer leaves the dimensions as they are for which the figure `mask` is
    false.
    """
    kind = str(step.get("class", "")).lower().rpartition(".")[2]
    return (
        "_masked_" in str(step.get("registry_name", ""))
        or "maskednormalizer" in kind
        or "maskedunnormalizer" in kind
    )


PAIRS = (("mean", "std"), ("min", "max"), ("q01", "q99"), ("q10", "q90"))
"""Figures of a column, two of which normalize it."""
_NEUTRAL: dict[str, float] = {"mean": 0.0, "std": 1.0}
_NEUTRAL |= dict.fromkeys(("min", "q01", "q10"), -1.0) | dict.fromkeys(("max", "q99", "q90"), 1.0)
_NOTHING = 1e-6  # openpi's zeros, up to the bins of its histograms (1e-10) and its float32 sums


def to_numbers(value: Any, where: str) -> np.ndarray:
    """Return figures as float64 [dim].

    Args:
        value: a tensor, or a list of a JSON file.
        where: file, key and figure, for the message.

    Raises:
        ConfigError: it holds something else than numbers; a boolean is none.
    """
    try:
        flat = np.asarray(value).reshape(-1)
        mixed = isinstance(value, list) and any(
            isinstance(entry, bool) for entry in np.asarray(value, object).reshape(-1)
        )
        if mixed or flat.dtype.kind not in "iuf":
            kind = "booleans" if mixed else flat.dtype.name
            raise TypeError(f"it holds {kind}")
        return flat.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where} holds no numbers: {error}; restore the file") from error


def find_padding(entry: Mapping[str, Any], where: str) -> np.ndarray:
    """Return the dimensions, bool [dim], all of whose figures are those of padding.

    Each is 0, or does not normalize: deviation 1, or a range from -1 to 1. A dimension of mean and
    deviation 0 whose quantiles differ is a real one.

    Args:
        entry: the figures of a column.
        where: file and key, for the message.

    Raises:
        ConfigError: figures have different widths, or are no numbers.
    """
    figures = {
        name: to_numbers(entry[name], f"{where}: {name!r}")
        for name in _NEUTRAL
        if entry.get(name) is not None
    }
    widths = {name: len(values) for name, values in figures.items()}
    if len(set(widths.values())) > 1:
        listed = ", ".join(f"{width} of {name!r}" for name, width in widths.items())
        raise ConfigError(f"{where} has figures of different widths: {listed}; restore the file")
    padding = np.ones(next(iter(widths.values()), 0), bool)
    for pair in PAIRS:
        there = [name for name in pair if name in figures]
        zeros = np.all([np.abs(figures[name]) < _NOTHING for name in there], axis=0)
        neutral = np.all([figures[name] == _NEUTRAL[name] for name in there], axis=0)
        padding &= zeros | neutral
    return padding
