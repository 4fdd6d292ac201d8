"""EpisodeTable: episodes by data file."""

import numpy as np
import pytest

from understudy_data.datasets.format.episode_table import EpisodeTable, FileTable


@pytest.mark.parametrize("files", [[0, 0, 1, 3, 3], [3, 0, 1, 0, 3]], ids=["file by file", "mixed"])
def test_rows_in_finds_the_episodes_of_each_data_file(files: list[int]) -> None:
    count = len(files)
    numbers = np.arange(4)
    table = EpisodeTable(
        ids=np.arange(count),
        lengths=np.full(count, 2),
        index_from=np.arange(count) * 2,
        data=FileTable("data/{chunk_index}/{file_index}.parquet", np.zeros_like(numbers), numbers),
        data_file=np.array(files, np.int32),
        data_row=np.zeros(count, np.int64),
    )
    for file in numbers.tolist():
        assert table.rows_in(file).tolist() == [
            row for row, other in enumerate(files) if other == file
        ]
