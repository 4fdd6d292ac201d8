"""Several writers, one dataset: every reader has the earlier version or the new one, whatever is
killed.
"""

import os
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_base import EmptyDatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.stats.running import QUANTILES
from understudy_data.testing import recording
from understudy_data.testing.datasets import edit_column
from understudy_data.testing.servers import RangeServer
from understudy_data.testing.writable_hub import serve_hub
from understudy_kit import main
from understudy_tools.edit import publish as module
from understudy_tools.edit.publish import publish

NAMES = ("arm-1", "arm-2")


def record(root: Path, episodes: range) -> Path:
    with recording.open_writer(root, resume=True) as writer:
        recording.record(writer, episodes)
    return root


def content(root: Path) -> list[tuple[Any, ...]]:
    """Every frame: its numbers, task, state and grey levels, as our reader gives them."""
    data = EpisodeArrays(root)
    return [
        (
            *(int(item[key]) for key in ("episode_index", "frame_index", "index")),
            item["task"],
            item["observation.state"].tolist(),
            *(
                round(float(item[f"observation.images.{camera}"].mean()) / 4)
                for camera in ("top", "wrist")
            ),
        )
        for item in data.__getitems__(range(len(data)))
    ]


def expected(parts: list[tuple[int, range]]) -> list[tuple[int, str, list[float]]]:
    """Episode, task and state of every frame, of (writer, its episodes) in the order of
    publication.
    """
    episodes = [episode for _, of in parts for episode in of]
    return [
        (number, recording.task(episode), recording.state(episode, frame).tolist())
        for number, episode in enumerate(episodes)
        for frame in range(recording.length(episode))
    ]


def whole(root: Path) -> int:
    """Episodes of a sound version: files and tables, with no row of another version, as a reader of
    all files sees.
    """
    catalog = Catalog.open(root)
    assert catalog.report() == []
    tables = [pq.read_table(path) for path in sorted(root.glob("data/*/*.parquet"))]
    rows = [index for table in tables for index in table["index"].to_pylist()]
    assert rows == list(range(catalog.num_frames))
    listed = [
        e
        for path in sorted(root.glob("meta/episodes/*/*.parquet"))
        for e in pq.read_table(path)["episode_index"].to_pylist()
    ]
    assert listed == list(range(catalog.num_episodes))
    assert catalog.info["total_frames"] == catalog.num_frames
    return catalog.num_episodes


