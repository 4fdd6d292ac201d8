"""Checks of a policy's batch, whose errors name the key, copies to its device, and arithmetic on
the host.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from understudy.policies.capabilities.past import Past
from understudy_base import ACTION, PROMPT_METADATA, SOURCE, STATE, TASK, Batch
from understudy_data import PromptMetadata

CUT_SUFFIX = "_is_cut"
"""End of the keys, bool [B], that mark samples of which `Policy.preprocess` could not keep
everything. A run logs their share.
"""


def value_of(batch: Batch, key: str) -> Any:
    """Return `batch[key]`. Raises ValueError, with the keys, where it is missing."""
    if key not in batch:
        raise ValueError(f"the batch has {sorted(batch)}, the policy needs {key!r}")
    return batch[key]


def prompts_of(batch: Batch) -> list[str]:
    """Return the instruction of each sample, with its metadata where the batch has
    `prompt_metadata`.
    """
    return PromptMetadata.add(value_of(batch, TASK), batch.get(PROMPT_METADATA))


def check_shape(name: str, tensor: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise ValueError where the shape of a tensor is not `shape` (None: any)."""
    got = tuple(tensor.shape)
    if len(got) != len(shape) or any(
        want is not None and have != want for have, want in zip(got, shape)
    ):
        sides = []
        for side in shape:
            text = "any" if side is None else str(side)
            sides.append(text)
        raise ValueError(f"{name} has shape {got}, expected ({', '.join(sides)})")


def check_image(name: str, image: Tensor, shape: tuple[int | None, ...]) -> None:
    """Raise ValueError where an image is not uint8 of this shape."""
    check_shape(name, image, shape)
    if image.dtype != torch.uint8:
        raise ValueError(f"{name} is {image.dtype}, images are uint8")


def from_present(batch: Batch, config: Any) -> dict[str, Any]:
    """Return a batch as `act` takes it: without the past actions and the future that a policy only
    trains on.

    Future states and images that a task mode gives remain: `act` in such a mode may read them.
    """
    past = Past.of(config).actions
    keys = [key for key in (ACTION, f"{ACTION}_is_pad") if key in batch and past]
    present = {**batch, **{key: batch[key][:, past:] for key in keys}}
    windows = () if config.future else config.windows(config.chunk, config.cameras)
    for key in windows:
        dims_of_window = 3 if key == STATE else 5
        # `preprocess` may have done it
        if key in present and present[key].ndim == dims_of_window:
            present[key] = present[key][:, 0]
        present.pop(f"{key}_is_pad", None)
    return present


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to `device` without waiting for the work queued there."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        # from pageable memory the copy would wait
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


HOST_KEYS = ("position", SOURCE)
"""Keys that a training reads on the host, and that stay there."""


def batch_to_device(batch: Batch, device: torch.device) -> dict[str, Any]:
    """Copy a batch to `device`; `position` and `source`, which the host reads, and texts stay on
    the host.
    """
    copied = dict(batch)
    for key, value in batch.items():
        if isinstance(value, Tensor) and key not in HOST_KEYS:
            copied[key] = to_device(value, device)
    return copied


def has_values(tensor: Tensor) -> bool:
    """Return whether a tensor has values; in a plan, which runs a network on shapes alone, it has
    none.
    """
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    return fake is None or not isinstance(tensor, fake.FakeTensor)


@contextmanager
def host_values() -> Iterator[None]:
    """Compute numbers that shapes depend on, from tensors and lists of the host.

    A plan runs the network on shapes alone; in this context its tensors have values. Also a
    decorator.
    """
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is None:  # nothing computes without values
        yield
        return
    with fake.unset_fake_temporarily():
        yield


STATES = "state_history"
STATES_IS_PAD = "state_history_is_pad"
"""Keys of the states over time, [B, T, S], and of their padding, bool [B, T]."""


def split_states(batch: Batch, count: int) -> dict[str, Any]:
    """Replace states over time [B, T, S] by the present ones [B, S], and keep all of them under
    `STATES`.

    Args:
        batch: see the module; a batch that was split stays as it is.
        count: T.

    Raises:
        ValueError: a missing key or a wrong shape, by name.
    """
    states = value_of(batch, STATE)
    if states.ndim == 2 and STATES in batch:
        return dict(batch)
    check_shape(STATE, states, (None, count, None))
    is_pad = value_of(batch, f"{STATE}_is_pad")
    check_shape(f"{STATE}_is_pad", is_pad, (len(states), count))
    return {**batch, STATE: states[:, -1], STATES: states, STATES_IS_PAD: is_pad}
