"""Public names and their modules: the only list of them. `__init__.py` imports each when it is
first used.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from understudy import policies as policies
from understudy.config.data import DataConfig as DataConfig
from understudy.config.gymnasium_options import GymnasiumOptions as GymnasiumOptions
from understudy.config.rollout import Play as Play
from understudy.config.rollout import RolloutConfig as RolloutConfig
from understudy.config.train import TrainConfig as TrainConfig
from understudy.devices import torch_device as torch_device
from understudy.distributed.mesh import Mesh as Mesh
from understudy.optim.master_weights import MasterWeights as MasterWeights
from understudy.policies.acting import Generation as Generation
from understudy.policies.acting import Prepared as Prepared
from understudy.policies.acting import Reaction as Reaction
from understudy.policies.acting import react as react
from understudy.policies.capabilities.past import Past as Past
from understudy.policies.capabilities.returns import PredictsReturns as PredictsReturns
from understudy.policies.common.facts import PolicyConfig as PolicyConfig
from understudy.policies.common.flow_matching import euler as euler
from understudy.policies.common.flow_matching import spread_times as spread_times
from understudy.policies.common.folder_facts import FOLDER_FACTS as FOLDER_FACTS
from understudy.policies.common.layers import Linear as Linear
from understudy.policies.common.lerobot_processors import LerobotProcessor as LerobotProcessor
from understudy.policies.common.lerobot_processors import read_object as read_object
from understudy.policies.common.normalizer import Normalizer as Normalizer
from understudy.policies.common.observing import ObservingPolicy as ObservingPolicy
from understudy.policies.common.settings import EncoderSettings as EncoderSettings
from understudy.policies.common.settings import LossTerm as LossTerm
from understudy.policies.common.settings import TaskMode as TaskMode
from understudy.policies.common.streams import Stream as Stream
from understudy.policies.draws import Draws as Draws
from understudy.policies.draws import RandomSpec as RandomSpec
from understudy.policies.draws import Use as Use
from understudy.policies.draws import generate_draws as generate_draws
from understudy.policies.inference import RobotPolicy as RobotPolicy
from understudy.policies.inference import load_policy as load_policy
from understudy.policies.losses import Imagined as Imagined
from understudy.policies.losses import Loss as Loss
from understudy.policies.losses import masked_squared_error as masked_squared_error
from understudy.policies.losses import valid_elements as valid_elements
from understudy.policies.observation_history import ObservationHistory as ObservationHistory
from understudy.policies.own_code.types import import_object as import_object
from understudy.policies.own_code.types import name_by_hand as name_by_hand
from understudy.policies.pi05.config import Pi05PolicyConfig as Pi05PolicyConfig
from understudy.policies.pi05.config import Pi05Settings as Pi05Settings
from understudy.policies.pi05.network import Suffix as Suffix
from understudy.policies.pi05.normalization import StoredNormalization as StoredNormalization
from understudy.policies.pi05.policy import Pi05Policy as Pi05Policy
from understudy.policies.pi05.released_keys import WeightsError as WeightsError
from understudy.policies.pi05.released_keys import is_adaptive as is_adaptive
from understudy.policies.policy import Policy as Policy
from understudy.policies.policy_folder import find_policy as find_policy
from understudy.policies.registry import PolicyType as PolicyType
from understudy.policies.registry import policy_type as policy_type
from understudy.policies.settings import PolicySettings as PolicySettings
from understudy.policies.weight_files import TensorReader as TensorReader
from understudy.policies.weight_files import WeightFiles as WeightFiles
from understudy.report.run.overlay import Run as Run
from understudy.report.run.parts import PagePart as PagePart
from understudy.report.run.tables import short_text as short_text
from understudy.train.checkpoint.export import ExportConfig as ExportConfig
from understudy.train.checkpoint.run_dir import RunDir as RunDir
from understudy.train.data.input_contract import dataset_contract as dataset_contract
from understudy.train.data.sources import open_source as open_source
from understudy.train.precision_report import check_precision as check_precision
from understudy.train.proofs.check import check_policy as check_policy
from understudy.train.run import open_checkpoint as open_checkpoint
from understudy.train.run_hooks import check_rollout_settings as check_rollout_settings
from understudy.train.state import TrainState as TrainState
from understudy.train.track.metrics_file import Verdict as Verdict
from understudy.train.track.trackers import MetricsLog as MetricsLog
from understudy.train.validation.any_loop import validate as validate
from understudy.train.validation.open_loop import EpisodeActions as EpisodeActions
from understudy_base import ACTION as ACTION
from understudy_base import STATE as STATE
from understudy_base import TASK as TASK
from understudy_base import ConfigError as ConfigError
from understudy_base import DataAccessError as DataAccessError
from understudy_base import DatasetError as DatasetError
from understudy_base import SourceError as SourceError
from understudy_base import UnderstudyError as UnderstudyError
from understudy_base import __version__ as __version__
from understudy_base import keep_freed_memory as keep_freed_memory
from understudy_client import AsyncChunks as AsyncChunks
from understudy_client import RemotePolicy as RemotePolicy
from understudy_data import Catalog as Catalog
from understudy_data import EpisodeDataset as EpisodeDataset
from understudy_data import EpisodeSampler as EpisodeSampler
from understudy_data import EpisodeStream as EpisodeStream
from understudy_data import EpisodeWriter as EpisodeWriter
from understudy_data import Loader as Loader
from understudy_data import Order as Order
from understudy_data import RemoteOptions as RemoteOptions
from understudy_data import choose_order as choose_order
from understudy_data import sample_rng as sample_rng

def train(config: TrainConfig | Mapping[str, Any] | str | Path) -> Path: ...
