"""Pictures by position: whatever is asked for, in whatever order, equals the plain container decode to the bit."""

import dataclasses
import multiprocessing
import os
import pickle
import threading
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.videos import COUNT, KINDS, container_decode, rgb, write_video
from understudy.errors import DatasetError
from understudy.video import decoder as decode
from understudy.video.mp4 import VideoIndex, read_mp4
from understudy.video.open import open_video
from understudy.video.packets import ContainerPackets
from understudy.video.pyav import PyavReader
from understudy.video.reader import median_gop


@pytest.mark.parametrize("kind", KINDS)
def test_facts(kind: str, clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    path, pictures = clips[kind]
    video = open_video(path)
    assert (video.count, video.height, video.width, video.fps) == (COUNT, *pictures.shape[1:3], 10.0)
    assert video.codec == kind.split("-")[0]
    assert video.gop == min(KINDS[kind][1], COUNT)
    assert video.key_frames[0] == 0


def test_the_tails_of_packed_episodes_do_not_pass_for_its_key_frame_distance() -> None:
    """Episodes of 267 pictures with a key frame every 250, each beginning with one: the median distance would be 17."""
    keys = np.concatenate([[267 * e, 267 * e + 250] for e in range(9)] + [[267 * 9]]).astype(np.int32)
    index = VideoIndex("h264", b"", 64, 48, 30.0, keys, np.arange(267 * 9 + 40, dtype=np.int32))
    assert np.median(np.diff(keys)) == 133.5
    assert median_gop(index) == 250
    alone = VideoIndex("h264", b"", 64, 48, 30.0, np.zeros(1, np.int32), np.arange(7, dtype=np.int32))
    assert median_gop(alone) == 7


@pytest.mark.parametrize("kind", KINDS)
def test_all_at_once_one_by_one_and_each_from_cold(kind: str, clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    path, pictures = clips[kind]
    assert np.array_equal(open_video(path).read(np.arange(COUNT)), pictures)
    video = open_video(path)
    for i in range(COUNT):
        assert np.array_equal(video.read(np.array([i]))[0], pictures[i]), i
        assert np.array_equal(open_video(path).read(np.array([i]))[0], pictures[i]), i


@settings(max_examples=60)
@given(
    kind=st.sampled_from(sorted(KINDS)), reads=st.lists(st.lists(st.integers(0, COUNT - 1), max_size=12), max_size=6)
)
def test_any_order_with_repeats(kind: str, reads: list[list[int]], clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    path, pictures = clips[kind]
    video = open_video(path)
    for indices in reads:
        got = video.read(np.array(indices, np.int64))
        assert got.dtype == np.uint8
        assert np.array_equal(got, pictures[indices])


def test_pictures_differ_so_that_the_tests_can_fail(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    for _, pictures in clips.values():
        for i in range(COUNT - 1):
            assert np.abs(pictures[i].astype(int) - pictures[i + 1]).mean() > 3


@pytest.mark.parametrize("kind", ["h264-gop250", "h264-bframes", "hevc-open", "av1-gop12", "mpeg4-bframes"])
def test_sequential_reads_feed_each_packet_once(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]
) -> None:
    video = open_video(clips[kind][0])
    for i in range(COUNT):
        video.read(np.array([i]))
    assert fed == list(range(COUNT))


def test_sliding_windows_do_not_start_over(clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]) -> None:
    path, pictures = clips["h264-gop250"]
    video = open_video(path)
    for i in range(COUNT):
        window = np.clip([i - 5, i - 1, i, i], 0, None)
        assert np.array_equal(video.read(window), pictures[window])
        if i == 20:
            fed.clear()
    # A window that reaches back past what the last read kept begins anew; one that slides by one picture does not.
    fed.clear()
    video = open_video(path)
    for i in range(1, COUNT):
        assert np.array_equal(video.read(np.array([i - 1, i])), pictures[i - 1 : i + 1])
    assert fed == list(range(COUNT))


def test_a_far_picture_starts_at_its_own_key_frame(clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]) -> None:
    path, _ = clips["h264-gop2"]
    video = open_video(path)
    video.read(np.array([0]))
    fed.clear()
    video.read(np.array([31]))
    assert fed == [30, 31]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["mkv", "fragmented.mp4"])
