"""Modules of own code, executed from the bytes that were compared with the user's list.

A file on disk may change after its digest was computed, and a `.pyc` beside it may hold other code,
so neither is used. Own code may also import a local module that no statement shows
(`import_module(name)`, `sys.path.insert(...)`), itself or by a function of a library
(`pkgutil.resolve_name`, `runpy.run_module`, an object by its name in a settings file). Then the
user's list decides about this module, too. Imports of other code, such as a user's program, are
left alone.
"""

import hashlib
import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location, spec_from_loader
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from understudy.policies.own_code import trusted
from understudy.policies.own_code.sources import (
    Module,
    Sources,
    find_elsewhere,
    is_installed,
    is_of_python,
    read_plain,
)

_owners: dict[int, tuple[ModuleType, Sources]] = {}
"""Modules of own code by the identity of their globals, and the sources that they belong to."""
_served: dict[str, Module] = {}
"""Local modules by the name in `sys.modules` under which they were imported."""


class UntrustedImport(ImportError):
    """Own code imports a local module that the user has not named by hand."""


class _Loader(Loader):
    """Execute a module from bytes."""

    def __init__(self, module: Module, sources: Sources) -> None:
        self.module = module
        self.sources = sources

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""
        return

    def exec_module(self, module: ModuleType) -> None:
        """Execute the bytes that were compared."""
        _owners[id(vars(module))] = module, self.sources
        _served[self.module.name] = self.module
        if self.module.has_file:
            module.__file__ = str(self.module.path)
            _execute(self.module.content, self.module.path, module)

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the bytes that were compared, for `runpy`."""
        return _compile(self.module.content, self.module.path)


class OwnCodeFinder(MetaPathFinder):
    """Finder of the local modules of own code; it answers imports of own code alone."""

    is_of_own_code = True

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the place of a local module; None for installed modules, and for imports of other
        code.

        Raises:
            UntrustedImport: a local module that the sources do not show, and that the user has not
                named.
        """
        sources = _importer(sys._getframe(1))
        if sources is None or is_of_python(fullname):
            return None
        module = sources.modules.get(fullname)
        if module is not None:
            return _spec(module, sources)
        found = find_elsewhere(fullname, path)
        if found is None or found.installed or found.spec.origin is None:
            return None
        return _judged(fullname, found.spec, sources)


def _judged(name: str, spec: ModuleSpec, sources: Sources) -> ModuleSpec | None:
    """Return the place of a local module that no statement shows, if the user trusts it."""
    place = Path(os.path.realpath(str(spec.origin)))
    try:
        if place.suffix == ".py":
            content = read_plain(place)
            digest = hashlib.sha256(content).hexdigest()
        else:  # a compiled module
            content = b""
            with place.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UntrustedImport(
            f"{name} of {place} cannot be read: {error.strerror}", name=name
        ) from error
    if trusted.is_named_now(sources.digest, sources.path):
        trusted.trust(digest, place)
    elif not trusted.is_trusted(digest, place):
        raise UntrustedImport(
            f"{sources.path} imports {name} of {place} (sha256 {digest}), which you have not named "
            f"by hand; read it, then add --policy-code {sources.path}",
            name=name,
        )
    if place.suffix != ".py" or not isinstance(spec.loader, SourceFileLoader):
        return spec
    is_package = spec.submodule_search_locations is not None
    folder = place.parent if is_package else None
    return _spec(Module(name, place, content, folder), sources)


def _spec(module: Module, sources: Sources) -> ModuleSpec | None:
    spec = spec_from_loader(
        module.name, _Loader(module, sources), origin=str(module.path), is_package=module.is_package
    )
    if spec is not None and module.is_package:
        spec.submodule_search_locations = [str(module.folder)]
        if not module.has_file:
            spec.origin = None
    return spec


def _importer(frame: FrameType | None) -> Sources | None:
    """Return the own code that imports, itself or by functions of libraries; None where other code
    imports.
    """
    while frame is not None:
        owner = _owners.get(id(frame.f_globals))
        if owner is not None:
            return owner[1]
        if not _is_of_library(str(frame.f_globals.get("__file__") or frame.f_code.co_filename)):
            return None
        frame = frame.f_back
    return None


@cache
def _is_of_library(file: str) -> bool:
    return file.startswith("<frozen ") or is_installed(file)


def import_sources(sources: Sources) -> ModuleType:
    """Return the module of a file, executed once per content, which pickles and type hints can
    find.

    Raises:
        ValueError: it cannot be imported, or a local module's name is taken by another module.
    """
    mark = hashlib.sha256(
        f"{sources.path}\n{sources.digest}".encode("utf-8", "surrogateescape")
    ).hexdigest()
    name = f"understudy_policy_{mark[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    _free_names(sources)
    spec = spec_from_file_location(name, sources.path)
    if spec is None:
        raise ValueError(f"{sources.path}: is not a Python file")
    if not any(isinstance(finder, OwnCodeFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnCodeFinder())
    module = module_from_spec(spec)
    sys.modules[name] = module
    _owners[id(vars(module))] = module, sources
    try:
        _execute(sources.content, sources.path, module)
    except UntrustedImport as error:
        del sys.modules[name]
        raise ValueError(str(error)) from error
    except Exception as error:
        del sys.modules[name]
        raise ValueError(
            f"{sources.path}: cannot be imported: {type(error).__name__}: {error}"
        ) from error
    return module


def _free_names(sources: Sources) -> None:
    """Let the local modules be imported anew where one of them has changed since.

    Raises:
        ValueError: a name is that of a module from another place, which Python would take instead.
    """
    changed = False
    for name, module in sources.modules.items():
        there: Any = sys.modules.get(name)
        if there is None:
            continue
        before = _served.get(name)
        place = getattr(there, "__file__", None) or str(module.path)
        if os.path.realpath(place) == os.path.realpath(module.path):
            changed = changed or (before is not None and before.content != module.content)
        elif before is None or before.content != module.content:
            raise ValueError(
                f"{sources.path}: imports {name} of {module.path}, and this process has imported "
                f"{name} of {place}; rename one of them, or use a process for each"
            )
    if changed:
        for name in sources.modules.keys() & _served.keys():
            sys.modules.pop(name, None)  # all of them: one may hold names of another


def _execute(content: bytes, path: Path, module: ModuleType) -> None:
    exec(_compile(content, path), vars(module))


def _compile(content: bytes, path: Path) -> CodeType:
    return compile(content, str(path), "exec")
