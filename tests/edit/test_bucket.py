"""Edits into a bucket of a real local S3 server: equal bytes, kills, refusals, failures of the
server.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from understudy_base import SourceError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.parts import Workers
from understudy_data.storage import remote_folder
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.bucket import MARK, Bucket
from understudy_tools.cli.edit import EditConfig, SegmentConfig
from understudy_tools.edit import videos, write_set
from understudy_tools.edit.videos import JoinPieces
from understudy_tools.edit.write_set import Written, write_outputs
from understudy_tools.testing import s3
from understudy_tools.testing.edited import content, edit
from understudy_tools.testing.s3 import SECRET, bucket_files, s3_bucket, uploaded
from understudy_zoo.cli.score import ScoreConfig

CAMERAS = ("observation.images.top", "observation.images.wrist")
ENCODED: dict[str, Any] = {"codec": "libx264", "gop": 3, "cameras": CAMERAS[:1]}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bucket") / "source"
    write_dataset(root, Spec("v3.0", lengths=(9, 12, 7), cameras=CAMERAS, gop=4))
    return root


@pytest.fixture(scope="module")
def options() -> Iterator[RemoteOptions]:
    with s3_bucket("sets") as options:
        yield options


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one or two episodes, and two of them on the disk at a time; a part of one
    episode.
    """
    monkeypatch.setattr(videos, "PARTS_OF_PROCESS", 1)
    monkeypatch.setattr(videos, "PART_IMAGES", 1)
    monkeypatch.setattr(videos, "FILES", 2)
    monkeypatch.setattr(write_set, "PART_ROWS", 1)
    monkeypatch.setattr(write_set, "DATA_MB", 0.001)
    monkeypatch.setattr(write_set, "VIDEO_MB", 0.001)


@pytest.fixture(scope="module")
def local(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files of the same edit into a folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_set, "DATA_MB", 0.001)
        patch.setattr(write_set, "VIDEO_MB", 0.001)
        out = tmp_path_factory.mktemp("local") / "out"
        edit(source, out, **ENCODED)
    return content(out)


def upload(
    source: Path, address: str, options: RemoteOptions, work: Path, count: int = 1, **more: Any
) -> Written:
    with Workers(count, folder=work) as workers:
        return s3.upload([source], address, options, workers, **{**ENCODED, **more})


@pytest.mark.parametrize(("count", "skip_bad"), [(1, False), (2, False), (1, True)])
def test_files_of_a_bucket_are_those_of_a_local_edit(
    source: Path,
    options: RemoteOptions,
    tmp_path: Path,
    local: dict[str, bytes],
    count: int,
    skip_bad: bool,
) -> None:
    address = f"s3://sets/equal-{count}-{skip_bad}"
    upload(source, address, options, tmp_path / "work", count, skip_bad=skip_bad)
    assert sum(name.startswith("videos/") for name in local) > 4
    assert uploaded(options, address) == local
    assert list(tmp_path.iterdir()) == []
    assert (
        Catalog.open(address, RemoteOptions(options.storage_options, str(tmp_path))).num_episodes
        == 3
    )


