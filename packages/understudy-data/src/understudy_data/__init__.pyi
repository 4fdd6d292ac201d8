"""Names that other distributions take, and their modules. `__init__.py` imports each when it is
first used.
"""

# Checksums of a folder, and repositories on the hub.
from understudy_data.checksums import Checksums as Checksums
from understudy_data.checksums import file_sha256 as file_sha256
from understudy_data.checksums import write_checksums as write_checksums

# Datasets, their files, and episodes that cannot be used.
from understudy_data.datasets.bad_episodes import BadEpisodes as BadEpisodes
from understudy_data.datasets.dataset import EpisodeDataset as EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog as Catalog
from understudy_data.datasets.format.catalogs import Catalogs as Catalogs
from understudy_data.datasets.format.features import Feature as Feature
from understudy_data.datasets.format.standard_keys import StandardKeys as StandardKeys
from understudy_data.datasets.read.rows import Rows as Rows

# The episodes and frames that are samples.
from understudy_data.datasets.selection.select import Selection as Selection
from understudy_data.datasets.selection.select import open_episodes as open_episodes
from understudy_data.datasets.split import EpisodeSplit as EpisodeSplit

# Statistics and normalization.
from understudy_data.datasets.stats.norm_heads import HeadMember as HeadMember
from understudy_data.datasets.stats.norm_heads import NormHeads as NormHeads
from understudy_data.datasets.stats.summary import DimensionMode as DimensionMode
from understudy_data.datasets.stats.summary import Statistics as Statistics
from understudy_data.datasets.used_files import UsedFiles as UsedFiles

# Recording.
from understudy_data.datasets.write.writer import EpisodeWriter as EpisodeWriter
from understudy_data.datasets.write.writer import check_features as check_features
from understudy_data.hub.cards import ModelCard as ModelCard
from understudy_data.hub.download import HubRepo as HubRepo

# Batches.
from understudy_data.load.bad_frames import Substitution as Substitution
from understudy_data.load.batch_mixing import BatchMixing as BatchMixing
from understudy_data.load.choose_order import choose_order as choose_order
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler as EpisodeSampler
from understudy_data.load.dataloader.episode_stream import EpisodeStream as EpisodeStream
from understudy_data.load.decode_rate import decode_in_a_row as decode_in_a_row
from understudy_data.load.instructions import Instructions as Instructions
from understudy_data.load.loader import Loader as Loader
from understudy_data.load.mixed_batches import Mixture as Mixture
from understudy_data.load.order_rows import OrderExport as OrderExport
from understudy_data.load.order_rows import Span as Span
from understudy_data.load.row_sample import RowSample as RowSample
from understudy_data.load.validation_data import ValidationData as ValidationData
from understudy_data.load.validation_data import prefetch_chunks as prefetch_chunks
from understudy_data.load.validation_data import sample_identity as sample_identity

# The order, its random numbers and its files.
from understudy_data.order import KeyedDraws as KeyedDraws
from understudy_data.order import Order as Order
from understudy_data.order import sample_normal as sample_normal
from understudy_data.order import sample_rng as sample_rng
from understudy_data.order_file import OrderFile as OrderFile
from understudy_data.order_file import Samples as Samples

# Work in parts, and processes.
from understudy_data.parts import Lost as Lost
from understudy_data.parts import Part as Part
from understudy_data.parts import Workers as Workers
from understudy_data.process_rank import ProcessRank as ProcessRank

# Prompts, storage and images.
from understudy_data.prompt_metadata import PromptMetadata as PromptMetadata
from understudy_data.storage.remote_options import RemoteOptions as RemoteOptions
from understudy_data.video.color import ImageSize as ImageSize
from understudy_data.video.encode import check_size as check_size
from understudy_data.video.native.loops import loops_status as loops_status
