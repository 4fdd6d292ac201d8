"""Check of files: each fault gives one line, a sound dataset none."""

import shutil
import warnings
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.datasets import Spec, edit_json, picture, write_dataset, write_video
from understudy.data.check_files import check_files
from understudy.data.format.catalog import Catalog
from understudy.storage.dataset_root import Files

TOP, SIDE_CAM = "observation.images.top", "observation.images.side"


@pytest.fixture(scope="module", params=["v2.1", "v3.0"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("examine") / request.param
    spec = Spec(version=request.param, lengths=(4, 3, 5, 2), cameras=(TOP, SIDE_CAM), rich=True)
    write_dataset(root, spec)
    return root


def lines_of(root: Path) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # no warning repeats a listed file
        return list(check_files(Catalog.open(root)))


def test_check_sound(sound: Path) -> None:
    lines = lines_of(sound)
    assert len(lines) == 1, lines
    assert "1 of 3 dimensions are constant" in lines[0]


def test_check_every_fault_is_listed(sound: Path, tmp_path: Path) -> None:
    root = tmp_path / "d"
    shutil.copytree(sound, root)
    rows = sorted(root.glob("data/chunk-*/*.parquet"))
    table = pq.read_table(rows[0])
    rewards = table["next.reward"].to_numpy().copy()
    rewards[1] = np.nan
    at = table.column_names.index("next.reward")
    pq.write_table(table.set_column(at, "next.reward", pa.array(rewards)), rows[0])
    rows[-1].write_bytes(b"PAR1 no more")
    tops = sorted(p for p in root.rglob("*.mp4") if TOP in str(p))
    write_video(tops[0], [picture(0, 0, 0)] * 2, Spec())
    sides = sorted(p for p in root.rglob("*.mp4") if SIDE_CAM in str(p))
    sides[-1].write_bytes(sides[-1].read_bytes()[:100])
    said = {"info": {"video.codec": "mpeg4"}, "shape": [48, 48, 3]}
    edit_json(root / "meta/info.json", lambda info: info["features"][TOP].update(said))
    lines = lines_of(root)
    assert len(lines) == 7, lines
    text = "\n".join(lines)
    assert "'next.reward' is not finite in 1 row, first 1" in text
    assert f"{rows[-1]} (episode" in text
    assert f"{tops[0]} (episode 0): the video holds 2 frames" in text
    assert f"{sides[-1]} (episode" in text
    assert f"{TOP}: info.json declares codec mpeg4, the files are h264" in text
    assert f"{TOP}: info.json declares shape (48, 48, 3), the frames are 64x64" in text


def test_check_a_dataset_elsewhere_is_looked_into_too(sound: Path) -> None:
    url = f"memory://examine-{sound.name}"
    elsewhere = fsspec.filesystem("memory")
    elsewhere.put(f"{sound}/", f"/examine-{sound.name}/", recursive=True)
    video = min(
        path for path in elsewhere.find(f"/examine-{sound.name}/videos") if TOP in path and path.endswith("mp4")
    )
    assert list(check_files(Catalog.open(url))) == lines_of(sound)
    elsewhere.pipe(video, b"no video")
    lines = list(check_files(Catalog.open(url)))
    elsewhere.rm(f"/examine-{sound.name}", recursive=True)
    assert any(video.lstrip("/") in line for line in lines), lines


def test_check_the_limit_is_kept(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    table = Files.table
    monkeypatch.setattr(Files, "table", lambda files, path, *rest: opened.append(path) or table(files, path, *rest))
    every = sorted(str(path.relative_to(sound)) for path in sound.glob("data/chunk-*/*.parquet"))
    list(check_files(Catalog.open(sound), limit=2))
    assert sorted(path for path in opened if path.startswith("data/")) == [every[0], every[-1]]


def test_check_real_recordings(real_data: Path) -> None:
    assert lines_of(real_data / "g1_v21") == []
    assert lines_of(real_data / "g1_v30") == []
    catalog = Catalog.open(real_data / "gr1_sim_v20")
    found = list(check_files(catalog))
    assert found[:-1] == catalog.report()
    assert found[-1].startswith("timestamps are up to 1 frames off frame / fps, first in ")
