"""Decoders that are parked, shared, handed on and asked for little: the pictures stay those of the container decode."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.datasets import Spec, identity, write_dataset
from support.videos import COUNT, KINDS, rgb, write_video
from understudy.data.dataset import EpisodeDataset
from understudy.errors import DatasetError
from understudy.storage.source import LocalSource
from understudy.video import codec_pool
from understudy.video import decoder as decode
from understudy.video.codec_pool import SPARE_BYTES, Kind, live_bytes, picture_bytes
from understudy.video.color import Converter
from understudy.video.decoder import PictureDecoder
from understudy.video.mp4 import VideoIndex, read_mp4
from understudy.video.native import loops
from understudy.video.packets import Mp4Packets, open_packets


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Kind]:
    """The kinds of all codec contexts that are created; this thread begins without spare ones."""
    seen: list[Kind] = []
    plain = codec_pool._create

    def create(kind: Kind, where: str) -> av.VideoCodecContext:
        seen.append(kind)
        return plain(kind, where)

    monkeypatch.setattr(codec_pool, "_create", create)
    monkeypatch.setattr(codec_pool, "_spare", codec_pool._Spare())
    return seen


def decoder_of(path: Path) -> PictureDecoder:
    return PictureDecoder(open_packets(str(path)), str(path))


def index_at(path: Path) -> VideoIndex:
    packets = open_packets(str(path))
    packets.close()
    return packets.index


def take(decoder: PictureDecoder, wanted: list[int] | np.ndarray, at_once: int = 1) -> np.ndarray:
    """uint8 (n, H, W, 3) by the hot path: decoder and converter."""
    converter, out = Converter(), []
    for position, frame in decoder.pictures(np.asarray(wanted, np.int64), at_once):
        assert position == wanted[len(out)]
        out.append(np.empty((3, frame.height, frame.width), np.uint8))
        converter.write(frame, out[-1])
    return np.stack(out).transpose(0, 2, 3, 1)


steps = st.lists(
    st.one_of(st.just("park"), st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=9).map(sorted)), max_size=8
)


@settings(max_examples=80, deadline=None)
@given(kind=st.sampled_from(sorted(KINDS)), plan=steps, at_once=st.sampled_from([1, 2, 5, 16]))
def test_any_subsets_with_parks_between(
    kind: str, plan: list[str | list[int]], at_once: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    path, pictures = clips[kind]
    decoder = decoder_of(path)
    for step in plan:
        if isinstance(step, str):
            decoder.park()
        else:
            assert np.array_equal(take(decoder, step, at_once), pictures[step])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_picture_left_out_moves_no_other(kind: str, clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """One packet may give out several pictures (HEVC's do at a key frame), more than were asked for in a row."""
    path, pictures = clips[kind]
    decoder = decoder_of(path)
    for left_out in range(9, 14):
        for at_once in (1, 8):
            wanted = np.delete(np.arange(16), left_out)
            assert np.array_equal(take(decoder, wanted, at_once), pictures[wanted])


@settings(max_examples=30, deadline=None)
@given(kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=3), seed=st.integers(0, 99))
def test_several_decoders_take_turns_with_the_same_contexts(
    kinds: list[str], seed: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """Runs of pictures of several clips, a park after each: what one leaves in a context must not reach another."""
    rng = np.random.default_rng(seed)
    decoders = [(decoder_of(clips[kind][0]), clips[kind][1]) for kind in [*kinds, *kinds]]
    at = [0] * len(decoders)
    for i in rng.integers(0, len(decoders), 24):
        decoder, pictures = decoders[i]
        stop = min(at[i] + int(rng.integers(1, 9)), COUNT)
        assert np.array_equal(take(decoder, np.arange(at[i], stop)), pictures[at[i] : stop])
        at[i] = stop if stop < COUNT else 0
        decoder.park()


def test_contexts_are_handed_on(clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path, made: list[Kind]) -> None:
    twin = write_video(tmp_path / "twin.mp4", "av1-gop2")
    one, two, other = decoder_of(clips["av1-gop2"][0]), decoder_of(twin), decoder_of(clips["h264-bframes"][0])
    for decoder in (one, two, other, one, other, two):
        take(decoder, [4, 5, 6])
        decoder.park()
    assert [kind.codec for kind in made] == ["av1", "h264"]
    take(one, [COUNT - 1])  # at the end of a file nothing is lost either
    take(two, [COUNT - 1])
    one.park()
    two.park()
    assert len(made) == 3  # two at a time are two


def test_a_forgiving_context_is_never_lent_to_a_strict_decoder(
    clips: dict[str, tuple[Path, np.ndarray]], made: list[Kind]
) -> None:
    """Only an H.264 decoder that starts in a stream of open groups forgives damage."""
    path, pictures = clips["h264-open"]
    decoder = decoder_of(path)
    for position in (23, 2, 24, 3):
        assert np.array_equal(take(decoder, [position])[0], pictures[position])
        decoder.park()
    assert sorted(kind.strict for kind in made) == [False, True]


def test_decoders_that_are_not_parked_are_not_shared(
    clips: dict[str, tuple[Path, np.ndarray]], made: list[Kind]
) -> None:
    path, pictures = clips["h264-gop250"]
    decoders = [decoder_of(path) for _ in range(3)]
    for i in range(12):
        for k, decoder in enumerate(decoders):
            assert np.array_equal(take(decoder, [i + k])[0], pictures[i + k])
    assert len(made) == 3


def test_spare_contexts_are_bounded(
    clips: dict[str, tuple[Path, np.ndarray]], made: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pictures = clips["h264-gop2"]
    size = decoder_of(path).live_bytes + picture_bytes(index_at(path))  # the one, if any, that was given out in a run
    monkeypatch.setattr(codec_pool, "SPARE_BYTES", 2 * size)
    decoders = [decoder_of(path) for _ in range(5)]
    for decoder in decoders:
        take(decoder, [0])
    for decoder in decoders:
        decoder.park()
    assert codec_pool._spare.bytes <= 2 * size
    assert len(codec_pool._spare.held) == 2
    for decoder in decoders:
        assert np.array_equal(take(decoder, [7])[0], pictures[7])
    assert len(made) == 5 + 3
    assert size < SPARE_BYTES  # the real bound holds this one


def test_what_decoders_gave_out_at_once_counts(
    clips: dict[str, tuple[Path, np.ndarray]], made: list[Kind], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their codec keeps the memory of it. One stays whatever it takes: who reads in runs needs it for the next run."""
    path, _ = clips["h264-gop250"]
    decoders = [decoder_of(path) for _ in range(3)]
    plain = decoders[0].live_bytes
    monkeypatch.setattr(codec_pool, "SPARE_BYTES", plain + 20 * picture_bytes(index_at(path)))
    for decoder in decoders:
        held = list(decoder.pictures(np.arange(40), 40))
        assert len(held) == 40
    for decoder in decoders:
        decoder.park()
        assert len(codec_pool._spare.held) == 1
        assert codec_pool._spare.bytes > plain + 38 * picture_bytes(index_at(path))
    decoder = decoder_of(path)
    take(decoder, [0, 1])
    assert len(made) == 3  # it was handed on, and still has that memory
    decoder.park()
    assert codec_pool._spare.bytes > plain + 38 * picture_bytes(index_at(path))


def test_each_thread_has_spare_contexts_of_its_own(clips: dict[str, tuple[Path, np.ndarray]], made: list[Kind]) -> None:
    path, pictures = clips["av1-gop12"]

    def work() -> None:
        decoder = decoder_of(path)
        assert np.array_equal(take(decoder, [3, 20]), pictures[[3, 20]])
        decoder.park()
        assert len(codec_pool._spare.held) == 1

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(made) == 2


def test_two_threads_over_one_file(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    wrong: list[tuple[str, int]] = []

    def work(kind: str, first: int) -> None:
        path, pictures = clips[kind]
        decoder = decoder_of(path)
        for begin in range(first, COUNT - 4, 5):
            if not np.array_equal(take(decoder, np.arange(begin, begin + 4)), pictures[begin : begin + 4]):
                wrong.append((kind, begin))
            if begin % 3 == 0:
                decoder.park()

    threads = [threading.Thread(target=work, args=(kind, first)) for kind in KINDS for first in (0, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("kind", ["av1-gop2", "h264-bframes", "hevc-open", "mpeg4-bframes"])
def test_pictures_outlive_their_decoder(kind: str, clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """What is held stays as it was while the same context decodes on, is parked, and decodes another video."""
    path, pictures = clips[kind]
    decoder = decoder_of(path)
    held = dict(decoder.pictures(np.arange(6)))
    take(decoder, np.arange(6, 30))
    decoder.park()
    take(decoder_of(path), np.arange(20))
    del decoder
    out = np.empty((3, *pictures.shape[1:3]), np.uint8)
    for position, frame in held.items():
        Converter().write(frame, out)
        assert np.array_equal(out.transpose(1, 2, 0), pictures[position])


def test_pictures_that_were_passed_are_not_held(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    decoder = decoder_of(clips["h264-bframes"][0])
    for position in (3, 8, 9, 17, 30, 44):
        take(decoder, [position])
        assert all(held > position for held in decoder._ahead)


def test_sparse_wishes_skip_groups(clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]) -> None:
    for kind, wanted, expected in [
        ("av1-gop2", [0, 15, 30], [0, 14, 15, 30]),
        ("h264-gop2", [5, 6, 20, 43], [4, 5, 6, 20, 42, 43]),
        ("h264-gop1", [3, 17, 44], [3, 17, 44]),
        ("av1-gop12", [2, 25, 26], [0, 1, 2, 24, 25, 26]),
        ("h264-gop250", [10, 12, 30], list(range(31))),
    ]:
        path, pictures = clips[kind]
        fed.clear()
        assert np.array_equal(take(decoder_of(path), wanted), pictures[wanted])
        assert fed == expected, kind


def test_a_parked_decoder_begins_at_the_key_frame(clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]) -> None:
    path, _ = clips["av1-gop12"]
    decoder = decoder_of(path)
    take(decoder, [24, 25, 26])
    assert fed == [24, 25, 26]
    decoder.park()
    fed.clear()
    take(decoder, [27])
    assert fed == [24, 25, 26, 27]
    fed.clear()
    take(decoder, [28])
    assert fed == [28]  # not parked: it goes on


def broken_copy(path: Path, sample: int, to: Path) -> Path:
    with open(path, "rb") as file:
        index = read_mp4(file, str(path))
    data, at = bytearray(path.read_bytes()), int(index.offset[sample])
    data[at : at + int(index.size[sample])] = bytes(int(index.size[sample]))
    to.write_bytes(data)
    return to


@pytest.mark.parametrize("kind", ["av1-gop2", "h264-bframes", "mpeg4-bframes"])
def test_damage_is_named_and_stays_where_it_is(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path, made: list[Kind]
) -> None:
    """A context that met damage is not handed on, and neighbours of the picture in other groups come out whole."""
    path, pictures = clips[kind]
    broken = broken_copy(path, 25, tmp_path / "broken.mp4")
    bad, good = decoder_of(broken), decoder_of(path)
    assert np.array_equal(take(bad, [2, 3]), pictures[[2, 3]])
    with pytest.raises(DatasetError, match=r"broken\.mp4: picture 2\d cannot be decoded"):
        take(bad, np.arange(20, 30))
    bad.park()
    assert codec_pool._spare.bytes == 0
    before = [p for p in range(20, COUNT) if open_packets(str(path)).index.sample[p] < 25]
    for position in before:  # even those that were still to come when the damage was met
        assert np.array_equal(take(bad, [position])[0], pictures[position])
    assert np.array_equal(take(good, np.arange(COUNT)), pictures)
    assert np.array_equal(take(bad, np.arange(40, COUNT)), pictures[40:])


def container_pictures(path: Path) -> Iterator[np.ndarray]:
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        stream.thread_count = 1
        for frame in file.decode(stream):
            yield rgb(frame)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["g1_v30", "gr1_sim_v20"])
def test_real_runs_with_parks(name: str, real_data: Path) -> None:
    """Runs of real pictures (AV1 of GOP 2, H.264 of GOP 250 with B-frames) of random length, and parks between."""
    path = min((real_data / name).glob("videos/**/*.mp4"), key=lambda file: file.stat().st_size)
    rng, decoder, expected = np.random.default_rng(5), decoder_of(path), container_pictures(path)
    at, stop = 0, 200
    while at < stop:
        run = np.arange(at, min(at + int(rng.integers(1, 20)), stop))
        assert np.array_equal(take(decoder, run), np.stack([next(expected) for _ in run])), at
        at += len(run)
        if rng.random() < 0.3:
            decoder.park()


@pytest.mark.parametrize("at_once", [1, 8])
@pytest.mark.parametrize("first", [5, 6, 7])
@pytest.mark.parametrize("kind", ["av1-gop12", "mpeg4-bframes", "h264-bframes"])
def test_an_interrupt_between_two_pictures_leaves_no_wrong_ones(
    kind: str, first: int, at_once: int, clips: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ctrl-C in a notebook: whoever reads on with the same dataset must not have packets fed twice."""
    path, pictures = clips[kind]
    decoder, plain, left = decoder_of(path), PictureDecoder._restart, [6]

    class Interrupted:
        def __init__(self, context: av.VideoCodecContext) -> None:
            self.context = context
            self.fed: list[int | None] = []

        def flush_buffers(self) -> None:
            self.fed.clear()
            self.context.flush_buffers()

        def __getattr__(self, name: str) -> object:
            return getattr(self.context, name)

        def decode(self, packet: av.Packet | None) -> list[av.VideoFrame]:
            frames = self.context.decode(packet)
            assert packet is None or packet.pts not in self.fed
            self.fed.append(packet.pts if packet is not None else None)
            left[0] -= 1
            if left[0] == 0:
                raise KeyboardInterrupt
            return frames

    def restart(self: PictureDecoder, sample: int) -> None:
        plain(self, sample)
        if not isinstance(self._context, Interrupted):
            self._context = Interrupted(self._context)  # type: ignore[assignment, arg-type]

    monkeypatch.setattr(PictureDecoder, "_restart", restart)
    with pytest.raises(KeyboardInterrupt):
        take(decoder, np.arange(COUNT), at_once)
    for start in (first, 0):
        assert np.array_equal(take(decoder, np.arange(start, COUNT), at_once), pictures[start:])


@pytest.mark.parametrize("run", [1, 2])
@pytest.mark.parametrize("kind", ["av1-gop12", "mpeg4-bframes", "h264-bframes"])
def test_an_interrupt_of_a_run_leaves_no_wrong_pictures(
    kind: str, run: int, clips: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop outside the interpreter is told of a Ctrl-C when it is over: its pictures are lost."""
    path, pictures = clips[kind]
    decoder, plain, runs = decoder_of(path), loops.decode, []

    def interrupted(*arguments: Any) -> tuple[list[av.VideoFrame], int, bool]:
        out = plain(*arguments)
        runs.append(len(out[0]))
        if len(runs) == run + 1:
            raise KeyboardInterrupt
        return out

    monkeypatch.setattr(decode, "decode", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(decoder, np.arange(COUNT), 4)
    assert runs[-1] > 0
    for start in (5, 0):
        assert np.array_equal(take(decoder, np.arange(start, COUNT), 4), pictures[start:])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_interrupt_while_a_context_is_handed_on_or_emptied(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not be left to two, nor taken for one that still knows the pictures before."""
    path, pictures = clips[kind]
    one, two, plain = decoder_of(path), decoder_of(path), decode.give_back

    def interrupted(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    class Emptied:
        """A context whose thread is interrupted when it has forgotten its pictures."""

        def __init__(self, context: Any) -> None:
            self.context = context

        def __getattr__(self, name: str) -> Any:
            return getattr(self.context, name)

        def flush_buffers(self) -> None:
            self.context.flush_buffers()
            raise KeyboardInterrupt

    take(one, np.arange(6))
    with monkeypatch.context() as patch:
        patch.setattr(decode, "give_back", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.park()
    for start in range(6, 30, 4):
        for decoder in (two, one):
            assert np.array_equal(take(decoder, np.arange(start, start + 4)), pictures[start : start + 4])
    one._context = Emptied(one._context)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        take(one, [2])
    assert np.array_equal(take(one, np.arange(30, COUNT)), pictures[30:])


@pytest.mark.parametrize("at_once", [1, 4])
def test_videos_read_in_turns_by_one_thread_keep_apart(at_once: int, clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """All reads of a thread share one memory: whoever finds another video's bytes there must read again."""
    kinds = ["h264-gop250", "h264-bframes", "av1-gop12", "h264-gop250"]
    ours = [PictureDecoder(open_packets(str(clips[kind][0])), "x") for kind in kinds]
    readings = [decoder.pictures(np.arange(2, COUNT), at_once) for decoder in ours]
    for position, row in enumerate(zip(*readings, strict=True), start=2):
        for kind, (at, frame) in zip(kinds, row):
            assert at == position
            assert np.array_equal(rgb(frame), clips[kind][1][position])


class _Counted(LocalSource):
    """A file that tells how many bytes of it were read."""

    count = 0

    def fill(self, offset: int, memory: memoryview) -> None:
        self.count += len(memory)
        super().fill(offset, memory)


@pytest.mark.parametrize("at_once", [1, 16])
@pytest.mark.parametrize("kind", ["av1-gop12", "h264-bframes", "h264-gop250"])
def test_what_lies_between_wanted_groups_is_not_read(
    kind: str, at_once: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """A run that goes on in another episode of a packed file must not fetch the episodes between."""
    path, pictures = clips[kind]
    source = _Counted(str(path))
    packets = open_packets(source)
    wanted = np.array([1, 2, 3, COUNT - 3, COUNT - 2])
    needed = np.concatenate([packets.spans(1, 3), packets.spans(COUNT - 3, COUNT - 2)])
    apart = int(needed[0].sum()) <= int(needed[-1, 0])
    source.count = 0
    assert np.array_equal(take(PictureDecoder(packets, "x"), wanted, at_once), pictures[wanted])
    assert source.count > 0
    if apart:
        assert source.count <= needed[:, 1].sum()
    assert apart == (kind != "h264-gop250")  # where all is one group, all of it is needed


class _Torn(LocalSource):
    """A disk that cannot read some bytes, or gives others instead."""

    bad = range(0)
    readable = False

    def fill(self, offset: int, memory: memoryview) -> None:
        bad = range(max(self.bad.start, offset), min(self.bad.stop, offset + len(memory)))
        if bad and not self.readable:
            raise DatasetError("cannot be read: a bad sector", where=self.where)
        super().fill(offset, memory)
        if bad:
            memory[bad.start - offset : bad.stop - offset] = b"\xff" * len(bad)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    broken=st.integers(0, COUNT - 1),
    fault=st.sampled_from(["unreadable", "damaged"]),
    start=st.integers(0, COUNT - 1),
    at_once=st.integers(2, 16),
)
def test_what_is_decoded_at_once_spoils_no_other_picture(
    kind: str, broken: int, fault: str, start: int, at_once: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """The same pictures are given before the same error, however many are read and decoded on end."""
    path, _ = clips[kind]

    def given(at_once: int) -> tuple[list[np.ndarray], str]:
        source = _Torn(str(path))
        packets = open_packets(source)
        assert isinstance(packets, Mp4Packets)
        at = int(packets.index.offset[broken])
        source.bad, source.readable = range(at, at + int(packets.index.size[broken])), fault == "damaged"
        out: list[np.ndarray] = []
        try:
            for _, frame in PictureDecoder(packets, "x").pictures(np.arange(start, COUNT), at_once):
                out.append(rgb(frame))
        except DatasetError as error:
            return out, str(error)
        return out, ""

    one, many = given(1), given(at_once)
    assert one[1] == many[1]
    assert len(one[0]) == len(many[0])
    assert all(map(np.array_equal, one[0], many[0]))


@pytest.mark.parametrize("cameras", [2, 3])
@pytest.mark.parametrize("codec", ["libx264", "libsvtav1"])
def test_cameras_are_kept_apart(cameras: int, codec: str, tmp_path: Path) -> None:
    keys = tuple(f"observation.images.c{i}" for i in range(cameras))
    truth = write_dataset(tmp_path, Spec(lengths=(6, 5), cameras=keys, codec=codec))
    offsets = {keys[0]: [-2, 0], keys[-1]: [0, 1]}
    data = EpisodeDataset(tmp_path, {key: [t / truth.spec.fps for t in frames] for key, frames in offsets.items()})
    episodes, frames = data.locate(np.random.default_rng(0).permutation(len(data)))
    batch = data.batch(episodes, frames)
    for k, key in enumerate(keys):
        assert batch[key].is_contiguous()
        for i, (episode, frame) in enumerate(zip(episodes.tolist(), frames.tolist())):
            seen = batch[key][i] if key in offsets else batch[key][i][None]
            length = truth.spec.lengths[episode]
            for picture, offset in zip(seen, offsets.get(key, [0])):
                told = identity(picture.numpy())
                assert told == (k, episode, min(max(frame + offset, 0), length - 1))


_GROWTH = """
import sys
import numpy as np
from understudy.video.decoder import PictureDecoder
from understudy.video.packets import Mp4Packets, open_packets

def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private")) * 1024

def decoder():
    made = PictureDecoder(open_packets(sys.argv[1]), "x")
    for _ in made.pictures(np.arange(12)):
        pass
    made._recent.clear()
    made._ahead.clear()
    return made

decoder()
before = private()
held = [decoder() for _ in range(16)]
print((private() - before) / 16 / held[0].live_bytes)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="private memory is read from Linux's /proc")
@pytest.mark.parametrize("kind", ["av1-gop12", "h264-bframes"])
def test_live_decoders_take_what_is_estimated(kind: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", kind, 14, height=480, width=640)
    done = subprocess.run([sys.executable, "-c", _GROWTH, str(path)], capture_output=True, text=True, check=True)
    assert 0.6 < float(done.stdout) < 1.4
    index = open_packets(str(path)).index
    assert live_bytes(index) > 4 * picture_bytes(index) > 4 * 640 * 480


def test_reference_pictures_are_read_from_the_configuration() -> None:
    plain = bytes.fromhex("0164001effe100186764001eacb40501ed08000003000800000301e078b17501000568ef0472c0fd")
    b_frames = bytes.fromhex("0164001effe100186764001eacd940a03da10000030001000003003c0f162d9601000468ef8fcbfd")
    assert (codec_pool._h264_references(plain), codec_pool._h264_references(b_frames)) == (1, 4)
    for junk in (b"", bytes(40), b"\xff" * 40, plain[:12]):
        assert 0 <= codec_pool._h264_references(junk) <= 16
