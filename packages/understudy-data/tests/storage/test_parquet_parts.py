"""Parquet files are read in parts, which changes no value."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.storage.dataset_root import Files

ROWS = 20_000  # in row groups of 9,000: parts begin and end inside of groups


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    numbers = np.arange(3 * ROWS, dtype=np.float32)
    table = pa.table(
        {
            "list": pa.ListArray.from_arrays(
                np.arange(0, 3 * ROWS + 1, 3, dtype=np.int32), numbers
            ),
            "fixed": pa.FixedSizeListArray.from_arrays(numbers, 3),
            "text": [f"row {number}" if number % 7 else None for number in range(ROWS)],
            "number": np.arange(ROWS),
        }
    )
    folder = tmp_path_factory.mktemp("parts")
    pq.write_table(table, folder / "many.parquet", row_group_size=9_000, write_page_checksum=True)
    pq.write_table(table.slice(0, 0), folder / "empty.parquet")
    return folder


@pytest.mark.parametrize("columns", [None, ["number", "list"], ["text", "absent", "fixed"]])
@pytest.mark.parametrize("group", [None, 1])
@pytest.mark.parametrize("name", ["many", "empty"])
def test_table_has_the_rows_of_the_file(
    root: Path, name: str, columns: list[str] | None, group: int | None
) -> None:
    whole = pq.ParquetFile(root / f"{name}.parquet")
    names = [each for each in columns or whole.schema_arrow.names if each != "absent"]
    if name == "empty" and group is not None:
        return  # it has no second group
    expected = whole.read(columns=names).select(names)
    if group is not None:
        expected = expected.slice(9_000, 9_000)
    found = Files(root).table(f"{name}.parquet", columns, group)
    assert found.schema.names == names
    assert found.schema.equals(expected.schema)
    assert found.equals(expected)


def test_table_verifies_the_checksums_of_all_parts(root: Path, tmp_path: Path) -> None:
    content = bytearray((root / "many.parquet").read_bytes())
    metadata = pq.ParquetFile(root / "many.parquet").metadata
    column = metadata.row_group(2).column(metadata.num_columns - 1)  # numbers of the last group
    start = column.dictionary_page_offset or column.data_page_offset
    content[start + column.total_compressed_size // 2] ^= 1
    (tmp_path / "broken.parquet").write_bytes(content)
    with refused(where="broken.parquet"):
        Files(tmp_path).table("broken.parquet", ["number"])
