"""Tables mapped by a parent process, as seen by its child."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np


def maps(folder: Path) -> set[str]:
    """The files below a folder that this process has mapped, by name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {
        os.path.basename(line.split()[-1])
        for line in lines
        if str(folder) in line and len(line.split()) > 5
    }


def answer(said: Connection, data: Any, folder: Path) -> None:
    """Send the mapped and the private tables of an `EpisodeDataset` that was pickled into this
    process.
    """
    table = data.catalog.episodes
    said.send(
        (
            maps(folder),
            table.lengths.copy(),
            data.segments.copy(),
            [int(n) for n in data[3]["action"].shape],
        )
    )


def main(root: str, folder: str) -> None:
    """Open a dataset without access to its metadata, and print its lengths and mapped files."""
    from understudy_data.datasets.format import layouts
    from understudy_data.datasets.format.catalog import Catalog
    from understudy_data.storage import mapped_tables

    def read(*_: object) -> None:
        raise AssertionError("it was read again")

    mapped_tables.MIN_ROWS = 2
    layouts.read_episodes = read  # type: ignore[assignment]
    table = Catalog.open(root).episodes
    print(*table.lengths.tolist(), *sorted(maps(Path(folder))))
    assert isinstance(table.lengths, np.ndarray)


if __name__ == "__main__":
    main(*sys.argv[1:])
