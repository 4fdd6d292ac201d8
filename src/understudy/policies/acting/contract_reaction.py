"""The reaction to weights or observations that differ from those of training: a warning, an error, or none."""

import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from understudy.contract.facts import FILE
from understudy.contract.mismatch import ContractError, ContractWarning, Mismatch
from understudy.policies.weight_files import FILE as WEIGHTS
from understudy.policies.weight_files import TensorReader

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


def compare_weights(folder: Path, files: TensorReader) -> list[Mismatch]:
    """Compare the weights of a folder with the digest in its contract.json, if that has one.

    Raises:
        OSError: a file cannot be read. ValueError: a weight is not finite.
    """
    written = json.loads((folder / FILE).read_text(encoding="utf-8")).get("weights")
    if written is None or files.sample_digest() == written:
        return []
    fix = f"export the policy again, or remove {FILE} if you changed the weights yourself"
    return [Mismatch("weights", WEIGHTS, "the weights that contract.json was written with", "others", fix)]


def plain(value: Any) -> Any:
    """Convert a tensor to numpy, bfloat16 to float32; strings stay."""
    if isinstance(value, Tensor):
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().cpu().numpy()
    return value if isinstance(value, str) else np.asarray(value)
