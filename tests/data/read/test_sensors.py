"""Sensors: the last sample up to a time and none of the future, by brute force; broken files are
refused.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import MissingFileError
from understudy_base.testing.refusals import absent, refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.format.sensors import Sensor
from understudy_data.datasets.read.sensors import SensorTable, read_values
from understudy_data.datasets.used_files import UsedFiles
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.storage import mapped_tables
from understudy_data.testing.datasets import Spec, edit_json, write_dataset
from understudy_tools.testing.edited import edit
from understudy_tools.testing.sensors import IMU, Samples, add_sensor, jittered, write_samples

LENGTHS = (8, 3, 12)
FPS = 10
WINDOW = [-0.31, -0.2, -0.1, -0.005, 0.0, 0.1, 0.25, 0.9]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sensors") / "set"
    write_dataset(root, Spec(lengths=LENGTHS, cameras=(), foreign=False))
    return root


@pytest.fixture
def root(bare: Path, tmp_path: Path) -> Path:
    """A dataset without cameras whose data is shared."""
    path = tmp_path / "set"
    (path / "meta").mkdir(parents=True)
    (path / "data").symlink_to(bare / "data")
    for each in (bare / "meta").iterdir():
        (path / "meta" / each.name).symlink_to(each)
    return path


def brute(
    samples: Samples,
    episode: int,
    frame: int,
    offset: float,
    *,
    linear: bool,
    max_age: float | None,
) -> tuple[list[float], bool]:
    """The rule, one value at a time, over all samples. Times are whole tenths of milliseconds."""
    time = frame / FPS + offset
    now = frame / FPS
    end = LENGTHS[episode] / FPS
    times, values = samples.get(episode, (np.zeros(0), np.zeros((0, 2))))
    over = time >= end - 1e-6
    before = [i for i, t in enumerate(times) if (t < end - 5e-7 if over else t <= time + 1e-6)]
    if not before:
        return [0.0] * 2, True
    last = before[-1]
    found = values[last].astype(float)
    if (
        linear
        and not over
        and last + 1 < len(times)
        and (offset > 1e-6 or times[last + 1] <= now + 1e-6)
    ):
        share = min(max((time - times[last]) / (times[last + 1] - times[last]), 0.0), 1.0)
        found = found + share * (values[last + 1].astype(float) - found)
    old = max_age is not None and time - times[last] > max_age + 1e-6
    return found.tolist(), bool(over or old)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize(("rate", "max_age"), [(60.0, None), (4.0, 0.3)])
def test_sensor_values_follow_the_rule(
    root: Path, linear: bool, rate: float, max_age: float | None
) -> None:
    samples = jittered(LENGTHS, rate)
    samples[1] = samples[1][0][:0], samples[1][1][:0]  # an episode without samples
    add_sensor(root, samples, interpolation="linear" if linear else "hold", max_age=max_age)
    data = EpisodeDataset(root, {IMU: WINDOW})
    assert not absent(" ".join(data.notes), "imu.parquet", 1)
    episodes, frames = data.locate(np.arange(len(data)))
    batch = data.batch(episodes, frames)
    assert (batch[IMU].dtype, batch[IMU].shape) == (torch.float32, (sum(LENGTHS), len(WINDOW), 2))
    for i, (episode, frame) in enumerate(zip(episodes.tolist(), frames.tolist())):
        for t, offset in enumerate(WINDOW):
            values, pad = brute(samples, episode, frame, offset, linear=linear, max_age=max_age)
            assert batch[f"{IMU}_is_pad"][i, t] == pad, (episode, frame, offset)
            assert batch[IMU][i, t].tolist() == pytest.approx(values, rel=1e-6, abs=1e-7), (
                episode,
                frame,
                offset,
            )


@given(
    frame=st.integers(0, 11),
    number=st.integers(0, 10_000),
    rate=st.sampled_from([7, 30, 60, 100, 200, 2000]),
)
def test_sensor_sample_at_the_very_time_counts(frame: int, number: int, rate: int) -> None:
    """A time and a timestamp that are equal as fractions are equal, whatever their floats round
    to.
    """
    number %= rate
    table = object.__new__(SensorTable)
    table.times = np.array([i / rate for i in range(rate)])
    table.values, table.first = np.arange(rate, dtype=np.float32)[:, None], np.array([0, rate])
    now = np.array([frame / FPS])
    times = (now + (number / rate - frame / FPS))[:, None]
    sensor = Sensor(Feature(IMU, "float32", (1,)), "sensors/imu.parquet")
    values, pad = read_values(table, sensor, np.array([0]), now, times, np.array([9.0]))
    assert (values.reshape(-1).tolist(), pad.tolist()) == ([number], [[False]])


def test_sensor_without_a_window_has_the_value_at_the_frame(root: Path) -> None:
    samples = {e: (np.array([0.05, 0.2]), np.array([[1.0], [2.0]], np.float32)) for e in range(3)}
    add_sensor(root, samples)
    data = EpisodeDataset(root)
    got = [data.sample(0, frame) for frame in range(4)]
    assert [float(one[IMU]) for one in got] == [0, 1, 2, 2]
    assert [bool(one[f"{IMU}_is_pad"]) for one in got] == [True, False, False, False]
    assert got[0][IMU].shape == ()
    assert IMU not in EpisodeDataset(root, keys=["action"]).sample(0, 0)


def test_sensor_files_per_episode_hold_the_same(root: Path) -> None:
    samples = jittered(LENGTHS, 50)
    add_sensor(root, samples)
    add_sensor(root, samples, "apart", "sensors/apart/episode-{episode_index:03d}.parquet")
    batch = EpisodeDataset(root, {IMU: WINDOW, "apart": WINDOW}).batch(
        np.array([2, 0]), np.array([5, 1])
    )
    assert torch.equal(batch[IMU], batch["apart"])
    assert batch[IMU].abs().sum() > 0
    (root / "sensors/apart/episode-001.parquet").unlink()
    with refused(where="episode-001.parquet", kind=MissingFileError):
        EpisodeDataset(root)


def test_sensor_future_does_not_reach_an_observation(root: Path) -> None:
    """Samples after a frame's time change nothing in its window up to the frame."""
    for linear in (False, True):
        samples = jittered(LENGTHS, 40)
        windows = {IMU: [-0.3, -0.02, 0.0]}
        add_sensor(root, samples, interpolation="linear" if linear else "hold")
        before = EpisodeDataset(root, windows).sample(2, 6)
        times, values = samples[2]
        samples[2] = times, np.where(times[:, None] > 0.6, 99.0, values).astype(np.float32)
        add_sensor(root, samples, interpolation="linear" if linear else "hold")
        after = EpisodeDataset(root, windows).sample(2, 6)
        assert torch.equal(before[IMU], after[IMU])