FIRST = [(0, range(3)), (1, range(2))]
SECOND = [(0, range(3, 4)), (1, range(2, 4))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`one` has the first publication of two writers, which have recorded more since; `two` has
    both.
    """
    root = tmp_path_factory.mktemp("published")
    writers = [record(root / name, of) for name, (_, of) in zip(NAMES, FIRST)]
    publish([str(path) for path in writers], root / "one/out")
    assert main(["select", str(root / "one/out"), "early", "--episodes", "0", "2"]) == 0
    for path, (_, of) in zip(writers, SECOND):
        record(path, of)
    shutil.copytree(root / "one", root / "two", symlinks=True)
    assert publish([str(path) for path in writers], root / "two/out") == {"arm-1": 1, "arm-2": 2}
    return root


def test_publications_append_and_keep_every_earlier_file(folder: Path) -> None:
    before = folder / "one/out"
    after = folder / "two/out"
    assert [(e, task, state) for e, _, _, task, state, *_ in content(after)] == expected(
        [*FIRST, *SECOND]
    )
    assert content(after)[: len(content(before))] == content(before)
    assert (whole(before), whole(after)) == (5, 8)
    for path in before.rglob("*"):
        if path.is_file() and ("chunk-" in str(path)):
            assert (after / path.relative_to(before)).read_bytes() == path.read_bytes()
    writers = Catalog.open(after).episode_metadata()["writer"]
    assert [writers[episode] for episode in range(8)] == [
        NAMES[n] for n, of in [*FIRST, *SECOND] for _ in of
    ]
    assert Catalog.open(f"{after}#early").episodes is not None
    stats = Catalog.open(after).stats
    rows = [state for *_, state, _, _ in content(after)]
    assert stats["observation.state"]["count"].tolist() == [len(rows)]
    assert stats["observation.state"]["mean"].tolist() == pytest.approx(
        [sum(axis) / len(rows) for axis in zip(*rows)]
    )
    assert stats["episode_index"]["max"].tolist() == [7]


def test_an_edited_copy_has_the_quantiles_that_a_publication_lacks(
    folder: Path, tmp_path: Path
) -> None:
    assert main(["edit", str(folder / "two/out"), str(tmp_path / "copy")]) == 0
    roots = folder / "two/out", tmp_path / "copy"
    before, after = (Catalog.open(root).stats["observation.state"] for root in roots)
    assert after.keys() - before.keys() == set(QUANTILES)
    assert after["mean"].tolist() == pytest.approx(before["mean"].tolist())


def test_a_push_has_the_views(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    monkeypatch.chdir(tmp_path)
    with serve_hub(monkeypatch, tmp_path / "cache"):
        assert main(["push", str(folder / "two/out"), "--to", "hf://datasets/me/all"]) == 0
        assert main(["pull", "hf://datasets/me/all"]) == 0
    assert str(Catalog.open("all#early").view) == "early@1"
    assert content(tmp_path / "all") == content(folder / "two/out")


def test_a_writer_without_an_episode_adds_none(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "p", symlinks=True)
    out = tmp_path / "p/out"
    writers = [str(tmp_path / "arm-3"), str(folder / "arm-1")]
    with recording.open_writer(tmp_path / "arm-3") as writer:
        assert publish(writers[:1], tmp_path / "new") == {"arm-3": 0}
        assert not os.path.lexists(tmp_path / "new")
        assert publish(writers, out) == {"arm-3": 0, "arm-1": 1}
        recording.record(writer, range(2))
        assert publish(writers, out) == {"arm-3": 2, "arm-1": 0}
    order = [*FIRST, SECOND[0], (0, range(2))]
    assert [(e, task, state) for e, _, _, task, state, *_ in content(out)] == expected(order)
    shutil.rmtree(tmp_path / "arm-3")
    with recording.open_writer(tmp_path / "arm-3"), refused(where="", kind=EmptyDatasetError):
        publish(writers, out)  # its published episodes are lost
    assert whole(out) == 8


def test_a_camera_that_a_writer_lacks_is_refused_with_a_way_that_works(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = {key: feature for key, feature in recording.FEATURES.items() if "wrist" not in key}
    monkeypatch.setattr(recording, "FEATURES", features)
    with recording.open_writer(tmp_path / "arm-3") as writer:
        image = np.zeros((32, 32, 3), np.uint8)
        writer.add_frame(
            {"observation.images.top": image, "observation.state": recording.state(0, 0)}, task="t"
        )
        writer.save_episode()
    writers = [str(tmp_path / "arm-3"), str(folder / "arm-1")]
    with refused("observation.images.wrist", where="arm-3", fix="edit"):
        publish(writers, tmp_path / "out")
    words = ["--drop-features", "observation.images.wrist"]
    assert main(["edit", writers[1], str(tmp_path / "copies/arm-1"), *words]) == 0
    assert publish([writers[0], str(tmp_path / "copies/arm-1")], tmp_path / "out") == {
        "arm-3": 1,
        "arm-1": 4,
    }


def test_without_new_episodes_nothing_changes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = os.readlink(folder / "two/out")
    assert main(["publish", *(str(folder / name) for name in NAMES), str(folder / "two/out")]) == 0
    assert capsys.readouterr().out.splitlines() == [f"{name}: 0 new episodes" for name in NAMES]
    assert os.readlink(folder / "two/out") == link


def test_a_view_of_a_writer_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / NAMES[0], tmp_path / "w")
    assert main(["select", str(tmp_path / "w"), "v", "--episodes", "0"]) == 0
    with refused("v@1", where="w", fix="whole"):
        publish([f"{tmp_path / 'w'}#v"], tmp_path / "out")


def test_changed_writers_and_foreign_folders_are_refused(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shutil.copytree(folder / "two", tmp_path, symlinks=True, dirs_exist_ok=True)
    record(tmp_path / "arm-1", range(2))  # another recording of the same name
    with refused("published", where="arm-1", fix="name"):
        publish([str(tmp_path / "arm-1")], out)
    shutil.rmtree(tmp_path / "arm-1")
    shutil.copytree(folder / "arm-1", tmp_path / "arm-1")
    assert publish([str(tmp_path / "arm-1")], out) == {"arm-1": 0}
    for path in (tmp_path / "arm-1").glob("data/*/*.parquet"):  # equal lengths, other values
        edit_column(path, "observation.state", lambda rows: [row * 7 + 1 for row in rows])
    with refused("published", where="arm-1", fix="name"):
        publish([str(tmp_path / "arm-1")], out)
    with refused("arm-1", fix="rename"):
        publish([str(folder / "arm-1"), str(tmp_path / "arm-1")], out)
    with refused("published", where="arm-1", fix="folder"):
        publish([str(folder / "arm-2")], tmp_path / "arm-1")
    with refused("writer", where="out", fix="alone"):
        # as from * in a folder with writers and publication
        publish([str(folder / "arm-2"), str(out)], out)
    assert whole(out) == 8


class _Snapshots:
    """Copies of a folder before each file operation of a call."""

    def __init__(self, folder: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self._busy = False
        for owner, name in [
            (os, "replace"),
            (os, "symlink"),
            (os, "fsync"),
            (os, "mkdir"),
            (os, "unlink"),
            (os, "rmdir"),
        ]:
            plain = getattr(owner, name)

            def operation(*args: Any, _plain: Any = plain, **options: Any) -> Any:
                if not self._busy:
                    self._busy = True
                    shutil.copytree(folder, copies / f"{self.count:03d}", symlinks=True)
                    self.count = self.count + 1
                    self._busy = False
                return _plain(*args, **options)

            monkeypatch.setattr(os, name, operation)


@pytest.mark.long
def test_kill_at_every_file_operation_leaves_the_old_or_the_new(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "one", tmp_path / "p", symlinks=True)
    writers = [str(folder / name) for name in NAMES]
    with monkeypatch.context() as patch:
        snapshots = _Snapshots(tmp_path / "p", tmp_path / "killed", patch)
        publish(writers, tmp_path / "p/out")
    found = [whole(copy / "out") for copy in sorted((tmp_path / "killed").iterdir())]
    assert found == sorted(found)
    assert set(found) == {5, 8}
    assert len(found) == snapshots.count > 40
    for number in (*range(0, len(found), 9), found.index(8) - 1):
        copy = tmp_path / f"killed/{number:03d}"
        publish(writers, copy / "out")
        assert content(copy / "out") == content(folder / "two/out"), number
        assert whole(copy / "out") == 8
    for copy in (tmp_path / "killed").iterdir():  # a version was published, so its files are kept
        os.unlink(copy / "out")  # as after `mv` to another folder
        assert module._in_use(copy / "out", copy / ".out.versions"), copy


def test_kill_of_a_first_publication_is_no_dataset_that_was_moved(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = [str(folder / name) for name in NAMES]
    (tmp_path / "p").mkdir()
    with monkeypatch.context() as patch:
        _Snapshots(tmp_path / "p", tmp_path / "killed", patch)
        publish(writers, tmp_path / "p/out")
    copies = sorted((tmp_path / "killed").iterdir())
    unpublished = [copy for copy in copies if not os.path.lexists(copy / "out")]
    # killed after it: the dataset was published, and can be moved
    for copy in copies[len(unpublished) :]:
        os.unlink(copy / "out")
        assert module._in_use(copy / "out", copy / ".out.versions"), copy
    late = [copy for copy in unpublished if (copy / ".out.versions/000001").exists()]
    assert len(unpublished) > len(late) > 5
    for copy in unpublished:
        assert not module._in_use(copy / "out", copy / ".out.versions")
    with monkeypatch.context() as patch:
        # whose remains the next publication removes
        _Snapshots(late[-1], tmp_path / "again", patch)
        publish(writers, late[-1] / "out")
    assert whole(late[-1] / "out") == 8
    for copy in (tmp_path / "again").iterdir():
        assert os.path.lexists(copy / "out") or not module._in_use(
            copy / "out", copy / ".out.versions"
        )


def test_open_readers_go_on(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "p", symlinks=True)
    before = content(folder / "one/out")
    with RangeServer(tmp_path / "p") as server:
        here = EpisodeArrays(tmp_path / "p/out")
        there = EpisodeArrays(f"{server.url}/out")
        first = [int(data[0]["index"]) for data in (here, there)]
        publish([str(folder / name) for name in NAMES], tmp_path / "p/out")
        for data in (here, there):
            states = [data[i]["observation.state"].tolist() for i in range(len(data))]
            assert states == [state for *_, state, _, _ in before]
            assert all(
                data[i]["observation.images.top"].shape == (3, 32, 32) for i in range(len(data))
            )
        assert first == [0, 0]


def test_a_reader_that_opens_during_a_publication_has_one_version(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "one", tmp_path / "p", symlinks=True)
    assert main(["select", str(tmp_path / "p/out"), "v", "--episodes", "0", "1"]) == 0
    plain = Catalog.open.__func__.__globals__["layouts"].read_tasks  # type: ignore[attr-defined]
    waiting = [True]

    def read_tasks(*arguments: Any) -> Any:
        tasks = plain(*arguments)
        if waiting.pop() if waiting else False:
            publish([str(folder / name) for name in NAMES], tmp_path / "p/out")
        return tasks

    monkeypatch.setattr("understudy_data.datasets.format.layouts.read_tasks", read_tasks)
    catalog = Catalog.open(f"{tmp_path / 'p/out'}#v")
    assert (catalog.num_episodes, catalog.info["total_episodes"]) == (8, 8)
    assert str(catalog.view) == "v@1"
    assert not catalog.oddities


def test_every_file_but_views_is_found_without_following_linked_folders(folder: Path) -> None:
    """As `hf upload` finds them."""
    catalog = Catalog.open(folder / "two/out")
    found = {Path(top, name) for top, _, names in os.walk(folder / "two/out") for name in names}
    used = {
        folder / "two/out" / catalog.video_path(key, row)
        for row in range(8)
        for key in catalog.camera_keys
    }
    assert used <= found
    assert {folder / "two/out" / catalog.data_path(row) for row in range(8)} <= found


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_dataset_that_was_renamed_keeps_its_files(
    folder: Path, tmp_path: Path, name: str
) -> None:
    shutil.copytree(folder / name, tmp_path / "p", symlinks=True)
    os.rename(tmp_path / "p/out", tmp_path / "p/older")
    with refused("gone", where="out", fix="older"):
        publish([str(folder / "arm-2")], tmp_path / "p/out")
    assert content(tmp_path / "p/older") == content(folder / name / "out")
    os.rename(tmp_path / "p/older", tmp_path / "out")  # now it leads nowhere
    with refused("gone", where="out", fix="00000"):
        publish([str(folder / "arm-2")], tmp_path / "p/out")


def test_a_dataset_that_was_moved_after_a_kill_keeps_its_files(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "one", tmp_path / "p", symlinks=True)
    plain = module.write_set

    def write_set(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_set", write_set)
        with pytest.raises(KeyboardInterrupt):
            publish([str(folder / "arm-2")], tmp_path / "p/out")
    os.rename(tmp_path / "p/out", tmp_path / "out")
    with refused("gone", where="out", fix="000001"):
        publish([str(folder / "arm-1")], tmp_path / "p/out")
    os.rename(tmp_path / "out", tmp_path / "p/out")
    assert content(tmp_path / "p/out") == content(folder / "one/out")


def test_publications_wait_for_each_other(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "one", tmp_path / "p", symlinks=True)
    calls = [
        threading.Thread(target=publish, args=([str(folder / name)], tmp_path / "p/out"))
        for name in NAMES
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    assert whole(tmp_path / "p/out") == 8


def test_files_that_a_recorder_joins_meanwhile_are_not_published(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later episode has the file of an earlier one then, so that rows and images could be of two
    episodes.
    """
    shutil.copytree(folder / "one", tmp_path / "p", symlinks=True)
    writer = recording.open_writer(tmp_path / "arm-3")
    recording.record(writer, range(2))
    plain = module.write_set

    def write_set(*arguments: Any) -> Any:
        done = plain(*arguments)
        if len(Catalog.open(tmp_path / "arm-3").episodes.data) == 2:
            writer.finish()
        return done

    monkeypatch.setattr(module, "write_set", write_set)
    with refused("joined", where="arm-3", fix="publish"):
        publish([str(tmp_path / "arm-3")], tmp_path / "p/out")
    assert whole(tmp_path / "p/out") == 5
    assert publish([str(tmp_path / "arm-3")], tmp_path / "p/out") == {"arm-3": 2}
    assert whole(tmp_path / "p/out") == 7


@pytest.mark.long
def test_files_of_others_in_the_store_stay_and_stop_nothing(tmp_path: Path) -> None:
    """What a file browser or NFS leaves there, and folders of a user: nothing that a publication
    did not make.
    """
    arm = record(tmp_path / "arm-1", range(1))
    out = tmp_path / "all"
    publish([str(arm)], out)
    store = tmp_path / ".all.versions"
    for name in (".DS_Store", ".nfs000001", "1.txt", "files/.DS_Store", "000001/.DS_Store"):
        (store / name).write_bytes(b"x")
    (store / "mine").mkdir()
    (store / "mine/notes.txt").write_text("mine")
    (store / "2026").symlink_to(tmp_path / "arm-1")
    there = {path.relative_to(store) for path in store.rglob("*")}
    for count in range(2, 2 + module.KEPT):
        record(arm, range(count - 1, count))
        assert sum(publish([str(arm)], out).values()) == 1
    left = {path for path in there if path.parts[0] != "000001"}
    assert left <= {path.relative_to(store) for path in store.rglob("*")}
    numbers = sorted(
        path.name for path in store.iterdir() if path.name.isdigit() and len(path.name) == 6
    )
    assert numbers == [f"{number:06d}" for number in range(2, 2 + module.KEPT)]
    assert whole(out) == 1 + module.KEPT


@pytest.mark.parametrize(
    ("writers", "out"),
    [
        (["arm-1"], "arm-1"),
        (["arm-1"], "arm-1/sub"),
        (["arm-1"], "arm-1/meta/deep/sub"),
        (["arm-2", "arm-1"], "arm-1/data/all"),
        (["arm-1"], "link/sub"),
        (["link"], "arm-1/sub"),
        (["arm-1"], "."),
    ],
)
def test_an_output_inside_a_writer_is_refused(
    tmp_path: Path, writers: list[str], out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in NAMES:
        record(tmp_path / name, range(1))
    (tmp_path / "link").symlink_to("arm-1")
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    assert main(["publish", *writers, out]) == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_an_output_beside_a_writer_is_written(tmp_path: Path) -> None:
    """The nearest sound outputs: a name that begins like the writer's, and a folder of the writer's
    parent.
    """
    arm = record(tmp_path / "arm-1", range(1))
    for out in (tmp_path / "arm-10", tmp_path / "sub/arm-1"):
        out.parent.mkdir(exist_ok=True)
        assert main(["publish", str(arm), str(out)]) == 0
        assert Catalog.open(out).num_episodes == 1


@pytest.mark.parametrize(
    "out",
    ["all/sub", "all/meta/deep/sub", "link/sub", ".all.versions/000001/sub", ".all.versions/sub"],
)
def test_an_output_inside_a_publication_is_refused(tmp_path: Path, out: str) -> None:
    """The next version of the publication would take its place, and rows that are written meanwhile
    would be lost.
    """
    arm = record(tmp_path / "arm-1", range(1))
    assert main(["publish", str(arm), str(tmp_path / "all")]) == 0
    (tmp_path / "link").symlink_to("all")
    before = sorted(tmp_path.rglob("*"))
    assert main(["publish", str(arm), str(tmp_path / out)]) == 2
    assert sorted(tmp_path.rglob("*")) == before
