"""The shipped datasets have the known answers, and `generate.py` writes them again."""

import io
import json
import runpy
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
import pytest

from understudy_conformance.samples import split_batch
from understudy_conformance.sets import BRIGHT, SETS, V30, DemoSet, paint, read_image, values

GENERATE = runpy.run_path(str(Path(__file__).parents[1] / "generate.py"))


def contents(root: Path) -> dict[str, Any]:
    """Name of each file -> JSON, table or identities of frames, whatever wrote it."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        name = str(path.relative_to(root))
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            rows = table.to_pylist()
            found[name] = (
                str(table.schema),
                [{key: show(value) for key, value in row.items()} for row in rows],
            )
        elif path.suffix == ".mp4":
            with av.open(str(path)) as container:
                images = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
            found[name] = [read_image(image)[0] for image in images]
        else:
            found[name] = (
                [json.loads(line) for line in path.read_text().splitlines()]
                if name.endswith("l")
                else path.read_text()
            )
    return found


def show(value: Any) -> Any:
    """A PNG as its identity."""
    if isinstance(value, dict) and "bytes" in value:
        with av.open(io.BytesIO(value["bytes"])) as container:
            return read_image(next(container.decode(video=0)).to_ndarray(format="rgb24"))[0]
    return value


@pytest.mark.parametrize("demo", SETS, ids=lambda demo: demo.name)
def test_shipped_sets_are_those_of_the_generator(demo: DemoSet, tmp_path: Path) -> None:
    GENERATE["write_set"](tmp_path / "new" / demo.name, demo)
    shipped = contents(demo.unpack(tmp_path))
    written = contents(tmp_path / "new" / demo.name)
    assert shipped == written
    rows = [row for name, table in shipped.items() if name.startswith("data/") for row in table[1]]
    assert [(row["episode_index"], row["frame_index"]) for row in rows] == demo.frames
    for row, place in zip(rows, demo.frames):
        for key, truth in values(*place).items():
            assert np.array_equal(np.reshape(row[key], -1), truth)


def test_videos_of_v30_hold_several_episodes(tmp_path: Path) -> None:
    found = contents(V30.unpack(tmp_path))
    front = [found[name] for name in sorted(found) if name.startswith(f"videos/{V30.cameras[0]}")]
    assert front[0] == [(0, 0, i) for i in range(6)] + [(0, 1, 0)]
    assert [len(frames) for frames in front] == [7, 13, 7]
    assert sum(path.stat().st_size for path in Path(GENERATE["PACKAGE"]).glob("*.zip")) < 100_000


def test_images_show_their_identity() -> None:
    seen = set()
    for camera in range(2):
        for episode in range(16):
            for frame in range(64):
                identity, error = read_image(paint(camera, episode, frame))
                assert (identity, error) == ((camera, episode, frame), 0.0)
                seen.add(identity)
    assert len(seen) == 2 * 16 * 64


def test_images_of_other_sizes_and_damaged_ones() -> None:
    image = paint(1, 9, 33)
    large = image.repeat(7, 0).repeat(7, 1)[::2, ::2]  # 224 pixels
    assert read_image(large.transpose(2, 0, 1) / np.float32(255))[0] == (1, 9, 33)
    image[:16, :16] = BRIGHT if image[0, 0, 0] < 128 else 40
    assert read_image(image)[0] is None
    with pytest.raises(ValueError):
        read_image(np.zeros((64, 64)))


def test_a_batch_may_have_values_without_rows() -> None:
    batch = {
        "index": np.arange(2),
        "task": ["a", "b"],
        "fps": np.array(30),
        "rate": 30.0,
        "robot": "arm",
    }
    assert [sample["index"] for sample in split_batch(batch)] == [0, 1]
    assert [sample["fps"] for sample in split_batch(batch)] == [30, 30]