def test_other_containers_give_the_same(
    kind: str, suffix: str, clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    options = {"movflags": "frag_keyframe+empty_moov"} if suffix.endswith("mp4") else {}
    path = write_video(tmp_path / f"clip.{suffix}", kind, container=options)
    video = open_video(path)
    assert isinstance(video, PyavReader)
    assert isinstance(video._packets, ContainerPackets)
    assert (video.count, video.gop) == (COUNT, min(KINDS[kind][1], COUNT))
    pictures = clips[kind][1]
    assert np.array_equal(container_decode(path), pictures)
    indices = np.random.default_rng(3).permutation(COUNT)
    assert np.array_equal(video.read(indices), pictures[indices])
    for i in indices[:8]:
        assert np.array_equal(video.read(indices[i : i + 1])[0], pictures[indices[i]])


def test_an_edit_list_that_cuts_is_obeyed(clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    """Raise the edit's first time by ten pictures: players, and we, then begin there."""
    path, pictures = clips["h264-bframes"]
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 16  # version and flags, count, duration, then the media time
    time = int.from_bytes(data[at : at + 4], "big") + 10 * 1024  # 10 pictures at 10 per second, 10240 units per second
    data[at : at + 4] = time.to_bytes(4, "big")
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(data)
    expected = container_decode(cut)
    video = open_video(cut)
    assert video.count == len(expected) == COUNT - 10
    assert np.array_equal(expected, pictures[10:])
    assert np.array_equal(video.read(np.arange(video.count)), expected)
    assert np.array_equal(video.read(np.array([20, 0, 3])), expected[[20, 0, 3]])


@pytest.mark.parametrize("bad", [[-1], [COUNT], [0, 1, 10**9]])
def test_positions_outside_are_refused(bad: list[int], clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    video = open_video(clips["av1-gop2"][0])
    with pytest.raises(IndexError, match=rf"picture {bad[-1]} .* 0\.\.{COUNT - 1}"):
        video.read(np.array(bad))
    with pytest.raises(ValueError, match="integers"):
        video.read(np.array([0.5]))
    assert video.read(np.array([], np.int64)).shape == (0, 48, 64, 3)


def damaged(kind: str, how: str, packet: bytes) -> bytes:
    """A packet of the same size that is broken outright, broken half-way, or sound and empty: no picture at all."""
    size = len(packet)
    if how == "zeros":
        return bytes(size)
    if how == "noise":
        return np.random.default_rng(1).bytes(size)
    if how == "half":  # decoders conceal this unless told not to
        return packet[: size // 2] + bytes(size - size // 2)
    if kind.startswith("av1"):  # one padding unit: type, length in 7-bit groups, nothing
        length = [size - 2] if size <= 129 else [(size - 3) & 0x7F | 0x80, (size - 3) >> 7]
        return bytes([0x7A, *length]).ljust(size, b"\0")
    return (size - 4).to_bytes(4, "big") + (b"\x0c" if kind.startswith("h264") else b"\x4c\x01").ljust(
        size - 4, b"\xff"
    )


@pytest.mark.parametrize(
    ("kind", "damage"),
    [(kind, how) for kind in ("h264-gop2", "h264-bframes", "mpeg4-bframes", "av1-gop2") for how in ("zeros", "noise")]
    + [(kind, "half") for kind in ("h264-gop1", "h264-gop2", "h264-bframes", "mpeg4-bframes")]
    + [(kind, "empty") for kind in ("av1-gop12", "h264-bframes", "hevc-closed", "hevc-open")]
    + [("hevc-closed", "zeros"), ("hevc-closed", "noise")],
)
def test_a_damaged_packet_is_never_another_picture(
    kind: str, damage: str, clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    path, pictures = clips[kind]
    with open(path, "rb") as file:
        index = read_mp4(file, str(path))
    sample = 25
    at, size = int(index.offset[sample]), int(index.size[sample])
    data = bytearray(path.read_bytes())
    data[at : at + size] = damaged(kind, damage, bytes(data[at : at + size]))
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(data)
    video, lost, told = open_video(broken), list[int](), list[str]()
    for i in [*range(COUNT), *range(COUNT - 1, -1, -1)]:
        try:
            picture = video.read(np.array([i]))[0]
        except DatasetError as error:
            lost.append(i)
            told.append(str(error))
        else:
            assert np.array_equal(picture, pictures[i]), i
    assert all(text.startswith(f"{broken}: picture {i} cannot be decoded") for i, text in zip(lost, told))
    display = int(index.display[sample])
    assert lost.count(display) == 2
    group = np.searchsorted(index.keys, sample, side="right") - 1
    shown = [*index.display[index.keys].tolist(), COUNT]
    assert set(lost) <= set(range(shown[group] - 2, shown[group + 1]))  # other groups of pictures are untouched


def test_a_file_that_shrinks_is_told(clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    path.write_bytes(write_video(tmp_path / "w.mp4", "h264-gop2", container={"movflags": "+faststart"}).read_bytes())
    video = open_video(path)
    os.truncate(path, path.stat().st_size - 500)
    with pytest.raises(DatasetError, match=r"clip\.mp4"):
        video.read(np.arange(COUNT))


@pytest.mark.parametrize("what", ["missing", "folder", "empty", "text", "audio only"])
def test_what_is_no_video_is_refused(what: str, tmp_path: Path) -> None:
    path = tmp_path / "file.mp4"
    if what == "folder":
        path.mkdir()
    elif what == "empty":
        path.write_bytes(b"")
    elif what == "text":
        path.write_text("no video\n" * 100)
    elif what == "audio only":
        with av.open(str(path), "w") as out:
            stream = out.add_stream("aac", rate=16000)
            assert isinstance(stream, av.AudioStream)
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.rate = 16000
            out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
    with pytest.raises(DatasetError, match=r"file\.mp4"):
        open_video(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "file.mp4"
    os.mkfifo(path)
    both_ends = os.open(path, os.O_RDWR)  # so that a reader that does open it fails instead of waiting
    with pytest.raises(DatasetError, match=r"file\.mp4: is no file"):
        open_video(path)
    os.close(both_ends)


def test_pickles_as_its_path_and_can_be_closed(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    path, pictures = clips["hevc-open"]
    video = open_video(path)
    video.read(np.array([5]))
    assert len(pickle.dumps(video)) < 300
    assert np.array_equal(pickle.loads(pickle.dumps(video)).read(np.array([6]))[0], pictures[6])
    video.close()
    video.close()
    assert np.array_equal(video.read(np.array([6]))[0], pictures[6])


def _child(video: PyavReader, out: str) -> None:
    np.save(out, np.stack([video.read(np.array([i]))[0] for i in (21, 3, 22)]))


def test_parent_and_forked_child_read_on_independently(
    clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path
) -> None:
    path, pictures = clips["h264-bframes"]
    video = open_video(path)
    video.read(np.arange(20))
    child = multiprocessing.get_context("fork").Process(target=_child, args=(video, str(tmp_path / "out.npy")))
    child.start()
    ours = video.read(np.arange(20, 30))
    child.join()
    assert child.exitcode == 0
    assert np.array_equal(ours, pictures[20:30])
    assert np.array_equal(np.load(tmp_path / "out.npy"), pictures[[21, 3, 22]])


def test_readers_in_threads(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    wrong: list[str] = []

    def work(kind: str, seed: int) -> None:
        path, pictures = clips[kind]
        video = open_video(path)
        for indices in np.random.default_rng(seed).integers(0, COUNT, (6, 5)):
            if not np.array_equal(video.read(indices), pictures[indices]):
                wrong.append(kind)

    threads = [threading.Thread(target=work, args=(kind, seed)) for seed, kind in enumerate(sorted(KINDS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_size_that_changes_on_the_way_is_told(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    reader = open_video(next(iter(clips.values()))[0])
    assert isinstance(reader, PyavReader)
    reader._decoder._index = dataclasses.replace(reader._decoder._index, width=reader.width * 2)
    with pytest.raises(DatasetError, match=f"picture 7 is {reader.width}x{reader.height}, the file says"):
        reader.read(np.array([7]))


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="'pyav' or 'torchcodec'"):
        open_video("clip.mp4", backend="opencv")


@pytest.mark.slow
def test_every_real_picture(real_data: Path) -> None:
    """Sequential, from cold starts and shuffled, against one container decode of each file.

    Of `g1_v21` two files: `test_both_formats_give_the_same_samples` holds all of it equal to `g1_v30`, which is here.
    """
    paths = [p for name in ("g1_v30", "gr1_sim_v20") for p in sorted(real_data.glob(f"{name}/videos/**/*.mp4"))]
    paths += sorted(real_data.glob("g1_v21/videos/**/*.mp4"))[:2]
    assert len(paths) >= 9
    rng = np.random.default_rng(0)
    for path in paths:
        video, cold = open_video(path), rng.integers(0, 10**6, 3)
        with av.open(str(path)) as file:
            stream = file.streams.video[0]
            stream.thread_count = 1
            count, kept = 0, {}
            some = set((cold % video.count).tolist()) | set(rng.integers(0, video.count, 12).tolist())
            for i, frame in enumerate(file.decode(stream)):
                picture = rgb(frame)
                assert np.array_equal(video.read(np.array([i]))[0], picture), (path, i)
                if i in some:
                    kept[i] = picture
                count += 1
        assert count == video.count
        shuffled = rng.permutation(sorted(kept))
        assert np.array_equal(video.read(shuffled), np.stack([kept[i] for i in shuffled]))
        for i in cold % video.count:
            assert np.array_equal(open_video(path).read(np.array([i]))[0], kept[int(i)])


def test_decoders_are_told_to_fail_on_damage(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Only an H.264 decoder that starts on a key frame with leading pictures may forgive."""
    for kind, (path, _) in clips.items():
        video = open_video(path)
        assert isinstance(video, PyavReader)
        video.read(video.key_frames[-1:])
        decoder: decode.PictureDecoder = video._decoder
        assert decoder._kind.strict == (kind != "h264-open"), kind


def test_a_video_without_pictures_is_refused(tmp_path: Path) -> None:
    whole = write_video(tmp_path / "whole.mkv", "h264-gop2").read_bytes()
    path = tmp_path / "cut.mkv"
    path.write_bytes(whole[: whole.index(b"\x1f\x43\xb6\x75")])  # up to the first cluster of pictures
    with pytest.raises(DatasetError, match=r"cut\.mkv: "):
        open_video(path)
