"""Objects that installed packages offer by entry points of our groups, `understudy.NAME`.

A package offers an object in its pyproject.toml:

    [project.entry-points."understudy.policies"]
    mine = "my_package.policy:MINE"

`find_entry_points("understudy.policies")["mine"].load()` imports it. Listing a group imports
nothing.

The lists are read where installers write them: in the folders of `sys.path`. Importing
`importlib.metadata` alone would take 30 ms, a third of the time of `understudy --help`; this takes
1 to 2 ms for 180 packages, once. Of a source tree of this project on `sys.path` (a folder `src`),
the pyproject.toml next to it is read instead: the list of an installed version is another one, or
that of an older tree. Python 3.10 has no reader of TOML: there the installed lists count.
"""

import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from understudy_base.errors import UnderstudyError, summarize
from understudy_base.optional_packages import (
    describe_missing,
    describe_old_numpy,
    missing_distribution,
)

OURS = "understudy."
"""Beginning of the names of our groups. Others are not read."""
PROJECT = re.compile(r"understudy(-[a-z]+)*")
"""Names of the distributions of this project."""


class EntryPointError(UnderstudyError, ImportError):
    """An entry point cannot be loaded; the message names it and its distribution."""


class EntryPoint(NamedTuple):
    """A name of a group, and the object behind it."""

    group: str
    name: str
    target: str
    """`module:name` of the object."""
    distribution: str
    """Name and version of the distribution that offers it: `my-package 1.0`."""
    rivals: tuple[str, ...] = ()
    """Other distributions that offer an object under the same name."""

    def __str__(self) -> str:
        return (
            f"the entry point {self.name!r} of the group {self.group} ({self.target}) in "
            f"{self.distribution}"
        )

    def load(self) -> Any:
        """Import the object.

        Raises:
            EntryPointError: several distributions offer this name, or the import fails.
            MissingExtraError: the import lacks a package of an extra.
        """
        if self.rivals:
            others = " and ".join(self.rivals)
            raise EntryPointError(f"{self} has the same name as one in {others}: uninstall one")
        module, _, path = self.target.partition(":")
        try:
            found = import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
        except UnderstudyError:
            raise
        except Exception as error:  # whatever the code of another package raises
            missing = None
            if isinstance(error, ImportError):
                missing = describe_missing(error) or describe_old_numpy(error)
            raise missing or EntryPointError(
                f"{self} cannot be loaded: {summarize(error)}"
            ) from error
        return found


