"""Settings that a run of SmolVLA takes from the config beside the weights it starts from. No torch until the check.

The folder is one of LeRobot, or a policy of understudy. A setting that has its default takes the folder's value. Other
values are kept, and are errors where they describe another network than the folder's.
"""

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from understudy.errors import ConfigError
from understudy.policies.field_types import type_problems
from understudy.policies.lerobot.settings import IDENTITY
from understudy.policies.pi05.weights.stored_figures import read_object
from understudy.policies.registry import policy_type, stored_type

CONFIG, VISUAL = "config.json", "VISUAL"


def stored_values(settings: Any) -> dict[str, Any]:
    """Return LeRobot's settings, and `chunk`, of the folder `settings.weights`; empty where there is no such path.

    Args:
        settings: a `LerobotSmolvlaSettings`, or a config.

    Raises:
        ConfigError: the config is missing or damaged, of another type, or needs something that ours lacks.
    """
    if not settings.weights or not os.path.exists(settings.weights):
        return {}
    file, kind = _config_of(settings.weights), _kind(settings)
    stored = read_object(file)
    try:
        if (name := stored_type(stored)) != settings.type:
            raise ValueError(f"type: {stored.get('type', name)}: policy.type is {settings.type}")
        found = {name: stored[name] for name in kind.shared_fields() if name in stored}
        if wrong := type_problems(kind, found):
            raise ValueError("; ".join(wrong))
        found = {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
        if "input_features" not in stored:  # ours
            chunk = stored.get("chunk")
        else:
            mapping = stored.get("normalization_mapping")
            mode = mapping.get(VISUAL, "IDENTITY") if isinstance(mapping, Mapping) else "IDENTITY"
            chunk = kind.read_stored(stored, IDENTITY if mode == "IDENTITY" else {VISUAL: mode})["chunk"]
        if isinstance(chunk, bool) or not isinstance(chunk, int) or chunk < 1:
            raise ValueError(f"chunk_size: {chunk!r}: must be a whole number of at least 1")
    except ValueError as error:
        raise ConfigError(f"policy.weights: {file}: {error}") from error
    return {**found, "chunk": chunk}


def taken_values(settings: Any) -> dict[str, Any]:
    """Return the folder's values of the settings that have their default; see `stored_values`.

    Frozen parts are a choice of the run: their settings are not among them.
    """
    kind = _kind(settings)
    defaults, own = _defaults(kind), set(kind.shared_fields())
    return {
        name: value
        for name, value in stored_values(settings).items()
        if name in own and name not in settings.AT_START and getattr(settings, name) == defaults[name]
    }


def check_start(config: Any) -> None:
    """Check the config of a new run against the folder `weights`.

    Raises:
        ConfigError: there is no such folder, its files are damaged, or it holds another network; names each setting
            with both values.
    """
    if not config.weights:
        return
    from understudy.policies.weight_files import WeightFiles

    try:
        WeightFiles(config.weights, floats_only=False)
        if not os.path.isfile(_config_of(config.weights)):
            raise FileNotFoundError(f"{config.weights} has no {CONFIG} beside its weights")
    except (OSError, ValueError) as error:
        raise ConfigError(f"policy.weights: {error}; name a folder of LeRobot's SmolVLA") from error
    kind = _kind(config)
    theirs = _defaults(kind) | stored_values(config)
    of_run = {*config.RUN_ONLY, *config.AT_START}
    found = [
        f"policy.{name} is {getattr(config, name)}, and {_config_of(config.weights)} has {name}: {theirs[name]}"
        for name in kind.shared_fields()
        if name not in of_run and getattr(config, name) != theirs[name]
    ]
    if found:
        lines = "\n".join(f"  {line}" for line in found)
        raise ConfigError(f"policy.weights: the folder holds another network; leave out these settings\n{lines}")


def _kind(settings: Any) -> Any:
    """Class of the settings, also of a config."""
    return policy_type(settings.type).settings


def _defaults(kind: Any) -> dict[str, Any]:
    return {field.name: field.default for field in fields(kind)}


def _config_of(weights: str) -> Path:
    path = Path(weights)
    return (path if path.is_dir() else path.parent) / CONFIG
