"""A look into every file of a dataset: what `Catalog.report` cannot know from metadata and folder listings alone.

Opens each data file and the index of each video; decodes no picture.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.complete import spread
from understudy.data.read.image_column import StoredPictures
from understudy.data.read.rows import Rows
from understudy.data.read.video_frames import Pictures
from understudy.errors import DatasetError


def examine(catalog: Catalog, limit: int | None = None) -> Iterator[str]:
    """What is odd or wrong, one line each, as it is found: the report of the catalog, then file by file.

    Args:
        limit: at most this many files of rows, and of videos per camera, are opened, spread evenly.
    """
    yield from catalog.report()
    absent = gap_rows(catalog)  # which the report has told
    features = catalog.features.values()
    rows = Rows(catalog, [feature.key for feature in features if not feature.is_picture], cache_bytes=0)
    in_rows = [feature.key for feature in features if feature.is_picture and not feature.is_video]
    stored = StoredPictures(catalog, in_rows, cache_bytes=0)
    pictures = Pictures(catalog, cache_bytes=0, backend="pyav")
    with_frames = catalog.episodes.lengths > 0
    for row in _first_rows(catalog.episodes.data_file, with_frames & ~absent["data"], limit):
        yield from _tried(rows.notes, partial(rows.check, row))
        yield from _tried([], partial(stored.check, row))
    for camera, videos in catalog.episodes.videos.items():
        for row in _first_rows(videos.file, with_frames & (videos.file >= 0) & ~absent[camera], limit):
            yield from _tried(pictures.notes, partial(pictures.reader, camera, row))
            pictures.close()


def gap_rows(catalog: Catalog) -> dict[str, np.ndarray]:
    """bool (N,), which table rows lack their file, of "data" and each video camera, as far as can be listed."""
    found = {what: np.zeros(len(catalog.episodes), bool) for what in ("data", *catalog.episodes.videos)}
    with suppress(DatasetError):  # a folder that may not be looked into: the report says so
        for gap in catalog.gaps() or []:
            found[gap.what][gap.rows] = True
    return found


def _first_rows(file: np.ndarray, chosen: np.ndarray, limit: int | None) -> list[int]:
    """One table row for each file that has one chosen, the first; of at most `limit` files."""
    rows = np.flatnonzero(chosen)
    first = rows[np.unique(file[rows], return_index=True)[1]]
    return [int(first[place]) for place in spread(len(first), limit)]


def _tried(notes: list[str], act: Callable[[], object]) -> Iterator[str]:
    known = len(notes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each note is said here
        try:
            act()
        except DatasetError as error:
            yield str(error)
    yield from notes[known:]
