"""Videos apart from a dataset: the frame nearest to each time, and how far they reach."""

from pathlib import Path

import numpy as np
import pytest

from understudy_data.datasets.format.features import Feature
from understudy_data.datasets.read.clips import Encoding, VideoClip
from understudy_data.datasets.read.outside_video import OutsideVideo
from understudy_data.testing.videos import container_decode, encode_video, moving_pictures

FPS = 10


@pytest.fixture
def video(tmp_path: Path) -> OutsideVideo:
    path = tmp_path / "outside.mp4"
    encode_video(path, moving_pictures(12), FPS, "libx264", 4, options={"sc_threshold": "0"})
    return OutsideVideo.read(str(path))


def test_each_time_has_the_nearest_frame(video: OutsideVideo) -> None:
    assert video.times == pytest.approx(np.arange(12) / FPS)
    assert video.stop == pytest.approx(1.2)
    assert video.image_size == (48, 64)
    wanted = np.array([0.71, 0.26, 0.26, 0.35, -3.0, 8.0])  # 0.35 is as near to 0.3 as to 0.4
    clip = video.clip(wanted)
    frames = container_decode(video.path)[[7, 3, 3, 3, 0, 11]]
    assert len(clip) == 6
    assert np.array_equal(np.stack(list(clip.images())), frames)
    assert np.array_equal(clip.read(np.array([4, 0])), frames[[4, 0]])
    clip.close()


def test_only_frames_in_a_row_are_copied(video: OutsideVideo) -> None:
    row = video.clip(video.times[4:8])  # from a key frame
    assert row.has_own_packets()
    assert row.bytes == video.clip(np.repeat(video.times[4:8], 2)).bytes
    assert row.bytes < VideoClip.of_file(video.path).bytes
    for positions in ([4, 6], [5, 4], [4, 4], [0, 1, 3], []):
        assert not video.clip(video.times[positions]).has_own_packets()


def test_an_encoded_clip_has_its_frames_in_order(video: OutsideVideo, tmp_path: Path) -> None:
    clip = video.clip(np.array([0.9, 0.1, 0.1, 0.5]))
    assert clip.encoding == Encoding((48, 64), "libx264", 4)
    assert clip.encode(tmp_path / "out.mp4", Encoding(crf=0), FPS).images == 4
    written = container_decode(tmp_path / "out.mp4")
    frames = container_decode(video.path)[[9, 1, 1, 5]]
    assert np.abs(written.astype(int) - frames).mean() < 2


def test_a_video_reaches_half_a_frame_further(video: OutsideVideo) -> None:
    for first, last, is_covered in (
        (0.0, 1.1, True),
        (-0.04, 1.19, True),
        (-0.06, 1.0, False),
        (0.5, 1.21, False),
    ):
        assert video.covers(np.array([first, last]), FPS) is is_covered


def test_a_feature_of_video_has_a_key_and_a_size_that_can_be_written() -> None:
    feature = Feature.video("observation.images.top", (48, 64), "libx264")
    assert feature.is_video
    assert feature.size == (48, 64)
    for key, size in (("a/b", (48, 64)), ("", (48, 64)), ("top", (47, 64))):
        with pytest.raises(ValueError, match=repr(key)):
            Feature.video(key, size, "libx264")
