"""starVLA at 0ed0aad: its `LeRobotMixtureDataset` over LeRobot's reader, in the `DataLoader` of its
training.

STARVLA is the folder of a checkout. Packages that only its transforms and decoders use may be
missing. `Mended` has the shared epoch of pull request 471.
"""

import importlib
import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from lerobot_061 import reader

# without their __init__.py
for name in ("starVLA", "starVLA.dataloader", "starVLA.dataloader.gr00t_lerobot"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(os.environ["STARVLA"], *name.split(".")))]
for name in (
    "starVLA.dataloader.gr00t_lerobot.video",
    "starVLA.dataloader.gr00t_lerobot.transform",
):
    sys.modules[name] = MagicMock()
sys.modules["starVLA.dataloader.gr00t_lerobot.transform.state_action"] = MagicMock()
sys.modules.setdefault("numpydantic", MagicMock(NDArray=Any))
datasets: Any = importlib.import_module("starVLA.dataloader.gr00t_lerobot.datasets")


class Single:
    """LeRobot's reader, as a dataset of the mixture."""

    dataset_name, lerobot_info_meta = "set", {"total_videos": 0}

    def __init__(self, root: Path) -> None:
        self.reader = reader(root)
        lengths = np.asarray(self.reader.meta.episodes["length"])
        self.trajectory_ids, self.trajectory_lengths = np.arange(len(lengths)), lengths

    def __len__(self) -> int:
        return len(self.reader)

    def get_step_data(self, trajectory: int, step: int) -> Any:
        return self.reader[int(self.trajectory_lengths[:trajectory].sum() + step)]

    def transforms(self, data: Any) -> Any:
        return data

    def _pack_sample(self, data: Any) -> Any:
        return data


class Mixture(datasets.LeRobotMixtureDataset):
    """One dataset, whose metadata need not be merged."""

    def update_metadata(self, *arguments: Any, **options: Any) -> None:
        pass


class MixtureLoader:
    mixture: Any = Mixture

    def __init__(self, root: Path, num_workers: int, seed: int, batch_size: int) -> None:
        options: dict[str, Any] = {"mode": "train", "balance_dataset_weights": False, "seed": seed}
        self.data = self.mixture([(Single(root), 1.0)], balance_trajectory_weights=True, **options)
        workers = {"num_workers": num_workers, "persistent_workers": num_workers > 0}
        self.loader = torch.utils.data.DataLoader(self.data, batch_size, **workers)

    def set_epoch(self, epoch: int) -> None:
        self.data.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)


class SharedEpoch(Mixture):
    shared = multiprocessing.get_context("fork").Value("q", 0)

    @property
    def epoch(self) -> int:
        return self.shared.value

    @epoch.setter
    def epoch(self, value: int) -> None:
        self.shared.value = value


class Mended(MixtureLoader):
    mixture = SharedEpoch
