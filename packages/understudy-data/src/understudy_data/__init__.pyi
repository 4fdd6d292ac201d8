"""Names that other distributions take, and their modules. `__init__.py` imports each when it is
first used.
"""

from understudy_data.checksums import file_sha256 as file_sha256
from understudy_data.checksums import write_checksums as write_checksums
from understudy_data.datasets.dataset import EpisodeDataset as EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog as Catalog
from understudy_data.datasets.format.features import Feature as Feature
from understudy_data.datasets.read.rows import Rows as Rows
from understudy_data.datasets.selection.select import open_episodes as open_episodes
from understudy_data.datasets.write.writer import EpisodeWriter as EpisodeWriter
from understudy_data.datasets.write.writer import check_features as check_features
from understudy_data.load.choose_order import choose_order as choose_order
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler as EpisodeSampler
from understudy_data.load.dataloader.episode_stream import EpisodeStream as EpisodeStream
from understudy_data.load.instructions import Instructions as Instructions
from understudy_data.load.loader import Loader as Loader
from understudy_data.load.validation_data import ValidationData as ValidationData
from understudy_data.load.validation_data import prefetch_chunks as prefetch_chunks
from understudy_data.load.validation_data import sample_identity as sample_identity
from understudy_data.order import Order as Order
from understudy_data.order import sample_normal as sample_normal
from understudy_data.order import sample_rng as sample_rng
from understudy_data.parts import Lost as Lost
from understudy_data.parts import Part as Part
from understudy_data.parts import Workers as Workers
from understudy_data.prompt_metadata import PromptMetadata as PromptMetadata
from understudy_data.storage.remote_options import RemoteOptions as RemoteOptions
from understudy_data.video.encode import check_size as check_size
