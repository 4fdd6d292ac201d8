"""Other readers on datasets that understudy writes: the rows and images of `EpisodeDataset`."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import understudy as us
from outputs import CAMERA, NAMES

ROWS = ("observation.state", "action")


def decode(packets: list[bytes]) -> list[np.ndarray]:
    """Images (H, W, 3) of the packets of a stream of H.264 or H.265, in Annex B."""
    kind = "h264" if packets[0][4] & 0x1F in (7, 9) else "hevc"
    codec = av.CodecContext.create(kind, "r")
    frames = []
    for number, data in enumerate(packets):
        packet = av.Packet(data)
        packet.pts, packet.time_base = number, Fraction(1, 30)
        frames += codec.decode(packet)
    frames += codec.decode(None)
    return [
        frame.to_ndarray(format="rgb24") for frame in sorted(frames, key=lambda frame: frame.pts)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_daft_reads_the_same(outputs: Path, name: str) -> None:
    lerobot = pytest.importorskip("daft.datasets.lerobot")
    ours = us.EpisodeDataset(outputs / name)
    daft = pytest.importorskip("daft")
    frame = lerobot.read(str(outputs / name), load_video_frames=[CAMERA])
    assert lerobot.read(str(outputs / name)).count_rows() == len(ours)
    table = frame.where(daft.col("index") < 60).sort("index").to_pydict()
    for row in range(60):
        sample = ours[row]
        for key in (*ROWS, "timestamp", "episode_index", "frame_index", "task_index"):
            np.testing.assert_array_equal(
                np.asarray(table[key][row], np.float64), sample[key].double().numpy()
            )
        np.testing.assert_array_equal(
            np.asarray(table[CAMERA][row]), sample[CAMERA].permute(1, 2, 0).numpy()
        )


@pytest.mark.parametrize("name", NAMES)
def test_rerun_reads_the_same(outputs: Path, name: str) -> None:
    experimental = pytest.importorskip("rerun.experimental")
    ours = us.EpisodeDataset(outputs / name)
    reader = experimental.LeRobotReader(outputs / name)
    lengths = ours.catalog.episodes.lengths.tolist()
    assert reader.episodes() == list(range(len(lengths)))
    for episode in (0, len(lengths) - 1):
        columns: dict[tuple[str, str], list[Any]] = {}
        for chunk in reader.stream(episode).to_chunks():
            batch = chunk.to_record_batch()
            for column in batch.schema.names:
                columns.setdefault((chunk.entity_path, column), []).extend(
                    batch.column(column).to_pylist()
                )
        batch = ours.batch(np.full(lengths[episode], episode), np.arange(lengths[episode]))
        for key in ROWS:
            np.testing.assert_array_equal(
                np.array(columns[f"/{key}", "Scalars:scalars"]), batch[key].double().numpy()
            )
        assert [texts[0] for texts in columns["/task", "TextDocument:text"]] == batch["task"]
        images = decode(
            [bytes(sample[0]) for sample in columns[f"/{CAMERA}", "VideoStream:sample"]]
        )
        np.testing.assert_array_equal(np.stack(images), batch[CAMERA].permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("name", NAMES)
def test_lerobot_reads_the_same(outputs: Path, name: str) -> None:
    datasets = pytest.importorskip("lerobot.datasets.lerobot_dataset")
    from lerobot_items import differences

    theirs = datasets.LeRobotDataset("exam/output", root=outputs / name)
    assert not differences(outputs / name, theirs, us.EpisodeDataset(outputs / name))


@pytest.mark.parametrize("name", NAMES)
def test_lance_reads_the_same_after_its_conversion(
    outputs: Path, name: str, tmp_path: Path
) -> None:
    lance = pytest.importorskip("lerobot_lancedb")
    from lerobot_lancedb.convert import convert

    from lerobot_items import differences

    convert(tmp_path / "lance", repo_id="exam/output", root=outputs / name)
    theirs = lance.LanceDBDataset("exam/output", root=tmp_path / "lance")
    assert not differences(outputs / name, theirs, us.EpisodeDataset(outputs / name))
