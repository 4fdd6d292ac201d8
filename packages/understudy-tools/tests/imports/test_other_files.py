"""Recordings that point at other files of the reader: nothing outside of what was given is read."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_tools.cli.importing import import_
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import ImportConfig

h5py = pytest.importorskip("h5py", reason="needs the extra `import`")
zarr = pytest.importorskip("zarr", reason="needs the extra `import`")

ROWS = 20
OWN = np.zeros((ROWS, 3), np.uint8)
PRIVATE = np.full((ROWS, 3), 77, np.uint8)


def run(
    out: Path, *sources: Path, mapping: dict[str, Any] | None = None, **settings: Any
) -> dict[str, np.ndarray]:
    file = ""
    if mapping is not None:
        file = str(out.with_suffix(".json"))
        Path(file).write_text(json.dumps(mapping))
    import_(ImportConfig((*map(str, sources), str(out)), file, **{"task": "t", **settings}))
    table = pq.read_table(out / "data/chunk-000/file-000.parquet").to_pydict()
    return {key: np.array(values) for key, values in table.items()}


def fault(call: Callable[[], object]) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        call()
    return caught.value


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A folder of the reader with an HDF5 file, a text and a link to the file."""
    folder = tmp_path / "private"
    folder.mkdir()
    (folder / "key.txt").write_bytes(PRIVATE.tobytes())
    with h5py.File(folder / "other.hdf5", "w") as file:
        file["s"] = PRIVATE
        file["data/demo_0/actions"] = np.zeros((ROWS, 2), np.float32)
        file["data/demo_0/obs/robot0_eef_pos"] = PRIVATE
    return folder


