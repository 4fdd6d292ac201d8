"""A Python file and each local module that it imports, by reading alone: nothing is imported or
executed.

A local module belongs neither to Python nor to an installed package. Its file lies beside the code,
in a folder of `PYTHONPATH`, or elsewhere on `sys.path`; that of a copy (`copies.py`) in the folder
`policy_code` beside it. Import statements are followed wherever they are in a file, in functions,
too, and `import_module` and `__import__` with a literal name.
"""

import ast
import hashlib
import os
import site
import stat
import sys
import sysconfig
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import NamedTuple

CODE = "policy_code.py"
"""Name of the copy of a file in runs and exported folders."""
MODULES = "policy_code"
"""Folder beside such a copy with its local modules, which come before those of other folders."""
MAX_BYTES = 1 << 22
"""Largest file that is read as code."""
MAX_MODULES = 4096
"""Most local modules of one file."""
OURS = __name__.partition(".")[0]
"""This package, which is installed wherever it lies."""


@dataclass(frozen=True)
class Module:
    """One local module."""

    name: str
    """Dotted name, by which it is imported."""
    path: Path
    """Its file; the folder of a package without `__init__.py`."""
    content: bytes
    folder: Path | None = None
    """Folder of the submodules of a package; None for a module that is none."""

    @property
    def is_package(self) -> bool:
        """Whether it may have submodules."""
        return self.folder is not None

    @property
    def has_file(self) -> bool:
        """Whether there is a file to execute; a package without `__init__.py` has none."""
        return self.path != self.folder


