"""Train robot policies from demonstrations.

    import understudy as us
    batch = next(us.Loader("path or hub id", batch_size=32, seed=0))

The public names are listed in `__init__.pyi`. Each is imported when it is first used, so
`import understudy` is quick, and a tool that reads metadata only never imports torch.
"""

from importlib import import_module
from typing import Any

from understudy_base import lazy_names

_load, _list_names = lazy_names(__name__, __file__)

__all__ = sorted([*_list_names(), "train"])


def __getattr__(name: str) -> Any:
    # a module that is callable: `us.train(config)` and `understudy.train.run` both work
    if name == "train":
        return import_module("understudy.train")
    return _load(name)


def __dir__() -> list[str]:
    return __all__
