"""A policy on disk: model.safetensors, config.json, normalisation.json and contract.json in one
folder.

A robot needs nothing else, and can read it without this package. README.md describes it
(`model_card.py`). config.json has the type of the policy, its settings, the facts of its data, and
under `metadata` the names of dimensions and cameras of each norm head. contract.json has the inputs
of training (`contract/facts.py`). understudy.sha256 has the checksums of the files, which `load`
compares (`checksums.py`).

Further files, such as a tokenizer, are named by the settings and copied into the folder. `FILES` of
the settings names the fields. A field holds the path of a file, or of a folder, of which only
certain files are needed: a folder of a hub holds gigabytes of others. In the folder of a policy
they are `<field>.<suffix>` and `<field>/`, and config.json has their names there.
"""

import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from understudy.policies.capabilities.files import Files, files_of
from understudy.policies.capabilities.folders import ReadsFolders, stored_name
from understudy.policies.model_card import make_card
from understudy.policies.own_code.copies import is_copy
from understudy.policies.own_code.types import write_code
from understudy.policies.registry import own_type_names, policy_type, stored_type
from understudy.policies.weight_files import TensorReader, WeightFiles, open_tree
from understudy_base import (
    ACTION,
    STATE,
    ConfigError,
    MissingExtraError,
    Record,
    create_folder,
    recover_folder,
    replace_folder,
    sync,
)
from understudy_client import Contract, figures_digest, write_contract
from understudy_data import Checksums, HubRepo, ModelCard

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
NORMALIZATION = "normalisation.json"
METADATA = "metadata"
"""Key of config.json with facts about the robots."""
CONTRACT = "contract"
"""Key of the metadata with the plain values of contract.json."""


class Saved(NamedTuple):
    """Content of a policy folder."""

    config: Any
    """A `PolicyConfig` of the stored type."""
    normalization: dict[str, Any]
    weights: TensorReader
    """As stored; each is read when it is asked for."""
    metadata: dict[str, Any]
    """Facts about the robots; empty in folders of other tools."""


def save(
    directory: str | Path,
    config: Any,
    normalization: Record,
    weights: Mapping[str, Tensor],
    metadata: Record | None = None,
    is_new: bool = False,
) -> None:
    """Write the files next to `directory`, flush them to the disk, then rename: no reader ever sees
    half a policy.

    A README.md that a user wrote or edited stays as it is. With `is_new` nothing is replaced.

    Raises:
        BeingWritten: another process writes it now, and it is to be new.
        FileExistsError: `directory` is anything but a policy of this type or an empty folder
            (`check_replaceable`).
    """
    target = Path(directory).resolve()
    check_replaceable(target, config.type)
    writing = create_folder(target) if is_new else replace_folder(target)
    with writing as fresh:
        facts = dict(metadata or {})
        contract = facts.pop(CONTRACT, None)
        content = {**asdict(config), **copy_files(config, fresh)}
        if facts:
            content[METADATA] = facts
        (fresh / CONFIG).write_text(json.dumps({"type": config.type, **content}, indent=2) + "\n")
        write_code(config.type, fresh)
        (fresh / NORMALIZATION).write_text(json.dumps(normalization, indent=2) + "\n")
        # safetensors wants plain contiguous CPU tensors; a float32 weight keeps its bits.
        plain = {
            stored_name(config, name): weight.detach().cpu().contiguous()
            for name, weight in weights.items()
        }
        try:
            save_file(plain, fresh / WEIGHTS, metadata={"format": "pt"})
        except SafetensorError as error:  # its name for a full disk
            raise OSError(f"{target / WEIGHTS} cannot be written: {error}") from error
        # safetensors makes a file that its owner alone may read.
        (fresh / WEIGHTS).chmod((fresh / CONFIG).stat().st_mode & 0o777)
        sha256 = functools.cache(Checksums.sha256_of)  # the weights are read once
        if contract is not None:
            write_contract(
                fresh / Contract.FILE,
                with_digests(contract, normalization, sha256(fresh / WEIGHTS)),
            )
        count = sum(weight.numel() for weight in weights.values())
        (fresh / ModelCard.FILE).write_text(
            make_card({"type": config.type, **content}, count, contract), encoding="utf-8"
        )
        Checksums(fresh).write(sha256)
        check_replaceable(target, config.type)  # again: writing took a while
        if (target / ModelCard.FILE).is_file():
            text = (target / ModelCard.FILE).read_bytes()
            if not ModelCard.is_unchanged(text):
                (fresh / ModelCard.FILE).write_bytes(text)  # a user's own


def with_digests(contract: Record, normalization: Record, weights: str) -> dict[str, Any]:
    """Return the plain values of a contract with the digests of a folder's weights and
    normalization.

    Args:
        contract: plain values.
        normalization: content of normalisation.json.
        weights: SHA-256 of the weights.
    """
    robots = dict(contract["robots"])
    for number, head in enumerate(normalization.get("heads", [""])):
        for name, key in (("action", ACTION), ("state", STATE)):
            if (vector := robots.get(head, {}).get(name)) and key in normalization:
                figures = {
                    kind: np.atleast_2d(normalization[key][kind])[number]
                    for kind in ("offset", "spread")
                }
                norm = vector["normalization"] | {
                    "source": "external",
                    "digest": figures_digest(figures),
                }
                robots[head] = robots[head] | {name: vector | {"normalization": norm}}
    return {**contract, "robots": robots, "weights": weights}