def test_the_disk_holds_few_files_and_no_credentials(
    source: Path, options: RemoteOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[int] = []
    move = Bucket.move

    def watch(self: Bucket, path: Path) -> None:
        kept = [path for path in tmp_path.rglob("*") if path.is_file()]
        assert not [path for path in kept if SECRET.encode() in path.read_bytes()]
        held.append(
            sum(
                path.suffix == ".mp4" and "new" in path.parts and ".parts" not in path.parts
                for path in kept
            )
        )
        move(self, path)

    encoded: list[int] = []
    join = JoinPieces.compute

    def count(self: JoinPieces, item: Any) -> Any:
        encoded.append(len(list(tmp_path.rglob(".parts/**/*.mp4"))))
        return join(self, item)

    monkeypatch.setattr(Bucket, "move", watch)
    monkeypatch.setattr(JoinPieces, "compute", count)
    upload(source, "s3://sets/few", options, tmp_path / "work")
    assert max(encoded) == 2  # of three episodes, those of two files
    assert (
        0
        < max(held)
        <= 2
        < sum(name.startswith("videos/") for name in bucket_files(options, "s3://sets/few")) - 1
    )
    assert not [
        name
        for name, data in bucket_files(options, "s3://sets/few").items()
        if SECRET.encode() in data
    ]


def test_files_of_a_merge_of_two_stream_settings_are_those_of_a_local_edit(
    options: RemoteOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = [tmp_path / "small", tmp_path / "large"]
    write_dataset(sources[0], Spec("v3.0", lengths=(4, 5), cameras=CAMERAS[:1], gop=4))
    write_dataset(
        sources[1], Spec("v3.0", lengths=(90, 90), cameras=CAMERAS[:1], gop=4, b_frames=2)
    )
    monkeypatch.setattr(videos, "FILES", 1)
    # The first file has all episodes of the first source, and is full last.
    monkeypatch.setattr(
        write_set, "VIDEO_MB", sum(path.stat().st_size for path in sources[0].rglob("*.mp4")) / 1e6
    )
    out = edit(*sources, tmp_path / "out")[""]
    assert out.videos[CAMERAS[0]].file == [0, 0, 1, 2]
    with Workers(folder=tmp_path / "work") as workers:
        s3.upload(sources, "s3://sets/merged", options, workers)
    assert uploaded(options, "s3://sets/merged") == content(tmp_path / "out")


def test_cut_edits_show_no_dataset_and_continue_without_a_second_upload(
    source: Path,
    options: RemoteOptions,
    tmp_path: Path,
    local: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent: list[str] = []
    put = remote_folder._upload
    cuts = {2: "before", 5: "after", len(local) - 1: "before", len(local): "before"}

    def cut(fs: Any, path: str, full: str) -> str:
        when = cuts.pop(len(sent), "")
        if when == "before":
            raise KeyboardInterrupt
        version = put(fs, path, full)
        if when:
            raise KeyboardInterrupt
        sent.append(full)
        return version

    monkeypatch.setattr(remote_folder, "_upload", cut)
    for _ in range(len(cuts) - 1):
        with pytest.raises(KeyboardInterrupt):
            upload(source, "s3://sets/cut", options, tmp_path / "work")
        there = bucket_files(options, "s3://sets/cut")
        assert "meta/info.json" not in there
        assert sum(name.startswith(MARK) for name in there) == 1
    upload(source, "s3://sets/cut", options, tmp_path / "work")
    assert uploaded(options, "s3://sets/cut") == local
    assert len(sent) == len(set(sent)) == len(local)
    assert sent[-1].endswith("meta/info.json")


KILLED = """
import json, os, signal, sys
from pathlib import Path
from test_bucket import upload
from understudy_tools.edit import videos, write_set
from understudy_data.storage import remote_folder
from understudy_data.storage.remote_options import RemoteOptions
if __name__ == "__main__":
    source, work, access, stop = sys.argv[1:]
    videos.PART_IMAGES, videos.FILES, write_set.PART_ROWS = 1, 2, 1
    write_set.DATA_MB = write_set.VIDEO_MB = 0.001
    put, sent = remote_folder._upload, []
    def kill(fs, path, full):
        version = put(fs, path, full)
        sent.append(full)
        if len(sent) == int(stop):
            os.kill(os.getpid(), signal.SIGKILL)
        return version
    remote_folder._upload = kill
    upload(Path(source), "s3://sets/killed", RemoteOptions(json.loads(access)), Path(work))
"""


@pytest.mark.long
def test_killed_edit_continues(
    source: Path,
    options: RemoteOptions,
    tmp_path: Path,
    local: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    )
    script = tmp_path / "driver.py"
    script.write_text(KILLED)
    words = [str(source), str(tmp_path / "work"), json.dumps(options.storage_options), "4"]
    done = subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert "meta/info.json" not in bucket_files(options, "s3://sets/killed")
    upload(source, "s3://sets/killed", options, tmp_path / "work")
    assert uploaded(options, "s3://sets/killed") == local


def test_bucket_with_files_is_refused_before_work(
    source: Path, options: RemoteOptions, tmp_path: Path
) -> None:
    import fsspec

    fs = fsspec.filesystem("s3", **options.storage_options)
    fs.pipe_file("sets/full/mine.txt", b"mine")
    with refused("mine.txt", where="sets/full", fix="empty"):
        upload(source, "s3://sets/full", options, tmp_path / "work")
    fs.pipe_file("sets/marked/mine.txt", b"mine")
    fs.pipe_file(f"sets/marked/{MARK}of-another", b"")
    with refused("mine.txt", where="sets/marked", fix="empty"):
        upload(source, "s3://sets/marked", options, tmp_path / "work-2")
    assert bucket_files(options, "s3://sets/full") == {"mine.txt": b"mine"}


@pytest.mark.parametrize("change", ["replaced", "added"])
def test_file_changed_by_others_is_named_and_no_dataset_appears(
    source: Path,
    options: RemoteOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: str,
) -> None:
    address = f"s3://sets/{change}"
    put = remote_folder._upload
    sent = list[str]()

    def meddle(fs: Any, path: str, full: str) -> str:
        version = put(fs, path, full)
        sent.append(full)
        if len(sent) == 3:
            fs.pipe_file(sent[0] if change == "replaced" else f"{sent[0]}.parquet", b"theirs")
        return version

    monkeypatch.setattr(remote_folder, "_upload", meddle)
    with refused(where="parquet", fix="--work"):
        upload(source, address, options, tmp_path / "work")
    assert "meta/info.json" not in bucket_files(options, address)


@pytest.mark.parametrize("failures", [3, 1000])
def test_failed_uploads_are_repeated_until_the_deadline(
    source: Path,
    options: RemoteOptions,
    tmp_path: Path,
    local: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    failures: int,
) -> None:
    address = f"s3://sets/failed-{failures}"
    put = remote_folder._upload
    failed = list[str]()

    def fail(fs: Any, path: str, full: str) -> str:
        if "data" in full and len(failed) < failures:
            failed.append(full)
            raise ConnectionResetError("reset by peer")
        return put(fs, path, full)

    monkeypatch.setattr(remote_folder, "_upload", fail)
    if failures == 3:
        upload(source, address, options, tmp_path / "work")
        assert (len(failed), uploaded(options, address)) == (3, local)
        return
    strict = RemoteOptions(
        options.storage_options, retry=RetryPolicy(deadline=0.01, initial_backoff=0.001)
    )
    with refused(where="file-000.parquet", fix="credentials", kind=SourceError) as caught:
        upload(source, address, strict, tmp_path / "work")
    assert caught.value.transient


def test_outputs_that_cannot_be_written_are_refused_with_the_settings(
    source: Path, tmp_path: Path
) -> None:
    for address in (
        "hf://datasets/me/set",
        "https://host/set",
        "http://host/set",
        "file:///tmp/set",
    ):
        for config in (
            EditConfig(paths=("a", address), work="w"),
            SegmentConfig(paths=("a", address), by="task", work="w"),
        ):
            (problem,) = config.problems()
            assert "understudy push" in problem
    (problem,) = EditConfig(paths=("a", "s3://sets/out")).problems()
    assert "work" in problem
    assert EditConfig(paths=("a", "s3://sets/out"), work="w").problems() == []
    (problem,) = ScoreConfig(paths=("run", "a", "s3://sets/out"), work="w").problems()
    with refused(where="sets/out", fix="--work"):
        write_outputs({}, Bucket("s3://sets/out"), ["edit"])
