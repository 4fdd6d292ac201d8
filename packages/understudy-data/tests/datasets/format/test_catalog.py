"""Catalog: one table for all versions, oddities reported, broken metadata refused, small for many
episodes.
"""

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import DatasetError, EmptyDatasetError, MissingFileError, SourceError
from understudy_base.testing.refusals import absent, refused
from understudy_data.datasets.format import layouts
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import starts_within
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.format.recorded_stats import aggregate
from understudy_data.storage.remote_options import RemoteOptions
from understudy_data.testing.datasets import TASKS, Spec, edit_json, write_dataset
from understudy_data.testing.hub import HubServer

TOP = "observation.images.top"
WRIST = "observation.images.wrist"
VERSIONS = ["v2.0", "v2.1", "v3.0", "v3.1"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dataset of each version, all with the same content."""
    root = tmp_path_factory.mktemp("catalog")
    for version in VERSIONS:
        spec = Spec(
            version=version,
            lengths=(4, 6, 3),
            ids=(1, 4, 6),
            cameras=(TOP, WRIST),
            reverse_meta=True,
        )
        write_dataset(root / version, spec)
    return root


@pytest.fixture
def copy(written: Path, tmp_path: Path) -> Any:
    """A copy of one of them to damage: copy("v3.0")."""

    def make(version: str) -> Path:
        shutil.copytree(written / version, tmp_path / version)
        return tmp_path / version

    return make


@pytest.mark.parametrize("robot", [["arm"], {"a": 1}, "arm\n\x1b[2J", 3])
def test_a_robot_type_that_is_no_name_is_left_out(copy: Any, robot: Any) -> None:
    root = copy("v3.0")
    edit_json(root / "meta/info.json", lambda info: info.update(robot_type=robot))
    catalog = Catalog.open(root)
    assert catalog.robot_type is None
    assert [line.isprintable() for line in catalog.oddities if line.startswith("robot_type")] == [
        True
    ]


@pytest.mark.parametrize("version", VERSIONS)
def test_catalog_what_it_says(written: Path, version: str) -> None:
    catalog = Catalog.open(written / version)
    assert catalog.version == version
    assert catalog.fps == 10
    assert catalog.robot_type == "test_arm"
    assert catalog.tasks == TASKS
    assert catalog.camera_keys == (TOP, WRIST)
    assert catalog.name == version
    assert catalog.features["observation.state"].shape == (3,)
    assert catalog.features["observation.state"].names == ["a", "b", "c"]
    table = catalog.episodes
    assert table.ids.tolist() == [1, 4, 6]
    assert table.lengths.tolist() == [4, 6, 3]
    assert table.index_from.tolist() == [0, 4, 10]
    assert [table.row_of(e) for e in (6, 1, 4)] == [2, 0, 1]
    assert [TASKS[t] for t in table.tasks_of(1)] == sorted([TASKS[0], TASKS[1]])
    for row in range(3):
        assert (written / version / catalog.data_path(row)).is_file()
        for camera in (TOP, WRIST):
            assert (written / version / catalog.video_path(camera, row)).is_file()
    first = {key: videos.first.tolist() for key, videos in table.videos.items()}
    assert first == (
        {TOP: [0, 4, 0], WRIST: [0, 4, 10]}
        if version >= "v3"
        else {TOP: [0, 0, 0], WRIST: [0, 0, 0]}
    )
    assert Catalog.open(catalog) is catalog


@pytest.mark.parametrize("version", VERSIONS)
def test_catalog_a_clean_dataset_has_only_its_gaps_to_report(written: Path, version: str) -> None:
    lines = Catalog.open(written / version).report()
    assert len(lines) == 2, lines
    assert "gaps: 3 episodes from 1 to 6" in lines[0]
    assert "observation.state: 1 of 3 dimensions are constant" in lines[1]


def test_catalog_what_a_notebook_shows_is_one_line(written: Path) -> None:
    catalog = Catalog.open(written / "v3.0")
    table = catalog.episodes
    assert f"{len(table)} episodes, {table.frames} frames" in repr(catalog)
    assert len(repr(catalog)) < 100 + len(str(written))
    assert catalog == Catalog.open(catalog)
    assert catalog != Catalog.open(written / "v3.0"), (
        "compared by identity: arrays have no one truth value"
    )


def test_catalog_ids_that_are_not_there(written: Path) -> None:
    table = Catalog.open(written / "v3.0").episodes
    for wrong in (0, 2, 7, -1, 1 << 40):
        with refused(wrong, fix="1, 4, 6"):
            table.row_of(wrong)


@pytest.mark.parametrize("version", VERSIONS)
def test_catalog_statistics(written: Path, version: str) -> None:
    """The recorded statistics, and v2.1's put together, are those of all rows."""
    root = written / version
    states = [
        np.asarray(pq.read_table(p)["action"].to_pylist())
        for p in sorted(root.glob("data/chunk-*/*.parquet"))
    ]
    values = np.concatenate(states).astype(np.float64)
    stats = Catalog.open(root).stats["action"]
    for name, want in {
        "min": values.min(0),
        "max": values.max(0),
        "mean": values.mean(0),
        "std": values.std(0),
    }.items():
        np.testing.assert_allclose(stats[name], want, rtol=1e-12)
    assert stats["count"].tolist() == [13]


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    center=st.sampled_from([0.0, 1.0, -1e6]),
    spread=st.sampled_from([0.0, 1e-3, 1.0]),
    seed=st.integers(0, 1000),
)
def test_catalog_aggregate_is_the_whole(
    sizes: list[int], center: float, spread: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(center, spread, size=(n, 2)) for n in sizes]
    whole = np.concatenate(parts)
    ways = [
        {
            "min": p.min(0),
            "max": p.max(0),
            "mean": p.mean(0),
            "std": p.std(0),
            "count": np.asarray([float(len(p))]),
        }
        for p in parts
    ]
    got = aggregate(ways)
    np.testing.assert_allclose(got["mean"], whole.mean(0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got["std"], whole.std(0), rtol=1e-6, atol=1e-9 * max(1, abs(center)))
    assert (got["min"] == whole.min(0)).all()
    assert (got["max"] == whole.max(0)).all()
    assert got["count"].tolist() == [len(whole)]


def test_catalog_dataset_without_statistics(copy: Any) -> None:
    for version, name in [("v2.1", "meta/episodes_stats.jsonl"), ("v3.0", "meta/stats.json")]:
        root = copy(version)
        (root / name).unlink()
        catalog = Catalog.open(root)
        assert catalog.stats == {}
        assert f"{name} is not there" in catalog.report()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=12), st.randoms())
