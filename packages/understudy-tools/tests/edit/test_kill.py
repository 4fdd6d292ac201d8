"""Kills and interrupts of an edit: nothing or the whole output."""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from understudy_base import BeingWritten, DatasetError, create_folder
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.video.encode import VideoEncoder
from understudy_tools.edit import write_set
from understudy_tools.testing.edited import edit


def test_create_folder_shows_nothing_before_the_end_and_keeps_another(tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    with create_folder(out) as draft:
        (draft / "file").write_text("content")
        assert not out.exists()
    assert (out / "file").read_text() == "content"
    with pytest.raises(FileExistsError), create_folder(out):
        raise AssertionError("the block must not run")
    late = tmp_path / "late"

    def meet_another() -> None:
        with create_folder(late) as draft:
            (draft / "file").write_text("ours")
            late.mkdir()
            (late / "file").write_text("theirs")

    with pytest.raises(FileExistsError):
        meet_another()
    assert (late / "file").read_text() == "theirs"
    with pytest.raises(ValueError), create_folder(tmp_path / "failed"):
        raise ValueError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "late"]


@pytest.mark.short("1")
@pytest.mark.parametrize("workers", [1, 3])
def test_sigterm_leaves_nothing_and_exits_with_143(
    tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tempfile.mkdtemp()
    monkeypatch.setenv("TMPDIR", temporary)
    write_dataset(tmp_path / "source", Spec("v3.0", lengths=(90,) * 4, gop=30))
    words = [
        "edit",
        str(tmp_path / "source"),
        str(tmp_path / "out"),
        "--codec",
        "libx264",
        "--workers",
        str(workers),
    ]
    command = subprocess.Popen(
        [sys.executable, "-m", "understudy_kit", *words], stdout=subprocess.DEVNULL
    )
    while command.poll() is None and not list(tmp_path.glob(".out-*/new/.parts")):
        time.sleep(0.01)
    command.terminate()
    code = command.wait(60)
    assert code in (143, 0)  # 0: it was done before
    os.rmdir(temporary)
    assert {path.name for path in tmp_path.iterdir()} <= {"source", "out"}
    assert code == 143 or (tmp_path / "out").exists()


def edit_in_a_process(source: Path, out: Path, wait: float, start: Any, answers: Any) -> None:
    """Edit slowly, and answer with the error as (place, message, remedy), or with nothing."""
    write = write_set.write_set

    def slowly(*args: Any) -> Any:
        time.sleep(wait)
        return write(*args)

    write_set.write_set = slowly  # of this process alone
    start.wait()
    try:
        edit(source, out, episodes=("0-1",))
        answers.put(None)
    except DatasetError as error:
        answers.put((str(error.where), error.what, error.fix))


@pytest.mark.parametrize("wait", [0.0, 0.4])
def test_one_of_two_edits_of_an_output_wins(tmp_path: Path, wait: float) -> None:
    write_dataset(tmp_path / "source", Spec(lengths=(4, 5, 3), cameras=()))
    out = tmp_path / "sets" / "out"
    context = multiprocessing.get_context("fork")
    start = context.Barrier(2)
    answers = context.SimpleQueue()
    both = [
        context.Process(
            target=edit_in_a_process, args=(tmp_path / "source", out, wait, start, answers)
        )
        for _ in range(2)
    ]
    for process in both:
        process.start()
    found = [answers.get(), answers.get()]
    for process in both:
        process.join(60)
        assert process.exitcode == 0
    assert found.count(None) == 1
    (error,) = [each for each in found if each is not None]
    assert error[0] == str(out)
    assert error[2]
    if wait:
        assert "process" in error[1]  # before it has done any work
    edit(tmp_path / "source", tmp_path / "alone", episodes=("0-1",))
    rows = "data/chunk-000/file-000.parquet"
    assert (out / rows).read_bytes() == (tmp_path / "alone" / rows).read_bytes()
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_create_folder_beside_a_writer_of_a_longer_name(tmp_path: Path) -> None:
    with create_folder(tmp_path / "out-2") as one, create_folder(tmp_path / "out") as other:
        (one / "file").write_text("2")
        (other / "file").write_text("1")
    assert (tmp_path / "out/file").read_text() == "1"
    with (
        create_folder(tmp_path / "new"),
        pytest.raises(BeingWritten),
        create_folder(tmp_path / "new"),
    ):
        raise AssertionError("the block must not run")


def test_edit_interrupt_ends_the_encoding_of_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    added = []

    class Slow(VideoEncoder):
        def add(self, image: np.ndarray) -> None:
            added.append(1)
            if len(added) == 20:
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            super().add(image)

    monkeypatch.setattr("understudy_data.datasets.read.clips.VideoEncoder", Slow)
    write_dataset(tmp_path / "source", Spec("v3.0", lengths=(250,)))
    with pytest.raises(KeyboardInterrupt):
        edit(tmp_path / "source", tmp_path / "out", gop=4)
    assert len(added) < 125
    assert [path.name for path in tmp_path.iterdir()] == ["source"]
