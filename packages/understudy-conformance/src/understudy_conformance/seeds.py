"""Requirements of seeds: `factory(root, seed)` returns an iterable of anything, such as batches or
numbers.

The first 64 items are compared.
"""

import os
import random
import subprocess
import sys
import zlib
from collections.abc import Mapping
from contextlib import suppress
from itertools import combinations, islice
from typing import Any

import numpy as np

from understudy_conformance.requirement import (
    Factory,
    NotApplicable,
    Violation,
    require,
    require_packages,
)
from understudy_conformance.samples import checksum, to_array
from understudy_conformance.sets import root_of

ITEMS = 64


def digest_item(item: Any) -> int:
    """Return a checksum of an item: a mapping, a list of mappings, or numbers."""
    if isinstance(item, Mapping):
        return checksum(item)
    if isinstance(item, list | tuple) and item and isinstance(item[0], Mapping):
        return sum(31**i * checksum(sample) for i, sample in enumerate(item))
    return zlib.crc32(np.ascontiguousarray(to_array(item)).tobytes())


def read_items(factory: Factory, seed: int) -> list[int]:
    """Return checksums of the first items."""
    root = root_of(factory.base(lambda stream: next(iter(stream)), seed=0))
    return [digest_item(item) for item in islice(factory(root=root, seed=seed), ITEMS)]


@require(
    "R-SEED-01",
    "The seeds 0, 1, 2 and 42 give four different sequences.",
    "A seed that is not passed on makes all runs of a comparison one run.",
    "LeRobot #4871",
)
def check_differ(factory: Factory) -> str:
    """Compare the sequences."""
    factory.need("seed")
    items = {seed: read_items(factory, seed) for seed in (0, 1, 2, 42)}
    equal = [(a, b) for a, b in combinations(items, 2) if items[a] == items[b]]
    if equal:
        raise Violation(
            "; ".join(
                f"seeds {a} and {b} give the same {len(items[a])} items" for a, b in equal[:3]
            )
        )
    return f"{len(items[0])} items of each"


@require(
    "R-SEED-02",
    "The same seed gives the same sequence again, whatever the global generators hold.",
    "A sequence that depends on earlier random numbers cannot be repeated.",
)
def check_repeat(factory: Factory) -> str:
    """Read twice, with other global seeds of random, numpy and torch."""
    factory.need("seed")
    items = []
    for number in (1, 2):
        random.seed(number)
        np.random.seed(number)  # noqa: NPY002 -- the global generator is meant
        with suppress(ImportError):
            import torch

            torch.manual_seed(number)
        items.append(read_items(factory, 7))
    if items[0] != items[1]:
        raise Violation(f"{sum(a != b for a, b in zip(*items))} of {len(items[0])} items differ")
    return f"{len(items[0])} items"


@require(
    "R-SEED-03",
    "The same seed gives the same sequence in another process.",
    "Python's `hash` of a text differs between processes.",
)
def check_process(factory: Factory) -> str:
    """Read in two processes with other hash seeds."""
    factory.need("seed")
    if factory.path is None:
        raise NotApplicable("the factory is not given as MODULE:FACTORY")
    outputs = []
    for number in ("1", "2"):
        code = f"from understudy_conformance import seeds; seeds.print_digest({factory.path!r})"
        command = [sys.executable, "-c", code]
        variables = os.environ | {"PYTHONHASHSEED": number, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            line = " ".join(done.stderr.strip().splitlines()[-1:])
            require_packages(line)
            raise Violation(f"another process fails: {line}")
        outputs.append(done.stdout.split()[-1])
    if outputs[0] != outputs[1]:
        raise Violation("two processes read other items")
    return "two processes read the same items"


def print_digest(path: str) -> None:
    """Print a checksum of the items of a factory, for another process."""
    from understudy_conformance.worker import import_factory

    print(zlib.crc32(repr(read_items(import_factory(path), 7)).encode()))
