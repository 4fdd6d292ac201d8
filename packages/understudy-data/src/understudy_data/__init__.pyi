"""Names that other distributions take, and their modules. `__init__.py` imports each when it is
first used.
"""

# Checksums of the files of a folder.
from understudy_data.checksums import Checksums as Checksums

# A dataset: its metadata, samples and rows, and episodes that cannot be used.
from understudy_data.datasets.bad_episodes import BadEpisodes as BadEpisodes
from understudy_data.datasets.check_files import FileCheck as FileCheck
from understudy_data.datasets.dataset import EpisodeDataset as EpisodeDataset
from understudy_data.datasets.episode_arrays import EpisodeArrays as EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog as Catalog
from understudy_data.datasets.format.catalogs import Catalogs as Catalogs
from understudy_data.datasets.format.episode_table import spread_evenly as spread_evenly
from understudy_data.datasets.format.features import DEFAULTS as DEFAULTS
from understudy_data.datasets.format.features import Feature as Feature
from understudy_data.datasets.format.standard_keys import StandardKeys as StandardKeys
from understudy_data.datasets.read.clips import Encoding as Encoding
from understudy_data.datasets.read.clips import EpisodeClips as EpisodeClips
from understudy_data.datasets.read.clips import VideoClip as VideoClip
from understudy_data.datasets.read.columns import read_numbers as read_numbers
from understudy_data.datasets.read.outside_video import OutsideVideo as OutsideVideo
from understudy_data.datasets.read.recorded_images import RecordedImages as RecordedImages
from understudy_data.datasets.read.rows import Rows as Rows
from understudy_data.datasets.read.sensors import SensorTable as SensorTable
from understudy_data.datasets.read.sensors import sensor_groups as sensor_groups
from understudy_data.datasets.read.texts import Responses as Responses
from understudy_data.datasets.read.video_file import VideoFile as VideoFile

# The episodes and frames that are samples.
from understudy_data.datasets.selection.keep_ranges import EpisodeNames as EpisodeNames
from understudy_data.datasets.selection.select import Selection as Selection
from understudy_data.datasets.selection.select import open_episodes as open_episodes
from understudy_data.datasets.split import EpisodeSplit as EpisodeSplit

# Statistics, normalization, and the files that a run used.
from understudy_data.datasets.stats.norm_heads import HeadMember as HeadMember
from understudy_data.datasets.stats.norm_heads import NormHeads as NormHeads
from understudy_data.datasets.stats.recorded import RecordedStatistics as RecordedStatistics
from understudy_data.datasets.stats.running import ImageStatistics as ImageStatistics
from understudy_data.datasets.stats.summary import DimensionMode as DimensionMode
from understudy_data.datasets.stats.summary import Statistics as Statistics
from understudy_data.datasets.used_files import UsedFiles as UsedFiles

# Recording and writing.
from understudy_data.datasets.write.statistics import DatasetStatistics as DatasetStatistics
from understudy_data.datasets.write.statistics import EpisodeStatistics as EpisodeStatistics
from understudy_data.datasets.write.writer import EpisodeWriter as EpisodeWriter
from understudy_data.datasets.write.writer import check_features as check_features
from understudy_data.datasets.write.written_files import DatasetFiles as DatasetFiles

# Repositories on the hub.
from understudy_data.hub.cards import ModelCard as ModelCard
from understudy_data.hub.download import HubRepo as HubRepo
from understudy_data.hub.upload import push as push

# Batches, and what they are made of.
from understudy_data.load.bad_frames import Substitution as Substitution
from understudy_data.load.batch_mixing import BatchMixing as BatchMixing
from understudy_data.load.choose_order import choose_order as choose_order
from understudy_data.load.dataloader.episode_sampler import EpisodeSampler as EpisodeSampler
from understudy_data.load.dataloader.episode_stream import EpisodeStream as EpisodeStream
from understudy_data.load.decode_rate import decode_in_a_row as decode_in_a_row
from understudy_data.load.explain import ExplainedOrder as ExplainedOrder
from understudy_data.load.instructions import Instructions as Instructions
from understudy_data.load.loader import Loader as Loader
from understudy_data.load.mixed_batches import Mixture as Mixture
from understudy_data.load.order_rows import OrderExport as OrderExport
from understudy_data.load.order_rows import Span as Span
from understudy_data.load.row_sample import RowSample as RowSample
from understudy_data.load.validation_data import ValidationData as ValidationData
from understudy_data.load.validation_data import prefetch_chunks as prefetch_chunks
from understudy_data.load.validation_data import sample_identity as sample_identity

# The order, its files and its random draws.
from understudy_data.order import KeyedDraws as KeyedDraws
from understudy_data.order import Order as Order
from understudy_data.order import sample_normal as sample_normal
from understudy_data.order import sample_rng as sample_rng
from understudy_data.order_file import OrderFile as OrderFile
from understudy_data.order_file import Samples as Samples

# Work in parts, values in files, ranks, prompts and storage.
from understudy_data.parts import Lost as Lost
from understudy_data.parts import Part as Part
from understudy_data.parts import Workers as Workers
from understudy_data.plain_values import storable as storable
from understudy_data.process_rank import ProcessRank as ProcessRank
from understudy_data.prompt_metadata import PromptMetadata as PromptMetadata
from understudy_data.storage.remote_folder import RemoteFolder as RemoteFolder
from understudy_data.storage.remote_options import RemoteOptions as RemoteOptions

# Videos and images.
from understudy_data.video.color import ImageSize as ImageSize
from understudy_data.video.encode import check_size as check_size
from understudy_data.video.native.loops import loops_status as loops_status
from understudy_data.video.orientation import upright as upright
from understudy_data.video.quality import Quality as Quality
