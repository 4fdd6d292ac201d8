"""Names that other distributions take, and their modules. `__init__.py` imports each when it is
first used.
"""

# Version of all distributions.
from understudy_base._version import __version__ as __version__

# Whole files and folders.
from understudy_base.atomic import DRAFT_SUFFIX as DRAFT_SUFFIX
from understudy_base.atomic import BeingWritten as BeingWritten
from understudy_base.atomic import create_folder as create_folder
from understudy_base.atomic import draft_path as draft_path
from understudy_base.atomic import hold_folder as hold_folder
from understudy_base.atomic import is_taken as is_taken
from understudy_base.atomic import path_in_errors as path_in_errors
from understudy_base.atomic import recover_folder as recover_folder
from understudy_base.atomic import refuse_existing as refuse_existing
from understudy_base.atomic import replace_file as replace_file
from understudy_base.atomic import replace_folder as replace_folder
from understudy_base.atomic import sync as sync
from understudy_base.atomic import write_bytes as write_bytes
from understudy_base.atomic import write_text as write_text

# Keys of a batch.
from understudy_base.batch_keys import ACTION as ACTION
from understudy_base.batch_keys import HEAD as HEAD
from understudy_base.batch_keys import LOSS_WEIGHT as LOSS_WEIGHT
from understudy_base.batch_keys import MODE as MODE
from understudy_base.batch_keys import PROMPT_METADATA as PROMPT_METADATA
from understudy_base.batch_keys import RESPONSE as RESPONSE
from understudy_base.batch_keys import RETURN as RETURN
from understudy_base.batch_keys import RETURN_IS_PAD as RETURN_IS_PAD
from understudy_base.batch_keys import SOURCE as SOURCE
from understudy_base.batch_keys import STATE as STATE
from understudy_base.batch_keys import TASK as TASK

# Values of settings.
from understudy_base.booleans import holds_boolean as holds_boolean
from understudy_base.booleans import is_boolean as is_boolean
from understudy_base.bytesize import parse_bytes as parse_bytes

# Cores of this process.
from understudy_base.cores import MOST_LOADER_THREADS as MOST_LOADER_THREADS
from understudy_base.cores import available_cores as available_cores
from understudy_base.cores import fair_threads as fair_threads
from understudy_base.cores import processes_here as processes_here

# Counts in messages.
from understudy_base.counts import plural as plural

# Addresses of datasets, and their credentials.
from understudy_base.credentials import CREDENTIALS_HINT as CREDENTIALS_HINT
from understudy_base.credentials import has_credentials as has_credentials
from understudy_base.credentials import redact as redact
from understudy_base.credentials import remember_credentials as remember_credentials
from understudy_base.credentials import restore_credentials as restore_credentials
from understudy_base.credentials import strip_credentials as strip_credentials
from understudy_base.dataset_address import VIEW_NAME as VIEW_NAME
from understudy_base.dataset_address import absolute_path as absolute_path
from understudy_base.dataset_address import is_list as is_list
from understudy_base.dataset_address import is_several as is_several
from understudy_base.dataset_address import split_view as split_view

# Objects that installed packages offer.
from understudy_base.entry_points import EntryPoint as EntryPoint
from understudy_base.entry_points import EntryPointError as EntryPointError
from understudy_base.entry_points import find_entry_points as find_entry_points
from understudy_base.entry_points import load_entry_point as load_entry_point

# Ids of episodes, as a user writes them.
from understudy_base.episode_ids import MOST_IDS as MOST_IDS
from understudy_base.episode_ids import parse_ids as parse_ids
from understudy_base.episode_ids import repeated as repeated

# Errors, and addresses of pages for their messages.
from understudy_base.errors import ConfigError as ConfigError
from understudy_base.errors import DataAccessError as DataAccessError
from understudy_base.errors import DatasetError as DatasetError
from understudy_base.errors import EmptyDatasetError as EmptyDatasetError
from understudy_base.errors import LfsPointerError as LfsPointerError
from understudy_base.errors import MissingFileError as MissingFileError
from understudy_base.errors import SourceError as SourceError
from understudy_base.errors import UnderstudyError as UnderstudyError
from understudy_base.errors import hub_remedy as hub_remedy
from understudy_base.errors import is_offline as is_offline
from understudy_base.errors import is_out_of_memory as is_out_of_memory
from understudy_base.errors import is_wrong_input as is_wrong_input
from understudy_base.errors import page as page
from understudy_base.errors import summarize as summarize
from understudy_base.errors import with_addresses as with_addresses

# A cache, and the reuse of freed memory.
from understudy_base.lru import LRUCache as LRUCache
from understudy_base.malloc import keep_freed_memory as keep_freed_memory

# Optional packages, and the error for one that is not installed.
from understudy_base.optional_packages import PIP_LINES as PIP_LINES
from understudy_base.optional_packages import MissingExtraError as MissingExtraError
from understudy_base.optional_packages import describe_missing as describe_missing
from understudy_base.optional_packages import describe_old_numpy as describe_old_numpy
from understudy_base.optional_packages import missing_distribution as missing_distribution
from understudy_base.optional_packages import optional_imports as optional_imports
from understudy_base.optional_packages import pip_line as pip_line
from understudy_base.optional_packages import require as require

# Progress of long work.
from understudy_base.progress import Progress as Progress
from understudy_base.progress import show_log as show_log

# Public names of a package.
from understudy_base.public_names import lazy_names as lazy_names

# Values by name.
from understudy_base.records import Batch as Batch
from understudy_base.records import Record as Record
from understudy_base.records import Records as Records
from understudy_base.records import finite as finite

# Temporary folders.
from understudy_base.temporary import fork_server as fork_server
from understudy_base.temporary import temporary_folder as temporary_folder
from understudy_base.temporary import use_for_sockets as use_for_sockets
