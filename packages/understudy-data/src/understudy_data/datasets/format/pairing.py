"""Pairing of rows with episodes, where the place of rows and their columns name different episodes.

The place is the name of a data file that holds one episode (v2), or the position in a file of
several (v3). Videos and meta/ go by the place. Rows and images of two episodes are mixed where data
files were renamed without their videos; where both were renamed, only the columns are old. Nothing
in the files decides this, so such rows are refused until `pairing` names the right side. Without
images, a warning is enough.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError
from understudy_data.datasets.format.episode_table import EpisodeTable
from understudy_data.storage.dataset_root import Files

Pairing = Literal["", "files", "columns"]
"""Side that decides which episode rows belong to; "": neither, rows of contradicting files are
refused.
"""
PAIRING_FIX = (
    "name the right side: `understudy edit SRC OUT --pairing files` if data files and videos were "
    "renamed or joined together, `--pairing columns` if data files alone were; in a training "
    "--data.pairing; `understudy check` compares lengths; or leave the episodes out"
)
"""Remedy for rows of doubtful episodes."""


def check_pairing(value: str) -> None:
    """Raise DatasetError for another value than those of `Pairing`."""
    if value not in ("", "files", "columns"):
        fix = (
            "give 'files' (names and places of data files) or 'columns' (episode_index), or "
            "leave it out"
        )
        raise DatasetError(f"pairing is {value!r}", fix=fix)


def pair_by_columns(files: Files, table: EpisodeTable) -> EpisodeTable:
    """Return the table of files of one episode with the file of each episode chosen by the columns
    in it.

    An episode that no file names gets a file that names none, whose rows are refused when they are
    read. Reads two columns of each file.

    Raises:
        DatasetError: several files name one episode.
        SourceError: the source of the dataset gives no answer.
    """
    claims: dict[int, int] = {}  # table row -> number of its file
    unclaimed: list[int] = []
    for row, file in enumerate(table.data_file.tolist()):
        claimed = EpisodeTable.MIXED
        try:
            columns = files.table(table.data.find(files, file), ["episode_index", "index"])
            numbers = {name: _numbers(columns.column(name)) for name in columns.column_names}
            claimed = table.claimed_episode(row, numbers.get("episode_index"), numbers.get("index"))
        except (DatasetError, pa.ArrowException):
            pass  # a missing or broken file names no episode; its reader reports it
        place = int(np.searchsorted(table.ids, claimed))
        if place == len(table) or table.ids[place] != claimed:
            unclaimed.append(file)
        elif place in claims:
            paths = " and ".join(
                table.data.path(number) for number in sorted((claims[place], file))
            )
            problem = f"columns of two files name episode {claimed}: {paths}"
            raise DatasetError(
                problem, where=files.root, fix="remove one of them, or give pairing 'files'"
            )
        else:
            claims[place] = file
    chosen = np.empty_like(table.data_file)
    # an unclaimed file stays with its name if it can
    for row, file in enumerate(table.data_file.tolist()):
        if row not in claims and file in unclaimed:
            claims[row] = file
            unclaimed.remove(file)
    for row in range(len(table)):
        chosen[row] = claims[row] if row in claims else unclaimed.pop(0)
    return replace(table, data_file=chosen)


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of whole numbers, one in each row, as int64. Raises ArrowException for
    others.
    """
    values = column.combine_chunks()
    while pa.types.is_list(values.type) or pa.types.is_fixed_size_list(values.type):
        values = values.flatten()
    if values.null_count or len(values) != len(column):
        raise pa.ArrowInvalid("rows without a number")
    return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False))
