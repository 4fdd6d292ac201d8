"""frames.parquet of a run: its training and validation frames, so that an account of the run needs
no dataset.

A row is a run of frames of an episode of a source. `part` is `TRAINING` (in the sequence of the
order, frames with copies several times), `VALIDATION`, or `WEIGHT`: from this frame on `weight` is
the factor of the loss, 0 without a return. `EPISODE` is a whole episode of the dataset, selected or
not. `task` is the text of the episode's task; several are joined. `TASK` is a run of frames with
one task, in the episodes that have several.

An update of a run's data has a file of its own, whose sources continue the numbers.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy.train.data.run_data import RunData, episodes_within
from understudy_base import ConfigError
from understudy_data import Catalog, Checksums, OrderFile

TRAINING, VALIDATION, WEIGHT, EPISODE, TASK = range(5)
_THREADS = 8


def frames_content(data: RunData, first: int = 0) -> bytes:
    """Return the content of the file for the sources of a run's data from number `first` on."""
    tables = _Tables()
    for source in data.sources[first:]:
        training = source.training
        changes, factors = training.loss_runs()
        runs = changes[:, [0, 1, 1]]
        episodes = training.catalog.episodes
        ids, lengths = episodes_within(training.catalog, source.span)
        whole = np.stack([ids, 0 * ids, lengths], axis=1)
        apart = whole[:0] if source.apart is None else source.apart.segments
        of_tasks, names = training.task_runs(np.union1d(training.episodes, apart[:, 0]))
        parts: list[tuple[np.ndarray, Any]] = [
            (training.epoch_segments, 1.0),
            (apart, 1.0),
            (runs, factors),
            (whole, 1.0),
            (of_tasks, 1.0),
        ]
        named = np.unique(np.concatenate([rows[:, 0] for rows, _ in parts[:EPISODE]]))
        texts = _task_texts(training.catalog, episodes.rows_of(named))
        for part, (rows, weight) in enumerate(parts):
            if not len(rows):
                continue
            if part < EPISODE:
                texts_of_rows = texts[np.searchsorted(named, rows[:, 0])]
            else:
                texts_of_rows = np.array(names if part == TASK else [""] * len(rows), object)
            tables.add(source.number, part, rows, np.broadcast_to(weight, len(rows)), texts_of_rows)
    digests = {}
    for source in data.sources:  # updates come last
        last = source.span[1]
        digests[data.names[source.of]] = OrderFile.lengths_digest(source.training, last)
    content = io.BytesIO()
    pq.write_table(tables.join().replace_schema_metadata(digests), content, compression="zstd")
    return content.getvalue()


def _task_texts(catalog: Catalog, rows: np.ndarray) -> np.ndarray:
    """Text of the tasks of episodes, object (n,); rows: int64 (n,), those of the episodes table."""
    episodes = catalog.episodes
    texts = np.array([*catalog.tasks, ""], object)
    starts = episodes.task_offsets[rows]
    if (episodes.task_offsets[rows + 1] - starts == 1).all():
        return texts[episodes.task_indices[starts]]
    joined = np.empty(len(rows), object)
    for number, row in enumerate(rows.tolist()):
        joined[number] = " | ".join(texts[episodes.tasks_of(row)])
    return joined


class _Tables:
    """Rows of the file. Those of many small sources are joined before they become a table, which
    costs more.
    """

    _ENOUGH = 1 << 16

    def __init__(self) -> None:
        self._tables: list[pa.Table] = []
        self._runs: list[tuple[int, int, np.ndarray, np.ndarray, np.ndarray]] = []
        self._rows = 0

    def add(
        self, source: int, part: int, rows: np.ndarray, weights: np.ndarray, texts: np.ndarray
    ) -> None:
        """Add rows [episode, start, stop) of a part of a source."""
        self._runs.append((source, part, rows, weights, texts))
        self._rows += len(rows)
        if self._rows >= self._ENOUGH:
            self._close()

    def join(self) -> pa.Table:
        """Return all rows."""
        self._close()
        return pa.concat_tables(self._tables)

    def _close(self) -> None:
        if not self._runs and self._tables:
            return
        sources, parts, several, weights, texts = zip(*self._runs) if self._runs else ((),) * 5
        counts = [len(rows) for rows in several]
        rows = np.concatenate([np.empty((0, 3), np.int64), *several])
        columns: dict[str, Any] = dict(
            zip(("episode", "start", "stop"), np.ascontiguousarray(rows.T))
        )
        columns |= {"source": np.repeat(sources, counts).astype(np.int64)}
        columns |= {"part": np.repeat(parts, counts).astype(np.int64)}
        columns["weight"] = np.concatenate([np.empty(0), *weights]).astype(np.float32)
        joined = np.concatenate([np.empty(0, object), *texts])
        columns["task"] = pa.array(joined, pa.string()).dictionary_encode()
        self._tables.append(pa.table(columns))
        self._runs = []
        self._rows = 0


def read_frames(path: Path, sha256: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the columns of the frames of a run, and the digest of the episode lengths of each
    source, by name.

    Besides the columns of the file there is `rows`, int64 (n, 3): episode, start, stop.

    Raises:
        ConfigError: the file is missing, or is not the one of `sha256`.
    """
    if not path.exists() or Checksums.sha256_of(path) != sha256:
        raise ConfigError(f"{path}: is missing, or was changed since the run started; restore it")
    table = pq.read_table(path)
    columns: dict[str, Any] = {name: table[name].to_numpy() for name in table.column_names}
    columns["rows"] = np.stack([columns[name] for name in ("episode", "start", "stop")], axis=1)
    return columns, {
        name.decode(): digest.decode() for name, digest in table.schema.metadata.items()
    }
