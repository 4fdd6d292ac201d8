"""frames.parquet: runs of frames with one task, read from several data files at a time."""

import io
import threading
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from understudy.testing.runs import tiny_config
from understudy.train.data.frames_file import TASK, frames_content
from understudy.train.data.run_data import open_data
from understudy_data.datasets.read.rows import Rows
from understudy_data.testing.datasets import Spec, write_dataset


def test_tasks_of_frames_are_read_from_files_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = write_dataset(tmp_path / "set", Spec(lengths=(9, 8, 11, 10), foreign=False))
    data = open_data(tiny_config(tmp_path / "set", tmp_path / "out"))
    both = threading.Barrier(2)
    read = Rows.read_file

    def read_with_the_other(self: Rows, file: int) -> Any:
        both.wait(30)
        return read(self, file)

    monkeypatch.setattr(Rows, "read_file", read_with_the_other)
    table = pq.read_table(io.BytesIO(frames_content(data))).to_pylist()
    expected = []
    for episode, tasks in truth.tasks.items():
        runs = [
            (task, [frame for frame, _ in run])
            for task, run in groupby(enumerate(tasks), lambda pair: pair[1])
        ]
        expected += [
            (episode, frames[0], frames[-1] + 1, task) for task, frames in runs if len(runs) > 1
        ]
    assert len({episode // 2 for episode, *_ in expected}) == 2
    names = ("episode", "start", "stop", "task")
    assert [tuple(row[name] for name in names) for row in table if row["part"] == TASK] == expected