def check_replaceable(directory: str | Path, kind: str) -> None:
    """Check that `save` may write there: the folder is absent, empty, or holds a policy of type
    `kind` alone.

    Raises:
        FileExistsError: something else is there; the message names it and the remedy.
    """
    target = Path(directory).resolve()
    fix = "name a folder that does not exist yet, or move this one away"
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise FileExistsError(f"{directory} is a file, and a policy is a folder: {fix}")
    if target == Path.cwd() or target.parent == target:
        raise FileExistsError(
            f"{directory} is the current folder, which cannot be replaced: name another one"
        )
    entries = sorted(target.iterdir())
    if not entries:
        return
    files = files_of(policy_type(kind).settings)
    for entry in entries:
        is_ours = entry.name in (
            CONFIG,
            NORMALIZATION,
            WEIGHTS,
            Contract.FILE,
            ModelCard.FILE,
            Checksums.FILE,
        )
        is_file = is_ours and entry.is_file() and not entry.is_symlink()
        if not (is_file or is_copy(entry) or is_policy_file(files, entry)):
            raise FileExistsError(
                f"{directory} holds {entry.name}, which is not a file of a policy: {fix}"
            )
    try:
        stored = stored_type(_object(target / CONFIG))
    except (OSError, ValueError):
        stored = None
    if stored != kind:
        raise FileExistsError(
            f"{directory} holds no policy of type {kind}, and is not replaced: {fix}"
        )


def find_policy(place: str | Path) -> Path:
    """Return the folder of a policy: the place itself, the policy of a run directory, or a
    repository of the hub.

    A `Path` is local.

    Raises:
        ConfigError: the repository cannot be fetched. MissingExtraError: the extra `hub` is not
            installed.
        FileNotFoundError: there is no such folder, nor the extra for a repository of that name.
    """
    repository = HubRepo.of_model(place) if isinstance(place, str) else None
    try:
        folder = Path(place) if repository is None else repository.fetch()
    except (ConfigError, MissingExtraError) as error:
        if str(place).startswith(HubRepo.SCHEME):
            raise
        kind = ConfigError if isinstance(error, ConfigError) else FileNotFoundError
        raise kind(f"{place}: there is no such folder, nor on the hub: {error}") from error
    return of_run(folder)


def of_run(folder: Path) -> Path:
    """Return the policy of a run directory, or the folder itself if it is none."""
    inner = folder / "policy"
    return inner if not (folder / CONFIG).is_file() and (inner / CONFIG).is_file() else folder


def load(directory: str | Path, normalization: Record | None = None, asset: str = "") -> Saved:
    """Read a saved policy of any registered type, or a folder of another tool that a type can read
    (`ReadsFolders`).

    Each file that has a checksum is read whole once, to compare it.

    Args:
        directory: the folder.
        normalization: content of normalisation.json, in place of the folder's.
        asset: which normalization, where a folder of another tool has several.

    Raises:
        FileNotFoundError: a missing folder or file. ValueError: a content that is not a policy's,
            or is not the one that was written (`ChecksumError`).
    """
    source = Path(directory)
    if not source.exists() and source.parent.is_dir():
        recover_folder(source)
    if not source.is_dir():
        raise FileNotFoundError(f"{source} holds no policy: there is no such folder")
    Checksums(source).check()
    stored = _object(source / CONFIG) if (source / CONFIG).is_file() else {}
    metadata = stored.pop(METADATA, {})
    heads = metadata.get("heads", {}) if isinstance(metadata, Mapping) else None
    if not isinstance(heads, Mapping) or not all(
        isinstance(facts, Mapping) for facts in heads.values()
    ):
        raise ValueError(
            f"{source / CONFIG}: {METADATA}: {metadata!r:.80}: must be an object with one in it by "
            "head"
        )
    kind = stored_type(stored) if "type" in stored else None
    try:
        readers = _folder_readers(kind)
    except ValueError as error:
        raise ValueError(f"{source / CONFIG}: {error}") from error
    files = _open_tensors(source)
    if normalization is None and (source / NORMALIZATION).is_file():
        normalization = _object(source / NORMALIZATION)
    try:
        for read in readers:
            if (values := read(source, stored, normalization, files.shapes, asset)) is not None:
                stored, normalization = values
        for name, content in ((CONFIG, stored), (NORMALIZATION, normalization)):
            if not content:
                raise FileNotFoundError(f"{source} holds no policy: {name} is missing")
        config = located(read_config(stored), source)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{source / CONFIG}: {error}") from error
    assert normalization is not None
    return Saved(config, dict(normalization), files, dict(metadata))


