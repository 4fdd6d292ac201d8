"""Clips of episodes: read, copied and encoded as the frames of their file."""

from pathlib import Path

import numpy as np
import pytest

from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.read.clips import Encoding, EpisodeClips, VideoClip
from understudy_data.datasets.read.video_file import VideoFile
from understudy_data.storage.byte_source import LocalSource
from understudy_data.testing.datasets import Spec, write_dataset

TOP = "observation.images.top"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    write_dataset(tmp_path / "set", Spec(lengths=(6, 9, 4), gop=3))
    return Catalog.open(tmp_path / "set")


def test_a_clip_has_the_frames_of_its_episode(catalog: Catalog) -> None:
    clips = EpisodeClips([catalog], TOP)
    file = clips.video(0, 1)
    whole = file.read(np.arange(len(file)))
    clip = clips.clip(0, 1, 2, 7)  # the second episode of the file, which begins with 6 frames
    assert len(clip) == 5
    assert np.array_equal(np.stack(list(clip.images())), whole[8:13])
    clip.close()
    assert np.array_equal(clip.read(np.array([4, 0])), whole[[12, 8]])
    assert clip.bytes < file.bytes


def test_joined_clips_are_copied_frames(catalog: Catalog, tmp_path: Path) -> None:
    clips = EpisodeClips([catalog, catalog], TOP)
    parts = [clips.clip(1, 1, 0, 9), clips.clip(0, 0, 3, 6)]
    assert [clip.has_own_packets() for clip in parts] == [True, True]
    assert not clips.clip(0, 1, 1, 9).has_own_packets()  # begins within a group
    size, stream = VideoClip.join(parts, tmp_path / "out.mp4", 10)
    assert size == (tmp_path / "out.mp4").stat().st_size
    video = VideoFile.read(
        LocalSource(str(tmp_path / "out.mp4")),
        0,
        "out.mp4",
        frames=12,
        most_pixels=1 << 20,
        probes=True,
    )
    assert (video.height, video.width, video.codec, video.pixels) == stream[:4]
    assert (video.count, video.bytes) == (12, size)
    joined = VideoClip.of_file(tmp_path / "out.mp4")
    frames = np.concatenate([np.stack(list(clip.images())) for clip in parts])
    assert np.array_equal(joined.read(np.arange(12)), frames)


def test_an_encoded_clip_has_the_codec_of_its_source_and_its_size(
    catalog: Catalog, tmp_path: Path
) -> None:
    clip = EpisodeClips([catalog], TOP).clip(0, 1, 1, 9)
    assert clip.is_encodable
    quality = clip.encode(tmp_path / "out.mp4", Encoding(size=(32, 48)), 10)
    encoded = VideoClip.of_file(tmp_path / "out.mp4")
    assert (len(encoded), quality.images) == (8, 8)
    assert encoded.read(np.zeros(1, np.int64)).shape == (1, 32, 48, 3)
    with refused("48x31", where="file-000.mp4", fix="--size"):
        clip.encode(tmp_path / "odd.mp4", Encoding(size=(31, 48)), 10)
    assert not (tmp_path / "odd.mp4").exists()


def test_a_broken_frame_names_file_and_episode(catalog: Catalog) -> None:
    path = Path(catalog.files.where(catalog.video_path(TOP, 0)))
    content = bytearray(path.read_bytes())
    start = content.index(b"mdat") + 4
    content[start : start + 400] = bytes(400)
    path.write_bytes(content)
    with refused(where=f"{path.name} (episode 0)"):
        EpisodeClips([Catalog.open(catalog.root)], TOP).clip(0, 0, 0, 6).read(np.arange(6))
