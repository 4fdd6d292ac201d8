"""openpi at 15a9616: its `TorchDataLoader` for PyTorch over LeRobot's reader. OPENPI is the folder
of a checkout.

JAX, which it does not need there, may be missing; `jax.tree.map` then is torch's.
"""

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import lerobot
import numpy as np
from lerobot_061 import reader
from torch.utils import _pytree

sys.path.insert(0, str(Path(os.environ["OPENPI"], "src")))
try:
    import jax
except ImportError:
    jax = MagicMock()
    jax.process_count.return_value = 1
    jax.tree.map = _pytree.tree_map
    sys.modules |= {"jax": jax, "jax.numpy": jax.numpy}
for name in (
    "models",
    "models.model",
    "training.config",
    "training.droid_rlds_dataset",
    "transforms",
):
    sys.modules[f"openpi.{name}"] = MagicMock()
# its dataset of an older LeRobot, in whose place there is that of today
lerobot.common = MagicMock()
for name in ("common", "common.datasets", "common.datasets.lerobot_dataset"):
    sys.modules[f"lerobot.{name}"] = lerobot.common
data_loader: Any = importlib.import_module("openpi.training.data_loader")


class Numbers:
    """Samples without texts, which its collation does not take."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            key: np.asarray(value)
            for key, value in self.data[index].items()
            if not isinstance(value, str)
        }


def loader(
    root: Path,
    num_workers: int = 0,
    seed: int = 0,
    batch_size: int = 4,
    delta_timestamps: Mapping[str, Sequence[float]] | None = None,
) -> Any:
    data = Numbers(reader(root, None, delta_timestamps))
    options: dict[str, Any] = {
        "shuffle": True,
        "num_workers": num_workers,
        "seed": seed,
        "framework": "pytorch",
    }
    return data_loader.TorchDataLoader(data, batch_size, **options)
