"""Episodes whose files are missing or cannot be used."""

import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress

import numpy as np

from understudy.data.format.catalog import Catalog
from understudy.data.format.episode_table import MissingFiles
from understudy.data.read.rows import Rows
from understudy.data.read.video_frames import VideoFrames
from understudy.errors import DatasetError, SourceError


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
        for row in _first_rows(catalog.episodes.data_file, chosen & ~absent["data"]):
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
            for row in _first_rows(file, chosen & (file >= 0) & ~absent[camera]):
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


def _first_rows(file: np.ndarray, chosen: np.ndarray) -> list[int]:
    """First chosen table row of each file."""
    rows = np.flatnonzero(chosen)
    return [int(row) for row in rows[np.unique(file[rows], return_index=True)[1]]]
