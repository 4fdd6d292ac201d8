"""Images by position, in any order, equal the plain container decode to the bit."""

import multiprocessing
import os
import pickle
import re
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from understudy_base import DatasetError, SourceError
from understudy_base.testing.refusals import refused
from understudy_data.testing.videos import COUNT, KINDS, container_decode, rgb, write_video
from understudy_data.video.index import VideoIndex
from understudy_data.video.mp4 import read_mp4
from understudy_data.video.packets import ContainerPackets, open_packets
from understudy_data.video.reader import PyavReader, open_video


@pytest.mark.parametrize("kind", KINDS)
def test_reader_facts(kind: str, clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    path, images = clips[kind]
    video = open_video(path)
    assert (video.count, video.height, video.width, video.fps) == (COUNT, *images.shape[1:3], 10.0)
    assert video.codec == kind.split("-")[0]
    assert video.gop == min(KINDS[kind][1], COUNT)
    assert video.gops.key_frames[0] == 0


def test_gops_median_length_ignores_short_tails() -> None:
    """Episodes of 267 frames with a key frame every 250, each beginning with one: half of the
    distances are 17.
    """
    keys = np.concatenate([[267 * e, 267 * e + 250] for e in range(9)] + [[267 * 9]]).astype(
        np.int32
    )
    index = VideoIndex("h264", b"", 64, 48, 30.0, keys, np.arange(267 * 9 + 40, dtype=np.int32))
    assert np.median(np.diff(keys)) == 133.5
    assert index.gops.median_length == 250
    alone = VideoIndex(
        "h264", b"", 64, 48, 30.0, np.zeros(1, np.int32), np.arange(7, dtype=np.int32)
    )
    assert alone.gops.median_length == 7


@pytest.mark.parametrize("kind", KINDS)
def test_read_all_at_once_one_by_one_and_each_from_cold(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    path, images = clips[kind]
    assert np.array_equal(open_video(path).read(np.arange(COUNT)), images)
    video = open_video(path)
    for i in range(COUNT):
        assert np.array_equal(video.read(np.array([i]))[0], images[i]), i
        assert np.array_equal(open_video(path).read(np.array([i]))[0], images[i]), i


@given(
    kind=st.sampled_from(sorted(KINDS)),
    reads=st.lists(st.lists(st.integers(0, COUNT - 1), max_size=12), max_size=6),
)
def test_read_any_order_with_repeats(
    kind: str, reads: list[list[int]], clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    path, images = clips[kind]
    video = open_video(path)
    for indices in reads:
        got = video.read(np.array(indices, np.int64))
        assert got.dtype == np.uint8
        assert np.array_equal(got, images[indices])


def test_images_differ_enough_for_these_tests_to_fail(
    clips: dict[str, tuple[Path, np.ndarray]],
) -> None:
    for _, images in clips.values():
        for i in range(COUNT - 1):
            assert np.abs(images[i].astype(int) - images[i + 1]).mean() > 3


@pytest.mark.parametrize(
    "kind", ["h264-gop250", "h264-bframes", "hevc-open", "av1-gop12", "mpeg4-bframes"]
)
def test_read_feeds_each_packet_once_in_sequence(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]
) -> None:
    video = open_video(clips[kind][0])
    for i in range(COUNT):
        video.read(np.array([i]))
    assert fed == list(range(COUNT))


def test_read_of_sliding_windows_does_not_restart(
    clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]
) -> None:
    path, images = clips["h264-gop250"]
    video = open_video(path)
    for i in range(COUNT):
        window = np.clip([i - 5, i - 1, i, i], 0, None)
        assert np.array_equal(video.read(window), images[window])
        if i == 20:
            fed.clear()
    # A window that reaches back beyond the last read restarts; one that slides by one frame does
    # not.
    fed.clear()
    video = open_video(path)
    for i in range(1, COUNT):
        assert np.array_equal(video.read(np.array([i - 1, i])), images[i - 1 : i + 1])
    assert fed == list(range(COUNT))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["mkv", "fragmented.mp4"])
