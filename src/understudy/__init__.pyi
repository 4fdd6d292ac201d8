"""Public names and their modules: the only list of them. `__init__.py` imports each when it is first used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy import policies as policies
from understudy.config.train import TrainConfig as TrainConfig
from understudy.data.dataset import EpisodeDataset as EpisodeDataset
from understudy.data.format.catalog import Catalog as Catalog
from understudy.data.write.writer import EpisodeWriter as EpisodeWriter
from understudy.load.choose_order import choose_order as choose_order
from understudy.load.dataloader.episode_sampler import EpisodeSampler as EpisodeSampler
from understudy.load.dataloader.episode_stream import EpisodeStream as EpisodeStream
from understudy.load.loader import Loader as Loader
from understudy.optim.master_weights import MasterWeights as MasterWeights
from understudy.order import Order as Order
from understudy.order import sample_rng as sample_rng
from understudy.policies.inference import load_policy as load_policy
from understudy.serve.async_chunks import AsyncChunks as AsyncChunks
from understudy.serve.client import RemotePolicy as RemotePolicy
from understudy.storage.remote_options import RemoteOptions as RemoteOptions
from understudy_base._version import __version__ as __version__
from understudy_base.errors import ConfigError as ConfigError
from understudy_base.errors import DatasetError as DatasetError
from understudy_base.errors import UnderstudyError as UnderstudyError
from understudy_base.malloc import keep_freed_memory as keep_freed_memory

def train(config: TrainConfig | Mapping[str, Any] | str | Path) -> Path: ...
