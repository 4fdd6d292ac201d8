"""understudy: train robot policies from demonstrations.

The public names, loaded when first touched, so that `import understudy` costs nothing and a tool that only reads
metadata never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_WHERE = {
    "Catalog": "understudy.data.catalog",
    "DatasetError": "understudy.data.errors",
    "EpisodeDataset": "understudy.data.samples",
    "EpisodeSampler": "understudy.load.sampler",
    "EpisodeStream": "understudy.load.stream",
    "EpisodeWriter": "understudy.data.write",
    "Loader": "understudy.load.loader",
    "MasterWeights": "understudy.train.master",
    "Order": "understudy.order",
    "Remote": "understudy.data.remote.settings",
    "keep_freed_memory": "understudy.load.memory",
    "sample_rng": "understudy.order",
}

__all__ = [
    "Catalog",
    "DatasetError",
    "EpisodeDataset",
    "EpisodeSampler",
    "EpisodeStream",
    "EpisodeWriter",
    "Loader",
    "MasterWeights",
    "Order",
    "Remote",
    "__version__",
    "keep_freed_memory",
    "sample_rng",
]

if TYPE_CHECKING:
    from understudy.data.catalog import Catalog
    from understudy.data.errors import DatasetError
    from understudy.data.remote.settings import Remote
    from understudy.data.samples import EpisodeDataset
    from understudy.data.write import EpisodeWriter
    from understudy.load.loader import Loader
    from understudy.load.memory import keep_freed_memory
    from understudy.load.sampler import EpisodeSampler
    from understudy.load.stream import EpisodeStream
    from understudy.order import Order, sample_rng
    from understudy.train.master import MasterWeights


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
