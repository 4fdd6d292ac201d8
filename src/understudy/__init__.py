"""Train robot policies from demonstrations.

    import understudy as us
    batch = next(us.Loader("path or hub id", batch_size=32, seed=0))

The public names are those of `__init__.pyi`. Each is imported when it is first used, so `import understudy` is quick,
and a tool that reads metadata only never imports torch.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

_MODULES = {
    alias.name: str(node.module)
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text()).body
    if isinstance(node, ast.ImportFrom) and str(node.module).startswith("understudy")
    for alias in node.names
}

__all__ = sorted([*_MODULES, "train"])
_RENAMED = {"Remote": "RemoteOptions"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        from understudy.deprecation import warn_renamed

        warn_renamed(f"understudy.{name}", f"understudy.{_RENAMED[name]}")
        name = _RENAMED[name]
    if name == "train":  # the package is callable: `us.train(config)` and `understudy.train.run` both work
        return import_module("understudy.train")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
