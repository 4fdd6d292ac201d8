"""A policy on disk: model.safetensors, config.json and normalisation.json in one folder, written whole or not at all.

That is all a robot needs, readable without this package.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from understudy.policies.replaced import recover, replacement

WEIGHTS, CONFIG, NORMALISATION = "model.safetensors", "config.json", "normalisation.json"
Config = TypeVar("Config")


def save(directory: str | Path, config: Any, normalisation: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Write the three files beside `directory`, flush them to the disk, then rename: no reader ever sees half a policy.

    Raises FileExistsError where `directory` is anything but a policy of this type or an empty folder (`replaceable`).
    """
    target, kind = Path(directory).resolve(), type(config).__name__
    replaceable(target, kind)
    with replacement(target) as fresh:
        (fresh / CONFIG).write_text(json.dumps({"type": kind, **asdict(config)}, indent=2) + "\n")
        (fresh / NORMALISATION).write_text(json.dumps(normalisation, indent=2) + "\n")
        # safetensors wants plain contiguous CPU tensors; an fp32 weight stays bit for bit what it is.
        plain = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
        try:
            save_file(plain, fresh / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:  # its name for a full disk
            raise OSError(f"{target / WEIGHTS} cannot be written: {error}") from error
        # safetensors makes a file that its owner alone may read.
        (fresh / WEIGHTS).chmod((fresh / CONFIG).stat().st_mode & 0o777)
        replaceable(target, kind)  # it took a while


def replaceable(directory: str | Path, kind: str) -> None:
    """Check that `save` may write there: nothing is there, or an empty folder, or a policy of type `kind` alone.

    Raises:
        FileExistsError: something else is there; names what, and what to do.
    """
    target = Path(directory).resolve()
    fix = "name a folder that is not there yet, or move this one away"
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise FileExistsError(f"{directory} is a file, and a policy is a folder: {fix}")
    if target == Path.cwd() or target.parent == target:
        raise FileExistsError(f"{directory} is the current folder, which cannot be replaced: name another one")
    entries = sorted(target.iterdir())
    if not entries:
        return
    for entry in entries:
        if entry.name not in (CONFIG, NORMALISATION, WEIGHTS) or entry.is_symlink() or not entry.is_file():
            raise FileExistsError(f"{directory} holds {entry.name}, which is not of a policy: {fix}")
    try:
        found = _object(target / CONFIG).get("type")
    except (OSError, ValueError):
        found = None
    if found != kind:
        raise FileExistsError(f"{directory} holds no {kind}, and is not replaced: {fix}")


def load(directory: str | Path, kind: type[Config]) -> tuple[Config, dict[str, Any], dict[str, Tensor]]:
    """The config (of dataclass `kind`), the normalisation and the weights of a saved policy.

    Raises FileNotFoundError for a missing folder or file and ValueError for a content that is not a `kind`'s.
    """
    source = Path(directory)
    if not source.exists() and source.parent.is_dir():
        recover(source)
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