def robomimic(path: Path, fill: Callable[[Any, Any], None]) -> Path:
    """Write a file with a demo of actions; `fill` adds to the file and to `obs`."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_kwargs": {"control_freq": 20}})
        data["demo_0/actions"] = np.zeros((ROWS, 2), np.float32)
        fill(file, data.create_group("demo_0/obs"))
    return path


def virtual(group: Any, name: str, source: str, key: str) -> None:
    layout = h5py.VirtualLayout(shape=OWN.shape, dtype="u1")
    layout[:] = h5py.VirtualSource(source, key, shape=OWN.shape)
    group.create_virtual_dataset(name, layout)


KEY = "robot0_eef_pos"


WAYS = [
    "raw",
    "raw relative",
    "virtual",
    "virtual of raw",
    "virtual of a link",
    "virtual chain",
    "link",
]
WAYS += [
    "soft link to a link",
    "link to a group",
    "soft link through a group",
    "link in a group of a soft link",
]


@pytest.mark.parametrize("way", WAYS)
def test_import_refuses_hdf5_arrays_of_other_files(
    tmp_path: Path,
    private: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    other = str(private / "other.hdf5")
    text = str(private / "key.txt")

    def fill(file: Any, obs: Any) -> None:
        def raw(group: Any, name: str, target: str) -> None:
            group.create_dataset(
                name, shape=OWN.shape, dtype="u1", external=[(target, 0, OWN.nbytes)]
            )

        if way == "raw":
            raw(obs, KEY, text)
        elif way == "raw relative":
            raw(obs, KEY, "private/key.txt")
        elif way == "virtual":
            virtual(obs, KEY, other, "s")
        elif way == "virtual of raw":
            raw(file, "hidden", text)
            virtual(obs, KEY, ".", "hidden")
        elif way == "virtual of a link":
            file["hidden"] = h5py.ExternalLink(other, "/s")
            virtual(obs, KEY, ".", "hidden")
        elif way == "virtual chain":
            virtual(file, "hidden", other, "s")
            virtual(obs, KEY, ".", "hidden")
        elif way == "link":
            obs[KEY] = h5py.ExternalLink(other, "/s")
        elif way == "soft link to a link":
            file["hidden"] = h5py.ExternalLink(other, "/s")
            obs[KEY] = h5py.SoftLink("/hidden")
        elif way == "link to a group":
            del file["data/demo_0/obs"]
            file["data/demo_0/obs"] = h5py.ExternalLink(other, "/data/demo_0/obs")
        elif way == "soft link through a group":
            file["hidden"] = h5py.ExternalLink(other, "/")
            obs[KEY] = h5py.SoftLink("/hidden/s")
        elif way == "link in a group of a soft link":
            file.create_group("hidden")[KEY] = h5py.ExternalLink(other, "/s")
            del file["data/demo_0/obs"]
            file["data/demo_0/obs"] = h5py.SoftLink("/hidden")

    path = robomimic(tmp_path / "a.hdf5", fill)
    monkeypatch.chdir(tmp_path)
    mapping = {"features": {"observation.state": f"obs/{KEY}", "action": "actions"}, "fps": 20}
    error = fault(lambda: run(tmp_path / "out", path, mapping=mapping))
    assert error.kind in ("link", "missing")
    assert error.stream == f"obs/{KEY}"
    assert not (tmp_path / "out").exists()
    if way != "link to a group":  # which has no key of the layout
        assert fault(lambda: run(tmp_path / "out", path)).kind == "link"
    without = {"features": {"action": "actions"}, "fps": 20}
    # which needs none of it
    assert len(run(tmp_path / "out", path, mapping=without)["action"]) == ROWS


@pytest.mark.parametrize("place", ["data", "data/demo_1", "data by a soft link", "circle"])
def test_import_refuses_hdf5_groups_of_other_files(
    tmp_path: Path, private: Path, place: str
) -> None:
    def fill(file: Any, obs: Any) -> None:
        obs[KEY] = OWN
        if place == "data/demo_1":
            file["data/demo_1"] = h5py.ExternalLink(str(private / "other.hdf5"), "/data/demo_0")
        elif place == "circle":
            file["data/demo_1"] = h5py.SoftLink("/data/demo_1")
        else:
            del file["data"]
            name = "data" if place == "data" else "hidden"
            file[name] = h5py.ExternalLink(str(private / "other.hdf5"), "/data")
            if place != "data":
                file["data"] = h5py.SoftLink("/hidden")

    path = robomimic(tmp_path / "a.hdf5", fill)
    assert fault(lambda: run(tmp_path / "out", path)).kind == "link"
    assert not (tmp_path / "out").exists()
    if "demo_1" in place or place == "circle":
        assert not run(tmp_path / "out", path, skip_bad=True)["observation.state"].any()


def test_import_reads_links_and_virtual_arrays_within_an_hdf5_file(tmp_path: Path) -> None:
    def fill(file: Any, obs: Any) -> None:
        file["pool/pos"] = PRIVATE
        file["pool/loop"] = h5py.SoftLink("/pool")
        obs[KEY] = h5py.SoftLink("/pool/pos")
        obs["hard"] = file["pool/pos"]
        virtual(obs, "robot0_eef_quat", ".", "pool/pos")
        obs["robot0_gripper_qpos"] = h5py.SoftLink("../nothing")
        obs["region"] = np.array([obs["hard"].regionref[:2]] * ROWS, h5py.regionref_dtype)
        file["data/demo_1"] = h5py.SoftLink("/data/demo_0")

    found = run(tmp_path / "out", robomimic(tmp_path / "a.hdf5", fill))
    np.testing.assert_array_equal(
        found["observation.state"], np.full((2 * ROWS, 6), 77, np.float32)
    )


def replay_buffer(path: Path, version: int = 2, state: np.ndarray = PRIVATE) -> Path:
    group = zarr.open_group(zarr.storage.LocalStore(path), mode="w", zarr_format=version)
    group.create_array("data/state", data=state, chunks=(5, 3), fill_value=1)
    group.create_array("data/action", data=np.zeros((ROWS, 2), np.float32), fill_value=1)
    group.create_array("meta/episode_ends", data=np.array([ROWS]))
    return path


ZARR = {"features": {"observation.state": "state", "action": "action"}, "fps": 10}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "part", ["chunk", "array", "metadata", "data", "meta", "below a link within"]
)
def test_import_refuses_links_that_leave_a_zarr_folder(
    tmp_path: Path, version: int, part: str
) -> None:
    other = replay_buffer(tmp_path / "other.zarr", version)
    path = replay_buffer(tmp_path / "a.zarr", version, OWN)
    chunk = "data/state/0.0" if version == 2 else "data/state/c/0/0"
    linked = {
        "chunk": chunk,
        "array": "data/state",
        "metadata": "data/state/.zarray" if version == 2 else "data/state/zarr.json",
        "data": "data",
        "meta": "meta",
        "below a link within": chunk,
    }[part]
    place = path / linked
    shutil.rmtree(place) if place.is_dir() else place.unlink()
    if part == "below a link within":
        (path / "own").symlink_to(other / chunk)
        place.symlink_to(path / "own")
    else:
        place.symlink_to(other / linked)
    error = fault(lambda: run(tmp_path / "out", path, mapping=ZARR))
    assert error.kind == "link"
    assert not (tmp_path / "out").exists()
    if part not in ("data", "meta"):
        without = {"features": {"action": "action"}, "fps": 10}
        assert len(run(tmp_path / "out", path, mapping=without)["action"]) == ROWS


@pytest.mark.parametrize("version", [2, 3])
def test_import_reads_names_of_consolidated_metadata_from_the_folder_only(
    tmp_path: Path, version: int
) -> None:
    replay_buffer(tmp_path / "other.zarr", version)
    path = replay_buffer(tmp_path / "a.zarr", version, OWN)
    name = ".zmetadata" if version == 2 else "zarr.json"
    zarr.consolidate_metadata(path, zarr_format=version)
    text = (path / name).read_text()
    (path / name).write_text(text.replace("data/state", "data/../../other.zarr/data/state"))
    odd = {**ZARR, "features": {"observation.state": "../../other.zarr/data/state"}}
    assert fault(lambda: run(tmp_path / "out", path, mapping=odd)).kind == "missing"
    assert not run(tmp_path / "out", path, mapping=ZARR)["observation.state"].any()


def test_import_reads_links_within_a_zarr_folder_and_of_the_cache_of_the_hub(
    tmp_path: Path,
) -> None:
    path = replay_buffer(tmp_path / "a.zarr")
    (path / "data/state/0.0").rename(path / "data/state/first")
    (path / "data/state/0.0").symlink_to("first")
    assert (run(tmp_path / "own", path, mapping=ZARR)["observation.state"] == 77).all()
    snapshot = tmp_path / "hub/models--x--y/snapshots/abc"
    blobs = tmp_path / "hub/models--x--y/blobs"
    blobs.mkdir(parents=True)
    files = [file for file in sorted(path.rglob("*")) if file.is_file()]
    for number, file in enumerate(files):
        place = snapshot / "a.zarr" / file.relative_to(path)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blobs / str(number))
        place.symlink_to(os.path.relpath(blobs / str(number), place.parent))
    cached = run(tmp_path / "cached", snapshot / "a.zarr", mapping=ZARR)
    assert (cached["observation.state"] == 77).all()
    shutil.rmtree(tmp_path / "cached")
    blob = (snapshot / "a.zarr/data/state/1.0").resolve()
    blob.unlink()
    blob.symlink_to(path / "data/state/1.0")  # a blob that leads out of the cache
    assert fault(lambda: run(tmp_path / "cached", snapshot / "a.zarr", mapping=ZARR)).kind == "link"


def test_import_refuses_storage_transformers(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "a.zarr", 3)
    content = json.loads((path / "data/state/zarr.json").read_text())
    content["storage_transformers"] = [{"name": "elsewhere", "configuration": {}}]
    (path / "data/state/zarr.json").write_text(json.dumps(content))
    assert fault(lambda: run(tmp_path / "out", path, mapping=ZARR)).stream == "state"


def test_import_reads_no_paths_of_zip_entries(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "a.zarr", state=OWN)
    (tmp_path / "key").write_bytes(bytes(15))
    with zipfile.ZipFile(tmp_path / "a.zarr.zip", "w") as file:
        for entry in sorted(path.rglob("*")):
            name = str(entry.relative_to(path))
            if name == "data/state/0.0":
                link = zipfile.ZipInfo(name)
                link.external_attr = 0o120777 << 16
                file.writestr(link, str(tmp_path / "key"))
            elif entry.is_file():
                file.write(entry, name)
    assert fault(lambda: run(tmp_path / "out", tmp_path / "a.zarr.zip", mapping=ZARR)).kind in (
        "unreadable",
        "size",
    )


def test_import_refuses_entries_of_a_folder_that_lead_out_of_it(
    tmp_path: Path, private: Path
) -> None:
    folder = tmp_path / "demos"
    folder.mkdir()
    robomimic(folder / "ep_0.hdf5", lambda file, obs: obs.update({KEY: OWN}))
    (folder / "ep_1.hdf5").symlink_to(private / "other.hdf5")
    error = fault(lambda: run(tmp_path / "out", folder))
    assert (error.kind, error.where) == ("link", folder / "ep_1.hdf5")
    assert not run(tmp_path / "out", folder, skip_bad=True)["observation.state"].any()
    mapping = {"features": {"observation.state": f"obs/{KEY}"}, "fps": 20}
    # the link itself was given
    named = run(tmp_path / "named", folder / "ep_1.hdf5", mapping=mapping)
    assert (named["observation.state"] == 77).all()
    (folder / "ep_1.hdf5").unlink()
    (folder / "ep_1.hdf5").symlink_to("ep_0.hdf5")
    assert len(run(tmp_path / "within", folder)["index"]) == 2 * ROWS
    (tmp_path / "alias").symlink_to(folder)
    assert len(run(tmp_path / "aliased", tmp_path / "alias")["index"]) == 2 * ROWS
