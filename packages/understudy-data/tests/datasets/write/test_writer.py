"""EpisodeWriter: recordings read back equal, in LeRobot v3.0's layout; errors are refused."""

import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from understudy_base import MissingFileError
from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.stats.running import ImageStatistics
from understudy_data.datasets.write import dataset_files
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.video.reader import open_video

TOP = "observation.images.top"
IMAGE = "observation.images.sketch"
FEATURES: dict[str, dict[str, Any]] = {
    TOP: {"dtype": "video", "shape": (32, 48, 3), "names": ["height", "width", "channels"]},
    IMAGE: {"dtype": "image", "shape": (6, 8, 3)},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
    "action": {"dtype": "float64", "shape": (2,)},
    "next.reward": {"dtype": "float32", "shape": (1,)},
    "next.done": {"dtype": "bool", "shape": (1,)},
    "flags": {"dtype": "bool", "shape": (4,)},
    "grid": {"dtype": "float32", "shape": (2, 3)},
    "cube": {"dtype": "int16", "shape": (2, 1, 2)},
    "note": {"dtype": "string", "shape": (1,)},
}
DEFAULTS = ["timestamp", "frame_index", "episode_index", "index", "task_index"]
STATISTICS = ["min", "max", "mean", "std", "count", "q01", "q10", "q50", "q90", "q99"]


def frame(rng: np.random.Generator, brightness: int = 100) -> dict[str, Any]:
    return {
        TOP: np.full((32, 48, 3), brightness, np.uint8),
        IMAGE: rng.integers(0, 256, (6, 8, 3)).astype(np.uint8),
        "observation.state": rng.normal(size=3).astype(np.float32),
        "action": rng.normal(size=2),
        "next.reward": float(np.float32(rng.normal())),
        "next.done": bool(rng.integers(2)),
        "flags": rng.integers(0, 2, 4).astype(bool),
        "grid": rng.normal(size=(2, 3)).astype(np.float32),
        "cube": rng.integers(-300, 300, (2, 1, 2)),
        "note": f"épisode {rng.integers(99)}",
    }


def record(root: Path, lengths: list[int], **options: Any) -> list[dict[str, Any]]:
    """Record episodes of these lengths; returns all frames as they were given, with `task`."""
    rng = np.random.default_rng(len(lengths))
    given_frames = []
    with EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264", **options) as writer:
        for episode, length in enumerate(lengths):
            for i in range(length):
                values = frame(rng, brightness=20 + (episode * 50 + i * 15) % 200)
                writer.add_frame(values, task=f"task {episode % 2}")
                given_frames.append(
                    values | {"task": f"task {episode % 2}", "episode": episode, "frame": i}
                )
            assert writer.save_episode() == episode
    return given_frames


@pytest.fixture(scope="module")
def recorded(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, list[dict[str, Any]], list[int]]:
    root = tmp_path_factory.mktemp("write") / "data"
    lengths = [5, 1, 3, 7]
    return root, record(root, lengths, robot_type="arm"), lengths


def test_writer_read_back_equal(recorded: tuple[Path, list[dict[str, Any]], list[int]]) -> None:
    root, frames, lengths = recorded
    catalog = Catalog.open(root)
    assert (catalog.version, catalog.fps, catalog.robot_type) == ("v3.0", 20, "arm")
    assert list(catalog.tasks) == ["task 0", "task 1"]
    assert catalog.episodes.lengths.tolist() == lengths
    assert catalog.report() == []
    data = EpisodeDataset(root)
    assert len(data) == sum(lengths)
    for i, expected in enumerate(frames):
        item = data[i]
        for key, feature in FEATURES.items():
            if key == TOP:
                assert abs(item[key].numpy().astype(int) - expected[key][0, 0, 0]).max() <= 3
            elif key == IMAGE:
                assert np.array_equal(item[key].numpy(), expected[key].transpose(2, 0, 1))
            elif feature["dtype"] == "string":
                assert item[key] == expected[key]
            else:
                assert np.array_equal(
                    item[key].numpy(), np.asarray(expected[key], feature["dtype"])
                ), key
        index = [expected["frame"], expected["episode"], i, int(expected["task"][-1])]
        assert [int(item[key]) for key in DEFAULTS[1:]] == index
        assert item["timestamp"].item() == np.float32(expected["frame"] / 20)
        assert item["task"] == expected["task"]


