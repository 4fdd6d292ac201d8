"""Train robot policies from demonstrations.

    import understudy as us
    batch = next(us.Loader("path or hub id", batch_size=32, seed=0))

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so
`import understudy` is quick, and a tool that reads metadata only never imports torch.
"""

from importlib import import_module
from typing import Any

from understudy_base.public_names import public_names

_MODULES = public_names(__file__)

__all__ = sorted([*_MODULES, "train"])


def __getattr__(name: str) -> Any:
    # the latter is callable: `us.train(config)` and `understudy.train.run` both work
    if name in ("policies", "train"):
        return import_module(f"understudy.{name}")
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
