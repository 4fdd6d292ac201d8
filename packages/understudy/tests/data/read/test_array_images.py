"""Images stored as arrays of bytes: read, trained on and shown like any camera."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import understudy as us
from understudy.testing.runs import tiny_config
from understudy.train import run
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.write.writer import EpisodeWriter
from understudy_data.testing.datasets import SIDE, Spec, edit_json, write_dataset
from understudy_kit import main

CAMERA = "observation.images.array"
TOP = "observation.images.top"
LENGTHS = (9, 5, 7)
HEIGHT = 20
WIDTH = 28


def image(index: int) -> np.ndarray:
    """uint8 (3, H, W), of the frame with this index."""
    return np.random.default_rng(index).integers(0, 256, (3, HEIGHT, WIDTH), np.uint8)


def column(indices: list[int], first: bool, nested: bool) -> pa.Array:
    """As another writer stores it: nested lists, or all of an image's bytes in one list."""
    images = [image(i) if first else image(i).transpose(1, 2, 0) for i in indices]
    if nested:
        return pa.array([one.tolist() for one in images], pa.list_(pa.list_(pa.list_(pa.uint8()))))
    return pa.array([one.reshape(-1) for one in images], pa.list_(pa.uint8()))


def add_camera(
    root: Path, first: bool = False, nested: bool = True, shape: list[int] | None = None
) -> None:
    shape = shape or ([3, HEIGHT, WIDTH] if first else [HEIGHT, WIDTH, 3])
    for file in (root / "data").glob("chunk-*/*.parquet"):
        table = pq.read_table(file)
        added = column(table["index"].to_pylist(), first, nested)
        pq.write_table(table.append_column(CAMERA, added), file, row_group_size=4)
    entry = {"dtype": "uint8", "shape": shape, "names": None}
    edit_json(root / "meta/info.json", lambda info: info["features"].update({CAMERA: entry}))


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize(
    ("first", "nested"), [(False, True), (True, True), (False, False), (True, False)]
)
def test_array_images_an_array_column_is_a_camera(
    version: str, first: bool, nested: bool, tmp_path: Path
) -> None:
    write_dataset(tmp_path / "d", Spec(version=version, lengths=LENGTHS, cameras=()))
    add_camera(tmp_path / "d", first, nested)
    catalog = us.Catalog.open(tmp_path / "d")
    assert catalog.camera_keys == (CAMERA,)
    assert catalog.features[CAMERA].size == (HEIGHT, WIDTH)
    assert not [line for line in catalog.report() if CAMERA in line]
    data = us.EpisodeDataset(catalog, delta_timestamps={CAMERA: [-1 / catalog.fps, 0]})
    for i in range(len(data)):
        begins = int(data[i]["frame_index"]) == 0
        pair = np.stack([image(i if begins else i - 1), image(i)])
        assert data[i][CAMERA].dtype == torch.uint8
        assert np.array_equal(data[i][CAMERA].numpy(), pair)
        assert data[i][f"{CAMERA}_is_pad"].tolist() == [begins, False]
    plain = us.EpisodeDataset(catalog, names={"observation.images.front": CAMERA})
    with us.Loader([plain], order=us.Order.from_datasets([plain], batch_size=3, seed=1)) as loader:
        seen: list[int] = []
        for _ in range(sum(LENGTHS) // 3):
            batch = next(loader)
            seen += batch["index"].tolist()
            expected = np.stack([image(i) for i in batch["index"].tolist()])
            assert np.array_equal(batch["observation.images.front"].numpy(), expected)
    assert sorted(seen) == list(range(sum(LENGTHS)))


@pytest.mark.parametrize(
    ("dtype", "shape", "camera"),
    [
        ("uint8", (8, 9, 3), True),
        ("uint8", (3, 8, 9), True),
        ("uint8", (480, 640, 3), True),
        ("uint8", (8, 3, 9), False),
        ("uint8", (8, 9, 1), False),
        ("uint8", (8, 9, 4), False),
        ("uint8", (2, 2, 3), False),
        ("uint8", (3, 8), False),
        ("float32", (8, 9, 3), False),
        ("int64", (3, 8, 9), False),
    ],
)
def test_array_images_recognizes_cameras(dtype: str, shape: tuple[int, ...], camera: bool) -> None:
    names = ["channels", "height", "width"]  # which are often wrong: the axis of three decides
    for feature in (Feature("a", dtype, shape), Feature("a", dtype, shape, names)):
        assert feature.is_camera == camera
        assert feature.channels == (3 if camera else None)
        assert feature.size == (tuple(size for size in shape if size != 3) if camera else None)


def test_array_images_it_is_trained_on_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "d"
    write_dataset(root, Spec(lengths=LENGTHS, cameras=(TOP,)))
    add_camera(root)
    config = tiny_config(root, tmp_path / "run", steps=2, checkpoint={"every": 2})
    assert run.train(config) == run.DONE
    seen = json.loads((tmp_path / "run/policy/config.json").read_text())
    assert CAMERA in json.dumps(seen)
    capsys.readouterr()
    assert main(["check", str(root), "--json", "--page", str(tmp_path / "page.html")]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)["contents"]
    assert {key: f["camera"] for key, f in facts["features"].items() if f["camera"]} == {
        TOP: True,
        CAMERA: True,
    }
    assert f"{CAMERA}, episode 0" in (tmp_path / "page.html").read_text()
    assert main(["check", str(root), "--page", str(tmp_path / "page.html"), "--overwrite"]) == 0
    assert f"{CAMERA}  uint8 ({HEIGHT}, {WIDTH}, 3), a camera" in " ".join(
        capsys.readouterr().out.split(" ")
    )


def test_array_images_video_and_arrays_do_not_mix_under_one_key(tmp_path: Path) -> None:
    for name in ("video", "array"):
        write_dataset(
            tmp_path / name, Spec(lengths=LENGTHS, cameras=(TOP,) if name == "video" else ())
        )
    add_camera(tmp_path / "array")
    names = {"observation.images.front": CAMERA}
    sources = [
        us.EpisodeDataset(tmp_path / "video", names={"observation.images.front": TOP}),
        us.EpisodeDataset(tmp_path / "array", names=names),
    ]
    with refused("'observation.images.front'", "video", "image", kind=ValueError):
        us.Loader(sources, order=us.Order.from_datasets(sources, batch_size=2, seed=1))
    assert SIDE != HEIGHT


def test_array_images_refuses_wrong_arrays(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec(lengths=LENGTHS, cameras=()))
    add_camera(tmp_path / "d", shape=[HEIGHT, WIDTH + 2, 3])
    with refused(f"'{CAMERA}'", (20, 28, 3), (20, 30, 3), where="(episode 0)"):
        us.EpisodeDataset(tmp_path / "d")[0]


def test_array_images_what_the_writer_records_as_an_array_stays_one(tmp_path: Path) -> None:
    features = {CAMERA: {"dtype": "uint8", "shape": (HEIGHT, WIDTH, 3)}}
    with EpisodeWriter(tmp_path / "d", fps=10, features=features) as writer:
        buffer = np.empty((HEIGHT, WIDTH, 3), np.uint8)
        for i in range(4):
            buffer[...] = image(i).transpose(1, 2, 0)
            writer.add_frame({CAMERA: buffer}, "go")
        writer.save_episode()
    data = us.EpisodeDataset(tmp_path / "d")
    assert all(np.array_equal(data[i][CAMERA].numpy(), image(i)) for i in range(4))
    assert data.catalog.stats[CAMERA]["mean"].shape == (3, 1, 1)