def test_catalog_starts_within_files(episodes: list[tuple[int, int]], random: Any) -> None:
    """An episode starts where the lengths of those before it in its file end, whatever order they
    are listed in.
    """
    order = list(range(len(episodes)))
    random.shuffle(order)
    file = np.asarray([episodes[i][0] for i in order], np.int64)
    lengths = np.asarray([episodes[i][1] for i in order], np.int64)
    got = starts_within(file, np.asarray(order), lengths)
    for at, i in enumerate(order):
        assert got[at] == sum(
            n for j, (f, n) in enumerate(episodes) if f == episodes[i][0] and j < i
        )


@pytest.mark.parametrize("spelling", ["index", "unnamed", "plain"])
def test_catalog_spellings_of_the_task_list(tmp_path: Path, spelling: str) -> None:
    write_dataset(tmp_path / "d", Spec(tasks_spelling=spelling, cameras=()))
    assert Catalog.open(tmp_path / "d").tasks == TASKS


def test_catalog_task_list_of_another_version(copy: Any) -> None:
    root = copy("v3.0")
    (root / "meta/tasks.parquet").unlink()
    lines = [json.dumps({"task_index": i, "task": t}) for i, t in enumerate(TASKS)]
    (root / "meta/tasks.jsonl").write_text("\n".join(lines))
    catalog = Catalog.open(root)
    assert catalog.tasks == TASKS
    assert any("tasks.jsonl" in line for line in catalog.report())