def test_read_from_other_containers(
    kind: str, suffix: str, clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"} if suffix.endswith("mp4") else {}
    path = write_video(tmp_path / f"clip.{suffix}", kind, container=options)
    video = open_video(path)
    assert isinstance(open_packets(str(path)), ContainerPackets)
    assert (video.count, video.gop) == (COUNT, min(KINDS[kind][1], COUNT))
    images = clips[kind][1]
    assert np.array_equal(container_decode(path), images)
    indices = np.random.default_rng(3).permutation(COUNT)
    assert np.array_equal(video.read(indices), images[indices])
    for i in indices[:8]:
        assert np.array_equal(video.read(indices[i : i + 1])[0], images[indices[i]])


def test_read_obeys_an_edit_list_that_cuts(
    clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    """Raise the edit's first time by ten frames: players and this reader then begin there."""
    path, images = clips["h264-bframes"]
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 16  # version and flags, count, duration, then the media time
    # 10 frames at 10 per second, 10240 units per second
    time = int.from_bytes(data[at : at + 4], "big") + 10 * 1024
    data[at : at + 4] = time.to_bytes(4, "big")
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(data)
    expected = container_decode(cut)
    video = open_video(cut)
    assert video.count == len(expected) == COUNT - 10
    assert np.array_equal(expected, images[10:])
    assert np.array_equal(video.read(np.arange(video.count)), expected)
    assert np.array_equal(video.read(np.array([20, 0, 3])), expected[[20, 0, 3]])


@pytest.mark.parametrize("bad", [[-1], [COUNT], [0, 1, 10**9]])
def test_read_refuses_positions_outside(
    bad: list[int], clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    video = open_video(clips["av1-gop2"][0])
    with refused("frame", bad[-1], kind=IndexError):
        video.read(np.array(bad))
    with refused("positions", "float64", (1,), kind=ValueError):
        video.read(np.array([0.5]))
    assert video.read(np.array([], np.int64)).shape == (0, 48, 64, 3)


def damaged(kind: str, how: str, packet: bytes) -> bytes:
    """A packet of the same size that is broken from the start, broken half-way, or valid without a
    frame.
    """
    size = len(packet)
    if how == "zeros":
        return bytes(size)
    if how == "noise":
        return np.random.default_rng(1).bytes(size)
    if how == "half":  # decoders conceal this by default
        return packet[: size // 2] + bytes(size - size // 2)
    if kind.startswith("av1"):  # one padding unit: type, length in 7-bit groups, nothing
        length = [size - 2] if size <= 129 else [(size - 3) & 0x7F | 0x80, (size - 3) >> 7]
        return bytes([0x7A, *length]).ljust(size, b"\0")
    return (size - 4).to_bytes(4, "big") + (
        b"\x0c" if kind.startswith("h264") else b"\x4c\x01"
    ).ljust(size - 4, b"\xff")


@pytest.mark.parametrize(
    ("kind", "damage"),
    [
        (kind, how)
        for kind in ("h264-gop2", "h264-bframes", "mpeg4-bframes", "av1-gop2")
        for how in ("zeros", "noise")
    ]
    + [(kind, "half") for kind in ("h264-gop1", "h264-gop2", "h264-bframes", "mpeg4-bframes")]
    + [(kind, "empty") for kind in ("av1-gop12", "h264-bframes", "hevc-closed", "hevc-open")]
    + [("hevc-closed", "zeros"), ("hevc-closed", "noise")],
)
def test_read_never_returns_another_image_for_a_damaged_packet(
    kind: str, damage: str, clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    path, images = clips[kind]
    with open(path, "rb") as file:
        index = read_mp4(file, str(path))
    sample = 25
    at = int(index.offset[sample])
    size = int(index.size[sample])
    data = bytearray(path.read_bytes())
    data[at : at + size] = damaged(kind, damage, bytes(data[at : at + size]))
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(data)
    video = open_video(broken)
    errors = list[tuple[int, DatasetError]]()
    for i in [*range(COUNT), *range(COUNT - 1, -1, -1)]:
        try:
            image = video.read(np.array([i]))[0]
        except DatasetError as error:
            errors.append((i, error))
        else:
            assert np.array_equal(image, images[i]), i
    assert all(error.where == str(broken) and f"frame {i} " in error.what for i, error in errors)
    lost = [i for i, _ in errors]
    display = int(index.display[sample])
    assert lost.count(display) == 2
    group = np.searchsorted(index.keys, sample, side="right") - 1
    shown = [*index.display[index.keys].tolist(), COUNT]
    assert set(lost) <= set(range(shown[group] - 2, shown[group + 1]))  # other GOPs are unaffected


def test_read_names_a_file_that_shrank(
    clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(
        write_video(
            tmp_path / "w.mp4", "h264-gop2", container={"movflags": "+faststart"}
        ).read_bytes()
    )
    video = open_video(path)
    os.truncate(path, path.stat().st_size - 500)
    with refused("changed", where="clip.mp4, frame 0", kind=SourceError):
        video.read(np.arange(COUNT))


@pytest.mark.parametrize("content", ["missing", "folder", "empty", "text", "audio only"])
def test_open_video_refuses_other_files(content: str, tmp_path: Path) -> None:
    path = tmp_path / "file.mp4"
    if content == "folder":
        path.mkdir()
    elif content == "empty":
        path.write_bytes(b"")
    elif content == "text":
        path.write_text("no video\n" * 100)
    elif content == "audio only":
        with av.open(str(path), "w") as out:
            stream = out.add_stream("aac", rate=16000)
            assert isinstance(stream, av.AudioStream)
            frame = av.AudioFrame.from_ndarray(
                np.zeros((1, 1024), np.float32), format="fltp", layout="mono"
            )
            frame.rate = 16000
            out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    with refused(where="file.mp4"):
        open_video(path)


def test_open_video_does_not_wait_for_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "file.mp4"
    os.mkfifo(path)
    both_ends = os.open(path, os.O_RDWR)  # a reader that opens it fails instead of waiting
    with refused(where="file.mp4"):
        open_video(path)
    os.close(both_ends)


def test_reader_pickles_as_its_path_and_can_be_closed(
    clips: dict[str, tuple[Path, np.ndarray]],
) -> None:
    path, images = clips["hevc-open"]
    video = open_video(path)
    video.read(np.array([5]))
    assert b"numpy" not in pickle.dumps(video)  # the index and the images are arrays
    assert np.array_equal(pickle.loads(pickle.dumps(video)).read(np.array([6]))[0], images[6])
    video.close()
    video.close()
    assert np.array_equal(video.read(np.array([6]))[0], images[6])


def _child(video: PyavReader, out: str) -> None:
    np.save(out, np.stack([video.read(np.array([i]))[0] for i in (21, 3, 22)]))


def test_reader_works_in_parent_and_forked_child(
    clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    path, images = clips["h264-bframes"]
    video = open_video(path)
    video.read(np.arange(20))
    child = multiprocessing.get_context("fork").Process(
        target=_child, args=(video, str(tmp_path / "out.npy"))
    )
    child.start()
    ours = video.read(np.arange(20, 30))
    child.join()
    assert child.exitcode == 0
    assert np.array_equal(ours, images[20:30])
    assert np.array_equal(np.load(tmp_path / "out.npy"), images[[21, 3, 22]])


def test_read_refuses_frames_of_another_size(
    clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    data = bytearray(clips["h264-gop2"][0].read_bytes())
    at = data.index(b"avc1", data.index(b"stsd")) + 4 + 24
    data[at : at + 2] = (128).to_bytes(2, "big")
    path = tmp_path / "wide.mp4"
    path.write_bytes(data)
    with pytest.raises(DatasetError) as error:
        open_video(path).read(np.array([7]))
    assert error.value.where == str(path)
    assert re.findall(r"\d+x?\d*", error.value.what) == ["7", "64x48", "128x48"]


def test_open_video_refuses_an_unknown_backend() -> None:
    with refused("backend='opencv'", "'pyav'", "'torchcodec'", kind=ValueError):
        open_video("clip.mp4", backend="opencv")


@pytest.mark.long
def test_read_every_image_of_real_data(real_data: Path) -> None:
    """Sequential, from cold starts, and shuffled, against one container decode of each file.

    All of `g1_v30` and two files of the others. `test_dataset_both_formats_give_the_same_samples`
    compares the rest of `g1_v21`, `test_dataset_a_real_dataset_with_every_oddity` that of
    `gr1_sim_v20`.
    """
    paths = sorted(real_data.glob("g1_v30/videos/**/*.mp4"))
    for name in ("g1_v21", "gr1_sim_v20"):
        paths += sorted(real_data.glob(f"{name}/videos/**/*.mp4"))[:2]
    assert len(paths) >= 5
    rng = np.random.default_rng(0)
    for path in paths:
        video = open_video(path)
        cold = rng.integers(0, 10**6, 3)
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            stream.thread_count = 1
            count = 0
            kept = {}
            some = set((cold % video.count).tolist()) | set(
                rng.integers(0, video.count, 12).tolist()
            )
            for i, frame in enumerate(file.decode(stream)):
                image = rgb(frame)
                assert np.array_equal(video.read(np.array([i]))[0], image), (path, i)
                if i in some:
                    kept[i] = image
                count += 1
        assert count == video.count
        shuffled = rng.permutation(sorted(kept))
        assert np.array_equal(video.read(shuffled), np.stack([kept[i] for i in shuffled]))
        for i in cold % video.count:
            assert np.array_equal(open_video(path).read(np.array([i]))[0], kept[int(i)])


def test_open_video_refuses_a_video_without_frames(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mkv", "h264-gop2").read_bytes()
    path = tmp_path / "cut.mkv"
    path.write_bytes(whole[: whole.index(b"\x1f\x43\xb6\x75")])  # up to the first cluster of frames
    with refused(where="cut.mkv"):
        open_video(path)


@settings(max_examples=20)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    plan=st.lists(
        st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=9).map(sorted), max_size=5
    ),
    run_length=st.sampled_from([1, 4, 16]),
)
def test_cursor_equals_read(
    kind: str, plan: list[list[int]], run_length: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """Cursors of one reader are independent of each other and of `read`."""
    path, images = clips[kind]
    video = open_video(path)
    one = video.cursor()
    two = video.cursor()
    for number, wanted in enumerate(plan):
        for cursor in (one, two):
            frames = [frame for run in cursor.runs(np.array(wanted), run_length) for frame in run]
            assert cursor.position == wanted[-1] + 1
            assert all(isinstance(frame, av.VideoFrame) for frame in frames)
            assert np.array_equal(
                [rgb(frame) for frame in frames if isinstance(frame, av.VideoFrame)], images[wanted]
            )
        assert np.array_equal(video.read(np.array(wanted[:2])), images[wanted[:2]])
        if number % 2:
            two.park()
            assert two.position == -1
    assert one.wait_seconds >= 0


def test_cursor_of_a_container_has_a_place_of_its_own(tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mkv", "h264-bframes")
    video = open_video(path)
    images = container_decode(path)
    one = video.cursor()
    two = video.cursor()
    for at in range(0, COUNT, 5):
        for cursor in (one, two):
            frames = [frame for run in cursor.runs(np.arange(at, at + 5), 3) for frame in run]
            assert np.array_equal(
                [rgb(frame) for frame in frames if isinstance(frame, av.VideoFrame)],
                images[at : at + 5],
            )