def find_entry_points(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group of ours by name, sorted. Nothing is imported.

    Where several distributions offer one name, the error waits for `load`: the other names of the
    group stay usable. A distribution that lies in several folders of `sys.path` counts once, from
    the first of them. The source trees of this project count before them all.

    Args:
        group: as `understudy.policies`.
    """
    found: dict[str, EntryPoint] = {}
    seen: set[str] = set()
    folders = list(dict.fromkeys(os.path.abspath(folder) for folder in sys.path))
    for folder in folders:
        tree = _read_tree(folder)
        if not tree.name or tree.name in seen:
            continue
        seen.add(tree.name)
        distribution = f"{tree.name} in {os.path.dirname(folder)}"
        for point, target in tree.groups.get(group, {}).items():
            _add(found, EntryPoint(group, point, target, distribution))
    for folder in folders:
        for distribution, groups in _read_folder(folder, _modified(folder)).items():
            name = distribution.partition(" ")[0]
            if name in seen:
                continue
            seen.add(name)
            for point, target in groups.get(group, {}).items():
                _add(found, EntryPoint(group, point, target, distribution))
    return dict(sorted(found.items()))


def _add(found: dict[str, EntryPoint], point: EntryPoint) -> None:
    """Add an entry point, or a rival of one with the same name."""
    if point.name in found:
        first = found[point.name]
        found[point.name] = first._replace(rivals=(*first.rivals, point.distribution))
    else:
        found[point.name] = point


def load_entry_point(group: str, name: str, what: str, distribution: str = "") -> Any:
    """Return the object of an entry point of another distribution.

    Args:
        group: as `understudy.policies`.
        name: of the entry point.
        what: words of a message for what is missing without it.
        distribution: the one of this project that offers it, a key of `PIP_LINES`; "" where any
            package may.

    Raises:
        MissingExtraError: this distribution is not installed; the message has the pip command.
        EntryPointError: no package offers it, or it cannot be loaded.
    """
    points = find_entry_points(group)
    if name not in points:
        if distribution:
            raise missing_distribution(what, distribution)
        raise EntryPointError(
            f"{what}: no installed package has the entry point {name!r} of the group {group}"
        )
    return points[name].load()


def _modified(folder: str) -> int:
    """Return the time of the last change of a folder in nanoseconds, 0 without one: installing
    writes into it.
    """
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=256)
def _read_folder(folder: str, modified: int) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Return name and version -> group of ours -> name -> target, of the distributions in a folder.

    Of several versions of one distribution, which an interrupted installation leaves, the one
    written last counts.

    Args:
        folder: on `sys.path`; a file (a zip archive), or none, has no distributions.
        modified: of `_modified`; part of the key of the cache.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return {}
    chosen: dict[str, tuple[str, str]] = {}
    for name in names:
        stem, extension = os.path.splitext(name)
        # pip renames what it removes to ~
        if extension not in (".dist-info", ".egg-info") or name.startswith("~"):
            continue
        package, _, version = stem.partition("-")
        package = re.sub(r"[-_.]+", "-", package).lower()
        path = os.path.join(folder, name)
        if package not in chosen or _modified(path) >= _modified(chosen[package][1]):
            chosen[package] = (f"{package} {version}".rstrip(), path)
    found: dict[str, Mapping[str, Mapping[str, str]]] = {}
    for distribution, path in chosen.values():
        try:
            with open(os.path.join(path, "entry_points.txt"), encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeDecodeError):  # most have none
            text = ""
        found[distribution] = _parse(text)
    return found


class _Tree(NamedTuple):
    """A source tree of this project."""

    name: str = ""
    """Of its distribution; "" where there is no such tree."""
    groups: Mapping[str, Mapping[str, str]] = MappingProxyType({})
    """Group -> name -> target."""


@lru_cache(maxsize=256)
def _read_tree(folder: str) -> _Tree:
    """Return what the pyproject.toml next to a folder `src` offers, if it is one of this project.

    Args:
        folder: on `sys.path`.
    """
    file = Path(folder).with_name("pyproject.toml")
    if os.path.basename(folder) != "src" or not file.is_file():
        return _Tree()
    project = _read_project(file)
    name = str(project.get("name", ""))
    if not PROJECT.fullmatch(name):
        return _Tree()
    return _Tree(name, project.get("entry-points", {}))


def _read_project(file: Path) -> Mapping[str, Any]:
    """Return the table `project` of a pyproject.toml; nothing of one that is half written, or in
    Python 3.10.
    """
    if sys.version_info >= (3, 11):
        import tomllib

        with suppress(OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
            content = tomllib.loads(file.read_text(encoding="utf-8"))
            project: Mapping[str, Any] = content.get("project", {})
            return project
    return {}


def _parse(text: str) -> Mapping[str, Mapping[str, str]]:
    """Return the entry points of our groups in a file `entry_points.txt`: group -> name ->
    target.
    """
    groups: dict[str, dict[str, str]] = {}
    if f"[{OURS}" not in text:
        return groups
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            group = line.strip("[] ")
        elif group.startswith(OURS) and "=" in line and line[0] != "#":
            name, _, target = line.partition("=")
            # behind it are extras, which installers no longer read
            target = target.partition("[")[0]
            groups.setdefault(group, {})[name.strip()] = target.replace(" ", "")
    return groups
