"""Decoders that are parked, shared and read sparsely: frames equal those of the container decode,
to the bit.
"""

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import DatasetError
from understudy_data.storage.byte_source import LocalSource
from understudy_data.testing.videos import COUNT, KINDS, rgb, write_video
from understudy_data.video import codec_pool
from understudy_data.video import decoder as decoder_module
from understudy_data.video.codec_pool import SPARE_BYTES, CodecKey, decoder_bytes, frame_bytes
from understudy_data.video.color import Converter
from understudy_data.video.decoder import FrameDecoder
from understudy_data.video.index import VideoIndex
from understudy_data.video.mp4 import read_mp4
from understudy_data.video.native import loops
from understudy_data.video.packets import Mp4Packets, open_packets


def decoder_of(path: Path) -> FrameDecoder:
    return FrameDecoder(open_packets(str(path)), str(path))


def index_at(path: Path) -> VideoIndex:
    packets = open_packets(str(path))
    packets.close()
    return packets.index


def take(decoder: FrameDecoder, wanted: list[int] | np.ndarray, run_length: int = 1) -> np.ndarray:
    """uint8 (n, H, W, 3) by the hot path: decoder and converter."""
    converter = Converter()
    out = []
    for position, frame in decoder.frames(np.asarray(wanted, np.int64), run_length):
        assert position == wanted[len(out)]
        out.append(np.empty((3, frame.height, frame.width), np.uint8))
        converter.write(frame, out[-1])
    return np.stack(out).transpose(0, 2, 3, 1)


steps = st.lists(
    st.one_of(
        st.just("park"), st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=9).map(sorted)
    ),
    max_size=8,
)


