"""Random numbers of a policy, keyed by (seed, purpose, position), independent of rank, batch and
restarts.

Numbers that a policy draws for itself (dropout, `torch.rand`, numpy, `random`) come from
`keyed_generators`: they are keyed by the call, so that they repeat with it, and the generators of
the process never move.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.random import mtrand
from torch import Tensor

from understudy_data import KeyedDraws

Draws = Mapping[str, Tensor]
"""Random numbers of a batch by name, each [B, *shape of its spec]."""

Use = Literal["train", "validation", "act"]
"""Purpose of a set of draws."""


class RandomSpec(NamedTuple):
    """Random numbers of one name that a policy needs for each sample."""

    kind: Literal["normal", "uniform"]
    """Standard normal, or uniform in [0, 1); float32."""
    shape: tuple[int, ...]
    """Shape per sample."""
    transform: Callable[[Tensor], Tensor] | None = None
    """Applied to [B, *shape] on the CPU, sample by sample; None keeps the numbers."""


def make_draws(
    spec: Mapping[str, RandomSpec], seed: int, positions: Any, purpose: str = ""
) -> dict[str, Tensor]:
    """Draw the numbers of a batch on the CPU.

    Args:
        spec: names and shapes (`Policy.random_spec`).
        seed: seed of the run.
        positions: int64 [B], the number that identifies each sample.
        purpose: prefix of the names in the key. A spec of one name is keyed by the purpose alone.
    """
    numbers = positions.numpy() if isinstance(positions, Tensor) else np.asarray(positions)
    draws = KeyedDraws(seed)
    made = {}
    for name, (kind, shape, transform) in spec.items():
        key = purpose if purpose and len(spec) == 1 else f"{purpose} {name}".strip()
        sample = draws.normal if kind == "normal" else draws.uniform
        values = torch.from_numpy(sample(key, numbers, shape))
        made[name] = values if transform is None else transform(values)
    return made


def generate_draws(
    spec: Mapping[str, RandomSpec], count: int, generator: torch.Generator | None = None
) -> dict[str, Tensor]:
    """Draw the numbers of `count` samples on the CPU from a torch generator; None is torch's
    default one.
    """
    made = {}
    for name, (kind, shape, transform) in spec.items():
        sample = torch.randn if kind == "normal" else torch.rand
        values = sample((count, *shape), generator=generator)
        made[name] = values if transform is None else transform(values)
    return made


_NUMPY = np.random.MT19937(0)
"""Bit generator of numpy's global functions within `keyed_generators`; making one takes longer than
all the rest.
"""


@contextmanager
def keyed_generators(key: int, device: torch.device) -> Iterator[Callable[[], list[str]]]:
    """Seed the global generators with `key` within this context, and give them their former states
    after it.

    Contexts must not be nested. One costs 40 microseconds of CPU.

    Args:
        key: 64 bits (`KeyedDraws.key`).
        device: device whose generator of torch is seeded as well.

    Yields:
        A function that names the generators that moved since: of `torch`, `numpy` and `random`.
    """
    words = [key & 0xFFFFFFFF, key >> 32]
    of_torch = _torch_generators(device)
    before = [generator.get_state() for generator in of_torch]
    of_numpy = mtrand.get_bit_generator()
    of_python = random.getstate()

    def moved() -> list[str]:
        seeded = [torch.Generator(generator.device).manual_seed(key) for generator in of_torch]
        changed = {
            "torch": any(
                not torch.equal(g.get_state(), new.get_state()) for g, new in zip(of_torch, seeded)
            ),
            "numpy": _numpy_state() != _state_of(np.random.RandomState(words).get_state()),
            "random": random.getstate() != random.Random(key).getstate(),
        }
        return [name for name, is_changed in changed.items() if is_changed]

    try:
        for generator in of_torch:
            generator.manual_seed(key)
        mtrand.set_bit_generator(_NUMPY)
        np.random.seed(words)  # noqa: NPY002  # the functions of a policy draw from it
        random.seed(key)
        yield moved
    finally:
        for generator, state in zip(of_torch, before):
            generator.set_state(state)
        mtrand.set_bit_generator(of_numpy)
        random.setstate(of_python)


def _torch_generators(device: torch.device) -> list[torch.Generator]:
    """Global generators of the CPU and of `device`."""
    if device.type != "cuda":
        return [torch.default_generator]
    torch.cuda.init()
    number = torch.cuda.current_device() if device.index is None else device.index
    return [torch.default_generator, torch.cuda.default_generators[number]]


def _state_of(state: Any) -> tuple[Any, ...]:
    """State of a generator of numpy, comparable."""
    return (state[1].tobytes(), *state[2:])


def _numpy_state() -> tuple[Any, ...]:
    # the global generator is what is compared
    return _state_of(np.random.get_state())  # noqa: NPY002