def _folder_readers(kind: str | None) -> list[Callable[..., Any]]:
    """Return the function `read_folder` of a type, or with None those of all types of this project
    that are installed.

    Raises:
        ValueError: there is no such type.
    """
    names = own_type_names() if kind is None else [kind]
    policies = [policy_type(name).load() for name in names]
    readers = [policy.read_folder for policy in policies if isinstance(policy, ReadsFolders)]
    return list(dict.fromkeys(readers))


def _open_tensors(source: Path) -> TensorReader:
    if (tree := open_tree(source)) is not None:
        return tree
    try:
        return WeightFiles(source, floats_only=False)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{source} holds no policy: {error}") from error


def read_metadata(directory: str | Path) -> dict[str, Any]:
    """Read the facts about the robots of a saved policy; empty in folders of other tools."""
    if not (Path(directory) / CONFIG).is_file():
        return {}
    return dict(_object(Path(directory) / CONFIG).get(METADATA, {}))


def read_config(stored: Record) -> Any:
    """Build the config of a policy from its JSON.

    Raises:
        ValueError: an unknown type or field, a value of another type or that breaks a rule.
    """
    kind = policy_type(stored_type(stored)).config
    names = {field.name for field in fields(kind)}
    if unknown := sorted(set(stored) - names):
        raise ValueError(f"a policy of type {stored_type(stored)} has no fields {unknown}")
    named = {name: value for name, value in stored.items() if name != "type"}
    if problems := type_problems(kind, named):
        raise ValueError("; ".join(problems))
    return kind.from_mapping(stored)


def _object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} holds a {type(value).__name__}, expected an object")
    return value


def type_problems(kind: type[Any], stored: Record) -> list[str]:
    """List the values that are not of their field's type, one line each.

    Args:
        kind: a dataclass.
        stored: JSON values by field; other keys are ignored, and so are types that JSON has no
            values of.
    """
    hints = get_type_hints(kind, include_extras=True)
    return [
        f"{name}: {value!r}: must be {_words(hints[name])}"
        for name, value in stored.items()
        if name in hints and not _fits(value, hints[name])
    ]


def _fits(value: Any, hint: Any) -> bool:
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return _fits(value, inner[0])
    if origin is Literal:
        return value in inner
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            return False
        hints = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(value) == len(hints) and all(map(_fits, value, hints))
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint in (str, bool, NoneType):
        return isinstance(value, hint)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping)
    return True


def _words(hint: Any) -> str:
    origin = get_origin(hint)
    inner = get_args(hint)
    if origin is Annotated:
        return _words(inner[0])
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin in (Union, UnionType):
        return " or ".join(map(_words, inner))
    if origin is tuple:
        number = "" if inner[-1] is Ellipsis else f" of {len(inner)}"
        return f"a list{number}, of {_words(inner[0])} each"
    plain = {
        int: "a whole number",
        float: "a number",
        str: "a text",
        bool: "true or false",
        NoneType: "null",
    }
    return plain.get(hint, "an object")


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

    A field without a value takes the file of its name there: a folder written by hand may leave the
    field out.

    Raises:
        ValueError: a path leaves the folder. A downloaded folder must not name files of this
            machine.
    """
    for field, path in _named(config):
        if path.is_absolute() or ".." in path.parts:
            raise ValueError(
                f"{field}: {str(path)!r} is outside the folder; copy the file into it, and name it "
                "alone"
            )
    unnamed = {
        field: str(folder / names[0])
        for field, names in files_of(config).items()
        if len(names) == 1 and Path(names[0]).stem == field and (folder / names[0]).is_file()
    }
    return replace(
        config, **unnamed | {field: str(folder / path) for field, path in _named(config)}
    )


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
                    f"policy.{field}: {source} cannot be read: {error}; name a file or folder that "
                    "exists"
                ) from error
        digests[field] = content.hexdigest()
    return digests


def check_unchanged(config: Any, recorded: Mapping[str, str]) -> None:
    """Raise ConfigError if the files of a config are not those that a run recorded at its start."""
    for field, now in digests(config).items():
        if recorded.get(field, now) != now:
            path = getattr(config, field)
            raise ConfigError(
                f"policy.{field}: {path} changed since the run started; restore it, or start a new "
                "run"
            )


def is_policy_file(files: Files, entry: Path) -> bool:
    """Return whether an entry of a policy's folder is a copy of one of its `FILES`."""
    if entry.is_symlink():
        return False
    if entry.is_dir():
        files_inside = list(entry.iterdir())
        return entry.name in files and all(
            file.name in files[entry.name] and file.is_file() and not file.is_symlink()
            for file in files_inside
        )
    return entry.is_file() and entry.stem in files


def _named(config: Any) -> Iterator[tuple[str, Path]]:
    """Yield each field that names a file or folder, with its path."""
    for field in files_of(config):
        if path := getattr(config, field):
            yield field, Path(path)


def _needed(config: Any, field: str, path: Path) -> list[Path]:
    return [path / name for name in files_of(config)[field]] if path.is_dir() else [path]