def test_writer_layout_of_the_folder_and_info(
    recorded: tuple[Path, list[dict[str, Any]], list[int]],
) -> None:
    root, frames, lengths = recorded
    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert files == [
        "data/chunk-000/file-000.parquet",
        "meta/episodes/chunk-000/file-000.parquet",
        "meta/info.json",
        "meta/stats.json",
        "meta/tasks.parquet",
        f"videos/{TOP}/chunk-000/file-000.mp4",
    ]
    info = json.loads((root / "meta/info.json").read_text())
    assert {key: value for key, value in info.items() if key != "features"} == {
        "codebase_version": "v3.0",
        "robot_type": "arm",
        "total_episodes": len(lengths),
        "total_frames": len(frames),
        "total_tasks": 2,
        "chunks_size": 1000,
        "data_files_size_in_mb": 100,
        "video_files_size_in_mb": 200,
        "fps": 20,
        "splits": {"train": f"0:{len(lengths)}"},
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    assert list(info["features"]) == [*FEATURES, *DEFAULTS]
    for key, feature in FEATURES.items():
        assert info["features"][key]["dtype"] == feature["dtype"]
        assert info["features"][key]["shape"] == list(feature["shape"])
        assert "names" in info["features"][key]
    assert info["features"]["observation.state"]["names"] == ["x", "y", "z"]
    video = info["features"][TOP]["info"]
    assert (
        video.items()
        >= {
            "video.height": 32,
            "video.width": 48,
            "video.codec": "h264",
            "video.pix_fmt": "yuv420p",
            "video.fps": 20,
            "video.channels": 3,
            "has_audio": False,
            "is_depth_map": False,
        }.items()
    )
    assert [info["features"][key]["dtype"] for key in DEFAULTS] == ["float32", *["int64"] * 4]


def test_writer_layout_of_the_data_file(
    recorded: tuple[Path, list[dict[str, Any]], list[int]],
) -> None:
    root, _, lengths = recorded
    file = pq.ParquetFile(root / "data/chunk-000/file-000.parquet")
    schema = file.schema_arrow
    assert {field.name: str(field.type) for field in schema} == {
        IMAGE: "struct<bytes: binary, path: string>",
        "observation.state": "fixed_size_list<element: float>[3]",
        "action": "fixed_size_list<element: double>[2]",
        "next.reward": "float",
        "next.done": "bool",
        "flags": "fixed_size_list<element: bool>[4]",
        "grid": "list<element: list<element: float>>",
        "cube": "list<element: list<element: list<element: int16>>>",
        "note": "string",
        "timestamp": "float",
        **dict.fromkeys(DEFAULTS[1:], "int64"),
    }
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == lengths
    assert file.metadata.row_group(0).column(0).compression == "SNAPPY"
    blob = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
    assert list(blob) == schema.names
    assert blob[IMAGE] == {"_type": "Image"}
    assert blob["observation.state"] == {
        "feature": {"dtype": "float32", "_type": "Value"},
        "length": 3,
        "_type": "List",
    }
    assert blob["grid"] == {"shape": [2, 3], "dtype": "float32", "_type": "Array2D"}
    assert blob["next.done"] == {"dtype": "bool", "_type": "Value"}
    picture = file.read_row_group(0).column(IMAGE)[0].as_py()
    assert picture["path"] is None
    assert Image.open(io.BytesIO(picture["bytes"])).format == "PNG"


def test_writer_layout_of_tasks(recorded: tuple[Path, list[dict[str, Any]], list[int]]) -> None:
    table = pq.read_table(recorded[0] / "meta/tasks.parquet")
    assert {field.name: str(field.type) for field in table.schema} == {
        "task_index": "int64",
        "task": "string",
    }
    assert table.to_pydict() == {"task_index": [0, 1], "task": ["task 0", "task 1"]}
    assert json.loads(table.schema.metadata[b"pandas"])["index_columns"] == ["task"]


def test_writer_layout_of_episodes(recorded: tuple[Path, list[dict[str, Any]], list[int]]) -> None:
    root, _, lengths = recorded
    table = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet")
    kinds = {field.name: str(field.type) for field in table.schema}
    places = ["data", "meta/episodes", f"videos/{TOP}"]
    expected = dict.fromkeys(
        ["episode_index", "length", "dataset_from_index", "dataset_to_index"], "int64"
    )
    expected |= {
        f"{place}/{part}": "int64" for place in places for part in ("chunk_index", "file_index")
    }
    expected |= dict.fromkeys(
        [f"videos/{TOP}/from_timestamp", f"videos/{TOP}/to_timestamp"], "double"
    )
    expected |= {"tasks": "list<element: string>"}
    depth = {TOP: 3, IMAGE: 3, "grid": 2, "cube": 3}
    whole = {"next.done", "flags", "cube", *DEFAULTS[1:]}
    for key in [*FEATURES, *DEFAULTS]:
        for name in STATISTICS if key != "note" else []:
            kind = (
                "int64"
                if name == "count" or (name in ("min", "max") and key in whole)
                else "double"
            )
            for _ in range(1 if name == "count" else depth.get(key, 1)):
                kind = f"list<element: {kind}>"
            expected[f"stats/{key}/{name}"] = kind
    assert kinds == expected

    ends = np.cumsum(lengths)
    rows = table.to_pydict()
    assert rows["episode_index"] == list(range(len(lengths)))
    assert rows["length"] == lengths
    assert rows["dataset_to_index"] == ends.tolist()
    assert rows["dataset_from_index"] == (ends - lengths).tolist()
    assert rows[f"videos/{TOP}/from_timestamp"] == pytest.approx((ends - lengths) / 20)
    assert rows[f"videos/{TOP}/to_timestamp"] == pytest.approx(ends / 20)
    assert rows["tasks"] == [["task 0"], ["task 1"], ["task 0"], ["task 1"]]
    for place in places:
        assert rows[f"{place}/chunk_index"] == rows[f"{place}/file_index"] == [0] * len(lengths)


def test_writer_statistics_of_episodes_and_of_all(
    recorded: tuple[Path, list[dict[str, Any]], list[int]],
) -> None:
    root, frames, _ = recorded
    everything = json.loads((root / "meta/stats.json").read_text())
    assert set(everything) == {*FEATURES, *DEFAULTS} - {"note"}
    table = pq.read_table(root / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    for key in ("observation.state", "action", "grid", "next.done", "cube"):
        recorded_figures = [(everything[key], frames)]
        for row in table:
            part = [f for f in frames if f["episode"] == row["episode_index"]]
            recorded_figures.append(
                ({name: row[f"stats/{key}/{name}"] for name in STATISTICS}, part)
            )
        for figures, some in recorded_figures:
            values = np.stack(
                [np.asarray(f[key], np.float64).reshape(FEATURES[key]["shape"]) for f in some]
            )
            plain = {
                "min": values.min(0),
                "max": values.max(0),
                "mean": values.mean(0),
                "std": values.std(0),
            }
            plain |= {
                f"q{q:02d}": np.quantile(values, q / 100, axis=0) for q in (1, 10, 50, 90, 99)
            }
            for name, figure in plain.items():
                np.testing.assert_allclose(
                    figures[name], figure, rtol=1e-6, atol=1e-6, err_msg=f"{key} {name}"
                )
            assert figures["count"] == [len(some)]
    pixels = np.stack([f[IMAGE] for f in frames]).reshape(-1, 3) / 255
    assert np.shape(everything[IMAGE]["mean"]) == (3, 1, 1)
    np.testing.assert_allclose(np.ravel(everything[IMAGE]["mean"]), pixels.mean(0))
    np.testing.assert_allclose(np.ravel(everything[IMAGE]["std"]), pixels.std(0))
    assert everything[TOP]["count"] == [len(frames)]
    stored = EpisodeDataset(root)  # the encoded images, not those given to the encoder
    decoded = np.stack([stored[i][TOP].numpy() for i in range(len(stored))]) / 255
    for name, figure in {
        "min": decoded.min,
        "max": decoded.max,
        "mean": decoded.mean,
        "std": decoded.std,
    }.items():
        np.testing.assert_allclose(
            np.ravel(everything[TOP][name]), figure((0, 2, 3)), rtol=1e-12, err_msg=name
        )
    assert decoded.min() != 20 / 255, "nothing was lost in coding: this test shows nothing"


@settings(max_examples=8)
@given(
    lengths=st.lists(st.integers(1, 4), min_size=1, max_size=7),
    limit=st.integers(1, 4),
    stops=st.integers(0, 2),
)
def test_writer_any_packing_reads_the_same(
    lengths: list[int], limit: int, stops: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """However the episodes are spread over files and recordings, the dataset is the same."""
    root = tmp_path_factory.mktemp("pack") / "data"
    features = {TOP: FEATURES[TOP], "observation.state": FEATURES["observation.state"]}
    old = dataset_files.MAX_EPISODES
    dataset_files.MAX_EPISODES = limit
    try:
        for part in np.array_split(np.arange(len(lengths)), stops + 1):
            with EpisodeWriter(
                root, fps=20, features=features, codec="libx264", resume=True
            ) as writer:
                assert writer.episodes == (part[0] if len(part) else writer.episodes)
                for episode in part:
                    for i in range(lengths[episode]):
                        level = 20 + (int(episode) * 30 + i * 7) % 220
                        state = np.array([episode, i, level])
                        writer.add_frame(
                            {
                                TOP: np.full((32, 48, 3), level, np.uint8),
                                "observation.state": state,
                            },
                            "go",
                        )
                    writer.save_episode()
    finally:
        dataset_files.MAX_EPISODES = old
    data = EpisodeDataset(root)
    assert [line for line in data.catalog.report() if "constant" not in line] == []
    assert data.catalog.episodes.lengths.tolist() == lengths
    for i in range(len(data)):
        item = data[i]
        episode, at, level = item["observation.state"].tolist()
        assert (int(item["episode_index"]), int(item["frame_index"]), int(item["index"])) == (
            episode,
            at,
            i,
        )
        assert abs(item[TOP].float().mean().item() - level) < 3
    packed = sorted((root / "data").rglob("*.parquet"))
    assert [path.name for path in packed] == [f"file-{k:03d}.parquet" for k in range(len(packed))]
    assert all(pq.ParquetFile(path).num_row_groups <= limit for path in packed)


def seen(root: Path) -> dict[str, tuple[bytes, int]]:
    """Content and time of every file."""
    return {
        str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("lengths", [[], [5, 1, 3, 7]])
def test_writer_reopening_a_finished_recording_changes_nothing(
    lengths: list[int], tmp_path: Path
) -> None:
    record(tmp_path / "data", lengths)
    before = seen(tmp_path / "data")
    for options in ({}, {"robot_type": "other", "data_file_mb": 1, "crf": 40, "gop": 3}):
        with EpisodeWriter(
            tmp_path / "data", fps=20, features=FEATURES, codec="libx264", resume=True, **options
        ) as writer:
            assert writer.episodes == len(lengths)
        assert seen(tmp_path / "data") == before


def test_writer_rewrites_stale_files(tmp_path: Path) -> None:
    """A recording that looks finished, but whose statistics or totals are not those of its
    episodes.
    """
    root = tmp_path / "data"
    record(root, [5, 1, 3])
    good = {name: (root / "meta" / name).read_bytes() for name in ("stats.json", "info.json")}
    stats, info = (json.loads(content) for content in good.values())
    stats["index"]["count"] = [4]
    for name, content in (
        ("stats.json", json.dumps(stats)),
        ("stats.json", "torn"),
        ("stats.json", None),
        ("info.json", json.dumps(info | {"total_frames": 1})),
    ):
        (root / "meta" / name).unlink()
        if content is not None:
            (root / "meta" / name).write_text(content)
        EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264", resume=True).finish()
        assert (root / "meta" / name).read_bytes() == good[name]


# the second: not every image is measured
@pytest.mark.parametrize("shape", [(32, 48, 3), (480, 512, 3)])
def test_writer_statistics_do_not_depend_on_interruptions(
    shape: tuple[int, int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # more images than are counted
    monkeypatch.setattr(ImageStatistics.__init__, "__defaults__", (3, 0, 4))
    features = {
        key: {"dtype": kind, "shape": shape} for key, kind in (("a", "video"), ("b", "image"))
    }
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, *shape)).astype(np.uint8)

    def extend(root: Path, episodes: list[int], interrupted: bool) -> None:
        writer = EpisodeWriter(root, fps=20, features=features, codec="libx264", resume=True)
        for episode in episodes:
            for i in range((7, 1, 3, 4)[episode]):
                picture = pictures[(episode + i) % 3]
                writer.add_frame({"a": picture, "b": 255 - picture}, "go")
            writer.save_episode()
        if not interrupted:
            writer.finish()

    extend(tmp_path / "one", [0, 1, 2, 3], False)
    for episodes, interrupted in (
        ([0], True),
        ([1, 2], False),
        ([], False),
        ([3], True),
        ([], False),
    ):
        extend(tmp_path / "many", episodes, interrupted)
    one, many = ((tmp_path / name / "meta/stats.json").read_bytes() for name in ("one", "many"))
    assert one == many
    # Exactly the images that count, as they are read from the dataset.
    data = EpisodeDataset(tmp_path / "one")
    step = 1 if shape[0] < 100 else 4
    measured = [i for i in range(len(data)) if int(data[i]["frame_index"]) % step == 0]
    measured = measured[:: 4 if step == 1 else 2]
    for key in features:
        lines = (slice(None, None, 3),) * 2 if step > 1 else ()  # as large images are strided
        pixels = np.stack([data[i][key].numpy()[(slice(None), *lines)] for i in measured]) / 255
        np.testing.assert_allclose(
            np.ravel(json.loads(one)[key]["mean"]), pixels.mean((0, 2, 3)), rtol=1e-12
        )
        assert json.loads(one)[key]["count"] == [len(measured)]
        assert np.ravel(json.loads(one)[key]["max"]).tolist() == pixels.max((0, 2, 3)).tolist()


@pytest.mark.parametrize("which", ["data_file_mb", "video_file_mb"])
def test_writer_files_are_closed_at_their_size(which: str, tmp_path: Path) -> None:
    record(tmp_path / "data", [2, 2, 2], **{which: 0.0005})
    assert len(list((tmp_path / "data/data").rglob("*.parquet"))) == 3
    assert len(list((tmp_path / f"data/videos/{TOP}").rglob("*.mp4"))) == 3
    assert len(EpisodeDataset(tmp_path / "data")) == 6


def test_writer_a_chunk_folder_holds_a_thousand_files() -> None:
    from understudy_data.datasets.write.dataset_files import DATA_PATH, VIDEO_PATH, file_path

    assert file_path(DATA_PATH, 999) == "data/chunk-000/file-999.parquet"
    assert file_path(VIDEO_PATH, 2001, "cam") == "videos/cam/chunk-002/file-001.mp4"


def bad(key: str, value: Any) -> dict[str, Any]:
    return frame(np.random.default_rng(0)) | {key: value}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, ["action", "cube"]),
        (bad("extra", 1), ["extra"]),
        (bad("timestamp", 0.1), ["timestamp"]),
        (bad("action", np.zeros(3)), ["'action'", (3,), (2,)]),
        (
            bad("action", np.array([0.0, np.nan])),
            ["'action'", "nan", (1,), "float64", "allow_nan=True"],
        ),
        (bad("grid", np.full((2, 3), 1e39)), ["'grid'", "1e+39", (0, 0), "float32"]),
        (bad("action", np.array(["a", "b"])), ["'action'", "<U1", "float64"]),
        (bad("cube", np.full((2, 1, 2), 40_000)), ["'cube'", 40_000, "int16"]),
        (bad("cube", np.zeros((2, 1, 2))), ["'cube'", "float64", "int16"]),
        (bad("grid", np.full((2, 3), 2**24 + 1)), ["'grid'", 2**24 + 1, "float32"]),
        (bad("action", np.array([0, 2**53 + 1])), ["'action'", 2**53 + 1, "float64"]),
        (bad("next.done", 1), ["'next.done'", "int64", "bool"]),
        (bad("note", 3), ["'note'", "int", "string"]),
        (bad(TOP, np.zeros((3, 32, 48), np.uint8)), [f"'{TOP}'", (3, 32, 48), (32, 48, 3)]),
        (bad(TOP, np.zeros((32, 48, 3), np.float32)), [f"'{TOP}'", "float32", "uint8"]),
        (bad(IMAGE, np.zeros((6, 8, 4), np.uint8)), [f"'{IMAGE}'", (6, 8, 4)]),
    ],
)
def test_writer_wrong_frames_are_refused_by_key_and_rule(
    values: dict[str, Any], words: list[Any], tmp_path: Path
) -> None:
    with EpisodeWriter(tmp_path / "data", fps=20, features=FEATURES, codec="libx264") as writer:
        writer.add_frame(frame(np.random.default_rng(1)), task="go")
        with refused(*words, kind=ValueError):
            writer.add_frame(values, task="go")
        writer.add_frame(frame(np.random.default_rng(2)), task="go")
        writer.save_episode()
    assert len(EpisodeDataset(tmp_path / "data")) == 2  # a refused frame leaves no trace


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({}, ["features"]),
        ({"a/b": {"dtype": "float32", "shape": (1,)}}, ["'a/b'", "'/'"]),
        ({"index": {"dtype": "int64", "shape": (1,)}}, ["'index'", "frame_index"]),
        ({"a": {"dtype": "complex64", "shape": (1,)}}, ["'a'", "'complex64'", "float32"]),
        ({"a": {"dtype": "float32", "shape": ()}}, ["'a'", "shape", ()]),
        ({"a": {"dtype": "float32", "shape": (2, 0)}}, ["'a'", "shape", (2, 0)]),
        ({"a": {"shape": (1,)}}, ["'a'", "dtype"]),
        ({"a": {"dtype": "float32", "shape": (1,), "color": 1}}, ["'a'", "color"]),
        ({"a": {"dtype": "string", "shape": (2,)}}, ["'a'", (1,), (2,)]),
        ({"a": {"dtype": "video", "shape": (31, 48, 3)}}, ["'a'", "48x31"]),
        ({"a": {"dtype": "image", "shape": (3, 32, 48)}}, ["'a'", (3, 32, 48)]),
    ],
)
def test_writer_wrong_features_are_refused(
    features: dict[str, Any], words: list[Any], tmp_path: Path
) -> None:
    with refused(*words, kind=ValueError):
        EpisodeWriter(tmp_path / "data", fps=20, features=features)
    assert list(tmp_path.iterdir()) == []


