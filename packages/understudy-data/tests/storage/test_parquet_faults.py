"""A failure of Arrow is named by its cause; a download is recommended for damaged bytes alone."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from understudy_base import DatasetError, MissingFileError
from understudy_data.storage.dataset_root import Files


def write(path: Path, **columns: Any) -> Path:
    table = pa.table(columns or {"number": list(range(1000))})
    pq.write_table(table, path, compression="none", write_page_checksum=True)
    return path


def read(root: Path, kind: type[DatasetError] = DatasetError) -> DatasetError:
    with pytest.raises(kind) as caught:
        Files(root).table("file.parquet")
    return caught.value


def bad_text(path: Path) -> None:
    offsets = pa.py_buffer(np.array([0, 2, 4], np.int32).tobytes())
    text = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab\xff\xfe")])
    write(path, number=[1, 2], task=text)


CUTS: dict[str, Callable[[bytes], bytes]] = {
    "no footer": lambda data: data[:-8],
    "half": lambda data: data[: len(data) // 2],
    "magic alone": lambda data: data[:4],
    "part of the magic": lambda data: data[:2],
    "nothing": lambda data: b"",
}


@pytest.mark.parametrize("name", CUTS)
def test_parquet_cut_file_is_named_as_cut(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "file.parquet")
    path.write_bytes(CUTS[name](path.read_bytes()))
    error = read(tmp_path)
    assert "cut" in error.what
    assert "episodes" in error.fix


def test_parquet_text_that_is_not_utf8_names_the_column(tmp_path: Path) -> None:
    bad_text(tmp_path / "file.parquet")
    error = read(tmp_path)
    assert "'task'" in error.what
    assert "UTF-8" in error.what
    assert "again" not in error.fix


def test_parquet_other_files_and_encrypted_ones(tmp_path: Path) -> None:
    (tmp_path / "file.parquet").write_bytes(b"<html>404</html>" * 9)
    error = read(tmp_path)
    assert "PAR1" in error.what
    assert "download" in error.fix
    (tmp_path / "file.parquet").write_bytes(b"PARE" + bytes(99) + b"PARE")
    assert "encrypted" in read(tmp_path).what


def test_parquet_damaged_bytes_can_be_downloaded_again(tmp_path: Path) -> None:
    path = write(tmp_path / "file.parquet")
    data = bytearray(path.read_bytes())
    data[200:220] = bytes(20)
    path.write_bytes(bytes(data))
    assert "download" in read(tmp_path).fix


@pytest.mark.parametrize(
    ("raised", "word", "fix"),
    [
        (pa.ArrowMemoryError("malloc of size 1 failed"), "memory", "memory"),
        (MemoryError(), "memory", "memory"),
        (pa.ArrowNotImplementedError("Support for codec 'lzo' not built"), "lzo", "pyarrow"),
        (OSError(errno.EIO, "Input/output error"), "Input/output", "disk"),
        (OSError(errno.ESTALE, "Stale file handle"), "Stale", "disk"),
    ],
)
def test_parquet_failures_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, word: str, fix: str
) -> None:
    write(tmp_path / "file.parquet")

    def fail(*values: Any, **named: Any) -> Any:
        raise raised

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    error = read(tmp_path)
    assert word in error.what
    assert fix in error.fix
    assert "download" not in error.fix


def test_parquet_missing_and_folder(tmp_path: Path) -> None:
    read(tmp_path, MissingFileError)
    (tmp_path / "file.parquet").mkdir()
    assert "folder" in read(tmp_path).what


def test_parquet_sound_files_are_read(tmp_path: Path) -> None:
    write(tmp_path / "file.parquet", task=["é", "日本"], empty=pa.array([None, None], pa.string()))
    assert Files(tmp_path).table("file.parquet")["task"].to_pylist() == ["é", "日本"]
    write(tmp_path / "file.parquet", number=pa.array([], pa.int64()))
    assert len(Files(tmp_path).table("file.parquet")) == 0
