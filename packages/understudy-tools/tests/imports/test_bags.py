"""ROS bags -> dataset: values by hand, and each fault by its kind, stream and time."""

import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

pytest.importorskip("rosbags", reason="needs the extra `import`")

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_tools.cli.importing import import_
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import ImportConfig
from understudy_tools.testing.bags import EPOCH, JOINTS, SECOND, Bag, pixels

MAPPING: dict[str, Any] = {
    "fps": 10,
    "task": "pick",
    "features": {
        "observation.images.front": "/cam",
        "observation.state": {"stream": "/joints", "field": "position", "joints": JOINTS},
        "action": {"stream": "/cmd", "field": ["points.1.values", "grip"]},
    },
}


def mapped(**changes: Any) -> dict[str, Any]:
    return {**MAPPING, **changes}


def fill(bag: Bag, frames: int = 20, skipped: range = range(0)) -> None:
    """Write streams at 20, 10 and 10 per second, begun at different times; the sequence of joints
    alternates.
    """
    for i in range(2 * frames):
        positions = {"shoulder": i / 10, "elbow": -(i**2) / 10, "wrist": 99.0}
        bag.joints(
            "/joints", i / 20 + 0.003, positions if i % 2 else dict(reversed(positions.items()))
        )
    for i in set(range(frames)) - set(skipped):
        bag.compressed("/cam", i / 10 + 0.01, pixels(i))
    for i in range(frames):
        bag.command("/cmd", i / 10 + 0.02, [[7.0], [float(i), i + 0.5]], i / 20)


def run(folder: Path, *sources: Path, mapping: dict[str, Any] = MAPPING, **settings: Any) -> Path:
    """Import into folder/out; returns it."""
    (folder / "map.json").write_text(json.dumps(mapping))
    out = folder / "out"
    paths = (*map(str, sources), str(out))
    import_(ImportConfig(paths, str(folder / "map.json"), **{"storage": "image", **settings}))
    return out


def rows(out: Path) -> dict[str, np.ndarray]:
    table = pq.read_table(out / "data/chunk-000/file-000.parquet")
    names = [name for name in table.column_names if "image" not in name]
    return {name: np.array(table.column(name).to_pylist()) for name in names}


def images(out: Path, key: str) -> list[np.ndarray]:
    column = pq.read_table(out / "data/chunk-000/file-000.parquet").column(key).to_pylist()
    return [np.asarray(Image.open(io.BytesIO(cell["bytes"]))) for cell in column]