def test_writer_wrong_settings_are_refused(tmp_path: Path) -> None:
    features = {"a": {"dtype": "float32", "shape": (1,)}}
    for wrong, words in [
        ({"fps": 0}, ["fps=0"]),
        ({"fps": 29.97}, ["fps=29.97"]),
        ({"codec": "vp9"}, ["codec='vp9'"]),
        ({"gop": 0}, ["gop=0"]),
        ({"data_file_mb": 0}, ["sizes"]),
    ]:
        with refused(*words, kind=ValueError):
            EpisodeWriter(tmp_path / "data", **({"fps": 20, "features": features} | wrong))
    assert list(tmp_path.iterdir()) == []


def test_writer_nan_is_recorded_when_asked_for(tmp_path: Path) -> None:
    features = {"force": {"dtype": "float32", "shape": (2,)}}
    with EpisodeWriter(tmp_path / "data", fps=20, features=features, allow_nan=True) as writer:
        for i in range(4):
            writer.add_frame({"force": [i, np.nan if i % 2 else 1.0]}, task="push")
        # would be recorded as infinite
        with refused("'force'", "1e+39", "float32", kind=ValueError):
            writer.add_frame({"force": np.array([1e39, np.nan])}, task="push")
        writer.save_episode()
    with warned("'force'", "finite"):
        item = EpisodeDataset(tmp_path / "data")[1]
    assert item["force"][0] == 1
    assert item["force"][1].isnan()
    stats = Catalog.open(tmp_path / "data").stats["force"]
    assert stats["mean"].tolist() == [1.5, 1.0]


