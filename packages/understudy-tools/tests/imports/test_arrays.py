"""HDF5 and Zarr files of the known layouts, written by h5py and zarr, and mapped ones."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from understudy_base import ConfigError
from understudy_base.testing.refusals import absent, refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_kit.cli import main
from understudy_tools.cli.importing import import_
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import ImportConfig
from understudy_tools.testing.bags import pixels

h5py = pytest.importorskip("h5py", reason="needs the extra `import`")
zarr = pytest.importorskip("zarr", reason="needs the extra `import`")

ROWS = 7
VIDEO = np.stack([pixels(row) for row in range(ROWS)])


def run(
    out: Path, *sources: Path, mapping: dict[str, Any] | None = None, **settings: Any
) -> dict[str, np.ndarray]:
    """Import into `out`; returns its columns, images decoded."""
    file = ""
    if mapping is not None:
        file = str(out.with_suffix(".json"))
        Path(file).write_text(json.dumps(mapping))
    import_(ImportConfig((*map(str, sources), str(out)), file, **{"storage": "image", **settings}))
    table = pq.read_table(out / "data/chunk-000/file-000.parquet").to_pydict()
    return {
        key: np.stack([np.asarray(Image.open(io.BytesIO(cell["bytes"]))) for cell in values])
        if "images" in key
        else np.array(values)
        for key, values in table.items()
    }


def numbers(width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, width))


def robomimic(path: Path, libero: bool = False, episodes: int = 12) -> None:
    keys = {"ee_pos": 3, "ee_ori": 3, "gripper_states": 2, "joint_states": 7}
    if not libero:
        keys = {"robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2, "object": 5}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(
            {"env_name": "Lift", "env_kwargs": {"control_freq": 20}}
        )
        if libero:
            data.attrs["problem_info"] = json.dumps(
                {"language_instruction": ["open the ", "drawer"]}
            )
        for number in range(episodes):
            demo = data.create_group(f"demo_{number}")
            demo["actions"] = numbers(7) + number
            for key, width in keys.items():
                demo[f"obs/{key}"] = numbers(width, 1)
            demo[f"obs/agentview_{'rgb' if libero else 'image'}"] = VIDEO


def test_import_reads_robomimic_without_a_mapping(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robomimic(tmp_path / "a b.hdf5")
    (tmp_path / "a b.hdf5").chmod(0o400)
    found = run(tmp_path / "out", tmp_path / "a b.hdf5", task="lift")
    assert Catalog.open(tmp_path / "out").fps == 20
    actions = found["action"].reshape(12, ROWS, 7)  # demo_10 is after demo_9
    np.testing.assert_array_equal(
        actions, np.stack([(numbers(7) + i).astype(np.float32) for i in range(12)])
    )
    state = np.hstack([numbers(3, 1), numbers(4, 1), numbers(2, 1)]).astype(np.float32)
    np.testing.assert_array_equal(found["observation.state"][:ROWS], state)
    np.testing.assert_array_equal(found["observation.images.agentview"][:ROWS], VIDEO)
    assert not found["source.age_ns"].any()
    assert not (tmp_path / "out/meta/sensors.json").exists()
    capsys.readouterr()
    import_(ImportConfig((str(tmp_path / "a b.hdf5"),), propose=True))
    (tmp_path / "map.yaml").write_text(capsys.readouterr().out)
    import_(
        ImportConfig(
            (str(tmp_path / "a b.hdf5"), str(tmp_path / "again")),
            str(tmp_path / "map.yaml"),
            task="t",
        )
    )
    assert (
        Catalog.open(tmp_path / "again").features.keys()
        == Catalog.open(tmp_path / "out").features.keys()
    )


def test_import_reads_libero_with_its_task(tmp_path: Path) -> None:
    robomimic(tmp_path / "a.hdf5", libero=True, episodes=2)
    found = run(tmp_path / "out", tmp_path / "a.hdf5")
    assert pq.read_table(tmp_path / "out/meta/tasks.parquet").column("task").to_pylist() == [
        "open the drawer"
    ]
    assert found["observation.state"].shape == (2 * ROWS, 8)
    np.testing.assert_array_equal(found["observation.images.agentview"][:ROWS], VIDEO)


@pytest.mark.parametrize("stored", ["raw", "jpeg", "padded", "text"])
def test_import_reads_aloha(tmp_path: Path, stored: str) -> None:
    expected = VIDEO
    for number in range(2):
        with h5py.File(tmp_path / f"episode_{number}.hdf5", "w") as file:
            file["action"], file["observations/qpos"] = numbers(14), numbers(14, 1)
            if stored == "raw":
                file["observations/images/cam_high"] = VIDEO
                continue
            encoded = [io.BytesIO() for _ in VIDEO]
            for buffer, image in zip(encoded, VIDEO[::-1] if number else VIDEO):
                Image.fromarray(image).save(buffer, "JPEG", quality=90)
            expected = (
                expected
                if number
                else np.stack([np.asarray(Image.open(buffer)) for buffer in encoded])
            )
            lines = [np.frombuffer(buffer.getvalue(), np.uint8) for buffer in encoded]
            if stored == "text":
                file["observations/images/cam_high"] = np.array(
                    [buffer.getvalue() for buffer in encoded]
                )
            elif stored == "padded":
                width = max(map(len, lines)) + 9 + number  # differs between files
                lines = np.stack([np.pad(line, (0, width - len(line))) for line in lines])
                file["observations/images/cam_high"] = lines
            else:
                kind = h5py.vlen_dtype(np.uint8)
                column = file.create_dataset("observations/images/cam_high", (ROWS,), kind)
                for row, line in enumerate(lines):
                    column[row] = line
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", tmp_path / "episode_0.hdf5", task="fold")
    assert caught.value.kind == "rate"  # no file states it
    found = run(
        tmp_path / "out",
        tmp_path / "episode_0.hdf5",
        tmp_path / "episode_1.hdf5",
        fps=50,
        task="fold",
    )
    np.testing.assert_array_equal(found["observation.images.cam_high"][:ROWS], expected)
    np.testing.assert_array_equal(found["action"][ROWS:], numbers(14).astype(np.float32))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_import_reads_a_replay_buffer(tmp_path: Path, kind: str, version: int) -> None:
    path = tmp_path / ("a.zarr" if kind == "folder" else "a.zarr.zip")
    store = (
        zarr.storage.LocalStore(path) if kind == "folder" else zarr.storage.ZipStore(path, mode="w")
    )
    group = zarr.open_group(store, mode="w", zarr_format=version)
    group.create_array("data/camera0_rgb", data=VIDEO, chunks=(1, *VIDEO.shape[1:]))
    for key, width in {
        "robot0_eef_pos": 3,
        "robot0_eef_rot_axis_angle": 3,
        "robot0_gripper_width": 1,
    }.items():
        group.create_array(f"data/{key}", data=numbers(width))
    group.create_array("meta/episode_ends", data=np.array([3, ROWS]))
    store.close()
    found = run(tmp_path / "out", path, fps=60, task="cup")
    assert found["episode_index"].tolist() == [0] * 3 + [1] * 4
    state = np.hstack([numbers(3), numbers(3), numbers(1)]).astype(np.float32)
    np.testing.assert_array_equal(found["observation.state"], state)
    np.testing.assert_array_equal(found["observation.images.camera0"], VIDEO)
    assert "action" not in found


def test_import_resamples_rows_by_their_clock(tmp_path: Path) -> None:
    clock = 1000 + np.array([0.0, 0.09, 0.21, 0.30, 0.41, 0.50, 0.58])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["t"], file["pose"], file["video"] = clock, numbers(2), VIDEO
    features = {"action": {"stream": "pose", "resample": "linear"}, "observation.images.a": "video"}
    found = run(
        tmp_path / "out",
        tmp_path / "a.h5",
        mapping={"features": features, "time": "t", "fps": 5, "task": "t"},
    )
    times = 1000 + np.array([0.0, 0.2, 0.4])
    expected = np.stack([np.interp(times, clock, column) for column in numbers(2).T], 1)
    np.testing.assert_allclose(found["action"], expected, rtol=1e-5)
    np.testing.assert_array_equal(found["observation.images.a"], VIDEO[[0, 1, 3]])
    assert found["source.age_ns"].tolist() == [[0, 0], [110_000_000] * 2, [100_000_000] * 2]


def test_import_halves_a_stated_rate(tmp_path: Path) -> None:
    robomimic(tmp_path / "a.hdf5", episodes=1)
    found = run(tmp_path / "out", tmp_path / "a.hdf5", task="lift", fps=10)
    np.testing.assert_array_equal(found["action"], numbers(7)[::2].astype(np.float32))
    assert pq.read_table(tmp_path / "out/sensors/raw.action.parquet").num_rows == ROWS


def test_import_refuses_files_of_two_rates(tmp_path: Path) -> None:
    for name, rate in (("a", 20), ("b", 10)):
        robomimic(tmp_path / f"{name}.hdf5", episodes=1)
        with h5py.File(tmp_path / f"{name}.hdf5", "a") as file:
            file["data"].attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": rate}})
    for fps in (None, 10):
        with pytest.raises(RecordingError) as caught:
            run(tmp_path / "out", tmp_path / "a.hdf5", tmp_path / "b.hdf5", task="lift", fps=fps)
        assert (caught.value.kind, str(caught.value.where)) == (
            "rate",
            f"{tmp_path / 'b.hdf5'}, demo_0",
        )
    assert not (tmp_path / "out").exists()


def test_import_refuses_a_first_episode_without_streams_of_later_ones(tmp_path: Path) -> None:
    robomimic(tmp_path / "a.hdf5", episodes=2)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["data/demo_0/obs/agentview_image"]
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", tmp_path / "a.hdf5", task="lift")
    assert (caught.value.kind, str(caught.value.where)) == (
        "missing",
        f"{tmp_path / 'a.hdf5'}, demo_0",
    )
    columns = run(tmp_path / "out", tmp_path / "a.hdf5", task="lift", skip_bad=True)
    assert len(columns["observation.images.agentview"]) == ROWS


def test_import_refuses_to_interpolate_whole_numbers(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["count"] = np.arange(ROWS)
    mapping = {
        "features": {"observation.state": {"stream": "count", "resample": "linear"}},
        "fps": 5,
        "task": "t",
    }
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", tmp_path / "a.h5", mapping=mapping)
    assert (caught.value.kind, caught.value.stream) == ("value", "count")


def test_import_proposes_the_keys_of_an_unknown_layout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["arm/q"], file["cam"] = numbers(7), VIDEO
    import_(ImportConfig((str(tmp_path / "a.h5"),), propose=True))
    printed = capsys.readouterr().out
    assert all(word in printed for word in ("arm/q", "cam", "float64 (7,)", "features:"))
    robomimic(tmp_path / "b.hdf5", episodes=1)
    import_(ImportConfig((str(tmp_path / "b.hdf5"),), propose=True))
    lines = capsys.readouterr().out.splitlines()
    assert "fps: 20" in lines
    assert "  action: [actions]" in lines
    assert len(lines) < 12


@pytest.mark.parametrize(
    "fault", ["length", "cut", "key", "nan", "float", "facts", "layout", "lerobot", "rlds"]
)
def test_import_names_a_fault_of_a_file(tmp_path: Path, fault: str) -> None:
    path = tmp_path / "a.hdf5"
    robomimic(path, episodes=2)
    mapping = None
    with h5py.File(path, "a") as file:
        demo = file["data/demo_1"]
        if fault == "length":
            del demo["actions"]
            demo["actions"] = numbers(7)[:-1]
        if fault == "nan":
            demo["actions"][3, 2] = np.nan
        if fault == "key":
            del demo["obs/robot0_eef_quat"]
        if fault == "facts":
            file["data"].attrs["env_args"] = "null"
        if fault == "float":
            mapping = {"features": {"observation.images.a": "obs/v"}, "fps": 20, "task": "t"}
            for name in ("demo_0", "demo_1"):
                file["data"][name]["obs/v"] = VIDEO / 2
    kind = {
        "length": "shape",
        "cut": "unreadable",
        "key": "missing",
        "nan": "value",
        "float": "image",
        "facts": "unreadable",
    }
    if fault == "cut":
        path.write_bytes(path.read_bytes()[:3000])
    if fault in ("layout", "lerobot", "rlds"):
        path = tmp_path / "folder"
        path.mkdir()
        (path / "a.tfrecord-00000-of-00001" if fault == "rlds" else path / "notes.txt").write_text(
            ""
        )
        if fault == "lerobot":
            (path / "meta").mkdir()
            (path / "meta/info.json").write_text("{}")
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", path, mapping=mapping, task="" if mapping else "lift")
    error = caught.value
    assert error.kind == kind.get(fault, "layout")
    assert error.stream == {
        "length": "actions",
        "key": "obs/robot0_eef_quat",
        "nan": "actions",
        "float": "obs/v",
    }.get(fault, "")
    assert str(error.where).startswith(str(path))
    assert {"lerobot": "edit", "rlds": "TensorFlow"}.get(fault, "") in error.fix
    assert not (tmp_path / "out").exists()
    if fault == "nan":
        assert "demo_1" in str(error.where)
        assert error.time == pytest.approx(0.15)


def test_import_skips_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in (10, 9):
        robomimic(tmp_path / f"in/ep_{number}.hdf5", episodes=1)
        with h5py.File(tmp_path / f"in/ep_{number}.hdf5", "a") as file:
            file["data/demo_0/actions"][:] = number
    (tmp_path / "in/ep_1.hdf5").write_bytes(b"cut")
    with pytest.raises(RecordingError):
        run(tmp_path / "out", tmp_path / "in", task="lift")
    found = run(tmp_path / "out", tmp_path / "in", task="lift", skip_bad=True)
    assert found["action"][::ROWS, 0].tolist() == [9, 10]
    skipped = json.loads((tmp_path / "out/meta/import.json").read_text())["skipped"]
    assert [(fault["kind"], fault["where"]) for fault in skipped] == [
        ("unreadable", str(tmp_path / "in/ep_1.hdf5"))
    ]


def test_import_states_the_episodes_of_a_skipped_recording_that_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"], file["time"] = numbers(2), np.array([0.0, 0.1, 0.2, 9.0, 9.1, 9.2, 9.3])
        file["v"][6, 0] = np.nan
    mapping = {"features": {"observation.state": "v"}, "fps": 10, "task": "t", "time": "time"}
    found = run(tmp_path / "out", tmp_path / "a.h5", mapping=mapping, gaps="cut", skip_bad=True)
    assert found["episode_index"].tolist() == [0, 0, 0]
    assert "after 1 episode," in capsys.readouterr().out
    (skipped,) = json.loads((tmp_path / "out/meta/import.json").read_text())["skipped"]
    assert skipped["episodes_kept"] == 1


@pytest.mark.parametrize(
    "kind", ["float64", "float32", "mask", "bool", "bool of one channel", "bytes", "first black"]
)
def test_import_scales_images_of_0_to_1_by_their_first_episode(tmp_path: Path, kind: str) -> None:
    masks = (VIDEO > 90) * 1.0
    black = np.zeros(VIDEO.shape)
    one = VIDEO[..., :1] > 90
    stored = {
        "float64": [VIDEO / 255.0, VIDEO / 255.0],
        "float32": [(VIDEO / 255.0).astype(np.float32), masks.astype(np.float32)],
        "mask": [masks, VIDEO / 255.0],
        "bool": [VIDEO > 90, VIDEO > 90],
        "bool of one channel": [one, one],
        "bytes": [VIDEO * 1.0, masks],  # whole numbers of 0 to 255 in the first: 1 is nearly black
        "first black": [black, VIDEO / 255.0],
    }[kind]
    for number, images in enumerate(stored):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["v"] = images
    mapping = {"features": {"observation.images.a": "v"}, "fps": 5, "task": "t"}
    found = run(tmp_path / "out", tmp_path / "0.h5", tmp_path / "1.h5", mapping=mapping)[
        "observation.images.a"
    ]
    scale = 1 if kind == "bytes" else 255
    wanted = np.broadcast_to(
        np.rint(np.concatenate(stored) * float(scale)).astype(np.uint8), found.shape
    )
    np.testing.assert_array_equal(found, wanted)
    content = json.loads((tmp_path / "out/meta/import.json").read_text())
    assert content["scaled"] == ([] if scale == 1 else ["observation.images.a"])


@pytest.mark.parametrize("later", [1.5, -0.25, np.nan, 200.0])
def test_import_refuses_images_beyond_the_scale_of_the_first_episode(
    tmp_path: Path, later: float
) -> None:
    images = VIDEO / 255.0
    for number in range(2):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["v"] = images
        images[3, 2, 1] = later
    mapping = {"features": {"observation.images.a": "v"}, "fps": 5, "task": "t"}
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", tmp_path / "0.h5", tmp_path / "1.h5", mapping=mapping)
    error = caught.value
    assert (error.kind, error.stream, error.time) == ("image", "v", pytest.approx(0.6))
    assert str(error.where).endswith("1.h5")
    assert not absent(error.what, f"{later:g}", "0 to 1")
    assert error.fix


@pytest.mark.parametrize("kind", ["metres", "zeros", "whole numbers", "after bools"])
def test_import_refuses_one_channel_of_floats_which_may_be_depth(tmp_path: Path, kind: str) -> None:
    depth = (
        VIDEO[..., :1]
        / {"metres": 256.0, "after bools": 256.0, "zeros": np.inf, "whole numbers": 1.0}[kind]
    )
    for number, images in enumerate(
        [VIDEO[..., :1] > 90, depth] if kind == "after bools" else [depth]
    ):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["v"] = images
    sources = sorted(tmp_path.glob("*.h5"))
    mapping = {"features": {"observation.images.a": "v"}, "fps": 5, "task": "t"}
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", *sources, mapping=mapping)
    error = caught.value
    assert (error.kind, error.stream, str(error.where)) == ("image", "v", str(sources[-1]))
    assert not absent(error.what, "float64", "depth", "3 channels")
    assert not absent(error.fix, "uint8", "bools")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rate", ["20", -5, 0, [20]])
def test_import_names_a_rate_that_is_none(tmp_path: Path, rate: Any) -> None:
    robomimic(tmp_path / "a.hdf5", episodes=1)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": rate}})
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", tmp_path / "a.hdf5", task="lift", fps=20)
    assert (caught.value.kind, str(caught.value.where)) == ("rate", str(tmp_path / "a.hdf5"))
    assert repr(rate) in caught.value.what
    assert "source_fps" in caught.value.fix
    mapping = {"features": {"action": "actions"}, "source_fps": 20, "fps": 20, "task": "t"}
    assert len(run(tmp_path / "out", tmp_path / "a.hdf5", mapping=mapping)["action"]) == ROWS


def test_import_takes_a_demonstration_of_one_frame(tmp_path: Path) -> None:
    robomimic(tmp_path / "a.hdf5", episodes=2)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        demo = file["data/demo_0"]
        for key in ("actions", *(f"obs/{name}" for name in demo["obs"])):
            first = demo[key][:1]
            del demo[key]
            demo[key] = first
    found = run(tmp_path / "out", tmp_path / "a.hdf5", task="lift")
    assert found["episode_index"].tolist() == [0] + [1] * ROWS
    np.testing.assert_array_equal(found["action"][:1], numbers(7)[:1].astype(np.float32))
    np.testing.assert_array_equal(found["observation.images.agentview"][:1], VIDEO[:1])


def test_import_proposes_for_one_source_and_reads_none_of_several(tmp_path: Path) -> None:
    with refused("a.hdf5, b.hdf5", "--propose", kind=ConfigError):
        main.read_settings("import", ["a.hdf5", "b.hdf5", "--propose"])


def test_import_refuses_video_of_an_odd_size(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["v"] = VIDEO[:, :31]
    mapping = {"features": {"observation.images.a": "v"}, "fps": 5, "task": "t"}
    with pytest.raises(RecordingError) as caught:
        run(tmp_path / "out", tmp_path / "a.h5", mapping=mapping, storage="video")
    assert caught.value.kind == "shape"
    found = run(tmp_path / "out", tmp_path / "a.h5", mapping=mapping)
    np.testing.assert_array_equal(found["observation.images.a"], VIDEO[:, :31])
