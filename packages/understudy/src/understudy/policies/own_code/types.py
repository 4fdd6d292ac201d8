"""The object that `FILE.py:NAME` names, from code that this user named by hand.

`FILE.py:NAME` is a user's own word for it. A run and an exported folder store
`/path/FILE.py:NAME#SHA256`, the *pinned* form. Neither form is a reason to import anything: folders
and settings files come from strangers, too. Code is imported in two cases alone:

  - the user names it now: `--policy.type FILE.py:NAME`, `--policy-code FILE`,
    `UNDERSTUDY_POLICY_CODE`, or in Python;
  - the user named it before, and neither the file nor a local module that it imports has changed
    (`trusted.py`). Where the file of a folder is gone, equal code at another place that the user
    named takes its place.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from understudy.policies.own_code import trusted
from understudy.policies.own_code.copies import write_copy
from understudy.policies.own_code.importer import import_sources
from understudy.policies.own_code.sources import CODE, Sources, read_sources
from understudy_base import ConfigError

GIVEN = "UNDERSTUDY_POLICY_CODE"
"""Environment variable with the file that a user gives."""

logger = logging.getLogger(__name__)
_types: dict[str, Any] = {}
"""Imported objects by stored type."""
_imported: dict[str, Sources] = {}
"""Their files and local modules."""
_warned: set[tuple[str, str]] = set()
"""Names and checksums of the code that a warning has named."""


def is_code(kind: str) -> bool:
    """Return whether a type is that of a file, pinned or not."""
    return ".py:" in kind


def pin_missing(kind: str) -> bool:
    """Return whether a type is that of a file without a checksum."""
    return is_code(kind) and "#" not in kind


def pin(kind: str) -> str:
    """Return `FILE.py:NAME` with the absolute path and the checksum. This does not trust the file.

    Raises:
        ValueError: the file cannot be read.
    """
    if not pin_missing(kind):
        return kind
    file, _, name = kind.rpartition(":")
    place = file if os.path.exists(file) else os.environ.get(GIVEN) or file
    return f"{os.path.abspath(place)}:{name}#{_sources(place, kind).digest}"


def name_by_hand(kind: str) -> str:
    """Return the pinned form of a type that the user wrote now, and trust its code from here on.

    Raises:
        ValueError: the file cannot be read, or is not the one of the given checksum.
    """
    if not is_code(kind):
        return kind
    place, _, digest = kind.partition("#")
    file = place.rpartition(":")[0]
    sources = _sources(file, kind)
    if digest and digest != sources.digest:
        raise ValueError(
            f"{place}: its sha256 is {sources.digest}, not {digest}; leave out # and what follows "
            "it"
        )
    trusted.trust(sources.digest, sources.path)
    return f"{os.path.abspath(file)}:{place.rpartition(':')[2]}#{sources.digest}"


def _sources(file: str, kind: str) -> Sources:
    try:
        return read_sources(file)
    except OSError as error:
        raise ValueError(
            f"{kind}: {file} cannot be read: {error.strerror}; give FILE.py:NAME"
        ) from error


def import_type(kind: str, expected: type) -> Any:
    """Return the object of a pinned type from its file, each file once per process.

    Args:
        kind: the pinned type.
        expected: class of the object, `PolicyType`.

    Raises:
        ValueError: the type is not pinned, its code is not trusted or has changed, cannot be
            imported, or has no such object.
    """
    place, _, digest = kind.partition("#")
    file, _, name = place.rpartition(":")
    if not digest:
        raise ValueError(
            f"policy type {kind!r} has no checksum; give the file of a policy as the type of a new "
            "run"
        )
    given = os.environ.get(GIVEN, "")
    if kind in _types and not given:
        return _types[kind]
    sources = _trusted_sources(given or file, name, digest, is_given=bool(given))
    if sources.digest != digest:
        _warn_once(name, sources)
    module = import_sources(sources)
    if not isinstance(getattr(module, name, None), expected):
        names = [other for other, value in vars(module).items() if isinstance(value, expected)]
        there = f"it has none; add {name} = {expected.__name__}(...)"
        if names:
            there = f"there is {', '.join(names)}"
        raise ValueError(
            f"{sources.path}: {name} is not a {expected.__name__} of this file; {there}"
        )
    _imported[kind] = sources
    _types[kind] = getattr(module, name)
    return _types[kind]


def import_object(target: str, flag: str) -> Any:
    """Return the object of `FILE.py:NAME`, of code that the user has named by hand.

    Args:
        target: the file and the name.
        flag: flag by which a user names it, for messages.

    Raises:
        ValueError: the file cannot be read, is not trusted, cannot be imported, or has no such
            name.
    """
    file, _, name = target.rpartition(":")
    sources = _sources(file, target)
    if not trusted.is_trusted(sources.digest, sources.path):
        raise ValueError(
            f"{target!r} is code of {sources.path} (sha256 "
            f"{sources.digest}{_with_modules(sources)}), which you have not named by hand, so it "
            f"is not imported; read it, then add {flag} {target}"
        )
    module = import_sources(sources)
    if not hasattr(module, name):
        raise ValueError(f"{target!r}: {sources.path} has no {name}; give FILE.py:NAME")
    return getattr(module, name)


def _trusted_sources(file: str, name: str, digest: str, *, is_given: bool) -> Sources:
    """Return the code of a type, if this user has named it by hand."""
    what = f"policy type {name!r} is code of {file}"
    try:
        sources = read_sources(file)
    except OSError as error:
        if (copy_of := _named_copy(digest)) is not None and not is_given:
            return copy_of
        fix = "give the file with --policy-code FILE, or load_policy(code=FILE)"
        copy = "" if is_given else f"; its folder has a copy, {CODE}, to read"
        raise ValueError(f"{what}, which cannot be read ({error.strerror}); {fix}{copy}") from error
    if is_given:
        trusted.trust(sources.digest, sources.path)
        return sources
    place = f"{sources.path} (sha256 {sources.digest}{_with_modules(sources)})"
    fix = f"read it, then add --policy-code {sources.path}, or load_policy(code=...) in Python"
    if not trusted.is_trusted(sources.digest, sources.path):
        changed = ""
        if digest != sources.digest:
            changed = f" It is not the code that was stored (sha256 {digest})."
        raise ValueError(
            f"policy type {name!r} is code of {place}, which you have not named by hand, so it is "
            f"not imported; {fix}.{changed}"
        )
    if digest != sources.digest:
        raise ValueError(
            f"policy type {name!r} is code of {place}, which has changed since (sha256 {digest} "
            "before), and is not imported; to use it as it is now, add --policy-code "
            f"{sources.path}, or load_policy(code=...) in Python"
        )
    return sources


def _named_copy(digest: str) -> Sources | None:
    """Return code of a digest from a place where this user has named it by hand, if it is still
    there.
    """
    for path in trusted.named_places(digest):
        with suppress(OSError, ValueError):
            sources = read_sources(path)
            if sources.digest == digest and trusted.is_trusted(digest, sources.path):
                return sources
    return None


def _with_modules(sources: Sources) -> str:
    return f", with {', '.join(sorted(sources.modules))}" if sources.modules else ""


def write_code(kind: str, folder: Path) -> None:
    """Write the imported code of a type into a folder (`copies.py`); nothing for types of packages.

    Raises:
        OSError: a file cannot be written.
    """
    if kind in _imported:
        write_copy(_imported[kind], folder)


def policy_code(file: str) -> AbstractContextManager[None]:
    """Return the context of the option `--policy-code`.

    Raises:
        ConfigError: there is no such file.
    """
    if not os.path.isfile(file):
        raise ConfigError(f"--policy-code {file!r}: there is no such file; give the Python file")
    return given_code(file)


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


def _warn_once(name: str, sources: Sources) -> None:
    if (name, sources.digest) not in _warned:
        _warned.add((name, sources.digest))
        logger.warning(
            "policy type %r: %s is not the code that the policy was trained with (sha256)",
            name,
            sources.path,
        )