def test_sensor_windows_of_segments_end_with_them(root: Path) -> None:
    add_sensor(root, jittered(LENGTHS, 100))
    ranges = {"2": [[2, 5]]}
    data = EpisodeDataset(
        root, {IMU: [-0.1, 0.1, 0.15, 0.3]}, keep_ranges=ranges, keep_rule="start", episodes=[2]
    )
    assert data.sample(2, 3)[f"{IMU}_is_pad"].tolist() == [False, False, False, True]
    whole = EpisodeDataset(root, {IMU: [-0.05, 0.05]}, keep_ranges=ranges, episodes=[2])
    assert whole.segments.tolist() == [[2, 3, 4]]  # the window needs a frame on each side


def test_sensor_batches_of_a_loader_are_the_datasets(root: Path) -> None:
    add_sensor(root, jittered(LENGTHS, 100))
    data = EpisodeDataset(root, {IMU: WINDOW})
    order = Order.from_datasets([data], batch_size=5, seed=3)
    with Loader(data, order=order) as loader:
        batch = next(loader)
    _, episodes, frames = order.locate(np.arange(5))
    wanted = data.batch(episodes, frames)
    assert torch.equal(batch[IMU], wanted[IMU])
    assert torch.equal(batch[f"{IMU}_is_pad"], wanted[f"{IMU}_is_pad"])


