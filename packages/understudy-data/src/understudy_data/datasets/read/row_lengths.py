"""Lengths of episodes by their rows, where meta/ records others and everything else confirms the
rows.

A recorder or a script may write wrong lengths beside sound rows and videos. The rows of an episode
are whole if they are contiguous and of this episode alone, and `frame_index` and `index`, where
they are stored, count them. Each video file of the episode must hold as many frames as its episodes
have rows. The lengths of all other episodes stay: rows or images are lost there, and nothing tells
which.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from understudy_base import DatasetError
from understudy_data.datasets.format import layouts
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read.columns import read_numbers
from understudy_data.video.reader import open_video

_COLUMNS = ("episode_index", "frame_index", "index")


def with_lengths_of_rows(catalog: Catalog) -> Catalog:
    """Return the catalog with the lengths `lengths_of_rows`, and the places in files that follow
    from them.

    Raises:
        SourceError: the source of the dataset gives no answer. Files that cannot be read keep their
            lengths.
    """
    return _with_lengths(catalog, lengths_of_rows(catalog))


def lengths_of_rows(catalog: Catalog) -> np.ndarray:
    """Return the lengths of all episodes, int64 (N,): by the rows where they are confirmed, else as
    recorded.

    Reads the index columns of all data files, and the indexes of the videos of episodes whose
    length differs.

    Raises:
        SourceError: the source of the dataset gives no answer.
    """
    table = catalog.episodes
    lengths = table.lengths.copy()
    for file in np.unique(table.data_file).tolist():
        rows = np.flatnonzero(table.data_file == file)
        try:
            counts = _whole_lengths(catalog, file, rows)
        except DatasetError:
            continue
        for row, count in counts.items():
            lengths[row] = count
    changed = lengths != table.lengths
    while changed.any():
        unconfirmed = changed & ~_confirmed_by_videos(catalog, lengths, changed)
        if not unconfirmed.any():
            break
        lengths[unconfirmed] = table.lengths[unconfirmed]
        changed &= ~unconfirmed
    return lengths


def _whole_lengths(catalog: Catalog, file: int, rows: np.ndarray) -> dict[int, int]:
    """Return the numbers of rows of the episodes of a data file whose rows are whole, by table
    row.
    """
    table = catalog.episodes
    path = catalog.data_path(int(rows[0]))
    stored = catalog.files.table(path, list(_COLUMNS))
    columns = {}
    for name in stored.column_names:
        declared = catalog.features.get(name)
        where = catalog.files.where(path)
        values, absent = read_numbers(stored.column(name), None, where, name, declared)
        if absent is not None:
            return {}
        columns[name] = values.reshape(-1).astype(np.int64)
    ids, frame, index = (columns.get(name) for name in _COLUMNS)
    if table.own_files:
        row = int(rows[0])
        is_own = bool(len(stored)) and table.claimed_episode(row, ids, index) == int(table.ids[row])
        return {row: len(stored)} if is_own and _counts(frame, index, 0, len(stored)) else {}
    if ids is None or not len(ids):
        return {}
    cuts = [0, *(np.flatnonzero(np.diff(ids)) + 1).tolist(), len(ids)]
    runs = [(int(ids[begin]), begin, end) for begin, end in pairwise(cuts)]
    episodes = [episode for episode, _, _ in runs]
    listed = table.ids[rows][np.argsort(table.data_row[rows], kind="stable")].tolist()
    # rows of other episodes, in several runs, or in another order: the pairing is in doubt
    if episodes != listed:
        return {}
    row_of = {int(table.ids[row]): int(row) for row in rows}
    return {
        row_of[episode]: end - begin
        for episode, begin, end in runs
        if _counts(frame, index, begin, end)
    }


def _counts(frame: np.ndarray | None, index: np.ndarray | None, begin: int, end: int) -> bool:
    """Whether the rows from `begin` to `end` are numbered without a gap, `frame` from 0 on."""
    part = slice(begin, end)
    by_frame = frame is None or bool((frame[part] == np.arange(end - begin)).all())
    by_index = index is None or bool((np.diff(index[part]) == 1).all())
    return by_frame and by_index and not (frame is None and index is None)


def _confirmed_by_videos(catalog: Catalog, lengths: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """Return the episodes each of whose video files holds the frames of its episodes' lengths, bool
    (N,).
    """
    confirmed = np.ones(len(lengths), bool)
    for camera, videos in catalog.episodes.videos.items():
        needed = np.unique(videos.file[changed & (videos.file >= 0)])
        for file in needed.tolist():
            of_file = videos.file == file
            frames = int(lengths[of_file].sum())
            row = int(np.flatnonzero(of_file)[0])
            try:
                source = catalog.files.source(catalog.video_path(camera, row))
                reader = open_video(source, frames=frames, pixels=catalog.features[camera].pixels)
            except DatasetError:
                confirmed[of_file] = False
                continue
            confirmed[of_file] &= reader.count == frames
            reader.close()
    return confirmed


def _with_lengths(catalog: Catalog, lengths: np.ndarray) -> Catalog:
    """Return a catalog with other lengths of its episodes, int64 (N,)."""
    if np.array_equal(lengths, catalog.episodes.lengths):
        return catalog
    by_id = dict(zip(catalog.episodes.ids.tolist(), lengths.tolist()))
    texts = dict(enumerate(catalog.tasks))
    layout = layouts.LAYOUTS[catalog.version]
    oddities = list[str]()
    declared = {key: catalog.features[key] for key in catalog.episodes.videos}
    table = layouts.read_episodes(
        catalog.files, layout, dict(catalog.info), declared, texts, oddities, by_id
    )
    return replace(catalog, episodes=replace(table, pairing=catalog.episodes.pairing))
