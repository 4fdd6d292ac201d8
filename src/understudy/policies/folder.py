"""A policy on disk: model.safetensors, config.json and normalisation.json in one folder, written whole or not at all.

That is all a robot needs, readable without this package. Not here: checkpoints of a run (optimizer, position).
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS, CONFIG, NORMALISATION = "model.safetensors", "config.json", "normalisation.json"
Config = TypeVar("Config")


def save(directory: str | Path, config: Any, normalisation: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write the three files beside `directory`, flush them to the disk, then rename: no reader ever sees half a policy.

    A folder that is already there is set aside as `<directory>.old` for the moment between two renames, then removed.
    """
    target = Path(directory)
    fresh, old = target.with_name(target.name + ".tmp"), target.with_name(target.name + ".old")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        # safetensors wants plain contiguous CPU tensors; an fp32 weight stays bit for bit what it is.
        save_file({name: weight.detach().cpu().contiguous() for name, weight in weights.items()}, fresh / WEIGHTS)
        (fresh / CONFIG).write_text(json.dumps({"type": type(config).__name__, **asdict(config)}, indent=2) + "\n")
        (fresh / NORMALISATION).write_text(json.dumps(normalisation, indent=2) + "\n")
        for path in (*fresh.iterdir(), fresh):
            _flush(path)
    except BaseException:  # a full disk would stay full of it
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    fresh.rename(target)
    _flush(target.parent)
    shutil.rmtree(old, ignore_errors=True)


def load(directory: str | Path, kind: type[Config]) -> tuple[Config, dict[str, Any], dict[str, Tensor]]:
    """The config (of dataclass `kind`), the normalisation and the weights of a saved policy.

    Raises FileNotFoundError for a missing folder or file and ValueError for a content that is not a `kind`'s.
    """
    source = Path(directory)
    for name in (CONFIG, NORMALISATION, WEIGHTS):
        if not (source / name).is_file():
            raise FileNotFoundError(f"{source} holds no policy: {name} is missing")
    stored = _object(source / CONFIG)
    if stored.pop("type", None) != kind.__name__:
        raise ValueError(f"{source / CONFIG} does not describe a {kind.__name__}")
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(stored) - known):
        raise ValueError(f"{source / CONFIG} has fields that {kind.__name__} does not know: {unknown}")
    # JSON has lists where the frozen config has tuples.
    config = kind(**{name: tuple(value) if isinstance(value, list) else value for name, value in stored.items()})
    try:
        weights = load_file(source / WEIGHTS)
    except SafetensorError as error:
        raise ValueError(f"{source / WEIGHTS} cannot be read: {error}") from error
    return config, _object(source / NORMALISATION), weights


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, expected an object")
    return value


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
