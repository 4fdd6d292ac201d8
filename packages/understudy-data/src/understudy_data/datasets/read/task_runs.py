"""Runs of frames with one task, in the episodes that have several."""

from concurrent.futures import ThreadPoolExecutor
from itertools import chain

import numpy as np

from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read.rows import Rows

_THREADS = 8
_CACHE = 1 << 26  # bytes of loaded data files


def task_runs(catalog: Catalog, ids: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return runs [episode, start, stop) of frames with one task, int64 (n, 3), and their texts.

    They are those of the episodes with several tasks among `ids`; rows of other episodes are not
    read.

    Raises:
        DatasetError: a data file cannot be read.
    """
    episodes = catalog.episodes
    rows = episodes.rows_of(ids)
    rows = rows[np.diff(episodes.task_offsets)[rows] > 1]
    if not len(rows):
        return np.empty((0, 3), np.int64), []
    reader = Rows(catalog, [], _CACHE)

    def read(row: int) -> np.ndarray:
        tasks = reader.span(row, "task_index", 0, int(episodes.lengths[row]))[:, 0]
        starts = np.flatnonzero(np.diff(tasks, prepend=-1))
        stops = np.append(starts[1:], len(tasks))
        return np.stack(
            [np.full(len(starts), episodes.ids[row]), starts, stops, tasks[starts]], axis=1
        )

    of_files = np.split(rows, np.flatnonzero(np.diff(episodes.data_file[rows])) + 1)
    with ThreadPoolExecutor(_THREADS) as pool:  # a remote file takes several requests
        found = chain(*pool.map(lambda part: [read(row) for row in part.tolist()], of_files))
    runs = np.concatenate([np.empty((0, 4), np.int64), *found])
    return runs[:, :3], [catalog.tasks[number] for number in runs[:, 3].tolist()]
