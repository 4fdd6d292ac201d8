"""The reaction to observations that differ from those of training: a warning, an error, or none."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from understudy.contract.mismatch import ContractError, ContractWarning, Mismatch

Reaction = Literal["warn", "strict", "off"]
"""A `ContractWarning` for each difference, a `ContractError`, or nothing."""


def react(reaction: Reaction, found: Sequence[Mismatch]) -> None:
    """Raise or warn where there are differences."""
    if found and reaction == "strict":
        raise ContractError(found)
    for mismatch in found if reaction == "warn" else ():
        warnings.warn(str(mismatch), ContractWarning, stacklevel=3)


@contextmanager
def explained(reaction: Reaction, compare: Callable[[], object]) -> Iterator[None]:
    """Compare an observation that the block refuses with training, where the reaction is strict.

    Raises:
        ContractError: of `compare`, in place of the block's error.
    """
    try:
        yield
    except (ValueError, TypeError):
        if reaction == "strict":
            with suppress(IndexError):  # of a batch with too few rows
                compare()
        raise


def plain(value: Any) -> Any:
    """Convert a tensor to numpy, bfloat16 to float32; strings stay."""
    if isinstance(value, Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return value if isinstance(value, str) else np.asarray(value)
