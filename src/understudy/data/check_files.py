"""Check of every file of a dataset, beyond the metadata and listings that `Catalog.report` covers.

Opens each data file and the index of each video; decodes no image.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import MissingFiles, spread_evenly
from understudy.data.read.image_column import ImageColumns
from understudy.data.read.rows import Rows
from understudy.data.read.video_frames import VideoFrames
from understudy.errors import DatasetError, SourceError


def check_files(catalog: Catalog, limit: int | None = None) -> Iterator[str]:
    """Yield irregularities and errors, one line each: the catalog's report, then file by file.

    Args:
        catalog: the dataset.
        limit: most data files, and most videos per camera, to open, spread evenly.
    """
    yield from catalog.report()
    absent = rows_without_files(catalog)  # already in the report
    features = catalog.features.values()
    rows = Rows(catalog, [feature.key for feature in features if not feature.is_camera], cache_bytes=0)
    in_rows = [feature.key for feature in features if feature.is_camera and not feature.is_video]
    images = ImageColumns(catalog, in_rows, cache_bytes=0)
    frames = VideoFrames(catalog, cache_bytes=0, backend="pyav")
    with_frames = catalog.episodes.lengths > 0
    for row in _first_rows(catalog.episodes.data_file, with_frames & ~absent["data"], limit):
        yield from _collect(rows.notes, partial(rows.check, row))
        yield from _collect([], partial(images.check, row))
    for camera, videos in catalog.episodes.videos.items():
        for row in _first_rows(videos.file, with_frames & (videos.file >= 0) & ~absent[camera], limit):
            yield from _collect(frames.notes, partial(frames.reader, camera, row))
            frames.close()


def broken_episodes(
    catalog: Catalog, cameras: Iterable[str], keys: Sequence[str], rows: np.ndarray
) -> list[MissingFiles]:
    """Find episodes whose files are there and cannot be used: unreadable ones, and those that contradict the metadata.

    Reads all rows of `keys`, and the index of each video; decodes no image.

    Args:
        catalog: the dataset.
        cameras: cameras whose videos to open.
        keys: columns of numbers to read.
        rows: int64 (n,), table rows of the episodes to look at. Those without a file are left out.

    Raises:
        SourceError: the source of the dataset gives no answer.
    """
    absent = rows_without_files(catalog)
    chosen = np.zeros(len(catalog.episodes), bool)
    chosen[rows] = catalog.episodes.lengths[rows] > 0
    data, videos = Rows(catalog, keys, cache_bytes=0), VideoFrames(catalog, cache_bytes=0, backend="pyav")
    broken: list[MissingFiles] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for row in _first_rows(catalog.episodes.data_file, chosen & ~absent["data"], None):
            of_file = np.flatnonzero(chosen & (catalog.episodes.data_file == catalog.episodes.data_file[row]))
            try:
                bad = data.bad_rows(row)
            except SourceError:
                raise
            except DatasetError as error:
                broken.append(MissingFiles("data", str(error), of_file))
            else:
                where = catalog.files.where(catalog.data_path(row))
                broken += [
                    MissingFiles("data", f"{where}: {bad[row_of_file]}", np.array([row_of_file]))
                    for row_of_file in of_file.tolist()
                    if row_of_file in bad
                ]
        for camera in cameras:
            file = catalog.videos(camera).file
            for row in _first_rows(file, chosen & (file >= 0) & ~absent[camera], None):
                try:
                    videos.reader(camera, row)
                except SourceError:
                    raise
                except DatasetError as error:
                    broken.append(MissingFiles(camera, str(error), np.flatnonzero(chosen & (file == file[row]))))
                videos.close()
    return broken


def rows_without_files(catalog: Catalog) -> dict[str, np.ndarray]:
    """Find table rows whose files are missing, as far as folders can be listed.

    Returns:
        "data" and each video camera -> bool (N,), True for a row without its file.
    """
    absent = {kind: np.zeros(len(catalog.episodes), bool) for kind in ("data", *catalog.episodes.videos)}
    with suppress(DatasetError):  # an unreadable folder is in the report
        for gap in catalog.missing_files() or []:
            absent[gap.kind][gap.rows] = True
    return absent


def _first_rows(file: np.ndarray, chosen: np.ndarray, limit: int | None) -> list[int]:
    """First chosen table row of each file, for at most `limit` files."""
    rows = np.flatnonzero(chosen)
    first = rows[np.unique(file[rows], return_index=True)[1]]
    return [int(first[place]) for place in spread_evenly(len(first), limit)]


def _collect(notes: list[str], act: Callable[[], object]) -> Iterator[str]:
    """Run `act`; yield its DatasetError or the notes that it adds."""
    count_before = len(notes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # each note is yielded below
        try:
            act()
        except DatasetError as error:
            yield str(error)
    yield from notes[count_before:]
