"""Depth cameras outside of reading: checked, shown, left out of training and edits by name."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from understudy.testing.runs import tiny_config
from understudy.train.data.run_data import open_data
from understudy_base.testing.refusals import absent, refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import Spec, edit_column, edit_json, write_dataset
from understudy_data.testing.depth import DEPTH, SCALE, add_depth_images, add_depth_video
from understudy_kit import override
from understudy_kit.report.page import as_gray
from understudy_tools.check.examine import check_dataset
from understudy_tools.report.check_page import check_page
from understudy_tools.report.view.sheets import Sheets
from understudy_tools.testing.edited import edit

TOP = "observation.images.top"
LENGTHS = (6, 4, 5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("depth") / "set"
    write_dataset(path, Spec(lengths=LENGTHS, foreign=False))
    add_depth_video(path, LENGTHS, **SCALE, depth_unit="mm")
    recorded = {
        "min": [[[10.0]]],
        "max": [[[10000.0]]],
        "mean": [[[4000.0]]],
        "std": [[[900.0]]],
        "count": [15],
    }
    edit_json(path / "meta/stats.json", lambda stats: stats.update({DEPTH: recorded}))
    return path


def rules(root: Path) -> dict[str, tuple[int, ...]]:
    return {
        one.rule: one.place.episodes
        for one in check_dataset(root).findings
        if one.place.camera == DEPTH
    }


def test_check_finds_nothing_wrong_with_depth(root: Path) -> None:
    assert rules(root) == {}


def test_check_compares_depth_with_recorded_statistics(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root, tmp_path / "set")
    edit_json(
        tmp_path / "set/meta/info.json",
        lambda info: info["features"][DEPTH]["info"].update(depth_unit="m"),
    )
    edit_json(
        tmp_path / "set/meta/stats.json",
        lambda stats: stats[DEPTH].update(min=[[[0.01]]], max=[[[4.0]]]),
    )
    assert list(rules(tmp_path / "set")) == ["depth.range"]


def test_check_names_depth_that_measured_nothing(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", Spec(lengths=LENGTHS, foreign=False))
    add_depth_images(tmp_path / "set")
    buffer = io.BytesIO()
    Image.fromarray(np.zeros((36, 52), np.uint16)).save(buffer, "PNG")
    for path in (tmp_path / "set/data").rglob("*.parquet"):
        empty = {"bytes": buffer.getvalue()}
        is_empty = pq.read_table(path)["episode_index"].to_numpy() == 1
        edit_column(
            path, DEPTH, lambda images, flags=is_empty, empty=empty: np.where(flags, empty, images)
        )
    assert rules(tmp_path / "set") == {"depth.empty": (1,)}


def test_page_shows_depth(root: Path) -> None:
    shown = as_gray(np.array([[0, 1000, 3000]], np.uint16))
    assert shown.dtype == np.uint8
    assert shown[0, 0] == 0 < shown[0, 1] < shown[0, 2] == 255
    catalog = Catalog.open(root)
    text = check_page(check_dataset(catalog, "rows"), 1)
    assert f">{DEPTH}</p>" in text
    assert 'class="bad"' not in text
    data, kind = Sheets(catalog).read(DEPTH, 0, 0)
    assert kind == "image/png"
    assert np.ptp(np.asarray(Image.open(io.BytesIO(data)))) > 200


def test_training_leaves_depth_out_and_says_so(root: Path, tmp_path: Path) -> None:
    data = open_data(tiny_config(root, tmp_path / "run"))
    assert data.cameras == (TOP,)
    assert not absent(" ".join(data.sources[0].notes), DEPTH)


def test_training_on_depth_is_refused(root: Path, tmp_path: Path) -> None:
    with refused(repr(DEPTH), "RGB", where="set", fix=TOP):
        open_data(override(tiny_config(root, tmp_path / "run"), data={"cameras": (DEPTH,)}))


def test_edit_refuses_depth_unless_it_is_dropped(root: Path, tmp_path: Path) -> None:
    with refused(repr(DEPTH), where="set", fix=f"--drop-features {DEPTH}"):
        edit(root, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    edit(root, tmp_path / "out", drop_features=(DEPTH,))
    assert json.loads((tmp_path / "out/meta/info.json").read_text())["features"].keys() >= {TOP}
