"""Local files by position: however many there are, the process keeps few of them open."""

import os
from pathlib import Path

import pytest

from understudy_data.storage.byte_source import LocalSource


@pytest.mark.skipif(
    not Path("/proc/self/fd").exists(), reason="counts the open files of the process"
)
def test_a_thousand_sources_keep_few_files_open(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(1000)]
    for number, path in enumerate(paths):
        path.write_bytes(number.to_bytes(4, "big"))
    before = len(os.listdir("/proc/self/fd"))
    sources = [LocalSource(str(path)) for path in paths]
    for _ in range(2):
        numbers = [int.from_bytes(source.read(0, 4), "big") for source in sources]
        assert numbers == list(range(1000))
    assert len(os.listdir("/proc/self/fd")) - before <= 300
    for source in sources:
        source.close()
    assert len(os.listdir("/proc/self/fd")) <= before