def test_catalog_totals_and_splits_that_lie(copy: Any) -> None:
    root = copy("v2.1")
    lies = {
        "total_episodes": 99,
        "total_frames": 1,
        "total_chunks": 0,
        "total_videos": 2,
        "splits": {"train": "0:100"},
    }
    edit_json(root / "meta/info.json", lambda info: info.update(lies))
    catalog = Catalog.open(root)
    assert len(catalog.episodes) == 3
    report = "\n".join(catalog.report())
    for text in (
        "total_episodes is 99, the tables hold 3",
        "total_frames is 1, ",
        "total_chunks is 0, the tables hold 3",
    ):
        assert text in report
    assert "total_videos is 2, the tables hold 6" in report
    assert "'0:100'" in report


def test_catalog_templates_that_name_other_chunks(copy: Any) -> None:
    """The file is found under its own name wherever its chunk folder is."""
    root = copy("v2.0")
    odd = {
        "data_path": "data/chunk-{episode_index:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_index:03d}/{video_key}/"
        "episode_{episode_index:06d}.mp4",
    }
    edit_json(root / "meta/info.json", lambda info: info.update(odd))
    catalog = Catalog.open(root)
    assert catalog.data_path(2) == "data/chunk-003/episode_000006.parquet"
    assert catalog.video_path(TOP, 1) == f"videos/chunk-002/{TOP}/episode_000004.mp4"
    lines = [line for line in catalog.report() if "found by name" in line]
    assert len(lines) == 3
    assert not any("not there" in line for line in catalog.report())


@pytest.mark.parametrize(
    "template", [None, 7, "data/{nonsense}.parquet", "../{chunk_index}.x", "{chunk_index:z}"]
)
def test_catalog_templates_that_cannot_be_used(copy: Any, template: object) -> None:
    root = copy("v3.0")
    edit_json(root / "meta/info.json", lambda info: info.update(data_path=template))
    catalog = Catalog.open(root)
    assert (root / catalog.data_path(0)).is_file()
    assert any("data_path" in line for line in catalog.report())


@pytest.mark.parametrize("kind", ["absent", "link"])
def test_catalog_missing_files_are_named(copy: Any, kind: str) -> None:
    """Caches of downloads are full of links, and are cleared in part. A link to itself is no reason
    to stop.
    """
    root = copy("v2.1")
    paths = (
        root / "data/chunk-002/episode_000004.parquet",
        root / f"videos/chunk-003/{WRIST}/episode_000006.mp4",
    )
    for path, target in zip(paths, ("gone", paths[1])):
        path.unlink()
        if kind == "link":
            path.symlink_to(target)
    lines = Catalog.open(root).report()
    assert (
        "data: 1 of 3 files are not there: data/chunk-002/episode_000004.parquet (episode 4)"
        in lines
    )
    assert any(
        line.startswith(f"{WRIST}: 1 of 3 files") and "(episode 6)" in line for line in lines
    )


