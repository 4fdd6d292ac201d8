"""The robot's side of a policy: its contract, the client, and chunks of actions.

access        tokens and names of the host
async_chunks  `AsyncChunks`: the next chunk is predicted while the last one is executed
client        `RemotePolicy`, the policy behind an address
contract      the contract of a policy, dataset, robot or environment (docs/contract.md), and checks
              of observations against it
dialects      forms of arrays in msgpack, and descriptions of unknown ones
protocol      messages: msgpack with numpy arrays, as openpi sends them, and errors
testing       helpers of tests

The names that other distributions take are those of `__init__.pyi`; each is imported when it is
first used.
"""

from understudy_base import lazy_names

__getattr__, __dir__ = lazy_names(__name__, __file__)
