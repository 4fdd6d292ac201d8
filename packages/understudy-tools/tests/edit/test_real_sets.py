"""Edits of real recordings: v2.0 and v2.1 to v3.0 to the bit, cheaper decoding, and LeRobot's own
reader.
"""

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_tools.check.examine import check_dataset
from understudy_tools.testing.edited import RENUMBERED, edit


def sample(root: Path, number: int) -> dict[str, Any]:
    """First, middle and last frame of an episode."""
    data = EpisodeArrays(root)
    last = int(data.catalog.episodes.lengths[number]) - 1
    return data.batch(np.full(3, number), np.array([0, last // 2, last]))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["g1_v21", "gr1_sim_v20"])
def test_real_sets_become_v30_to_the_bit(name: str, real_data: Path, tmp_path: Path) -> None:
    source = real_data / name
    [written] = edit(source, tmp_path / "out", episodes=("0-2",)).values()
    assert [one for one in written.videos.values() if one.encoded] == []
    for number in range(3):
        now = sample(tmp_path / "out", number)
        before = sample(source, number)
        for key in now.keys() - set(RENUMBERED):
            assert np.array_equal(now[key], before[key]), key
    assert check_dataset(str(tmp_path / "out"), "sample", show_progress=False).is_sound


@pytest.mark.long
def test_real_set_of_224_pixels_keeps_its_images(real_data: Path, tmp_path: Path) -> None:
    [written] = edit(
        real_data / "g1_v30", tmp_path / "out", episodes=("0",), size="224", codec="libx264", gop=2
    ).values()
    [camera] = written.videos.values()
    assert camera.quality.psnr > 33
    with av.open(str(next((tmp_path / "out" / "videos").rglob("*.mp4")))) as file:
        keys = [packet.is_keyframe for packet in file.demux(video=0) if packet.size]
        assert (file.streams.video[0].width, file.streams.video[0].height) == (224, 168)
    assert keys == [at % 2 == 0 for at in range(written.frames)]


def test_lerobot_reads_an_edited_set(real_data: Path, tmp_path: Path) -> None:
    lerobot = pytest.importorskip(
        "lerobot.datasets.lerobot_dataset", reason="LeRobot is not installed"
    )
    from understudy_data.datasets.dataset import EpisodeDataset  # LeRobot brings torch

    out = tmp_path / "out"
    edit(real_data / "g1_v21", out, episodes=("1-2",), drop_n_first_frames=1)
    theirs = lerobot.LeRobotDataset("local/out", root=out)
    ours = EpisodeDataset(out)
    assert len(theirs) == len(ours)
    for at in (0, 100, len(ours) - 1):
        one = theirs[at]
        other = ours[at]
        assert one["task"] == other["task"]
        for key in ("action", "observation.state"):
            assert one[key].equal(other[key])
        for key in ours.catalog.camera_keys:
            assert (one[key] * 255 - other[key]).abs().max() < 3
