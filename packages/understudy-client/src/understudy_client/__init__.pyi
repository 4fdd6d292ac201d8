"""Names that other distributions take, and their modules. `__init__.py` imports each when it is
first used.
"""

# Tokens, and names of this machine.
from understudy_client.access import is_authorized as is_authorized
from understudy_client.access import is_loopback as is_loopback
from understudy_client.access import read_token as read_token

# Policies behind an address.
from understudy_client.async_chunks import AsyncChunks as AsyncChunks
from understudy_client.client import RemotePolicy as RemotePolicy

# How the images of a camera looked, and how often a fault of them is seen.
from understudy_client.contract.camera_print import CameraPrint as CameraPrint
from understudy_client.contract.camera_print import estimate_power as estimate_power
from understudy_client.contract.camera_print import shrink as shrink

# Two contracts against each other.
from understudy_client.contract.compare import compare_contracts as compare_contracts
from understudy_client.contract.compare import compare_robots as compare_robots

# The contract: its facts, its file, and sizes of images that fit.
from understudy_client.contract.declared import declare as declare
from understudy_client.contract.facts import FIGURES as FIGURES
from understudy_client.contract.facts import CameraFacts as CameraFacts
from understudy_client.contract.facts import Contract as Contract
from understudy_client.contract.facts import RobotFacts as RobotFacts
from understudy_client.contract.facts import VectorFacts as VectorFacts
from understudy_client.contract.facts import figures_digest as figures_digest
from understudy_client.contract.facts import write_contract as write_contract
from understudy_client.contract.image_size import size_error as size_error

# One difference, and the errors that list differences.
from understudy_client.contract.mismatch import ContractError as ContractError
from understudy_client.contract.mismatch import ContractWarning as ContractWarning
from understudy_client.contract.mismatch import Mismatch as Mismatch
from understudy_client.contract.mismatch import printable as printable

# Explanations of numbers that do not fit.
from understudy_client.contract.numbers import FACTORS as FACTORS
from understudy_client.contract.numbers import UNIT_KINDS as UNIT_KINDS
from understudy_client.contract.numbers import explain_numbers as explain_numbers
from understudy_client.contract.numbers import log_likelihood as log_likelihood

# Observations against a contract, over time.
from understudy_client.contract.observed import LEAST_SEEN as LEAST_SEEN
from understudy_client.contract.observed import ObservationCheck as ObservationCheck

# Messages: their arrays, keys and errors.
from understudy_client.dialects import OPENPI as OPENPI
from understudy_client.dialects import Dialect as Dialect
from understudy_client.protocol import CONTROL as CONTROL
from understudy_client.protocol import ERROR as ERROR
from understudy_client.protocol import PROTOCOL_VERSION as PROTOCOL_VERSION
from understudy_client.protocol import DeadlineError as DeadlineError
from understudy_client.protocol import MessageError as MessageError
from understudy_client.protocol import Noise as Noise
from understudy_client.protocol import RemoteError as RemoteError
from understudy_client.protocol import build_array as build_array
from understudy_client.protocol import decode_message as decode_message
from understudy_client.protocol import describe_error as describe_error
from understudy_client.protocol import encode as encode
