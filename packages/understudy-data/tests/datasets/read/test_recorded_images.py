"""`RecordedImages.stored`: what the images of an episode are decoded from, without others."""

from pathlib import Path

import pytest

from understudy_base import DatasetError
from understudy_data import Catalog
from understudy_data.datasets.read.recorded_images import RecordedImages
from understudy_data.testing.datasets import Spec, episode_pictures, write_dataset, write_video

TOP = "observation.images.top"
STILL = "observation.still"


def stored(root: Path, camera: str, row: int, length: int) -> list[bytes]:
    return list(RecordedImages(Catalog.open(root)).stored(camera, row, length))


@pytest.mark.parametrize("b_frames", [0, 2])
def test_packets_are_those_of_the_episode_alone(b_frames: int, tmp_path: Path) -> None:
    """The other episode of the packed video is encoded anew, with as many images."""
    spec = Spec("v3.0", lengths=(6, 12), gop=6, b_frames=b_frames)
    write_dataset(tmp_path, spec)
    before = [stored(tmp_path, TOP, row, length) for row, length in enumerate(spec.lengths)]
    path = next((tmp_path / "videos").rglob("*.mp4"))
    images = episode_pictures(spec, 0, 0) + [255 - image for image in episode_pictures(spec, 0, 1)]
    write_video(path, images, spec)
    after = [stored(tmp_path, TOP, row, length) for row, length in enumerate(spec.lengths)]
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_a_span_begins_at_the_key_frame_before_it(tmp_path: Path) -> None:
    spec = Spec("v3.0", lengths=(5, 4), gop=4)
    write_dataset(tmp_path, spec)
    settings_and_order = 2
    assert len(stored(tmp_path, TOP, 0, 5)) == settings_and_order + 5
    assert len(stored(tmp_path, TOP, 1, 4)) == settings_and_order + 5  # frame 4 is a key frame
    assert len(stored(tmp_path, TOP, 1, 2)) == settings_and_order + 3


def test_encoded_images_are_those_of_the_rows(tmp_path: Path) -> None:
    write_dataset(tmp_path, Spec("v3.0", lengths=(3, 4), cameras=(), images=(STILL,)))
    images = [stored(tmp_path, STILL, row, length) for row, length in enumerate((3, 4))]
    assert [len(of_episode) for of_episode in images] == [3, 4]
    assert len(set(images[0] + images[1])) == 7
    assert stored(tmp_path, STILL, 1, 2) == images[1][:2]


def test_a_video_with_fewer_frames_is_refused(tmp_path: Path) -> None:
    spec = Spec("v2.1", lengths=(6, 9))
    write_dataset(tmp_path, spec)
    path = next((tmp_path / "videos").rglob("episode_000001.mp4"))
    write_video(path, episode_pictures(spec, 0, 1)[:5], spec)
    with pytest.raises(DatasetError) as raised:
        stored(tmp_path, TOP, 1, 9)
    assert path.name in str(raised.value.where)
