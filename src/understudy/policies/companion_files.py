"""Files that a policy needs besides its weights, such as a tokenizer: named by its settings, copied into its folder.

`FILES` of the settings names the fields. A field holds the path of a file, or of a folder, of which only certain files
are needed: a folder of a hub holds gigabytes of others. In the folder of a policy they are `<field>.<suffix>` and
`<field>/`, and config.json has their names there.
"""

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from understudy.atomic import sync
from understudy.errors import ConfigError


def copy_files(config: Any, folder: Path) -> dict[str, str]:
    """Copy the files that a config names into `folder`; return their names there by field.

    Raises:
        OSError: a file cannot be read or written.
    """
    names: dict[str, str] = {}
    for field, path in _named(config):
        names[field] = field if path.is_dir() else f"{field}{path.suffix}"
        for source in _needed(config, field, path):
            target = folder / field / source.name if path.is_dir() else folder / names[field]
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(source, target)
            sync(target)
    return names


def located(config: Any, folder: Path) -> Any:
    """Return a config read from `folder` with the paths of its files.

    A field without a value takes the file of its name there: a folder written by hand may leave the field out.

    Raises:
        ValueError: a path leaves the folder. A downloaded folder must not name files of this machine.
    """
    for field, path in _named(config):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(f"{field}: {str(path)!r} is outside the folder; copy the file into it, and name it alone")
    unnamed = {
        field: str(folder / names[0])
        for field, names in config.FILES.items()
        if len(names) == 1 and Path(names[0]).stem == field and (folder / names[0]).is_file()
    }
    return replace(config, **unnamed | {field: str(folder / path) for field, path in _named(config)})


def digests(config: Any) -> dict[str, str]:
    """Return the SHA-256 of the files of each field that a config names.

    Raises:
        ConfigError: a file is missing.
    """
    digests = {}
    for field, path in _named(config):
        content = hashlib.sha256()
        for source in _needed(config, field, path):
            try:
                content.update(source.read_bytes())
            except OSError as error:
                raise ConfigError(
                    f"policy.{field}: {source} cannot be read: {error}; name a file or folder that exists"
                ) from error
        digests[field] = content.hexdigest()
    return digests


def check_unchanged(config: Any, recorded: Mapping[str, str]) -> None:
    """Raise ConfigError if the files of a config are not those that a run recorded at its start."""
    for field, now in digests(config).items():
        if recorded.get(field, now) != now:
            path = getattr(config, field)
            raise ConfigError(f"policy.{field}: {path} changed since the run started; restore it, or start a new run")


def is_policy_file(files: Mapping[str, tuple[str, ...]], entry: Path) -> bool:
    """Return whether an entry of a policy's folder is a copy of one of its `FILES`."""
    if entry.is_symlink():
        return False
    if entry.is_dir():
        files_inside = list(entry.iterdir())
        return entry.name in files and all(
            file.name in files[entry.name] and file.is_file() and not file.is_symlink() for file in files_inside
        )
    return entry.is_file() and entry.stem in files


def _named(config: Any) -> Iterator[tuple[str, Path]]:
    """Yield each field that names a file or folder, with its path."""
    for field in config.FILES:
        if path := getattr(config, field):
            yield field, Path(path)


def _needed(config: Any, field: str, path: Path) -> list[Path]:
    return [path / name for name in config.FILES[field]] if path.is_dir() else [path]