def test_large_sensor_is_mapped_and_pickles_small(
    root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    times = np.arange(mapped_tables.MIN_ROWS + 10) / 2e5
    samples = {0: (times, np.arange(len(times), dtype=np.float32)[:, None])}
    add_sensor(root, samples, group=1 << 20)
    data = EpisodeDataset(root, {IMU: [0.0, 0.25]}, episodes=[0])
    sample = data.sample(0, 1)
    assert sample[IMU].reshape(-1).tolist() == [20000.0, 70000.0]
    again = pickle.loads(pickle.dumps(data)).sample(0, 1)
    assert torch.equal(again[IMU], sample[IMU])


def test_changed_sensor_file_is_another_dataset(root: Path, tmp_path: Path) -> None:
    def digests() -> dict[str, Any]:
        return UsedFiles([EpisodeDataset(root)], ()).digests(tmp_path / "cache")

    samples = jittered(LENGTHS, 20)
    add_sensor(root, samples)
    first = digests()
    assert UsedFiles.changed_kinds(first, digests()) == []
    samples[2][1][-1] += 1
    write_samples(root / "sensors/imu.parquet", samples)
    second = digests()
    assert UsedFiles.changed_kinds(first, second) == [f"files of sensor {IMU}"]
    edit_json(root / "meta/sensors.json", lambda sensors: sensors[IMU].update(max_age=0.5))
    assert UsedFiles.changed_kinds(second, digests()) == [f"files of sensor {IMU}"]
    assert (
        UsedFiles([EpisodeDataset(root, keys=["action"])], ())
        .digests(None)
        .keys()
        .isdisjoint([f"files of sensor {IMU}"])
    )


def rewrite(root: Path, change: Any) -> None:
    path = root / "sensors/imu.parquet"
    pq.write_table(change(pq.read_table(path)), path)


def set_column(name: str, value: Any) -> Any:
    def change(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index(name), name, value(table[name]))

    return change


def patched(at: int, new: Any, of: str = "timestamp") -> Any:
    def value(column: pa.ChunkedArray) -> pa.Array:
        values = column.to_pylist()
        values[at] = values[new] if of == "same" else new
        return pa.array(values, column.type)

    return value


@pytest.mark.parametrize(
    ("change", "values"),
    [
        (lambda t: t.drop_columns(["timestamp"]), ["'timestamp'"]),
        (lambda t: t.drop_columns(["episode_index"]), ["'episode_index'"]),
        (set_column("timestamp", lambda c: c.cast(pa.float32())), ["float"]),
        (set_column("timestamp", patched(3, 2, "same")), ["rise", 2]),
        (set_column("timestamp", patched(3, float("nan"))), ["nan", 3]),
        (set_column("timestamp", patched(3, None)), ["nulls"]),
        (set_column("episode_index", patched(3, 1)), ["contiguous", 0]),
        (set_column("episode_index", patched(-1, 7)), [7]),
        (set_column("value", lambda c: pa.array([[0.0] * 3] * len(c))), [3]),
        (set_column("value", lambda c: pa.array(["x"] * len(c))), ["'observation.imu'", "string"]),
    ],
)
def test_broken_sensor_files_are_refused(root: Path, change: Any, values: list[object]) -> None:
    add_sensor(root, jittered(LENGTHS, 20))
    rewrite(root, change)
    with refused(*values, where=""):
        EpisodeDataset(root)


@pytest.mark.parametrize(
    ("entry", "values"),
    [
        ({"path": "../imu.parquet"}, ["path"]),
        ({"path": "sensors/{name}.parquet"}, ["path"]),
        ({"interpolation": "cubic"}, ["'cubic'"]),
        ({"dtype": "int32", "interpolation": "linear"}, ["int32", "'linear'"]),
        ({"dtype": "video", "shape": [4, 4, 3]}, ["video"]),
        ({"shape": []}, [IMU]),
        ({"max_age": -1}, ["max_age", -1]),
        ({"max_agee": 1}, ["'max_agee'"]),
    ],
)
def test_wrong_declarations_are_refused(
    root: Path, entry: dict[str, Any], values: list[object]
) -> None:
    declared = {"path": "sensors/imu.parquet", "dtype": "float32", "shape": [2]} | entry
    (root / "meta/sensors.json").write_text(json.dumps({IMU: declared}))
    with refused(*values, where="meta/sensors.json"):
        Catalog.open(root)


def test_sensor_with_the_key_of_a_feature_is_refused(root: Path) -> None:
    (root / "meta/sensors.json").write_text(
        json.dumps({"action": {"path": "a", "dtype": "float32", "shape": [2]}})
    )
    with refused("'action'", where="meta/sensors.json"):
        Catalog.open(root)


def test_edit_refuses_sensors_unless_they_are_dropped(root: Path, tmp_path: Path) -> None:
    add_sensor(root, jittered(LENGTHS, 20))
    with refused(repr(IMU), where="set", fix=f"--drop-features {IMU}"):
        edit(root, tmp_path / "out")
    edit(root, tmp_path / "out", drop_features=(IMU,))
    assert not (tmp_path / "out/meta/sensors.json").exists()


def test_audio_is_left_out_by_name(root: Path) -> None:
    info = json.loads((root / "meta/info.json").read_text())
    info["features"]["microphone"] = {"dtype": "audio", "shape": [1], "names": None}
    (root / "meta/info.json").unlink()
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.warns(UserWarning, match="microphone"):
        assert "microphone" not in EpisodeDataset(root).keys
    with refused("microphone", where="set", fix="keys"):
        EpisodeDataset(root, keys=["microphone"])


def test_audio_stream_of_a_video_is_reported(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=(3,), foreign=False))
    sound = {"has_audio": True, "audio.codec": "aac", "audio.sample_rate": 48000}
    edit_json(
        tmp_path / "set/meta/info.json",
        lambda info: info["features"]["observation.images.top"]["info"].update(sound),
    )
    lines = [line for line in Catalog.open(tmp_path / "set").report() if "audio" in line]
    assert len(lines) == 1
    assert not absent(lines[0], "observation.images.top", "aac", 48000)
