"""One version of a dataset: what is replaced while it is open is refused, and what only grew is
read.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_base import SourceError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.storage.remote_options import RemoteOptions, RetryPolicy
from understudy_data.testing.datasets import (
    Spec,
    edit_column,
    edit_json,
    replace_files,
    write_dataset,
)
from understudy_data.testing.servers import RangeServer, folder
from understudy_tools.testing.s3 import s3_bucket

QUICK = RetryPolicy(deadline=60.0, stall=60.0, initial_backoff=0.001, max_backoff=0.01)
Swap = Callable[[], None]


def write_old(root: Path, version: str) -> None:
    write_dataset(
        root,
        Spec(
            version=version,
            lengths=(4, 3, 5, 2),
            cameras=("observation.images.top",),
            foreign=False,
        ),
    )


def replaced(old: Path, new: Path, telling: str) -> None:
    """Write other rows of the same layout, of which one file of `meta/` alone tells."""
    shutil.copytree(old, new)
    for path in new.glob("data/**/*.parquet"):
        edit_column(path, "timestamp", lambda values: values + 0.01)
    file = new / "meta" / telling
    if telling.endswith(".parquet"):
        pq.write_table(pq.read_table(file), file, compression="gzip")
    elif telling.endswith(".jsonl"):
        file.write_text(file.read_text().replace(" ", ""))
    else:
        edit_json(file, lambda content: content.update(another=1))


CASES = [
    *(
        ("v3.0", name)
        for name in ("stats.json", "info.json", "episodes/chunk-000/file-000.parquet")
    ),
    *(("v2.1", name) for name in ("episodes_stats.jsonl", "episodes.jsonl", "info.json")),
    *(("v2.0", name) for name in ("stats.json", "episodes.jsonl", "info.json")),
]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].replace('/', '-')}")
def both(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    write_old(tmp_path / "old", request.param[0])
    replaced(tmp_path / "old", tmp_path / "new", request.param[1])
    return tmp_path / "old", tmp_path / "new"


def options(tmp_path: Path, **others: Any) -> RemoteOptions:
    return RemoteOptions(cache=str(tmp_path / "cache"), retry=QUICK, **others)


def check_refused(data: EpisodeArrays, swap: Swap) -> None:
    """A dataset, and a copy of it in another process, refuse the other version; the other one is
    read anew.
    """
    copy = pickle.dumps(data)
    swap()
    for opened in (data, pickle.loads(copy)):
        with refused(where="", fix="start", kind=SourceError) as caught:
            opened[5]
        assert "meta/" in caught.value.what, caught.value
    assert (
        EpisodeArrays(Catalog.open(data.catalog.files._address, data.catalog.files.options))[5]
        is not None
    )


@pytest.mark.parametrize(
    "dates", ["", "Fri, 03 Jan 2020 10:00:00 GMT"], ids=["no dates", "old dates"]
)
def test_a_dataset_that_a_web_server_replaces_is_refused(
    both: tuple[Path, Path], tmp_path: Path, dates: str
) -> None:
    with RangeServer(folder(both[0], "/s")) as server:
        server.headers["Last-Modified"] = dates
        data = EpisodeArrays(Catalog.open(f"{server.url}/s", options(tmp_path)))
        check_refused(data, lambda: setattr(server, "files", folder(both[1], "/s")))


def test_a_dataset_of_any_file_system_that_is_replaced_is_refused(
    both: tuple[Path, Path], tmp_path: Path
) -> None:
    memory = fsspec.filesystem("memory")

    def upload(root: Path) -> None:
        for path, content in folder(root).items():
            memory.pipe_file(f"/swapped{path}", content)

    upload(both[0])
    data = EpisodeArrays(Catalog.open("memory://swapped", options(tmp_path)))
    check_refused(data, lambda: upload(both[1]))
    memory.rm("/swapped", recursive=True)


@pytest.mark.parametrize("way", ["rename", "link"])
def test_a_folder_that_is_replaced_is_refused(
    both: tuple[Path, Path], tmp_path: Path, way: str
) -> None:
    place = tmp_path / "d"
    if way == "link":
        place.symlink_to("old")
    else:
        os.rename(both[0], place)

    def swap() -> None:
        if way == "link":
            place.unlink()
            place.symlink_to("new")
        else:
            os.rename(place, tmp_path / "before")
            os.rename(both[1], place)

    check_refused(EpisodeArrays(place), swap)


def test_a_dataset_that_is_uploaded_over_another_in_a_bucket_is_refused(tmp_path: Path) -> None:
    write_old(tmp_path / "old", "v3.0")
    replaced(tmp_path / "old", tmp_path / "new", "stats.json")
    with s3_bucket("swapped") as access:
        fs = fsspec.filesystem("s3", **access.storage_options)
        fs.put(str(tmp_path / "old"), "s3://swapped/d", recursive=True)
        again = options(tmp_path, storage_options=access.storage_options)
        data = EpisodeArrays(Catalog.open("s3://swapped/d", again))
        time.sleep(1.1)  # times of S3 are whole seconds
        fs.put(str(tmp_path / "new") + "/", "s3://swapped/d/", recursive=True)
        with refused(where="", fix="start", kind=SourceError):
            data[5]


def test_the_same_dataset_put_there_again_is_read(tmp_path: Path) -> None:
    write_old(tmp_path / "old", "v3.0")
    with RangeServer(folder(tmp_path / "old", "/s")) as server:
        server.headers["Last-Modified"] = ""
        data = EpisodeArrays(Catalog.open(f"{server.url}/s", options(tmp_path)))
        server.files = folder(tmp_path / "old", "/s")
        assert len(data[5])
    data = EpisodeArrays(tmp_path / "old")
    shutil.copytree(tmp_path / "old", tmp_path / "copy")  # keeps the times
    shutil.rmtree(tmp_path / "old")
    os.rename(tmp_path / "copy", tmp_path / "old")
    assert len(data[5])


def test_a_dataset_that_grew_on_a_server_is_read_as_it_was(tmp_path: Path) -> None:
    """Its meta files are new, and its earlier files are not."""
    write_old(tmp_path / "old", "v2.1")
    with RangeServer(folder(tmp_path / "old", "/s")) as server:
        data = EpisodeArrays(Catalog.open(f"{server.url}/s", options(tmp_path)))
        before = EpisodeArrays(tmp_path / "old")
        for name in ("info.json", "episodes.jsonl", "episodes_stats.jsonl"):
            server.files[f"/s/meta/{name}"] += b"\n"  # type: ignore[index]
            server.written[f"/s/meta/{name}"] = time.time() + 5
        for index in (0, 5, 9, 13):
            assert data[index]["timestamp"] == before[index]["timestamp"]


def test_a_recording_that_grows_is_read_as_it_was(tmp_path: Path) -> None:
    features = {"action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}}
    writer = EpisodeWriter(tmp_path / "d", fps=10, features=features)

    def record(value: float) -> None:
        for _ in range(3):
            writer.add_frame({"action": np.full(2, value, np.float32)}, "t")
        writer.save_episode()

    record(0)
    record(1)
    data = EpisodeArrays(tmp_path / "d")
    record(2)
    assert [float(data[index]["action"][0]) for index in range(6)] == [0, 0, 0, 1, 1, 1]
    writer.finish()


def test_a_further_file_costs_one_conditional_request_at_most(tmp_path: Path) -> None:
    lengths = (3,) * 12
    write_dataset(
        tmp_path / "d", Spec(version="v2.1", lengths=lengths, cameras=("observation.images.top",))
    )
    with RangeServer(folder(tmp_path / "d", "/s")) as server:
        data = EpisodeArrays(Catalog.open(f"{server.url}/s", options(tmp_path)))
        opened = len(server.log)
        for index in range(len(data)):
            assert len(data[index])
        asked = [request for request in server.log[opened:] if request.path.startswith("/s/meta/")]
        files = {request.path for request in server.log[opened:]} - {
            request.path for request in asked
        }
        marks = 3
        assert len(files) >= 20
        assert len(asked) <= len(files) + marks - 1
        assert {request.status for request in asked} == {304}
        count = len(server.log)
        assert all(len(data[index]) for index in range(len(data)))
        assert not [
            request for request in server.log[count:] if request.path.startswith("/s/meta/")
        ]


def publish(*words: Path) -> None:
    from understudy_kit import main

    assert main(["publish", *map(str, words)]) == 0


@pytest.fixture
def writers(tmp_path: Path) -> list[Path]:
    features = {"action": {"dtype": "float32", "shape": (2,), "names": ["a", "b"]}}
    roots = []
    for number, name in enumerate(("arm1", "arm2", "arm3", "arm4")):
        writer = EpisodeWriter(tmp_path / name, fps=10, features=features)
        for _ in range(4):
            writer.add_frame({"action": np.full(2, number, np.float32)}, "t")
        writer.save_episode()
        writer.finish()
        roots.append(tmp_path / name)
    return roots


def test_a_publication_is_read_to_its_end_with_its_own_meta_files(
    writers: list[Path], tmp_path: Path
) -> None:
    publish(writers[0], tmp_path / "all")
    data = EpisodeArrays(tmp_path / "all")
    for count in (2, 3, 4):
        publish(*writers[:count], tmp_path / "all")
        if count == 2:
            # not those of the new publication
            assert data.catalog.stats["action"]["max"].tolist() == [0, 0]
    copy = pickle.loads(pickle.dumps(data))
    assert [float(copy[index]["action"][0]) for index in range(4)] == [0] * 4
    assert data.catalog.files.version_read == "publication 000001"
    assert len(EpisodeArrays(tmp_path / "all")) == 16


def test_an_address_names_one_publication(
    writers: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(writers[0], tmp_path / "all")
    publish(*writers[:2], tmp_path / "all")
    publish(*writers[:3], tmp_path / "all")
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 3):
        data = EpisodeArrays(f"all@00000{number}")
        assert (len(data), data.name) == (4 * number, "all")
        assert data.catalog.files.version_address == f"{tmp_path}/all@00000{number}"
    with refused(where="000004", fix=""):
        EpisodeArrays("all@000004")
    (tmp_path / "other@000001").symlink_to("arm1")  # a folder with such a name is itself
    assert len(EpisodeArrays("other@000001")) == 4


def test_version_read_is_named(tmp_path: Path) -> None:
    write_old(tmp_path / "old", "v3.0")
    local = Catalog.open(tmp_path / "old").files
    assert "meta/info.json" in local.version_read
    assert local.version_address == ""
    with RangeServer(folder(tmp_path / "old", "/s")) as server:
        there = Catalog.open(f"{server.url}/s", options(tmp_path)).files
        etags = json.dumps(there.version_read)
        assert "meta/info.json" in etags
        assert "meta/stats.json" in etags


@pytest.mark.parametrize("age", [0.0, 3600.0], ids=["new", "old time"])
@pytest.mark.parametrize("pattern", ["data/**/*.parquet", "videos/**/*.mp4"])
def test_files_that_are_replaced_alone_are_refused(
    tmp_path: Path, pattern: str, age: float
) -> None:
    """`meta/` stays as it was. A file that was read before is refused where it is read again."""
    spec = Spec(
        version="v2.1", lengths=(4, 3, 5), cameras=("observation.images.top",), foreign=False
    )
    write_dataset(tmp_path / "d", spec)
    data = EpisodeArrays(tmp_path / "d")
    assert len(data[0])
    copy = pickle.dumps(data)
    time.sleep(0.02)  # the kernel's clock of files is some milliseconds behind
    replace_files(tmp_path / "d", pattern, age)
    for opened, index in ((data, 5), (pickle.loads(copy), 0)):
        with refused("open", where="", fix="start", kind=SourceError) as caught:
            opened[index]
        assert f"/{pattern[:4]}" in str(caught.value.where)
    assert len(EpisodeArrays(tmp_path / "d")[5])


def test_another_mode_or_link_of_a_file_is_no_change(tmp_path: Path) -> None:
    write_old(tmp_path / "d", "v3.0")
    data = EpisodeArrays(tmp_path / "d")
    time.sleep(0.02)
    for path in filter(Path.is_file, [*(tmp_path / "d").glob("[dv]*/**/*.*")]):
        path.chmod(0o444)
        os.link(path, tmp_path / f"{path.name}-{path.stat().st_ino}")
    assert len(data[5])


def test_forked_workers_keep_to_the_version(tmp_path: Path) -> None:
    write_old(tmp_path / "old", "v3.0")
    replaced(tmp_path / "old", tmp_path / "new", "stats.json")
    program = f"""
import os
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_base.errors import SourceError
os.chdir({str(tmp_path)!r})
data = EpisodeArrays("old")
os.rename("old", "before"); os.rename("new", "old")
if os.fork() == 0:
    try:
        data[5]
    except SourceError:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["7"], done
