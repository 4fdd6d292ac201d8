"""The compiled loops equal those in Python, and are not used where the memory layout differs."""

import ctypes
import errno
import os
import runpy
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from understudy_base import DatasetError
from understudy_data.testing.videos import COUNT, KINDS, container_decode, moving_pictures, rgb
from understudy_data.video.codec_pool import CodecKey, create_context
from understudy_data.video.color import Converter
from understudy_data.video.decoder import FrameDecoder
from understudy_data.video.index import PacketRun
from understudy_data.video.native import loops
from understudy_data.video.native.swscale import PixelLayout, PlaneConverter, make_noise
from understudy_data.video.packets import open_packets
from understudy_data.video.reader import open_video

needs_c = pytest.mark.skipif(
    loops.load_loops() is None, reason="understudy was installed without a C compiler"
)
ROOT = Path(__file__).parents[3]


def packet_run(
    path: Path, first: int, count: int, damaged: int | None = None
) -> tuple[CodecKey, PacketRun]:
    """Packets of a video, one of them with other bytes, and the key of its decoder."""
    packets = open_packets(str(path))
    stop = min(first + count, COUNT)
    run = packets.run(first, stop, stop - 1)
    index = packets.index
    data = bytearray(run.data)
    table = run.table
    if damaged is not None:
        at = int(table.offset[run.first + damaged]) - run.base
        size = int(table.size[run.first + damaged])
        data[at + size // 2 : at + size] = b"\xff" * (size - size // 2)
    packets.close()
    return CodecKey.from_index(index), run._replace(data=bytes(data))


def rgb_bytes(frames: list[av.VideoFrame]) -> list[bytes]:
    return [rgb(frame).tobytes() for frame in frames]


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Loops in Python, until undone."""
    with monkeypatch.context() as patch:
        patch.setattr(loops, "load_loops", lambda: None)
        yield patch


@needs_c
@given(
    kind=st.sampled_from(sorted(KINDS)),
    runs=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    damaged=st.none() | st.integers(0, 19),
)
def test_decode_packets_compiled_equals_python(
    kind: str, runs: list[int], damaged: int | None, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """Run by run with two decoders, also where a packet in the last run fails."""
    path, _ = clips[kind]
    what, _ = packet_run(path, 0, 1)
    ours = create_context(what, "x")
    theirs = create_context(what, "x")
    first = 0
    for number, count in enumerate(runs):
        last = number + 1 == len(runs) or first + count >= COUNT
        bad = damaged % min(count, COUNT - first) if last and damaged is not None else None
        _, run = packet_run(path, first, count, bad)
        frames, fed, failed = loops.decode_packets(ours, run, "yuv420p" if number else "")
        others, other_fed, other_failed = loops.decode_packets_in_python(theirs, run)
        if bad is None:
            assert (fed, failed) == (other_fed, other_failed)
        # PyAV drops a failure that follows a frame of the same packet; C then stops a packet
        # earlier.
        assert fed <= other_fed
        assert [frame.pts for frame in frames] == [frame.pts for frame in others][: len(frames)]
        assert rgb_bytes(frames) == rgb_bytes(others)[: len(frames)]
        for frame, other in zip(frames, others):
            for fact in ("width", "height", "colorspace", "color_range", "is_corrupt", "key_frame"):
                assert getattr(frame, fact) == getattr(other, fact)
            assert frame.format.name == other.format.name
        if last or failed or other_failed:
            break
        assert len(frames) == len(others)
        first += count


@needs_c
def test_loops_decode_more_frames_than_room(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Call again while output has no room: a decoder may hold frames back and output them all at
    once.
    """
    path, images = clips["h264-bframes"]
    kind, run = packet_run(path, 0, COUNT)
    context = create_context(kind, "x")
    found = loops.load_loops()
    assert found is not None
    context.open()
    frames: list[av.VideoFrame] = []
    at = 0
    status = 1
    while status == 1:
        room = [av.VideoFrame(0, 0, "yuv420p")]
        done = np.zeros(2, np.int32)
        offset, size, tag = run.table.addresses
        status = found.loops_decode(
            id(context),
            run.data,
            run.base,
            offset + 8 * at,
            size + 4 * at,
            tag + 4 * at,
            COUNT - at,
            loops._addresses(room),
            1,
            -11,
            done.ctypes.data,
            done[1:].ctypes.data,
        )
        frames += room[: done[1]]
        at += int(done[0])
    frames += context.decode(None)
    assert status == 0
    assert [frame.pts for frame in frames] == list(range(COUNT))
    assert rgb_bytes(frames) == [image.tobytes() for image in images]


@needs_c
def test_loops_decode_refuses_a_frame_of_another_format(
    clips: dict[str, tuple[Path, np.ndarray]],
) -> None:
    """Its planes would be misread."""
    kind, run = packet_run(clips["h264-gop1"][0], 0, 5)

    class Changed:
        """A context with the pixel format of an earlier video."""

        pix_fmt = "yuv444p"

    context = create_context(kind, "x")
    found = loops.load_loops()
    assert found is not None
    context.open()
    room = [av.VideoFrame(0, 0, Changed.pix_fmt) for _ in range(6)]
    done = np.zeros(2, np.int32)
    places = run.base, *run.table.addresses
    ends = [done.ctypes.data, done[1:].ctypes.data]
    for _ in range(2):  # also the second time: a failed frame keeps nothing of the other format
        assert (
            found.loops_decode(
                id(context), run.data, *places, 5, loops._addresses(room), 6, -11, *ends
            )
            == -1
        )
        assert done.tolist() == [0, 0]
        assert room[0].width == 0


@needs_c
def test_convert_frames_that_are_rgb_already(tmp_path: Path, python: pytest.MonkeyPatch) -> None:
    """RGB frames are copied, not converted, so their planes must have a size."""
    path = tmp_path / "png.mov"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("png", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.height = 48
        stream.width = 64
        stream.pix_fmt = "rgb24"
        for image in moving_pictures(12):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        out.mux(stream.encode(None))

    def written() -> np.ndarray:
        frames = list(FrameDecoder(open_packets(str(path)), "x").frames(np.arange(12), 4))
        out = np.zeros((12, 3, 48, 64), np.uint8)
        Converter().write_all([frame for _, frame in frames], [i for i, _ in frames], out)
        return out

    in_python = written()
    python.undo()
    assert np.array_equal(written(), in_python)
    # Also the later frames: PNG's decoder adds a packet that is not marked as a key frame to the
    # frame before.
    assert np.array_equal(in_python.transpose(0, 2, 3, 1), container_decode(path))


@needs_c
def test_convert_frames_compiled_equals_python(python: pytest.MonkeyPatch) -> None:
    layout = PixelLayout("yuv420p", 48, 64, 2, 0)
    frames = []
    for seed in range(5):
        frame = make_noise("yuv420p", 48, 64)
        for plane in frame.planes:
            plane.update(np.random.default_rng(seed).bytes(plane.buffer_size))
        frames.append(frame)

    def written() -> np.ndarray:
        out = np.zeros((6, 3, 48, 64), np.uint8)
        converter = PlaneConverter(layout)
        first = converter.address(out)
        assert first is not None
        converter.write(frames, [first + place * converter.nbytes for place in (5, 0, 2, 1, 4)])
        return out

    in_python = written()
    python.undo()
    assert loops.load_loops() is not None
    assert np.array_equal(written(), in_python)
    assert not in_python[3].any()
    assert all(in_python[place].any() for place in (5, 0, 2, 1, 4))


@needs_c
def test_decode_packets_leaks_no_memory(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Packets and frames are freed: frames alone would leave 90 MB."""
    kind, run = packet_run(clips["h264-gop2"][0], 0, COUNT)
    context = create_context(kind, "x")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for turn in range(440):
        if turn == 40:
            before = resident()
        frames, _, failed = loops.decode_packets(context, run, "yuv420p" if turn else "")
        assert not failed
        assert len(frames) + len(context.decode(None)) == COUNT
        context.flush_buffers()
    assert resident() - before < 8 << 20


@pytest.mark.parametrize(
    "fault",
    [
        "not compiled",
        "compiled from another version",
        "PyAV hides a function",
        "objects",
        "numbers",
        "structures",
        "no code",
        "an older PyAV",
        "a newer PyAV",
    ],
)
def test_load_loops_falls_back_to_python(
    fault: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    clips: dict[str, tuple[Path, np.ndarray]],
) -> None:
    if fault == "not compiled":
        monkeypatch.setattr(loops, "COMPILED", tmp_path / "none.so")
    elif fault == "compiled from another version":
        monkeypatch.setattr(loops, "SOURCE", tmp_path / "loops.c")
        loops.SOURCE.write_text("/* newer */")
    elif fault.endswith("er PyAV"):
        monkeypatch.setattr(loops, "PYAV_MAJOR", 14 if fault == "an older PyAV" else 99)
    elif fault == "PyAV hides a function":
        monkeypatch.setattr(loops, "FUNCTIONS", ("avcodec_send_packet_2", *loops.FUNCTIONS[1:]))
    elif fault == "objects":
        monkeypatch.setattr(loops, "POINTER_OFFSET", 16)
    elif fault == "numbers":  # numbers that are no addresses
        plain = struct.unpack
        monkeypatch.setattr(
            loops.struct, "unpack", lambda form, raw: plain(form, b"\xff" * len(raw))
        )  # type: ignore[attr-defined]
    elif fault == "structures":
        plain = struct.unpack
        # As if a field had come before the others.
        monkeypatch.setattr(
            loops.struct, "unpack", lambda form, raw: plain(form, raw[8:] + b"\0" * 8)
        )  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(loops, "COMPILED", tmp_path / "text.so")
        loops.COMPILED.write_text("no code")
    loops.load_loops.cache_clear()
    loops.loops_status.cache_clear()
    try:
        with pytest.warns(UserWarning, match="Python"):
            assert loops.load_loops() is None
        assert loops.loops_status().reason
        monkeypatch.setenv("UNDERSTUDY_NATIVE", "require")
        loops.load_loops.cache_clear()
        with pytest.raises(DatasetError) as error:
            open_video(clips["h264-gop2"][0])
        assert loops.loops_status().reason in str(error.value)
        assert "\n" not in str(error.value)
        monkeypatch.delenv("UNDERSTUDY_NATIVE")
        path, images = clips["h264-gop2"]
        kind, run = packet_run(path, 0, COUNT)
        context = create_context(kind, "x")
        frames, fed, failed = loops.decode_packets(context, run, "yuv420p")
        frames += context.decode(None)
        assert (fed, failed) == (COUNT, False)
        assert rgb_bytes(frames) == [image.tobytes() for image in images]
    finally:
        monkeypatch.undo()
        loops.load_loops.cache_clear()
        loops.loops_status.cache_clear()


def run_with(native: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(
        command, env={**os.environ, "UNDERSTUDY_NATIVE": native}, capture_output=True, text=True
    )


_BATCH = """
import sys, warnings, zlib
import numpy as np
warnings.simplefilter("error")
from understudy_data.video.native import ffmpeg, loops
from understudy_data.video.reader import open_video
images = open_video(sys.argv[1]).read(np.arange(20))
found = loops.load_loops() is not None, ffmpeg.load_swscale() is not None
print(*found, zlib.crc32(np.ascontiguousarray(images)))
"""


@needs_c
def test_native_mode_turns_loops_off_or_requires_them(
    clips: dict[str, tuple[Path, np.ndarray]],
) -> None:
    path, images = clips["h264-bframes"]
    sum_ = zlib.crc32(np.ascontiguousarray(images[:20]))
    for native, used in (("0", False), ("", True), ("1", True), ("require", True)):
        done = run_with(native, _BATCH, str(path))
        assert (done.stdout.split(), done.stderr) == ([str(used), str(used), str(sum_)], "")


@pytest.mark.long
def test_native_mode_refuses_another_value() -> None:
    for arguments in (["bench", "x"], ["order", "explain"]):
        done = run_with("yes", "", *arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "UNDERSTUDY_NATIVE='yes'" in done.stderr


@pytest.mark.long
class _App:
    warning = ""

    def display_warning(self, text: str) -> None:
        self.warning = text


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Build hook over a copy of the C file."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    for name in (
        "hatchling",
        "hatchling.builders",
        "hatchling.builders.hooks",
        "hatchling.builders.hooks.plugin",
    ):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["Loops"]()
    made.root, made.target_name, made.app = str(tmp_path), "wheel", _App()
    folder = tmp_path / "src/understudy_data/video/native"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "src/understudy_data/video/native/loops.c", folder)
    return made


@needs_c
def test_build_hook_compiles(hook: Any) -> None:
    build: dict[str, Any] = {"artifacts": []}
    hook.initialize("editable", build)
    if hook.app.warning:
        pytest.skip("the C compiler that was there when understudy was installed is gone")
    (library,) = Path(hook.root).rglob("*.so")
    assert library.relative_to(hook.root).as_posix() == build["artifacts"][0]
    assert build["tag"].startswith("py3-none-")
    assert not build["pure_python"]
    assert library.name == loops.COMPILED.name
    assert ctypes.CDLL(str(library)).loops_source() & 0xFFFFFFFF == zlib.crc32(
        loops.SOURCE.read_bytes()
    )


@needs_c
def test_build_hook_tags_wheels_for_old_systems_or_for_all(
    hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    build: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build)
    if hook.app.warning:
        pytest.skip("the C compiler that was there when understudy was installed is gone")
    if os.uname().machine in ("x86_64", "aarch64"):
        assert build["tag"].startswith(f"py3-none-manylinux2014_{os.uname().machine}.")
    platform = type(hook).initialize.__globals__["_platform"]
    (compiled,) = Path(hook.root).rglob("*.so")
    content = compiled.read_bytes()
    assert "manylinux" in platform(content)
    for needed in (b"\0GLIBC_2.34\0", b"\0libssl.so.3\0", b"\0libc.musl-x86_64.so.1\0"):
        assert "manylinux" not in platform(content + needed)
    for number, machine in ((62, "x86_64"), (183, "aarch64")):  # as a cross compiler writes it
        other = content[:18] + number.to_bytes(2, "little") + content[20:]
        assert platform(other) == f"manylinux2014_{machine}.manylinux_2_17_{machine}"
        assert platform(other + b"\0libssl.so.3\0").endswith(f"linux_{machine}")
    # big-endian: a machine without a release
    assert "manylinux" not in platform(content[:5] + b"\x02" + content[6:])
    monkeypatch.setenv("UNDERSTUDY_NATIVE", "0")
    build = {"artifacts": []}
    hook.initialize("standard", build)
    assert build == {"artifacts": []}


WRITES_MACH_O = (
    """sh -c 'while [ "$1" != -o ]; do shift; done; printf "\\317\\372\\355\\376" > "$2"' sh"""
)


@pytest.mark.parametrize("is_writable", [True, False])
@pytest.mark.parametrize(
    "compiler", ["no-such-compiler", "false", "sh -c 'echo broken >&2; exit 1'", WRITES_MACH_O]
)
def test_build_hook_works_without_a_compiler(
    hook: Any, compiler: str, is_writable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was compiled from older code is deleted, unless nothing can be written."""

    def refused(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setenv("CC", compiler)
    old = Path(hook.root, "src/understudy_data/video/native/_loops.so")
    old.write_bytes(b"")
    if not is_writable:
        monkeypatch.setattr(Path, "unlink", refused)
    build: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build)
    assert build == {"artifacts": []}
    assert old.exists() != is_writable
    assert "will decode slower" in hook.app.warning


@needs_c
def test_recycling_leaves_frames_in_use_alone(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Unreferenced frames are recycled by the next decoder; the others keep their content."""
    path, images = clips["h264-bframes"]
    decoder = FrameDecoder(open_packets(str(path)), "x")
    converter = Converter()
    out = np.zeros((8, *images.transpose(0, 3, 1, 2).shape[1:]), np.uint8)
    loops.spare_frames.by_format["yuv420p"].clear()
    next(decoder.runs(np.arange(1), 1))  # a decoder's first frame is PyAV's own
    mine: list[tuple[int, av.VideoFrame]] = []
    reused = 0
    for begin in range(1, COUNT - 8, 8):
        before = {id(one) for one in loops.spare_frames.by_format["yuv420p"]}
        frames = [frame for run in decoder.runs(np.arange(begin, begin + 8), 8) for frame in run]
        reused += len({id(frame) for frame in frames} & before)
        mine.append((begin + 3, frames[3]))
        converter.write_all(frames, range(8), out)
        frames.clear()
        assert np.array_equal(out.transpose(0, 2, 3, 1), images[begin : begin + 8])
        assert not {id(frame) for _, frame in mine} & {
            id(one) for one in loops.spare_frames.by_format["yuv420p"]
        }
    assert reused > 8
    for position, frame in mine:
        assert np.array_equal(rgb(frame), images[position])
