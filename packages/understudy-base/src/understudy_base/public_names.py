"""Public names of a package: those that the stub next to its `__init__.py` imports. Each is
imported on use.
"""

import sys
from importlib import import_module

TYPE_CHECKING = False  # without `typing`, whose import takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def public_names(package: str) -> dict[str, str]:
    """Return the public names of a package, each with its module.

    Args:
        package: path of `__init__.py`.
    """
    import ast
    from pathlib import Path

    names: dict[str, str] = {}
    for node in ast.parse(Path(package).with_suffix(".pyi").read_text()).body:
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("understudy"):
            for alias in node.names:
                if alias.asname == alias.name:
                    names[alias.name] = str(node.module)
    return names


def lazy_names(name: str, path: str) -> "tuple[Callable[[str], Any], Callable[[], list[str]]]":
    """Return `__getattr__` and `__dir__` of a package whose public names are imported on use.

    A name is a value of the package from its first use on. A name that the stub imports from the
    package itself is a module of it. The stub is read at the first use of a name.

    Args:
        name: of the package.
        path: of its `__init__.py`.
    """
    modules: dict[str, str] = {}

    def read() -> dict[str, str]:
        if not modules:
            modules.update(public_names(path))
        return modules

    def load(public: str) -> "Any":
        if public not in read():
            raise AttributeError(f"module {name!r} has no attribute {public!r}")
        if modules[public] == name:
            return import_module(f"{name}.{public}")
        value = getattr(import_module(modules[public]), public)
        setattr(sys.modules[name], public, value)
        return value

    def list_names() -> list[str]:
        return sorted(read())

    return load, list_names
