"""A policy as a function of tensors alone: the interface that graph formats are made from."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class GraphInput:
    """One input of a graph.

    Attributes:
        name: key of the observation; `task` are the tokens of the instruction, `noise` is standard normal.
        dtype: "uint8", "float32" or "int64".
        shape: without the batch dimension, which is the first and of any size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]


class PolicyGraph(nn.Module):
    """A policy of one robot as a function of tensors, in evaluation mode.

    Attributes:
        inputs: arguments of `forward`, in its sequence.
    """

    inputs: tuple[GraphInput, ...]

    @abstractmethod
    def prepare(self, task: str) -> Tensor:
        """Return the tokens of an instruction, int64 [1, L]."""
