"""MosaicML Streaming 0.13: `StreamingDataLoader` over a copy in its format, read from LeRobot's
reader.

Its ranks are processes with RANK and WORLD_SIZE, so those of one process are not examined.
"""

import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from lerobot_061 import reader
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset


@cache
def convert(root: Path) -> Path:
    out = Path(tempfile.mkdtemp()) / "mds"
    data = reader(root)
    kinds = {key: "str" if isinstance(value, str) else "ndarray" for key, value in data[0].items()}
    with MDSWriter(out=str(out), columns=kinds) as writer:
        for sample in (data[i] for i in range(len(data))):
            writer.write(
                {
                    k: v if isinstance(v, str) else np.atleast_1d(np.asarray(v))
                    for k, v in sample.items()
                }
            )
    return out


class Loader:
    def __init__(self, root: Path, num_workers: int, seed: int, batch_size: int) -> None:
        # it refuses a folder in use
        local = shutil.copytree(convert(root), Path(tempfile.mkdtemp()) / "mds")
        data = StreamingDataset(
            local=str(local), shuffle=True, shuffle_seed=seed, batch_size=batch_size
        )
        self.loader = StreamingDataLoader(data, batch_size=batch_size, num_workers=num_workers)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def state_dict(self) -> Any:
        return self.loader.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.loader.load_state_dict(state)
