"""Types of policies in a Python file, `FILE.py:NAME`, without a package. No torch.

A run stores such a type as `/path/FILE.py:NAME#SHA256`. Code is imported in three cases alone: a user names the file as
the type of a new run, a user gives the file (`--policy-code`, `load_policy(code=)`), or the file at the stored path has
the stored checksum and lies in no run or policy folder. So a downloaded folder never brings code that is imported.
"""

import hashlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

CODE = "policy_code.py"
"""Name of the copy in runs and exported folders, for readers: it is not imported from there."""
GIVEN = "UNDERSTUDY_POLICY_CODE"
"""Environment variable with the file that a user gives."""
DOWNLOADED = (
    "order.json",
    "normalisation.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "understudy.sha256",
    ".understudy-hub.json",
    ".cache/huggingface/download",
)
"""Files of a run, of a policy folder or of a download; no code is imported below one, unless a user gives it."""

logger = logging.getLogger(__name__)
_modules: dict[str, ModuleType] = {}
_types: dict[str, Any] = {}
"""Imported objects by stored type."""
_contents: dict[str, bytes] = {}
"""Bytes of their files."""
_warned: set[tuple[str, str]] = set()
"""Names and checksums of the code that a warning has named."""


def is_code(kind: str) -> bool:
    """Return whether a type is that of a file, pinned or not."""
    return ".py:" in kind


def pin_missing(kind: str) -> bool:
    """Return whether a type is that of a file without a checksum, which only a user may name."""
    return is_code(kind) and "#" not in kind


def pin(kind: str) -> str:
    """Return `FILE.py:NAME`, as a user wrote it, with the absolute path and the checksum.

    Raises:
        ValueError: the file cannot be read.
    """
    if not pin_missing(kind):
        return kind
    file, _, name = kind.rpartition(":")
    try:
        content = Path(file).read_bytes()
    except OSError as error:
        raise ValueError(f"{kind}: {file} cannot be read: {error.strerror}; give FILE.py:NAME") from error
    return f"{os.path.abspath(file)}:{name}#{_digest(content)}"


def import_type(kind: str, expected: type) -> Any:
    """Return the object of a pinned type from its file, each file once per process.

    Args:
        kind: the pinned type.
        expected: class of the object, `PolicyType`.

    Raises:
        ValueError: the type is not pinned, its code is not given and not at its path, it cannot be imported, or has
            no such object.
    """
    place, _, digest = kind.partition("#")
    file, _, name = place.rpartition(":")
    if not digest:
        raise ValueError(f"policy type {kind!r} has no checksum; give the file of a policy as the type of a new run")
    given = os.environ.get(GIVEN, "")
    if kind in _types and not given:
        return _types[kind]
    path = Path(given or file)
    try:
        content = path.read_bytes()
    except OSError:
        content = None
    copy = f"; its folder has a copy, {CODE}, to read" if not given else ""
    fix = f"give the file with --policy-code FILE, or load_policy(code=FILE){copy}"
    if content is None:
        raise ValueError(f"policy type {name!r} is defined in {path}, which cannot be read; {fix}")
    if not given and (_digest(content) != digest or _is_downloaded(path)):
        why = "lies in a download or in the folder of a run or policy" if _is_downloaded(path) else "has changed since"
        raise ValueError(f"policy type {name!r} is defined in {path}, which {why}, and is not imported; {fix}")
    if _digest(content) != digest:
        _warn_once(name, path, content)
    module = _import(path.resolve(), content)
    if not isinstance(getattr(module, name, None), expected):
        names = [other for other, value in vars(module).items() if isinstance(value, expected)]
        there = f"there is {', '.join(names)}" if names else f"it has none; add {name} = {expected.__name__}(...)"
        raise ValueError(f"{path}: {name} is no {expected.__name__} of this file; {there}")
    _contents[kind], _types[kind] = content, getattr(module, name)
    return _types[kind]


def code_of(kind: str) -> bytes | None:
    """Return the imported code of a type; None for types of packages."""
    return _contents.get(kind)


@contextmanager
def given_code(file: str | Path) -> Iterator[None]:
    """Let types of files be imported from `file` in this block; "" changes nothing."""
    before = os.environ.get(GIVEN)
    if file:
        os.environ[GIVEN] = os.path.abspath(file)
    try:
        yield
    finally:
        if file and before is None:
            del os.environ[GIVEN]
        elif file and before is not None:
            os.environ[GIVEN] = before


def _warn_once(name: str, path: Path, content: bytes) -> None:
    if (name, digest := _digest(content)) not in _warned:
        _warned.add((name, digest))
        logger.warning("policy type %r: %s is not the code that the policy was trained with (sha256)", name, path)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _is_downloaded(path: Path) -> bool:
    """Whether a file may be of a downloaded folder, also behind a link; a path of training is absolute (`pin`)."""
    folders = {*path.parents, *path.resolve().parents}
    return not path.is_absolute() or any((folder / name).exists() for folder in folders for name in DOWNLOADED)


def _import(path: Path, content: bytes) -> ModuleType:
    """Execute a file as a module of its own, which pickles and type hints can find."""
    name = f"understudy_policy_{_digest(str(path).encode() + content)[:16]}"
    if name not in _modules:
        spec = spec_from_file_location(name, path)
        if spec is None:
            raise ValueError(f"{path}: is no Python file")
        module = sys.modules[name] = module_from_spec(spec)
        try:
            exec(compile(content, str(path), "exec"), module.__dict__)
        except Exception as error:
            del sys.modules[name]
            raise ValueError(f"{path}: cannot be imported: {type(error).__name__}: {error}") from error
        _modules[name] = module
    return _modules[name]