@given(kind=st.sampled_from(sorted(KINDS)), plan=steps, run_length=st.sampled_from([1, 2, 5, 16]))
def test_decoder_any_subsets_with_parks_between(
    kind: str,
    plan: list[str | list[int]],
    run_length: int,
    clips: dict[str, tuple[Path, np.ndarray]],
) -> None:
    path, images = clips[kind]
    decoder = decoder_of(path)
    for step in plan:
        if isinstance(step, str):
            decoder.park()
        else:
            assert np.array_equal(take(decoder, step, run_length), images[step])


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_decoder_gap_shifts_no_other_frame(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """One packet may output several frames (HEVC's do at a key frame), more than are wanted in a
    row.
    """
    path, images = clips[kind]
    decoder = decoder_of(path)
    for left_out in range(9, 14):
        for run_length in (1, 8):
            wanted = np.delete(np.arange(16), left_out)
            assert np.array_equal(take(decoder, wanted, run_length), images[wanted])


@given(
    kinds=st.lists(st.sampled_from(sorted(KINDS)), min_size=2, max_size=3), seed=st.integers(0, 99)
)
def test_pool_decoders_take_turns_with_the_same_contexts(
    kinds: list[str], seed: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """Runs of several clips, each followed by a park: no state in a context reaches the next
    clip.
    """
    rng = np.random.default_rng(seed)
    decoders = [(decoder_of(clips[kind][0]), clips[kind][1]) for kind in [*kinds, *kinds]]
    at = [0] * len(decoders)
    for i in rng.integers(0, len(decoders), 24):
        decoder, images = decoders[i]
        stop = min(at[i] + int(rng.integers(1, 9)), COUNT)
        assert np.array_equal(take(decoder, np.arange(at[i], stop)), images[at[i] : stop])
        at[i] = stop if stop < COUNT else 0
        decoder.park()


def test_pool_reuses_contexts(
    clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path, created: list[CodecKey]
) -> None:
    twin = write_video(tmp_path / "twin.mp4", "av1-gop2")
    one = decoder_of(clips["av1-gop2"][0])
    two = decoder_of(twin)
    other = decoder_of(clips["h264-bframes"][0])
    for decoder in (one, two, other, one, other, two):
        take(decoder, [4, 5, 6])
        decoder.park()
    assert [key.codec for key in created] == ["av1", "h264"]
    take(one, [COUNT - 1])  # the end of a file loses no context either
    take(two, [COUNT - 1])
    one.park()
    two.park()
    assert len(created) == 3  # two at a time are two


def test_pool_never_lends_a_forgiving_context_to_a_strict_decoder(
    clips: dict[str, tuple[Path, np.ndarray]], created: list[CodecKey]
) -> None:
    """Only an H.264 decoder that starts in a stream of open groups forgives damage."""
    path, images = clips["h264-open"]
    decoder = decoder_of(path)
    for position in (23, 2, 24, 3):
        assert np.array_equal(take(decoder, [position])[0], images[position])
        decoder.park()
    assert sorted(key.strict for key in created) == [False, True]


def test_pool_does_not_share_decoders_that_are_not_parked(
    clips: dict[str, tuple[Path, np.ndarray]], created: list[CodecKey]
) -> None:
    path, images = clips["h264-gop250"]
    decoders = [decoder_of(path) for _ in range(3)]
    for i in range(12):
        for k, decoder in enumerate(decoders):
            assert np.array_equal(take(decoder, [i + k])[0], images[i + k])
    assert len(created) == 3


def test_pool_bounds_spare_contexts(
    clips: dict[str, tuple[Path, np.ndarray]],
    created: list[CodecKey],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, images = clips["h264-gop2"]
    # of the one that a run may have output
    size = decoder_of(path).decoder_bytes + frame_bytes(index_at(path))
    monkeypatch.setattr(codec_pool.spare.contexts, "capacity", 2 * size)
    decoders = [decoder_of(path) for _ in range(5)]
    for decoder in decoders:
        take(decoder, [0])
    for decoder in decoders:
        decoder.park()
    assert codec_pool.spare.contexts.used <= 2 * size
    assert len(codec_pool.spare.contexts) == 2
    for decoder in decoders:
        assert np.array_equal(take(decoder, [7])[0], images[7])
    assert len(created) == 5 + 3
    assert size < SPARE_BYTES  # the default bound holds this one


def test_pool_counts_frames_that_were_out_at_once(
    clips: dict[str, tuple[Path, np.ndarray]],
    created: list[CodecKey],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The codec keeps their memory. One context stays whatever its size: a reader of runs needs it
    for the next run.
    """
    path, _ = clips["h264-gop250"]
    decoders = [decoder_of(path) for _ in range(3)]
    plain = decoders[0].decoder_bytes
    monkeypatch.setattr(
        codec_pool.spare.contexts, "capacity", plain + 20 * frame_bytes(index_at(path))
    )
    for decoder in decoders:
        held = list(decoder.frames(np.arange(40), 40))
        assert len(held) == 40
    for decoder in decoders:
        decoder.park()
        assert len(codec_pool.spare.contexts) == 1
        assert codec_pool.spare.contexts.used > plain + 38 * frame_bytes(index_at(path))
    decoder = decoder_of(path)
    take(decoder, [0, 1])
    assert len(created) == 3  # it came from the pool, and still has that memory
    decoder.park()
    assert codec_pool.spare.contexts.used > plain + 38 * frame_bytes(index_at(path))


def test_pool_is_per_thread(
    clips: dict[str, tuple[Path, np.ndarray]], created: list[CodecKey]
) -> None:
    path, images = clips["av1-gop12"]

    def work() -> None:
        decoder = decoder_of(path)
        assert np.array_equal(take(decoder, [3, 20]), images[[3, 20]])
        decoder.park()
        assert len(codec_pool.spare.contexts) == 1

    work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(created) == 2


@pytest.mark.parametrize("kind", ["av1-gop2", "h264-bframes", "hevc-open", "mpeg4-bframes"])
def test_frames_outlive_their_decoder(kind: str, clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Held frames keep their content while their context decodes on, is parked, and decodes another
    video.
    """
    path, images = clips[kind]
    decoder = decoder_of(path)
    held = dict(decoder.frames(np.arange(6)))
    take(decoder, np.arange(6, 30))
    decoder.park()
    take(decoder_of(path), np.arange(20))
    del decoder
    out = np.empty((3, *images.shape[1:3]), np.uint8)
    for position, frame in held.items():
        Converter().write(frame, out)
        assert np.array_equal(out.transpose(1, 2, 0), images[position])


def test_decoder_holds_no_passed_frames(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    decoder = decoder_of(clips["h264-bframes"][0])
    for position in (3, 8, 9, 17, 30, 44):
        take(decoder, [position])
        assert all(held > position for held in decoder._ahead)


def test_decoder_skips_gops_without_wanted_frames(
    clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]
) -> None:
    for kind, wanted, expected in [
        ("av1-gop2", [0, 15, 30], [0, 14, 15, 30]),
        ("h264-gop2", [5, 6, 20, 43], [4, 5, 6, 20, 42, 43]),
        ("h264-gop1", [3, 17, 44], [3, 17, 44]),
        ("av1-gop12", [2, 25, 26], [0, 1, 2, 24, 25, 26]),
        ("h264-gop250", [10, 12, 30], list(range(31))),
    ]:
        path, images = clips[kind]
        fed.clear()
        assert np.array_equal(take(decoder_of(path), wanted), images[wanted])
        assert fed == expected, kind


def test_decoder_restarts_at_a_key_frame_after_park(
    clips: dict[str, tuple[Path, np.ndarray]], fed: list[int]
) -> None:
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
    assert fed == [28]  # not parked: it continues


def broken_copy(path: Path, sample: int, to: Path) -> Path:
    with open(path, "rb") as file:
        index = read_mp4(file, str(path))
    data = bytearray(path.read_bytes())
    at = int(index.offset[sample])
    data[at : at + int(index.size[sample])] = bytes(int(index.size[sample]))
    to.write_bytes(data)
    return to


@pytest.mark.parametrize("kind", ["av1-gop2", "h264-bframes", "mpeg4-bframes"])
def test_decoder_names_damage_and_confines_it(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]], tmp_path: Path, created: list[CodecKey]
) -> None:
    """A context that met damage is not reused, and frames of other GOPs come out intact."""
    path, images = clips[kind]
    broken = broken_copy(path, 25, tmp_path / "broken.mp4")
    bad = decoder_of(broken)
    good = decoder_of(path)
    assert np.array_equal(take(bad, [2, 3]), images[[2, 3]])
    with pytest.raises(DatasetError, match=r"frame 2\d") as error:
        take(bad, np.arange(20, 30))
    assert error.value.where == str(broken)
    bad.park()
    assert codec_pool.spare.contexts.used == 0
    before = [p for p in range(20, COUNT) if open_packets(str(path)).index.decode_position[p] < 25]
    for position in before:  # even those that were not out yet when the damage was met
        assert np.array_equal(take(bad, [position])[0], images[position])
    assert np.array_equal(take(good, np.arange(COUNT)), images)
    assert np.array_equal(take(bad, np.arange(40, COUNT)), images[40:])


@pytest.mark.parametrize("run_length", [1, 8])
@pytest.mark.parametrize("first", [5, 6, 7])
@pytest.mark.parametrize("kind", ["av1-gop12", "mpeg4-bframes", "h264-bframes"])
def test_decoder_interrupt_between_two_frames_leaves_no_wrong_ones(
    kind: str,
    first: int,
    run_length: int,
    clips: dict[str, tuple[Path, np.ndarray]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Ctrl-C in a notebook: later reads of the same dataset must not feed a packet twice."""
    path, images = clips[kind]
    decoder = decoder_of(path)
    plain = FrameDecoder._restart
    left = [6]

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

    def restart(self: FrameDecoder, sample: int) -> None:
        plain(self, sample)
        if not isinstance(self._context, Interrupted):
            self._context = Interrupted(self._context)  # type: ignore[assignment, arg-type]

    monkeypatch.setattr(FrameDecoder, "_restart", restart)
    with pytest.raises(KeyboardInterrupt):
        take(decoder, np.arange(COUNT), run_length)
    for start in (first, 0):
        assert np.array_equal(take(decoder, np.arange(start, COUNT), run_length), images[start:])


@pytest.mark.parametrize("run", [1, 2])
@pytest.mark.parametrize("kind", ["av1-gop12", "mpeg4-bframes", "h264-bframes"])
def test_decoder_interrupt_of_a_run_leaves_no_wrong_frames(
    kind: str, run: int, clips: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop outside the interpreter sees a Ctrl-C only at its end: its frames are lost."""
    path, images = clips[kind]
    decoder = decoder_of(path)
    plain = loops.decode_packets
    runs = []

    def interrupted(*arguments: Any) -> tuple[list[av.VideoFrame], int, bool]:
        out = plain(*arguments)
        runs.append(len(out[0]))
        if len(runs) == run + 1:
            raise KeyboardInterrupt
        return out

    monkeypatch.setattr(decoder_module, "decode_packets", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(decoder, np.arange(COUNT), 4)
    assert runs[-1] > 0
    for start in (5, 0):
        assert np.array_equal(take(decoder, np.arange(start, COUNT), 4), images[start:])


def test_decoder_frees_frames_on_the_way_before_it_decodes_more(
    clips: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A context keeps the memory of the most frames that are out at once, as many as one run has in
    the plan.
    """
    path, images = clips["h264-gop250"]
    plain = loops.decode_packets
    earlier = list[list[av.VideoFrame]]()
    references = []

    def watched(*arguments: Any) -> tuple[list[av.VideoFrame], int, bool]:
        if earlier:
            references.append(sys.getrefcount(earlier[-1]))
        out = plain(*arguments)
        earlier.append(out[0])
        return out

    monkeypatch.setattr(decoder_module, "decode_packets", watched)
    assert np.array_equal(take(decoder_of(path), np.arange(30, 38), 8), images[30:38])
    assert len(earlier) > 3
    assert max(references) <= 2  # of this test and of the call itself


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_decoder_interrupt_while_a_context_is_returned_or_flushed(
    kind: str, clips: dict[str, tuple[Path, np.ndarray]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context must not have two owners, nor pass for one that still knows the frames before."""
    path, images = clips[kind]
    one = decoder_of(path)
    two = decoder_of(path)
    plain = decoder_module.give_back

    def interrupted(*arguments: Any) -> None:
        plain(*arguments)
        raise KeyboardInterrupt

    class Flushed:
        """A context whose thread is interrupted right after a flush."""

        def __init__(self, context: Any) -> None:
            self.context = context

        def __getattr__(self, name: str) -> Any:
            return getattr(self.context, name)

        def flush_buffers(self) -> None:
            self.context.flush_buffers()
            raise KeyboardInterrupt

    take(one, np.arange(6))
    with monkeypatch.context() as patch:
        patch.setattr(decoder_module, "give_back", interrupted)
        with pytest.raises(KeyboardInterrupt):
            one.park()
    for start in range(6, 30, 4):
        for decoder in (two, one):
            assert np.array_equal(
                take(decoder, np.arange(start, start + 4)), images[start : start + 4]
            )
    one._context = Flushed(one._context)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        take(one, [2])
    assert np.array_equal(take(one, np.arange(30, COUNT)), images[30:])


@pytest.mark.parametrize("run_length", [1, 4])
def test_packets_of_videos_read_in_turns_keep_apart(
    run_length: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """All reads of a thread share one memory. A video that finds another video's bytes there must
    read again.
    """
    kinds = ["h264-gop250", "h264-bframes", "av1-gop12", "h264-gop250"]
    ours = [FrameDecoder(open_packets(str(clips[kind][0])), "x") for kind in kinds]
    readings = [decoder.frames(np.arange(2, COUNT), run_length) for decoder in ours]
    for position, row in enumerate(zip(*readings, strict=True), start=2):
        for kind, (at, frame) in zip(kinds, row):
            assert at == position
            assert np.array_equal(rgb(frame), clips[kind][1][position])


class _Counted(LocalSource):
    """A file that counts the bytes read from it."""

    count = 0

    def fill(self, offset: int, memory: memoryview) -> None:
        self.count += len(memory)
        super().fill(offset, memory)


@pytest.mark.parametrize("run_length", [1, 16])
@pytest.mark.parametrize("kind", ["av1-gop12", "h264-bframes", "h264-gop250"])
def test_packets_between_wanted_gops_are_not_read(
    kind: str, run_length: int, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """A run that continues in another episode of a packed file must not fetch the episodes
    between.
    """
    path, images = clips[kind]
    source = _Counted(str(path))
    packets = open_packets(source)
    wanted = np.array([1, 2, 3, COUNT - 3, COUNT - 2])
    needed = np.concatenate([packets.spans(1, 3), packets.spans(COUNT - 3, COUNT - 2)])
    apart = int(needed[0].sum()) <= int(needed[-1, 0])
    source.count = 0
    assert np.array_equal(take(FrameDecoder(packets, "x"), wanted, run_length), images[wanted])
    assert source.count > 0
    if apart:
        assert source.count <= needed[:, 1].sum()
    assert apart == (kind != "h264-gop250")  # a single GOP is needed as a whole


class _Torn(LocalSource):
    """A disk that cannot read some bytes, or returns others."""

    bad = range(0)
    readable = False

    def fill(self, offset: int, memory: memoryview) -> None:
        bad = range(max(self.bad.start, offset), min(self.bad.stop, offset + len(memory)))
        if bad and not self.readable:
            raise DatasetError("cannot be read: a bad sector", where=self.where)
        super().fill(offset, memory)
        if bad:
            memory[bad.start - offset : bad.stop - offset] = b"\xff" * len(bad)


@given(
    kind=st.sampled_from(sorted(KINDS)),
    broken=st.integers(0, COUNT - 1),
    fault=st.sampled_from(["unreadable", "damaged"]),
    start=st.integers(0, COUNT - 1),
    run_length=st.integers(2, 16),
)
def test_decoder_error_in_a_run_spoils_no_other_frame(
    kind: str,
    broken: int,
    fault: str,
    start: int,
    run_length: int,
    clips: dict[str, tuple[Path, np.ndarray]],
) -> None:
    """The same frames precede the same error, however many are read and decoded at once."""
    path, _ = clips[kind]

    def frames_and_error(run_length: int) -> tuple[list[np.ndarray], str]:
        source = _Torn(str(path))
        packets = open_packets(source)
        assert isinstance(packets, Mp4Packets)
        at = int(packets.index.offset[broken])
        source.bad = range(at, at + int(packets.index.size[broken]))
        source.readable = fault == "damaged"
        out: list[np.ndarray] = []
        try:
            for _, frame in FrameDecoder(packets, "x").frames(np.arange(start, COUNT), run_length):
                out.append(rgb(frame))
        except DatasetError as error:
            return out, str(error)
        return out, ""

    one = frames_and_error(1)
    many = frames_and_error(run_length)
    assert one[1] == many[1]
    assert len(one[0]) == len(many[0])
    assert all(map(np.array_equal, one[0], many[0]))


_GROWTH = """
import sys
import numpy as np
from understudy_data.video.decoder import FrameDecoder
from understudy_data.video.packets import Mp4Packets, open_packets

def private():
    with open("/proc/self/smaps_rollup") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private")) * 1024

def decoder():
    made = FrameDecoder(open_packets(sys.argv[1]), "x")
    for _ in made.frames(np.arange(12)):
        pass
    made._ahead.clear()
    return made

decoder()
before = private()
held = [decoder() for _ in range(16)]
print((private() - before) / 16 / held[0].decoder_bytes)
"""


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(), reason="private memory is read from Linux's /proc"
)
@pytest.mark.parametrize("kind", ["av1-gop12", "h264-bframes"])
def test_decoder_bytes_estimates_live_decoders(kind: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "clip.mp4", kind, 14, height=480, width=640)
    done = subprocess.run(
        [sys.executable, "-c", _GROWTH, str(path)], capture_output=True, text=True, check=True
    )
    assert 0.6 < float(done.stdout) < 1.4
    index = open_packets(str(path)).index
    assert decoder_bytes(index) > 4 * frame_bytes(index) > 4 * 640 * 480


def test_decoder_bytes_reads_reference_frames_from_the_configuration() -> None:
    plain = bytes.fromhex(
        "0164001effe100186764001eacb40501ed08000003000800000301e078b17501000568ef0472c0fd"
    )
    b_frames = bytes.fromhex(
        "0164001effe100186764001eacd940a03da10000030001000003003c0f162d9601000468ef8fcbfd"
    )
    assert (codec_pool.read_h264_references(plain), codec_pool.read_h264_references(b_frames)) == (
        1,
        4,
    )
    for junk in (b"", bytes(40), b"\xff" * 40, plain[:12]):
        assert 0 <= codec_pool.read_h264_references(junk) <= 16