def account(out: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((out / "meta/import.json").read_text())
    return content


def fault(call: Callable[[], object]) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_import_gives_the_values_of_a_bag(tmp_path: Path, storage: str) -> None:
    for name in ("ep 0", "ep 1"):
        with Bag(tmp_path / name, storage) as bag:
            fill(bag)
    out = run(tmp_path, tmp_path / "ep 0", tmp_path / "ep 1")
    found = rows(out)
    times = 0.02 + np.arange(20) / 10  # the last stream begins at 0.02 s; the camera ends at 1.91 s
    times = times[times <= 1.91]
    assert found["episode_index"].tolist() == [0] * len(times) + [1] * len(times)
    assert found["source.time_ns"][: len(times)].tolist() == [
        EPOCH + round(time * SECOND) for time in times.tolist()
    ]
    clock = np.arange(40) / 20 + 0.003
    expected = [
        np.interp(times, clock, np.arange(40) / 10),
        np.interp(times, clock, -(np.arange(40) ** 2) / 10),
    ]
    np.testing.assert_allclose(
        found["observation.state"][: len(times)], np.stack(expected, 1), rtol=1e-6, atol=1e-6
    )
    number = np.arange(len(times))
    np.testing.assert_array_equal(
        found["action"][: len(times)],
        np.stack([number, number + 0.5, np.float32(number / 20)], 1).astype(np.float32),
    )
    for frame, image in enumerate(images(out, "observation.images.front")[: len(times)]):
        np.testing.assert_array_equal(image, pixels(frame))
    assert found["source.age_ns"][0].tolist() == [10_000_000, 17_000_000, 0]
    info = Catalog.open(out).features
    assert info["observation.state"].names == JOINTS
    assert info["action"].names is None
    assert info["source.age_ns"].names == [
        "observation.images.front",
        "observation.state",
        "action",
    ]


def test_import_keeps_the_raw_streams_as_sensors_that_undo_the_frames(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
    out = run(tmp_path, tmp_path / "bag")
    found = rows(out)
    raw = pq.read_table(out / "sensors/raw.observation.state.parquet").to_pydict()
    assert len(raw["timestamp"]) == 38  # of 40: up to the one after the last frame, at 1.82 s
    values = {round(time * SECOND): value for time, value in zip(raw["timestamp"], raw["value"])}
    start = int(found["source.time_ns"][0])
    for time, ages, state in zip(
        found["source.time_ns"], found["source.age_ns"], found["observation.state"]
    ):
        past = int(time - ages[1]) - start
        share = int(ages[1]) / (SECOND // 20)
        value = np.array(values[past]) * (1 - share) + share * np.array(
            values.get(past + SECOND // 20, values[past])
        )
        np.testing.assert_allclose(state, value, rtol=1e-6, atol=1e-6)
    data = EpisodeArrays(out, delta_timestamps={"raw.observation.state": [-0.05, 0.0]})
    sample = data.sample(episode=0, frame=3)
    assert sample["raw.observation.state"].shape == (2, 2)
    assert sample["raw.observation.state"].dtype.kind == "f"
    facts = account(out)["recordings"][0]
    assert facts["episodes"] == [{"episode": 0, "start_ns": start, "frames": len(found["index"])}]
    assert facts["streams"]["/joints"]["usual_step"] == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("encoding", "array"),
    [
        ("rgb8", pixels(3)),
        ("bgr8", pixels(3)[..., ::-1]),
        ("rgba8", np.dstack([pixels(3), pixels(3)[..., :1]])),
        ("bgra8", np.dstack([pixels(3)[..., ::-1], pixels(3)[..., :1]])),
        ("mono8", pixels(3)[..., 1:2]),
    ],
)
@pytest.mark.parametrize("pad", [0, 5])
def test_import_reads_raw_images_as_rgb(
    tmp_path: Path, encoding: str, array: np.ndarray, pad: int
) -> None:
    with Bag(tmp_path / "bag") as bag:
        for i in range(3):
            bag.image("/cam", i / 10, np.ascontiguousarray(array), encoding, pad)
    mapping = mapped(features={"observation.images.front": "/cam"})
    expected = np.repeat(array, 3, 2) if encoding == "mono8" else pixels(3)
    for image in images(
        run(tmp_path, tmp_path / "bag", mapping=mapping), "observation.images.front"
    ):
        np.testing.assert_array_equal(image, expected)


@pytest.mark.parametrize("encoding", ["16UC1", "32FC1", "8UC3", "bayer_rggb8"])
def test_import_refuses_other_images(tmp_path: Path, encoding: str) -> None:
    with Bag(tmp_path / "bag") as bag:
        for i in range(3):
            bag.image("/cam", i / 10, np.zeros((16, 16), np.uint16), encoding)
    error = fault(
        lambda: run(
            tmp_path,
            tmp_path / "bag",
            mapping=mapped(features={"observation.images.front": "/cam"}),
        )
    )
    assert (error.kind, error.stream, error.where) == ("image", "/cam", str(tmp_path / "bag"))
    assert encoding in error.what
    assert not (tmp_path / "out").exists()


def test_import_names_a_missing_stream_before_and_between_bags(tmp_path: Path) -> None:
    with Bag(tmp_path / "a") as bag:
        fill(bag)
    with Bag(tmp_path / "b") as bag:
        bag.joints("/joints", 0, {"shoulder": 1, "elbow": 2})
    error = fault(lambda: run(tmp_path, tmp_path / "b"))
    assert (error.kind, error.stream, error.where) == ("missing", "/cam", str(tmp_path / "b"))
    error = fault(lambda: run(tmp_path, tmp_path / "a", tmp_path / "b"))
    assert (error.kind, error.stream, error.where) == ("missing", "/cam", str(tmp_path / "b"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "map.json"]
    out = run(tmp_path, tmp_path / "b", tmp_path / "a", tmp_path / "b", skip_bad=True)
    assert rows(out)["episode_index"].max() == 0
    assert [fault["kind"] for fault in account(out)["skipped"]] == ["missing", "missing"]


def test_import_names_gaps(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag, skipped=range(8, 13))
    error = fault(lambda: run(tmp_path, tmp_path / "bag"))
    assert (error.kind, error.stream, error.time) == (
        "gap",
        "/cam",
        pytest.approx(EPOCH / SECOND + 0.71),
    )
    out = run(tmp_path, tmp_path / "bag", gaps="cut")
    found = rows(out)
    assert np.bincount(found["episode_index"]).tolist() == [7, 7]
    assert found["source.age_ns"].max() < 0.1 * SECOND
    assert int(found["source.time_ns"][7]) == EPOCH + 1_310_000_000
    assert [finding["kind"] for finding in account(out)["recordings"][0]["findings"]] == ["gap"]
    for path in (tmp_path / "out").rglob("*"):
        path.chmod(0o755)
    (tmp_path / "out").rename(tmp_path / "cut")
    found = rows(run(tmp_path, tmp_path / "bag", gaps="hold"))
    assert len(found["index"]) == 19
    assert found["source.age_ns"][:, 0].max() == 510_000_000
    (tmp_path / "out").rename(tmp_path / "held")
    patient = mapped(
        features={
            **MAPPING["features"],
            "observation.images.front": {"stream": "/cam", "max_age": 1},
        }
    )
    assert len(rows(run(tmp_path, tmp_path / "bag", mapping=patient))["index"]) == 19


def test_import_names_a_clock_that_goes_back(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
        bag.joints("/joints", 2.1, {"shoulder": 0, "elbow": 0}, stamp=0.5)
    out = run(tmp_path, tmp_path / "bag")
    finding = account(out)["recordings"][0]["findings"][0]
    assert (finding["kind"], finding["stream"]) == ("reset", "/joints")
    error = fault(lambda: run_again(tmp_path, mapped(clock="header")))
    assert (error.kind, error.stream, error.time) == (
        "reset",
        "/joints",
        pytest.approx(EPOCH / SECOND + 1.953),
    )


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_import_names_a_recorder_that_was_set_back(tmp_path: Path, storage: str) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (400, 500, 3), np.uint8)
    with Bag(tmp_path / "bag", storage, is_sorted=False) as bag:
        for time in (10.0, 10.1, 10.2, 10.3, 2.0, 2.1, 2.2):
            bag.image("/cam", time, noise)
            bag.image("/cam", time + 0.05, noise)
    error = fault(
        lambda: run(
            tmp_path,
            tmp_path / "bag",
            mapping=mapped(features={"observation.images.front": "/cam"}),
        )
    )
    assert (error.kind, error.time) == ("reset", pytest.approx(EPOCH / SECOND + 10.35))


def test_import_names_two_clocks_and_reports_offsets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bag(tmp_path / "bag") as bag:
        for i in range(30):
            bag.joints("/left", i / 10, {"a": i}, stamp=i / 10 - 0.04)
            bag.joints("/right", i / 10, {"b": i}, start=0)
    features = {
        "observation.state": [{"stream": name, "field": "position"} for name in ("/left", "/right")]
    }
    out = run(tmp_path, tmp_path / "bag", mapping=mapped(features=features))
    facts = account(out)["recordings"][0]
    assert facts["streams"]["/left"]["offset"][1] == pytest.approx(0.04)
    assert facts["streams"]["/right"]["offset"][1] == pytest.approx(EPOCH / SECOND)
    assert [finding["kind"] for finding in facts["findings"]] == ["clocks"]
    assert "/left: recorded 0.040 to 0.040 s after its stamp" in capsys.readouterr().out
    (tmp_path / "out").rename(tmp_path / "log")
    error = fault(
        lambda: run(tmp_path, tmp_path / "bag", mapping=mapped(features=features, clock="header"))
    )
    assert (error.kind, error.stream) == ("clocks", "/right")


def test_import_uses_header_stamps_that_arrive_late(tmp_path: Path) -> None:
    """The camera's messages are logged 0.25 s after their stamps: frames wait for them."""
    with Bag(tmp_path / "bag") as bag:
        for i in range(60):
            bag.joints("/joints", i / 20, {"a": i / 20})
        for i in range(30):
            bag.start = EPOCH + SECOND // 4
            bag.image("/cam", i / 10, pixels(i))
            bag.start = EPOCH
    # `start` moves log time and stamp alike: stamp them as at the sensor
    features = {
        "observation.images.front": {"stream": "/cam", "delay": 0.25},
        "observation.state": {"stream": "/joints", "field": "position"},
    }
    out = run(tmp_path, tmp_path / "bag", mapping=mapped(features=features))
    found = rows(out)
    np.testing.assert_allclose(
        found["observation.state"].ravel(), np.arange(30)[: len(found["index"])] / 10, atol=1e-6
    )
    for frame, image in enumerate(images(out, "observation.images.front")):
        np.testing.assert_array_equal(image, pixels(frame))
    assert found["source.age_ns"].max() == 0


def test_import_takes_the_last_of_equal_times(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        for i in range(10):
            bag.number("/a", i / 10, i)
            bag.number("/a", i / 10, i + 0.5)
    out = run(
        tmp_path,
        tmp_path / "bag",
        mapping=mapped(features={"action": {"stream": "/a", "field": "data"}}),
    )
    assert rows(out)["action"].ravel().tolist() == [i + 0.5 for i in range(10)]
    assert pq.read_table(out / "sensors/raw.action.parquet").num_rows == 10
    assert [finding["kind"] for finding in account(out)["recordings"][0]["findings"]] == [
        "duplicates"
    ]


def test_import_names_joints_that_are_not_there(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
    wrong = mapped(
        features={
            "action": {"stream": "/joints", "field": "position", "joints": ["shoulder", "hand"]}
        }
    )
    error = fault(lambda: run(tmp_path, tmp_path / "bag", mapping=wrong))
    assert (error.kind, error.stream) == ("names", "/joints")
    assert "hand" in error.what
    with Bag(tmp_path / "later") as bag:
        fill(bag)
        bag.joints("/joints", 1.955, {"shoulder": 1.0})
        bag.joints("/joints", 2.0, {"shoulder": 1.0})
        bag.compressed("/cam", 2.1, pixels(0))
        bag.command("/cmd", 2.1, [[7.0], [1.0, 1.5]], 0)
    error = fault(lambda: run(tmp_path, tmp_path / "later"))
    assert (error.kind, error.stream, error.time) == (
        "names",
        "/joints",
        pytest.approx(EPOCH / SECOND + 1.955),
    )


def test_import_names_fields_that_are_not_there(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
    for field in ("points.5.values", "handle", "points"):
        wrong = mapped(features={"action": {"stream": "/cmd", "field": field}})
        error = fault(partial(run, tmp_path, tmp_path / "bag", mapping=wrong))
        assert (error.kind, error.stream) == ("value", "/cmd")


@pytest.mark.parametrize("fault_of", ["nan", "size", "length", "jpeg"])
def test_import_names_a_changed_sample(tmp_path: Path, fault_of: str) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
        if fault_of == "nan":
            bag.command("/cmd", 1.925, [[7.0], [np.nan, 1.5]], 0)
        if fault_of == "length":
            bag.command("/cmd", 1.925, [[7.0], [1.5]], 0)
        if fault_of == "size":
            bag.compressed("/cam", 1.925, pixels(0, 40, 40))
        if fault_of == "jpeg":
            kind = bag.type("sensor_msgs/msg/CompressedImage")
            bag.add("/cam", 1.925, kind(bag.header(1.925), "jpeg", np.arange(50, dtype=np.uint8)))
        for i in range(20, 24):
            bag.compressed("/cam", i / 10 + 0.01, pixels(i))
            bag.command("/cmd", i / 10 + 0.002, [[7.0], [1.0, 1.5]], 0)
            bag.joints("/joints", i / 10 + 0.01, {"shoulder": 1, "elbow": 1})
    mapping = mapped(
        features={key: MAPPING["features"][key] for key in MAPPING["features"]}, fps=100
    )
    error = fault(lambda: run(tmp_path, tmp_path / "bag", mapping=mapping))
    kind = {"nan": "value", "size": "shape", "length": "shape", "jpeg": "image"}[fault_of]
    assert (error.kind, error.stream) == (kind, "/cmd" if fault_of in ("nan", "length") else "/cam")
    assert error.time == pytest.approx(EPOCH / SECOND + 1.925)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_import_names_a_cut_file(tmp_path: Path, storage: str) -> None:
    with Bag(tmp_path / "bag", storage) as bag:
        fill(bag)
    file = next(path for path in (tmp_path / "bag").iterdir() if path.suffix != ".yaml")
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    error = fault(lambda: run(tmp_path, tmp_path / "bag"))
    assert (error.kind, error.where) == ("unreadable", str(tmp_path / "bag"))


def test_import_bounds_episodes_by_a_stream(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag, 40)
        for time, text in [(0.5, "start"), (1.5, "stop"), (2.0, "start"), (3.0, "stop")]:
            bag.text("/mark", time, text)
        for time, text in [(0.1, "pick"), (1.8, "place")]:
            bag.text("/say", time, text)
    mapping = mapped(episodes={"stream": "/mark"}, task_from={"stream": "/say", "field": "data"})
    del mapping["task"]
    out = run(tmp_path, tmp_path / "bag", mapping=mapping)
    found = rows(out)
    assert np.bincount(found["episode_index"]).tolist() == [10, 10]
    assert [found["source.time_ns"][i] - EPOCH for i in (0, 10)] == [SECOND // 2, 2 * SECOND]
    tasks = pq.read_table(out / "meta/tasks.parquet").column("task").to_pylist()
    assert [tasks[i] for i in found["task_index"][[0, 10]].tolist()] == ["pick", "place"]
    idle = mapped(episodes={"stream": "/mark", "idle": ["start", "stop"]})
    error = fault(lambda: run_again(tmp_path, idle))
    assert (error.kind, error.stream) == ("empty", "/mark")
    assert [
        finding
        for finding in account(out)["recordings"][0]["findings"]
        if finding["kind"] == "task"
    ] == []


def test_import_names_a_task_text_that_comes_after_its_episode_began(tmp_path: Path) -> None:
    """The frames before it have the text of the episode before."""
    with Bag(tmp_path / "bag") as bag:
        fill(bag, 40)
        for time, text in [(0.5, "start"), (1.5, "stop"), (2.0, "start"), (3.0, "stop")]:
            bag.text("/mark", time, text)
        for time, text in [(0.1, "pick"), (2.25, "place"), (2.75, "place")]:
            bag.text("/say", time, text)
    mapping = mapped(episodes={"stream": "/mark"}, task_from={"stream": "/say", "field": "data"})
    findings = account(run(tmp_path, tmp_path / "bag", mapping=mapping))["recordings"][0][
        "findings"
    ]
    late = [
        (of["stream"], of["time"], "place" in of["message"])
        for of in findings
        if of["kind"] == "task"
    ]
    assert late == [("/say", pytest.approx(EPOCH / SECOND + 2.3), True)]


def test_import_refuses_to_interpolate_whole_numbers_and_texts(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
        for i in range(20):
            bag.text("/say", i / 10, "pick")
            bag.image("/depth", i / 10, pixels(i))
    features = MAPPING["features"]
    say = {"stream": "/say", "field": "data", "resample": "linear"}
    image = {**features, "observation.images.front": {"stream": "/cam", "resample": "linear"}}
    for mapping, stream in ((mapped(task_from=say), "/say"), (mapped(features=image), "/cam")):
        error = fault(partial(run, tmp_path, tmp_path / "bag", mapping=mapping))
        assert (error.kind, error.stream) == ("value", stream)


def run_again(folder: Path, mapping: dict[str, Any]) -> Path:
    (folder / "again").mkdir()
    return run(folder / "again", folder / "bag", mapping=mapping)


def test_import_names_an_empty_recording(tmp_path: Path) -> None:
    with Bag(tmp_path / "none"):
        pass
    assert fault(lambda: run(tmp_path, tmp_path / "none")).kind in ("missing", "unreadable")
    with Bag(tmp_path / "apart") as bag:
        for i in range(5):
            bag.number("/a", i / 10, i)
            bag.number("/b", 10 + i / 10, i)
    features = {"action": [{"stream": name, "field": "data"} for name in ("/a", "/b")]}
    error = fault(lambda: run(tmp_path, tmp_path / "apart", mapping=mapped(features=features)))
    assert (error.kind, error.stream) == ("empty", "/b")


def test_import_holds_a_stream_that_is_sent_at_changes(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        for i in range(50):
            bag.number("/a", i / 10, i)
        bag.number("/grip", 0.05, 1)
        bag.number("/grip", 2.0, 0)
    features = {
        "action": {"stream": "/a", "field": "data"},
        "grip": {"stream": "/grip", "field": "data"},
    }
    found = rows(run(tmp_path, tmp_path / "bag", mapping=mapped(features=features)))
    assert len(found["grip"]) == 20  # the episode ends with the stream that ends first
    kinds = {
        finding["kind"]: finding["stream"]
        for finding in account(tmp_path / "out")["recordings"][0]["findings"]
    }
    assert kinds == {"trimmed": "/grip"}
    (tmp_path / "x").mkdir()
    (tmp_path / "x/map.yaml").write_text(
        "fps: 10\ntask: t\nfeatures:\n  action: {stream: /a, field: data}\n"
        "  grip: {stream: /grip, field: data, max_age: .inf}\n"
    )
    import_(
        ImportConfig((str(tmp_path / "bag"), str(tmp_path / "x/out")), str(tmp_path / "x/map.yaml"))
    )
    grip = rows(tmp_path / "x/out")["grip"].ravel().tolist()
    assert grip == [1.0] * 20 + [0.0] * 29


def test_import_refuses_a_task_that_nothing_states_and_huge_texts(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
        bag.text("/say", 0.0, "x" * 5_000_000)
    mapping = mapped()
    del mapping["task"]
    assert fault(lambda: run(tmp_path, tmp_path / "bag", mapping=mapping)).kind == "task"
    mapping["task_from"] = "/say"
    error = fault(lambda: run(tmp_path, tmp_path / "bag", mapping=mapping))
    assert (error.kind, error.stream) == ("task", "/say")
    assert len(str(error)) < 500
    assert (
        rows(run(tmp_path, tmp_path / "bag", mapping=mapping, task="stated"))["task_index"].max()
        == 0
    )


def test_import_reads_a_bare_mcap_of_another_writer(tmp_path: Path) -> None:
    """By `mcap-ros2-support`: no metadata.yaml, chunks of its own, CRCs."""
    writer_module = pytest.importorskip("mcap_ros2.writer", reason="writes the bag")
    with (tmp_path / "a.mcap").open("wb") as file:
        writer = writer_module.Writer(file, chunk_size=300)
        kind = writer.register_msgdef("lab/msg/Grip", "float64[] values\nfloat32 force")
        for i in range(20):
            time = EPOCH + i * SECOND // 10
            writer.write_message(
                "/grip", kind, {"values": [i, 2.0 * i], "force": i / 4}, time, time
            )
        writer.finish()
    features = {"action": {"stream": "/grip", "field": ["values", "force"]}}
    found = rows(run(tmp_path, tmp_path / "a.mcap", mapping=mapped(features=features)))
    number = np.arange(20)
    np.testing.assert_array_equal(found["action"], np.stack([number, 2 * number, number / 4], 1))


def test_import_reads_ros_1(tmp_path: Path) -> None:
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    with Writer(tmp_path / "a.bag") as writer:
        connection = writer.add_connection("/joints", "sensor_msgs/msg/JointState", typestore=store)
        kind, header, clock = (
            store.types[name]
            for name in (
                "sensor_msgs/msg/JointState",
                "std_msgs/msg/Header",
                "builtin_interfaces/msg/Time",
            )
        )
        for i in range(10):
            time = EPOCH + i * SECOND // 10
            stamp = header(i, clock(time // SECOND - 5, time % SECOND), "")
            message = kind(stamp, ["a"], np.array([float(i)]), np.zeros(0), np.zeros(0))
            writer.write(
                connection, time, store.serialize_ros1(message, "sensor_msgs/msg/JointState")
            )
    out = run(
        tmp_path,
        tmp_path / "a.bag",
        mapping=mapped(features={"action": {"stream": "/joints", "field": "position"}}),
    )
    assert rows(out)["action"].ravel().tolist() == list(range(10))
    assert account(out)["recordings"][0]["streams"]["/joints"]["offset"][1] == pytest.approx(5)


def test_import_needs_a_distro_for_a_bag_without_types(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag", "sqlite3") as bag:
        fill(bag)
    base = sqlite3.connect(next((tmp_path / "bag").glob("*.db3")))
    base.execute("DELETE FROM message_definitions")
    base.commit()
    base.close()
    features = {"observation.state": MAPPING["features"]["observation.state"]}
    error = fault(lambda: run(tmp_path, tmp_path / "bag", mapping=mapped(features=features)))
    assert error.kind == "unreadable"
    assert "ros_distro" in error.fix
    rows(run(tmp_path, tmp_path / "bag", mapping=mapped(features=features, ros_distro="jazzy")))


def test_import_refuses_a_bag_that_has_lost_its_metadata(tmp_path: Path) -> None:
    """A recorder that was killed writes none; the bag beside it must not be imported alone."""
    for name in ("one", "two"):
        with Bag(tmp_path / "bags" / name) as bag:
            fill(bag)
    (tmp_path / "bags/two/metadata.yaml").unlink()
    error = fault(lambda: run(tmp_path, tmp_path / "bags"))
    assert (error.kind, error.where, error.fix.count("reindex")) == (
        "layout",
        tmp_path / "bags/two",
        1,
    )
    run(tmp_path, tmp_path / "bags", skip_bad=True)
    assert account(tmp_path / "out")["recordings"][0]["source"] == str(tmp_path / "bags/one")


def test_import_names_a_first_episode_of_number_zero_that_it_leaves_out(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag, 40)
        for i in range(8):
            bag.add("/episode", i / 2, bag.type("std_msgs/msg/Int32")(i // 4))
    for idle, episodes, findings in (([0], 1, ["trimmed"]), ([9], 2, [])):
        marked = mapped(episodes={"stream": "/episode", "field": "data", "idle": idle})
        (tmp_path / str(idle)).mkdir()
        of = account(run(tmp_path / str(idle), tmp_path / "bag", mapping=marked))["recordings"][0]
        assert (len(of["episodes"]), [finding["kind"] for finding in of["findings"]]) == (
            episodes,
            findings,
        )


def test_import_exchanges_the_colors_of_encoded_images(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
    front = {"observation.images.front": {"stream": "/cam", "color": "bgr"}}
    out = run(tmp_path, tmp_path / "bag", mapping=mapped(features={**MAPPING["features"], **front}))
    np.testing.assert_array_equal(images(out, "observation.images.front")[3], pixels(3)[..., ::-1])


def test_import_names_a_gap_over_all_of_a_recording(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
        bag.messages = [message for message in bag.messages if message[0] != "/cam"]
        for time in (-50, 50):
            bag.compressed("/cam", time, pixels(1))
    front = {"observation.images.front": {"stream": "/cam", "max_age": 1.0}}
    changed = mapped(features={**MAPPING["features"], **front})
    error = fault(lambda: run(tmp_path, tmp_path / "bag", mapping=changed, gaps="cut"))
    assert (error.kind, error.stream) == ("gap", "/cam")


def test_import_takes_a_stamp_that_was_never_set_as_none(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        for i in range(20):
            bag.joints("/a", i / 10, {"a": i}, stamp=0, start=0)
            bag.joints("/b", i / 10, {"b": i}, stamp=i / 10 - 0.02)
    features = {
        "observation.state": [{"stream": name, "field": "position"} for name in ("/a", "/b")]
    }
    out = run(tmp_path, tmp_path / "bag", mapping=mapped(features=features, clock="header"))
    facts = account(out)["recordings"][0]
    assert "offset" not in facts["streams"]["/a"]
    assert facts["findings"] == []
    assert Catalog.open(out).features["observation.state"].names == ["a", "b"]


def test_import_refuses_an_image_beside_numbers_and_repeated_names(tmp_path: Path) -> None:
    with Bag(tmp_path / "bag") as bag:
        fill(bag)
    state = MAPPING["features"]["observation.state"]
    error = fault(
        lambda: run(
            tmp_path,
            tmp_path / "bag",
            mapping=mapped(features={"action": [state, {"stream": "/cam"}]}),
        )
    )
    assert (error.kind, error.stream) == ("image", "/cam")
    error = fault(
        lambda: run(tmp_path, tmp_path / "bag", mapping=mapped(features={"action": [state, state]}))
    )
    assert error.kind == "names"


def test_import_of_bags_with_clocks_of_two_eras(tmp_path: Path) -> None:
    for name, start in (("a", 0), ("b", EPOCH)):
        with Bag(tmp_path / name, start=start) as bag:
            fill(bag)
    found = rows(run(tmp_path, tmp_path / "a", tmp_path / "b"))
    first, second = (
        found["source.time_ns"][found["episode_index"] == episode] for episode in (0, 1)
    )
    assert first[0] == 20_000_000
    assert (second - first).tolist() == [EPOCH] * len(first)
    np.testing.assert_array_equal(*np.split(found["observation.state"], 2))


@pytest.mark.parametrize("seed", range(6))
def test_import_agrees_with_a_search_of_each_frame(tmp_path: Path, seed: int) -> None:
    """Irregular times, some equal: each value is that of a search over all samples, by the rule of
    the page.
    """
    rng = np.random.default_rng(seed)
    clocks = {
        name: np.sort(rng.integers(0, 3 * SECOND, count) // 1_000_000 * 1_000_000)
        for name, count in (("/a", 40), ("/b", 9), ("/c", 90))
    }
    with Bag(tmp_path / "bag") as bag:
        for name, clock in clocks.items():
            for i, time in enumerate(clock.tolist()):
                bag.number(name, time / SECOND, i**1.5)
    fps = int(rng.integers(3, 70))
    delay = 0.037
    parts = {
        "a": {"stream": "/a", "max_age": 9.0},
        "b": {"stream": "/b", "max_age": 0.4, "resample": "linear"},
        "c": {"stream": "/c", "max_age": 9.0, "delay": delay},
    }
    features = {key: {**part, "field": "data"} for key, part in parts.items()}
    out = run(tmp_path, tmp_path / "bag", mapping=mapped(features=features, fps=fps), gaps="hold")
    found = rows(out)
    clocks["/c"] = clocks["/c"] - round(delay * SECOND)
    start = max(clock[0] for clock in clocks.values())
    end = min(clock[-1] for clock in clocks.values())
    times = [start + round(frame * SECOND / fps) for frame in range(1000)]
    times = [time for time in times if time <= end]
    assert (found["source.time_ns"] - EPOCH).tolist() == times
    for frame, time in enumerate(times):
        for number, name in enumerate("abc"):
            clock = clocks[f"/{name}"]
            past = max(i for i in range(len(clock)) if clock[i] <= time)
            value = past**1.5
            if (
                name == "b"
                and clock[past] < time
                and clock[past + 1] <= end
                and clock[past + 1] - clock[past] <= 0.4 * SECOND
            ):
                share = (time - clock[past]) / (clock[past + 1] - clock[past])
                value += share * ((past + 1) ** 1.5 - value)
            assert found[name].ravel()[frame] == pytest.approx(value, rel=1e-6)
            assert found["source.age_ns"][frame, number] == time - clock[past]


def test_import_refuses_a_bag_whose_last_messages_are_in_a_journal(tmp_path: Path) -> None:
    """As the recorder of ROS 2 leaves it when it is killed: a reader of the .db3 alone would miss
    them.
    """
    with Bag(tmp_path / "bag", "sqlite3") as bag:
        fill(bag)
    (tmp_path / "killed").mkdir()
    file = sqlite3.connect(tmp_path / "bag/bag.db3")
    file.execute("PRAGMA journal_mode=wal")
    file.execute("UPDATE messages SET timestamp = timestamp")
    file.commit()
    for path in (tmp_path / "bag").iterdir():
        shutil.copy(path, tmp_path / "killed")
    file.close()
    error = fault(lambda: run(tmp_path, tmp_path / "killed"))
    assert (error.kind, error.what.count("bag.db3-wal")) == ("unreadable", 1)
    sqlite3.connect(tmp_path / "killed/bag.db3").execute("PRAGMA journal_mode=delete")
    run(tmp_path, tmp_path / "killed")