def test_writer_discarding_and_task_texts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    with EpisodeWriter(tmp_path / "data", fps=20, features=FEATURES, codec="libx264") as writer:
        with refused("add_frame", "save_episode", kind=ValueError):
            writer.save_episode()
        writer.add_frame(frame(rng), task="spilled")
        writer.discard_episode()
        with refused("task=' '", kind=ValueError):
            writer.add_frame(frame(rng), task=" ")
        writer.add_frame(frame(rng), task="first half")
        writer.add_frame(frame(rng), task="second half")
        writer.save_episode()
    with refused(tmp_path / "data", kind=ValueError):
        writer.add_frame(frame(rng), task="late")
    data = EpisodeDataset(tmp_path / "data")
    assert [data[i]["task"] for i in range(2)] == ["first half", "second half"]
    assert list(data.catalog.tasks) == ["first half", "second half"]
    assert open_video(tmp_path / f"data/videos/{TOP}/chunk-000/file-000.mp4").count == 2


def test_writer_unsaved_frames_are_an_error_at_the_end(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    features = FEATURES
    writer = EpisodeWriter(tmp_path / "data", fps=20, features=features, codec="libx264")
    writer.add_frame(frame(rng), task="go")
    with refused(1, "save_episode", "discard_episode", kind=ValueError):
        writer.finish()
    writer.save_episode()
    writer.finish()
    writer.finish()
    assert len(EpisodeDataset(tmp_path / "data")) == 1


def test_writer_an_error_in_the_block_keeps_what_was_saved(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    root = tmp_path / "data"

    def interrupted() -> None:
        with EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264") as writer:
            for _ in range(2):
                writer.add_frame(frame(rng), task="go")
                writer.save_episode()
            writer.add_frame(frame(rng), task="go")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(EpisodeDataset(root)) == 2
    assert not list(root.rglob(".*"))
    with EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264", resume=True) as writer:
        assert (writer.episodes, writer.frames) == (2, 2)
    assert sorted(path.name for path in (root / "data").rglob("*.parquet")) == ["file-000.parquet"]


def test_writer_never_puts_an_episode_into_a_file_that_a_reader_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_files, "MAX_EPISODES", 2)
    root = tmp_path / "data"
    opened = list[Catalog]()
    with EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264") as writer:
        for episode in range(6):
            for _ in range(3):
                writer.add_frame(
                    frame(np.random.default_rng(episode), 20 + 30 * episode), task="go"
                )
            writer.save_episode()
            opened.append(Catalog.open(root))
            for catalog in opened:
                for row in range(catalog.num_episodes):
                    path = root / catalog.video_path(TOP, row)
                    if path.exists():
                        image = open_video(path).read(catalog.videos(TOP).first[row : row + 1])
                        assert abs(image.astype(int) - (20 + 30 * row)).max() <= 6
    assert sorted(path.name for path in (root / "data").rglob("*")) == [
        "chunk-000",
        *(f"file-00{number}.parquet" for number in range(3)),
    ]


def test_writer_a_reader_names_files_that_were_joined_meanwhile(tmp_path: Path) -> None:
    root = tmp_path / "data"
    with EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264") as writer:
        for episode in range(2):
            writer.add_frame(frame(np.random.default_rng(episode)), task="go")
            writer.save_episode()
        early = EpisodeDataset(root)
    with refused("changed", where="(episode 0)", fix="published", kind=MissingFileError):
        early[0]
    with refused("changed", where="(episode 1)", fix="published"):
        early.video_frames.take(TOP, np.array([1]), np.array([0]))
    late = EpisodeDataset(root)
    for path in (root / "data").rglob("*.parquet"):
        path.unlink()  # a file that is lost was not joined
    with refused(where="(episodes 0 to 1)", fix="restore", kind=MissingFileError):
        late[0]


def test_writer_folders_that_are_not_to_be_touched(tmp_path: Path) -> None:
    features = {"a": {"dtype": "float32", "shape": (1,)}}
    options: dict[str, Any] = {"fps": 20, "features": features}
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear")
    with refused(where="foreign", fix="resume=True"):
        EpisodeWriter(foreign, **options)
    with refused("info.json", where="foreign", fix="folder"):
        EpisodeWriter(foreign, resume=True, **options)
    assert [path.name for path in foreign.iterdir()] == ["letter.txt"]
    with refused("file", where="letter.txt"):
        EpisodeWriter(foreign / "letter.txt", **options)

    mine = tmp_path / "mine"
    with EpisodeWriter(mine, **options) as writer:
        writer.add_frame({"a": 1.0}, task="go")
        writer.save_episode()
        with refused("writer", where="mine"):
            EpisodeWriter(mine, resume=True, **options)
    with refused(where="mine", fix="resume=True"):
        EpisodeWriter(mine, **options)
    for other, words in [({"fps": 30}, [20]), ({"features": {"b": features["a"]}}, ["a", "b"])]:
        with refused(*words, where="mine", fix="codec"):
            EpisodeWriter(mine, resume=True, **(options | other))

    table_path = mine / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(table_path)
    # as another program would have written it
    pq.write_table(table.replace_schema_metadata({}), table_path)
    (mine / "data/chunk-000/file-007.parquet").write_bytes(b"not ours")
    with refused("EpisodeWriter", where="mine"):
        EpisodeWriter(mine, resume=True, **options)
    assert (mine / "data/chunk-000/file-007.parquet").exists()


def test_writer_a_writer_that_was_dropped_does_not_lock_the_folder(tmp_path: Path) -> None:
    options: dict[str, Any] = {"fps": 20, "features": {"a": {"dtype": "float32", "shape": (1,)}}}
    writer = EpisodeWriter(tmp_path / "data", **options)
    writer.add_frame({"a": 1.0}, task="go")
    writer.save_episode()
    del writer
    with EpisodeWriter(tmp_path / "data", resume=True, **options) as writer:
        assert writer.episodes == 1


def test_writer_resuming_with_other_encoder_settings(tmp_path: Path) -> None:
    root = tmp_path / "data"
    features = {TOP: FEATURES[TOP]}
    picture = np.full((32, 48, 3), 90, np.uint8)
    for gop in (2, 1):
        writer = EpisodeWriter(
            root, fps=20, features=features, codec="libx264", gop=gop, crf=20 + gop, resume=True
        )
        for _ in range(3):
            writer.add_frame({TOP: picture}, task="go")
        writer.save_episode()
        del writer  # as if the process had died: nothing is packed
    with refused(20, TOP, where="data", fix="codec"):
        EpisodeWriter(root, fps=20, features=features, codec="libsvtav1", resume=True)
    EpisodeWriter(root, fps=20, features=features, codec="libx264", resume=True).finish()
    assert len(EpisodeDataset(root)) == 6
    assert sorted(path.name for path in (root / "videos" / TOP).rglob("*.mp4")) == [
        "file-000.mp4",
        "file-001.mp4",
    ]


def test_writer_resuming_names_a_lost_file(tmp_path: Path) -> None:
    root = tmp_path / "data"
    record(root, [2, 2])
    os.unlink(root / f"videos/{TOP}/chunk-000/file-000.mp4")
    with refused("missing", where="file-000.mp4"):
        EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264", resume=True)


def test_writer_a_failed_save_leaves_the_dataset_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    root = tmp_path / "data"
    with EpisodeWriter(root, fps=20, features=FEATURES, codec="libx264") as writer:
        writer.add_frame(frame(rng), task="go")
        writer.save_episode()
        writer.add_frame(frame(rng), task="go")

        def full(*_: Any, **__: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(dataset_files, "replace_parquet", full)
            with refused("[Errno 28]", kind=OSError):
                writer.save_episode()
        assert len(EpisodeDataset(root)) == 1
        writer.add_frame(frame(rng), task="go")
        assert writer.save_episode() == 1
    assert len(EpisodeDataset(root)) == 2


def test_writer_the_caller_may_reuse_its_buffers(tmp_path: Path) -> None:
    features = {"a": {"dtype": "float32", "shape": (2,)}, "b": {"dtype": "bool", "shape": (2,)}}
    a = np.zeros(2, np.float32)
    b = np.zeros(2, bool)
    with EpisodeWriter(tmp_path / "data", fps=20, features=features) as writer:
        for i in range(3):
            a[:], b[:] = i, i == 1
            writer.add_frame({"a": a, "b": b}, task="go")
        writer.save_episode()
    table = pq.read_table(tmp_path / "data/data/chunk-000/file-000.parquet")
    assert table.column("a").to_pylist() == [[0, 0], [1, 1], [2, 2]]
    assert table.column("b").to_pylist() == [[False] * 2, [True] * 2, [False] * 2]


def test_writer_a_dataset_without_video_has_no_video_path(tmp_path: Path) -> None:
    with EpisodeWriter(
        tmp_path / "data", fps=20, features={"a": {"dtype": "float32", "shape": (1,)}}
    ) as writer:
        writer.add_frame({"a": 1}, task="go")
        writer.save_episode()
    assert json.loads((tmp_path / "data/meta/info.json").read_text())["video_path"] is None
    assert not (tmp_path / "data/videos").exists()
    assert pa.types.is_float32(
        pq.read_schema(tmp_path / "data/data/chunk-000/file-000.parquet").field("a").type
    )


def test_writer_a_flipped_bit_of_a_recording_is_noticed(tmp_path: Path) -> None:
    with EpisodeWriter(
        tmp_path / "data", fps=20, features={"a": {"dtype": "float64", "shape": (1,)}}
    ) as writer:
        # so that nothing is compressed: a bit is a number
        for value in np.random.default_rng(0).normal(size=64):
            writer.add_frame({"a": value}, task="go")
        writer.save_episode()
    path = tmp_path / "data/data/chunk-000/file-000.parquet"
    pages = pq.read_metadata(path).row_group(0).column(0)
    content = bytearray(path.read_bytes())
    content[pages.data_page_offset + pages.total_compressed_size // 2] ^= 1
    path.write_bytes(content)
    assert pq.read_table(path).num_rows == 64  # still a parquet file
    with refused(where="file-000.parquet (episode 0)"):
        EpisodeDataset(tmp_path / "data")[0]
