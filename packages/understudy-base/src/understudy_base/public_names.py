"""Public names of a package: those that the stub next to its `__init__.py` imports. Each is
imported on use.
"""

import ast
from pathlib import Path


def public_names(package: str) -> dict[str, str]:
    """Return the public names of a package, each with its module.

    Args:
        package: path of `__init__.py`.
    """
    return {
        alias.name: str(node.module)
        for node in ast.parse(Path(package).with_suffix(".pyi").read_text()).body
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("understudy")
        for alias in node.names
        if alias.asname == alias.name
    }