@dataclass(frozen=True)
class Sources:
    """A file and its local modules."""

    path: Path
    """The file, absolute and without links."""
    content: bytes
    modules: dict[str, Module] = field(default_factory=dict)
    """Local modules by name."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file; with local modules, of the list of the SHA-256 of each."""
        if not self.modules:
            return hashlib.sha256(self.content).hexdigest()
        lines = [f"{hashlib.sha256(self.content).hexdigest()}  "]
        for name in sorted(self.modules):
            lines.append(f"{hashlib.sha256(self.modules[name].content).hexdigest()}  {name}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


_read: dict[Path, tuple[object, Sources]] = {}
"""Sources read before, with the state of their files."""


def read_sources(file: str | Path) -> Sources:
    """Read a Python file and its local modules.

    Raises:
        OSError: a file cannot be read, is no plain file, or is larger than `MAX_BYTES`.
        ValueError: there are too many local modules.
    """
    path = Path(os.path.realpath(file))
    content = read_plain(path)
    if path in _read and _read[path][0] == (content, _state(_read[path][1]), tuple(sys.path)):
        return _read[path][1]
    sources = Sources(path, content, _local_modules(path, content))
    _read[path] = ((content, _state(sources), tuple(sys.path)), sources)
    return sources


def _state(sources: Sources) -> list[object]:
    """Sizes and times of the local modules' files, which tell whether one has changed."""
    return [_stamp(module.path) for module in sources.modules.values()]


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    return facts.st_size, facts.st_mtime_ns, facts.st_ino


def read_plain(path: Path) -> bytes:
    """Read a file of code. A stranger may have named it, so a device or a pipe is refused and a
    size is bounded.

    Raises:
        OSError: it cannot be read, is no plain file, or is larger than `MAX_BYTES`.
    """
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(number, "rb") as file:
        if not stat.S_ISREG(os.fstat(number).st_mode):
            raise OSError(0, "it is no plain file", str(path))
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(
            0, f"it is larger than {MAX_BYTES:,} bytes, the most that is read as code", str(path)
        )
    return content


def _local_modules(path: Path, content: bytes) -> dict[str, Module]:
    """Return the local modules that a file imports, directly and through others."""
    modules: dict[str, Module] = {}
    asked: set[str] = set()
    waiting = deque(_imported_names(content, ""))
    while waiting:
        name = waiting.popleft()
        if name in asked:
            continue
        asked.add(name)
        parent = name.rpartition(".")[0]
        if parent and parent not in modules:
            continue  # its package is not local, or has no such module
        module = _find_module(name, modules.get(parent), path)
        if module is None:
            continue
        modules[name] = module
        if len(modules) > MAX_MODULES:
            raise ValueError(
                f"{path}: imports more than {MAX_MODULES} local modules; install them as a package"
            )
        package = name if module.is_package else parent
        waiting.extend(_imported_names(module.content, package))
    return modules


def _imported_names(content: bytes, package: str) -> Iterator[str]:
    """Yield the dotted names that a file may import, each behind its packages; unreadable code
    imports nothing.

    Args:
        content: the file.
        package: the package of the file, for relative imports; "" for none.
    """
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _prefixes(alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute("." * node.level + (node.module or ""), package)
            yield from _prefixes(base)
            if base:
                for alias in node.names:
                    yield f"{base}.{alias.name}"
        elif isinstance(node, ast.Call) and _is_import(node.func) and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield from _prefixes(_absolute(first.value, package))


def _is_import(function: ast.expr) -> bool:
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("import_module", "__import__")


def _absolute(name: str, package: str) -> str:
    """Return a name, relative ones (`..part`) from `package`; "" where there is none."""
    dots = len(name) - len(name.lstrip("."))
    if not dots:
        return name
    parts = package.split(".") if package else []
    if dots > len(parts):
        return ""
    kept = parts[: len(parts) - dots + 1]
    return ".".join([*kept, *filter(None, [name[dots:]])])


def _prefixes(name: str) -> Iterator[str]:
    parts = name.split(".") if name else []
    for count in range(1, len(parts) + 1):
        yield ".".join(parts[:count])


def _find_module(name: str, parent: Module | None, path: Path) -> Module | None:
    """Return a local module of the file `path`; None where there is none of this name, or an
    installed one is first.
    """
    if parent is not None:
        return _module_in(parent.folder, name) if parent.folder is not None else None
    if is_of_python(name):
        return None
    found = find_elsewhere(name, None)
    if found is not None and found.installed:
        return None
    copied = _module_in(path.parent / MODULES, name) if path.name == CODE else None
    if copied is not None or found is None:
        return copied or _module_in(path.parent, name)
    for place in found.spec.submodule_search_locations or ():
        return _module_in(Path(place).parent, name)
    return _module_in(Path(found.spec.origin).parent, name) if found.spec.origin else None


def is_of_python(name: str) -> bool:
    """Return whether a name is that of a module of Python itself, or of this package."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names or top == OURS


def _module_in(folder: Path, name: str) -> Module | None:
    """Return the module of a folder in Python's sequence: a package, a file, a folder with Python
    files.
    """
    place = folder.absolute() / name.rpartition(".")[2]
    start = place / "__init__.py"
    if start.is_file():
        return Module(name, start, read_plain(start), place)
    file = place.with_name(f"{place.name}.py")
    if file.is_file():
        return Module(name, file, read_plain(file))
    # A folder of another kind may have the name of a package that is not installed, as the logs of
    # a tracker have.
    return Module(name, place, b"", place) if any(place.glob("*.py")) else None


class Found(NamedTuple):
    """Place of a module by Python's own finders."""

    spec: ModuleSpec
    installed: bool
    """Whether it belongs to Python or to an installed package, also to one in editable mode."""


def find_elsewhere(name: str, path: object) -> Found | None:
    """Return the place of a module by Python's own finders, without an import; None where there is
    none.

    Args:
        name: dotted name.
        path: `__path__` of its package; None for a name without one.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None or getattr(finder, "is_of_own_code", False):
            continue
        spec: ModuleSpec | None = find(name, path)
        if spec is not None:
            is_editable = "editable" in str(getattr(finder, "__module__", ""))
            return Found(spec, is_editable or _is_installed(spec))
    return None


def _is_installed(spec: ModuleSpec) -> bool:
    if spec.origin in ("built-in", "frozen"):
        return True
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return bool(places) and all(map(is_installed, places))


def is_installed(place: str) -> bool:
    """Return whether a file or folder is of Python or of an installed package."""
    real = os.path.realpath(place)
    return any(real.startswith(folder + os.sep) for folder in installed_folders())


@cache
def installed_folders() -> frozenset[str]:
    """Folders of Python and of installed packages, and those that the .pth files of packages in
    editable mode name.
    """
    paths = sysconfig.get_paths()
    folders = {paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders.update(site.getsitepackages())
    folders.add(site.getusersitepackages())
    for name in [name for name in sys.modules if name.startswith("understudy") and "." not in name]:
        file = getattr(sys.modules[name], "__file__", None)  # these packages, wherever they lie
        if file and not name.startswith("understudy_policy_"):
            folders.add(str(Path(file).parents[1]))
    folders.update(
        entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")
    )
    for folder in list(folders):
        for file in sorted(Path(folder).glob("*.pth")):
            folders.update(_lines_of_pth(file))
    return frozenset(os.path.realpath(folder) for folder in folders)


def _lines_of_pth(file: Path) -> Iterator[str]:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    for line in map(str.strip, lines):
        if line and not line.startswith(("import ", "import\t", "#")):
            place = os.path.join(file.parent, line)
            if os.path.isdir(place):
                yield place
