"""starVLA #470 with torch's own workers: the dataset chooses the frame by its epoch, which
persistent workers keep.
"""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conformance_toys import Reader

from understudy_conformance.catalog import REQUIREMENTS, Factory, examine

torch_data = pytest.importorskip("torch.utils.data")


class Mixture:
    """The frame at an index is chosen by (epoch, seed); the epoch is an attribute of the
    process.
    """

    def __init__(self, root: Path, seed: int) -> None:
        self.reader = Reader(root)
        self.seed = seed
        self.epoch = 0

    def current_epoch(self) -> int:
        return self.epoch

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.reader)

    def __getitem__(self, index: int) -> dict[str, Any]:
        order = np.random.default_rng([self.seed, self.current_epoch()]).permutation(
            len(self.reader)
        )
        return self.reader[int(order[index])]


class SharedMixture(Mixture):
    """The mended twin: processes share the epoch."""

    def __init__(self, root: Path, seed: int) -> None:
        super().__init__(root, seed)
        self.shared = multiprocessing.get_context("fork").Value("q", 0)

    def current_epoch(self) -> int:
        return self.shared.value

    def set_epoch(self, epoch: int) -> None:
        self.shared.value = epoch


class WorkerLoader:
    mixture: type[Mixture] = Mixture

    def __init__(self, root: Path, num_workers: int, seed: int, batch_size: int) -> None:
        self.data = self.mixture(root, seed)
        self.loader = torch_data.DataLoader(
            self.data,
            batch_size,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            multiprocessing_context="fork" if num_workers else None,
        )

    def set_epoch(self, epoch: int) -> None:
        self.data.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class MendedLoader(WorkerLoader):
    mixture = SharedMixture


@pytest.mark.parametrize(("loader", "status"), [(WorkerLoader, "failed"), (MendedLoader, "passed")])
def test_epochs_of_persistent_workers(loader: type[WorkerLoader], status: str) -> None:
    factory = Factory(loader)
    numbers = ["R-LOAD-01", "R-LOAD-02", "R-LOAD-05", "R-LOAD-06", "R-LOAD-08"]
    found = {number: examine(REQUIREMENTS[number], factory).status for number in numbers}
    assert found == dict.fromkeys(numbers, "passed") | {"R-LOAD-06": status}
