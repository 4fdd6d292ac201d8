"""understudy: train robot policies from demonstrations.

The public names, loaded when first touched, so that `import understudy` costs nothing and a tool that only reads
metadata never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from understudy._version import __version__

_WHERE = {
    "Catalog": "understudy.data.format.catalog",
    "DatasetError": "understudy.errors",
    "EpisodeDataset": "understudy.data.dataset",
    "EpisodeSampler": "understudy.load.dataloader.sampler",
    "EpisodeStream": "understudy.load.dataloader.iterable",
    "EpisodeWriter": "understudy.data.write.writer",
    "Loader": "understudy.load.loader",
    "MasterWeights": "understudy.optim.master_weights",
    "Order": "understudy.order",
    "Remote": "understudy.storage.options",
    "keep_freed_memory": "understudy.malloc",
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
    from understudy.data.dataset import EpisodeDataset
    from understudy.data.format.catalog import Catalog
    from understudy.data.write.writer import EpisodeWriter
    from understudy.errors import DatasetError
    from understudy.load.dataloader.iterable import EpisodeStream
    from understudy.load.dataloader.sampler import EpisodeSampler
    from understudy.load.loader import Loader
    from understudy.malloc import keep_freed_memory
    from understudy.optim.master_weights import MasterWeights
    from understudy.order import Order, sample_rng
    from understudy.storage.options import Remote


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(import_module(_WHERE[name]), name)
    raise AttributeError(f"module 'understudy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