def test_catalog_folders_that_may_not_be_looked_into(
    copy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulated, since a test may run as a user who may read everything. Not the same as nothing
    there.
    """
    root = copy("v2.1")
    scandir = os.scandir
    stat = os.stat
    catalog = Catalog.open(root)

    def forbidding(plain: Any, part: str) -> Any:
        def operation(path: Any, *rest: Any, **named: Any) -> Any:
            if part in str(path):
                raise PermissionError(13, "Permission denied", str(path))
            return plain(path, *rest, **named)

        return operation

    monkeypatch.setattr("os.scandir", forbidding(scandir, WRIST))
    assert any(
        WRIST in line and "no permission to look into it" in line for line in catalog.report()
    )
    monkeypatch.setattr("os.stat", forbidding(stat, "meta/info.json"))
    refuse_open(root, "info.json", "permission")


@pytest.mark.parametrize(
    ("shape", "names", "channels"),
    [
        ((48, 64, 1), None, 1),
        ((48, 64, 4), {"axes": 3}, 4),
        ((1, 48, 64), None, 1),
        ((3, 48, 4), ["channels", "height", "width"], 3),
        ((3, 48, 1), ["height", "width", "channels"], 1),
        ((48, 64), None, None),
    ],
)
def test_catalog_channels_of_a_declared_image(
    shape: tuple[int, ...], names: Any, channels: int | None
) -> None:
    assert Feature("camera", "image", shape, names).channels == channels
    assert Feature("numbers", "float32", shape, names).channels is None


def test_catalog_depth_video_of_three_channels_is_left_out(copy: Any) -> None:
    root = copy("v3.0")
    edit_json(
        root / "meta/info.json",
        lambda info: info["features"][WRIST]["info"].update({"video.is_depth_map": True}),
    )
    catalog = Catalog.open(root)
    assert catalog.camera_keys == (TOP,)
    assert not absent(" ".join(catalog.report()), WRIST, 3)


def test_catalog_pickles_small(written: Path) -> None:
    catalog = Catalog.open(written / "v3.0")
    assert catalog.stats
    packed = pickle.dumps(catalog)
    assert len(packed) < 4_000
    again = pickle.loads(packed)
    assert again.episodes.ids.tolist() == [1, 4, 6]
    assert again.stats["action"]["count"].tolist() == [13]
    assert again.report() == catalog.report()


@pytest.mark.long
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_catalog_a_hundred_thousand_episodes(tmp_path: Path, version: str) -> None:
    """Metadata only: the table is right, and stays at tens of bytes an episode."""
    count = 100_000
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 400, count)
    names = [f"task {i}" for i in range(50)]
    (tmp_path / "meta/episodes/chunk-000").mkdir(parents=True)
    features = {"action": {"dtype": "float32", "shape": [7], "names": None}}
    features["cam"] = {"dtype": "video", "shape": [8, 8, 3], "names": None}
    info = {"codebase_version": version, "fps": 30, "features": features, "chunks_size": 1000}
    (tmp_path / "meta/info.json").write_text(json.dumps(info))
    if version == "v2.1":
        (tmp_path / "videos/chunk-000/cam").mkdir(parents=True)
        (tmp_path / "videos/chunk-000/cam/episode_000000.mp4").touch()
        lines = [
            f'{{"episode_index": {i}, "tasks": ["task {i % 50}"], "length": {n}}}\n'
            for i, n in enumerate(lengths)
        ]
        (tmp_path / "meta/episodes.jsonl").write_text("\n".join(lines))
        tasks = [json.dumps({"task_index": i, "task": t}) for i, t in enumerate(names)]
        (tmp_path / "meta/tasks.jsonl").write_text("\n".join(tasks))
    else:
        (tmp_path / "videos/cam/chunk-000").mkdir(parents=True)
        (tmp_path / "videos/cam/chunk-000/file-000.mp4").touch()
        file = np.arange(count) // 50
        start = np.cumsum(lengths) - lengths
        columns: dict[str, Any] = {
            "episode_index": np.arange(count),
            "length": lengths,
            "dataset_from_index": start,
        }
        for place in ("data", "videos/cam"):
            columns |= {f"{place}/chunk_index": file // 1000, f"{place}/file_index": file % 1000}
        columns["videos/cam/from_timestamp"] = (start - start[file * 50]) / 30
        columns["tasks"] = pa.array([[f"task {i % 50}"] for i in range(count)])
        columns["stats/action/mean"] = pa.FixedSizeListArray.from_arrays(
            pa.array(np.zeros(count * 7)), 7
        )
        pq.write_table(pa.table(columns), tmp_path / "meta/episodes/chunk-000/file-000.parquet")
        pq.write_table(
            pa.table({"task_index": range(50), "task": names}), tmp_path / "meta/tasks.parquet"
        )
    catalog = Catalog.open(tmp_path)
    table = catalog.episodes
    assert table.frames == lengths.sum()
    assert catalog.tasks[table.tasks_of(77_777)[0]] == "task 27"
    if version == "v3.0":
        assert int(table.videos["cam"].first[99_999]) == lengths[99_950:99_999].sum()
    arrays = [
        a
        for part in (table, table.data, *table.videos.values())
        for a in vars(part).values()
        if isinstance(a, np.ndarray)
    ]
    assert sum({id(a): a.nbytes for a in arrays}.values()) < 100 * count
    assert len(pickle.dumps(catalog)) < 30 * count


# Other file systems


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(
    "kind", ["file", "memory", "memory that cannot list folders, as plain HTTP"]
)
def test_catalog_urls(
    written: Path, version: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{written / version}" if kind == "file" else f"memory://bucket/{version}"
    fs = fsspec.filesystem("memory")
    for path in (p for p in (written / version).rglob("*") if p.is_file()):
        fs.pipe(f"/bucket/{version}/{path.relative_to(written / version)}", path.read_bytes())
    if "cannot" in kind:

        def unable(*_: Any, **__: Any) -> Any:
            raise OSError("no listing here")

        monkeypatch.setattr(MemoryFileSystem, "ls", unable)
    here = Catalog.open(written / version)
    there = Catalog.open(url)
    assert there.tasks == here.tasks
    assert there.camera_keys == here.camera_keys
    for name in ("ids", "lengths", "index_from", "data_file", "data_row"):
        assert np.array_equal(getattr(there.episodes, name), getattr(here.episodes, name))
    assert there.data_path(1) == here.data_path(1)
    assert there.stats.keys() == here.stats.keys()
    assert pickle.loads(pickle.dumps(there)).report() == there.report()


def test_catalog_missing_at_a_url() -> None:
    with refused(where="meta/info.json", kind=MissingFileError):
        Catalog.open("memory://bucket/nowhere")


def test_catalog_unknown_protocol() -> None:
    with refused("nosuch", where="nosuch://bucket/data"):
        Catalog.open("nosuch://bucket/data")


# Metadata that is refused


def refuse_open(
    root: Path, where: str, *values: object, kind: type[DatasetError] = DatasetError
) -> None:
    with refused(*values, where=where, kind=kind) as caught:
        Catalog.open(root)
    assert "\n" not in str(caught.value)


def test_catalog_no_dataset(tmp_path: Path) -> None:
    refuse_open(tmp_path / "nothing", "nothing", "folder")
    refuse_open(tmp_path, tmp_path.name, "meta/info.json")


def test_catalog_open_prefers_a_folder_to_a_hub_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "someone/table").mkdir(parents=True)
    for root in (
        "someone/table",
        "someone/tabel",
        "./a/b",
        "a/b/c",
        "/someone/nowhere",
        "nowhere",
        Path("me/table"),
    ):
        with pytest.raises(DatasetError) as caught:
            Catalog.open(root)
        assert caught.value.where == str(tmp_path / root)
        assert ("hf://datasets/someone/tabel" in caught.value.fix) == (root == "someone/tabel")


def test_catalog_open_refuses_a_mistyped_path_before_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data/table").mkdir(parents=True)
    for root in (
        "dat/table",
        "data/tabel",
        "date/tables",
        "./dat/table",
        str(tmp_path / "dat/table"),
    ):
        with refused("folder", where=root.removeprefix("./"), fix="data/table"):
            Catalog.open(
                root, RemoteOptions(storage_options={"endpoint": "http://127.0.0.1:9/never-asked"})
            )


def test_catalog_open_names_the_network_where_the_hub_is_not_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub", reason="needs the extra hub")
    monkeypatch.chdir(tmp_path)
    offline = RemoteOptions(
        storage_options={"endpoint": "http://127.0.0.1:9"}, cache=str(tmp_path / "cache")
    )
    with refused(where="hf://datasets/someone/set", fix="network", kind=SourceError) as caught:
        Catalog.open("hf://datasets/someone/set", offline)
    assert caught.value.transient
    # a path, not an outage
    with refused("folder", "hf://datasets/someone/set", where="someone/set", fix="network"):
        Catalog.open("someone/set", offline)
    with HubServer({}) as hub, refused("folder", where="someone/set", fix="name"):
        Catalog.open(
            "someone/set",
            RemoteOptions(storage_options={"endpoint": hub.url}, cache=str(tmp_path / "cache")),
        )


def test_catalog_open_of_a_run_names_its_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs/tutorial").mkdir(parents=True)
    (tmp_path / "runs/tutorial/order.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    with refused("meta/info.json", where="runs/tutorial", fix="data.root") as caught:
        Catalog.open("runs/tutorial")
    assert "hf://" not in caught.value.fix


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"codebase_version": "v1.6"}, ["codebase_version", "'v1.6'"]),
        ({"codebase_version": "v4.0"}, ["codebase_version", "'v4.0'"]),
        ({"codebase_version": None}, ["codebase_version", None]),
        ({"storage_format": "lance"}, ["storage_format", "'lance'"]),
        ({"fps": "fast"}, ["fps", "'fast'"]),
        ({"fps": 0}, ["fps", 0]),
        ({"fps": 1e-300}, ["fps", 1e-300]),
        ({"fps": True}, ["fps", True]),
        ({"fps": None}, ["fps", None]),
        ({"features": []}, ["features", []]),
        ({"features": {"a": 3}}, ["'a'", "dtype"]),
        ({"features": {"a": {"dtype": "float33", "shape": [1]}}}, ["'a'", "float33"]),
        ({"features": {"a": {"dtype": "float32", "shape": "big"}}}, ["'a'", "'big'"]),
        ({"features": {"a": {"dtype": "float32", "shape": [2.5]}}}, ["'a'", [2.5]]),
        ({"features": {"a": {"dtype": "float32", "shape": [-1]}}}, ["'a'", [-1]]),
        ({"features": {"a": {"dtype": "object", "shape": [1]}}}, ["'a'", "object"]),
    ],
)
@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_catalog_wrong_values_in_info(
    copy: Any, version: str, change: dict[str, Any], words: list[Any]
) -> None:
    root = copy(version)
    edit_json(root / "meta/info.json", lambda info: info.update(change))
    refuse_open(root, "info.json", *words)


def test_catalog_notes_a_key_that_is_there_twice(
    copy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = copy("v3.0") / "meta/info.json"
    path.write_text('{"fps": 7, ' + path.read_text().lstrip()[1:])
    assert Catalog.open(path.parent.parent).fps == 10
    assert any(
        "fps" in record.getMessage() and str(path) in record.getMessage()
        for record in caplog.records
    )


@pytest.mark.parametrize("text", ["", " \n", "{", "[1]", "null", "\x00\xff", '{"a": ' * 100_000])
def test_catalog_info_that_is_no_object(copy: Any, text: str) -> None:
    root = copy("v3.0")
    (root / "meta/info.json").write_text(text)
    refuse_open(root, "info.json")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (['{"episode_index": 0}'], ["entry 1", "'length'"]),
        (
            ['{"episode_index": 0, "length": 5}', '{"episode_index": 0, "length": 6}'],
            ["episode 0", "twice"],
        ),
        (['{"episode_index": -1, "length": 5}'], ["-1"]),
        (['{"episode_index": 0, "length": -5}'], ["episode 0", "-5"]),
        (['{"episode_index": 0, "length": 99999999999}'], ["episode 0", "99999999999"]),
        (['{"episode_index": 0, "length": 1e30}'], ["line 1"]),
        (
            ['{"episode_index": 0, "length": 5}', '{"episode_index": "one", "length": 5}'],
            ["line 2", "'one'"],
        ),
        (['{"episode_index": 0, "length": 2.5}'], ["line 1", "2.5"]),
        (['{"episode_index": 0, "length": [5]}'], ["line 1"]),
        (['{"episode_index": 0, "length": 5', '{"episode_index": 1, "length": 5}'], ["line 1"]),
        (["7"], ["line 1", "object"]),
        ([], ["episode"]),
    ],
)
def test_catalog_wrong_lines_of_episodes(copy: Any, lines: list[str], words: list[str]) -> None:
    root = copy("v2.1")
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    refuse_open(root, "episodes.jsonl", *words, kind=DatasetError if lines else EmptyDatasetError)


def test_catalog_forgiven_lines_of_episodes(copy: Any) -> None:
    """Whole numbers written as floats, one task without its list, a byte order mark, blank lines,
    unknown keys.
    """
    root = copy("v2.1")
    lines = [
        '\ufeff{"episode_index": 0.0, "length": 4, "tasks": "wait", "more": {"x": '
        '"line\u2028separator"}}',
        "",
        '{"length": 2, "episode_index": 1}',
    ]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    table = Catalog.open(root).episodes
    assert table.lengths.tolist() == [4, 2]
    assert table.tasks_of(0).tolist() == [2]
    assert table.tasks_of(1).tolist() == []


def test_catalog_a_very_long_line(copy: Any) -> None:
    root = copy("v2.1")
    lines = [
        json.dumps({"episode_index": i, "length": 4, "tasks": ["wait"], "more": "x" * (5 << 20)})
        for i in range(2)
    ]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    assert Catalog.open(root).episodes.lengths.tolist() == [4, 4]


def test_catalog_wrong_task_lists(copy: Any) -> None:
    root = copy("v2.1")
    for lines, where, value in [
        (['{"task_index": 0, "task": "a"}', '{"task_index": 0, "task": "b"}'], "tasks.jsonl", 0),
        (['{"task_index": 0}'], "tasks.jsonl", "task"),
        (['{"task_index": 4000000000, "task": "a"}'], "info.json", 4000000000),
        (['{"task_index": -3, "task": "a"}'], "tasks.jsonl", -3),
    ]:
        (root / "meta/tasks.jsonl").write_text("\n".join(lines))
        refuse_open(root, where, value)
    (root / "meta/tasks.jsonl").unlink()
    refuse_open(root, "tasks.jsonl", kind=MissingFileError)


def test_catalog_a_task_list_with_a_hole(copy: Any) -> None:
    root = copy("v2.1")
    (root / "meta/tasks.jsonl").write_text(
        '{"task_index": 2, "task": "wait"}\n{"task_index": 0, "task": "a"}'
    )
    catalog = Catalog.open(root)
    assert catalog.tasks == ("a", "", "wait")
    report = "\n".join(catalog.report())
    assert "1 task indices below 2 have no text" in report
    assert "not in the task list, the first is" in report


@pytest.mark.parametrize(
    ("name", "kind"), [("meta/episodes", DatasetError), ("meta/tasks.parquet", MissingFileError)]
)
def test_catalog_missing_tables(copy: Any, name: str, kind: type[DatasetError]) -> None:
    root = copy("v3.0")
    path = root / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    refuse_open(root, name, kind=kind)


@pytest.mark.parametrize("column", ["episode_index", "length", "data/file_index"])
@pytest.mark.parametrize("how", ["drop", "null", "text"])
def test_catalog_wrong_columns_of_episodes(copy: Any, column: str, how: str) -> None:
    root = copy("v3.0")
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    at = table.column_names.index(column)
    if how == "drop":
        for other in sorted((root / "meta/episodes").glob("chunk-*/*")):
            pq.write_table(pq.read_table(other).drop_columns([column]), other)
    else:
        values = (
            pa.array([None] * len(table), pa.int64())
            if how == "null"
            else pa.array(["x"] * len(table))
        )
        pq.write_table(table.set_column(at, column, values), path)
    if (column, how) == ("data/file_index", "null"):  # other episodes stay usable
        lines = [gap.line for gap in Catalog.open(root).missing_files() or []]
        assert any("no data file" in line for line in lines)
        return
    refuse_open(root, "file-000.parquet" if how == "text" else "meta/episodes")


def test_catalog_numbers_of_another_width_are_read(copy: Any) -> None:
    root = copy("v3.0")
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    narrow = [
        pa.field(f.name, pa.int32() if pa.types.is_int64(f.type) else f.type) for f in table.schema
    ]
    pq.write_table(table.cast(pa.schema(narrow)), path)
    assert Catalog.open(root).episodes.lengths.tolist() == [4, 6, 3]


def test_catalog_a_folder_where_a_file_should_be(copy: Any) -> None:
    for version, name in [
        ("v2.1", "meta/episodes.jsonl"),
        ("v2.0", "meta/info.json"),
        ("v3.0", "meta/tasks.parquet"),
    ]:
        root = copy(version)
        (root / name).unlink()
        (root / name).mkdir()
        refuse_open(root, name, "folder")


def test_catalog_no_permission(copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, since a test may run as a user who may read everything."""
    root = copy("v2.1")
    real = open

    def forbidding(path: Any, *rest: Any, **named: Any) -> Any:
        if str(path).endswith("episodes.jsonl"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *rest, **named)

    monkeypatch.setattr("builtins.open", forbidding)
    refuse_open(root, "episodes.jsonl", "permission")


def test_catalog_broken_statistics_are_reported_and_refused_when_used(copy: Any) -> None:
    for version, name, content in [
        ("v3.0", "meta/stats.json", '{"action": {"mean": ["x"]}}'),
        ("v2.0", "meta/stats.json", '{"action": 3}'),
        ("v2.1", "meta/episodes_stats.jsonl", '{"stats": {"action": {"mean": [1]}}}\n'),
    ]:
        root = copy(version)
        (root / name).write_text(content)
        catalog = Catalog.open(root)
        assert any(Path(name).name in line and "action" in line for line in catalog.report())
        with refused("action", where=Path(name).name):
            _ = catalog.stats


# Real recordings


def test_catalog_real_recordings(real_data: Path) -> None:
    old = Catalog.open(real_data / "g1_v21")
    new = Catalog.open(real_data / "g1_v30")
    assert old.report() == []
    assert new.report() == []
    assert (
        old.episodes.lengths.tolist()
        == new.episodes.lengths.tolist()
        == [221, 260, 265, 267, 277, 278, 280, 290]
    )
    for key, entry in new.stats.items():
        for name, value in entry.items():
            np.testing.assert_allclose(old.stats[key][name], value, rtol=1e-6)


def test_catalog_every_oddity_of_a_real_dataset_is_reported(real_data: Path) -> None:
    catalog = Catalog.open(real_data / "gr1_sim_v20")
    report = "\n".join(catalog.report())
    for text in (
        "observation.images.egoview is listed in info.json but has no video file",
        "total_chunks is 0",
        "splits {'train': '0:100'}",
        "action: 25 of 44 dimensions are constant",
        "data: the path template names data/chunk-001/episode_000001.parquet",
    ):
        assert text in report
    assert catalog.camera_keys == ("observation.images.ego_view",)


@pytest.mark.parametrize("runs", [(), (1,), (3, 0, 2), (5, 1, 1, 4, 2)])
def test_files_of_episodes_in_any_sequence(runs: tuple[int, ...]) -> None:
    generator = np.random.default_rng(len(runs))
    chunk, number = (np.repeat(generator.integers(-1, 3, len(runs)), runs) for _ in range(2))
    chunk = np.where(number < 0, -1, np.maximum(chunk, 0))
    table, file = layouts._file_table("", chunk, number)
    named = sorted({(int(c), int(n)) for c, n in zip(chunk, number) if n >= 0})
    assert list(zip(table.chunk.tolist(), table.number.tolist())) == named
    expected = [
        named.index((c, n)) if n >= 0 else -1 for c, n in zip(chunk.tolist(), number.tolist())
    ]
    assert file.tolist() == expected
