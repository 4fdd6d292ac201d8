"""Files of mapped arrays: another program can read them, and a damaged one is never taken."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from understudy_data.storage import table_file
from understudy_data.storage.table_file import open_table, write_table


def test_another_program_reads_the_numbers(tmp_path: Path) -> None:
    write_table(tmp_path / "table", {"a": np.arange(6.0).reshape(2, 3), "b": np.arange(4)})
    batch = pa.ipc.open_file(str(tmp_path / "table")).get_batch(0)
    assert [column[0].as_py() for column in batch.columns] == [[0, 1, 2, 3, 4, 5], [0, 1, 2, 3]]


def test_no_damaged_byte_changes_a_value(tmp_path: Path) -> None:
    """Each byte of a file is changed, and the file is cut at each place: equal values, or
    ValueError.
    """
    path = tmp_path / "table"
    table = {"a": np.arange(40), "t": pa.chunked_array([["x", "yz"]]), "n": 3}
    write_table(path, table)
    whole = path.read_bytes()
    refused = 0
    damaged = [
        whole[:place] + bytes([whole[place] ^ 0x21]) + whole[place + 1 :]
        for place in range(len(whole))
    ]
    for content in [*damaged, *(whole[:size] for size in range(0, len(whole), 7))]:
        path.write_bytes(content)
        try:
            read = open_table(path)[0]
        except ValueError:
            refused += 1
        else:
            assert (read["a"].tolist(), read["t"], read["n"]) == (
                table["a"].tolist(),
                table["t"],
                table["n"],
            )
    assert refused > len(whole) // 2


def test_another_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table(tmp_path / "table", json.loads("[1]"))
    monkeypatch.setattr(table_file, "FORMAT", table_file.FORMAT + 1)
    with pytest.raises(ValueError, match=r"."):
        open_table(tmp_path / "table")
