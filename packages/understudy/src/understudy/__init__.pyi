"""Public names and their modules: the only list of them. `__init__.py` imports each when it is
first used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy import policies as policies
from understudy.config.train import TrainConfig as TrainConfig
from understudy.optim.master_weights import MasterWeights as MasterWeights
from understudy.policies.inference import load_policy as load_policy
from understudy.train.precision_report import check_precision as check_precision
from understudy.train.proofs.check import check_policy as check_policy
from understudy.train.validation.any_loop import validate as validate
from understudy_base import ConfigError as ConfigError
from understudy_base import DatasetError as DatasetError
from understudy_base import UnderstudyError as UnderstudyError
from understudy_base import __version__ as __version__
from understudy_base import keep_freed_memory as keep_freed_memory
from understudy_client import AsyncChunks as AsyncChunks
from understudy_client import RemotePolicy as RemotePolicy
from understudy_data.datasets.dataset import EpisodeDataset as EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog as Catalog
from understudy_data.datasets.write.writer import EpisodeWriter as EpisodeWriter
from understudy_data.load.choose_order import choose_order as choose_order
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler as EpisodeSampler
from understudy_data.load.dataloader.episode_stream import EpisodeStream as EpisodeStream
from understudy_data.load.loader import Loader as Loader
from understudy_data.order import Order as Order
from understudy_data.order import sample_rng as sample_rng
from understudy_data.storage.remote_options import RemoteOptions as RemoteOptions

def train(config: TrainConfig | Mapping[str, Any] | str | Path) -> Path: ...
