"""The compiled loops do what those in Python do, and are not used where memory is not as they expect it."""

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
from hypothesis import given, settings
from hypothesis import strategies as st

from support.videos import COUNT, KINDS, container_decode, moving_pictures, rgb
from understudy.errors import DatasetError
from understudy.video.codec_pool import Kind, _create
from understudy.video.color import Converter
from understudy.video.decoder import PictureDecoder
from understudy.video.native import loops
from understudy.video.native.swscale import Kind as Colours
from understudy.video.native.swscale import Scaler, noise
from understudy.video.open import open_video
from understudy.video.packets import open_packets

needs_c = pytest.mark.skipif(loops.compiled() is None, reason="understudy was installed without a C compiler")
ROOT = Path(__file__).parents[3]


def coded_from(path: Path, first: int, count: int, damaged: int | None = None) -> tuple[Kind, loops.Coded]:
    """Packets of a video, one of them of other bytes; and the kind of its decoder."""
    packets = open_packets(str(path))
    stop = min(first + count, COUNT)
    coded, index = packets.several(first, stop, stop - 1), packets.index
    data, listed = bytearray(coded.data), coded.listed
    if damaged is not None:
        at, size = int(listed.offset[coded.first + damaged]) - coded.base, int(listed.size[coded.first + damaged])
        data[at + size // 2 : at + size] = b"\xff" * (size - size // 2)
    packets.close()
    kind = Kind(index.codec, index.extradata, min(index.reorder, 16), True)
    return kind, coded._replace(data=bytes(data))


def colours(frames: list[av.VideoFrame]) -> list[bytes]:
    return [rgb(frame).tobytes() for frame in frames]


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Loops in Python while it lasts."""
    with monkeypatch.context() as patch:
        patch.setattr(loops, "compiled", lambda: None)
        yield patch


@needs_c
@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    runs=st.lists(st.integers(1, 20), min_size=2, max_size=5),
    damaged=st.none() | st.integers(0, 19),
)
def test_compiled_and_in_python_the_same_comes_out(
    kind: str, runs: list[int], damaged: int | None, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    """Run after run by two decoders, also where a packet in the last run fails."""
    path, _ = clips[kind]
    what, _ = coded_from(path, 0, 1)
    ours, theirs, first = _create(what, "x"), _create(what, "x"), 0
    for number, count in enumerate(runs):
        last = number + 1 == len(runs) or first + count >= COUNT
        bad = damaged % min(count, COUNT - first) if last and damaged is not None else None
        _, coded = coded_from(path, first, count, bad)
        frames, fed, failed = loops.decode(ours, coded, "yuv420p" if number else "")
        others, other_fed, other_failed = loops._decode(theirs, coded)
        if bad is None:
            assert (fed, failed) == (other_fed, other_failed)
        # PyAV drops a failure behind a picture of the same packet; then the decoder is given up a packet earlier.
        assert fed <= other_fed
        assert [frame.pts for frame in frames] == [frame.pts for frame in others][: len(frames)]
        assert colours(frames) == colours(others)[: len(frames)]
        for frame, other in zip(frames, others):
            for fact in ("width", "height", "colorspace", "color_range", "is_corrupt", "key_frame"):
                assert getattr(frame, fact) == getattr(other, fact)
            assert frame.format.name == other.format.name
        if last or failed or other_failed:
            break
        assert len(frames) == len(others)
        first += count


@needs_c
def test_more_pictures_than_packets(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Called again where what comes out has no room: a decoder may hold pictures back and give them all at once."""
    path, pictures = clips["h264-bframes"]
    kind, coded = coded_from(path, 0, COUNT)
    context, found = _create(kind, "x"), loops.compiled()
    assert found is not None
    context.open()
    frames: list[av.VideoFrame] = []
    at, status = 0, 1
    while status == 1:
        room = [av.VideoFrame(0, 0, "yuv420p")]
        done = np.zeros(2, np.int32)
        offset, size, tag = coded.listed.addresses
        status = found.loops_decode(
            id(context),
            coded.data,
            coded.base,
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
    assert colours(frames) == [picture.tobytes() for picture in pictures]


@needs_c
def test_a_picture_of_another_format_is_no_picture(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Its planes would be taken for something else."""
    kind, coded = coded_from(clips["h264-gop1"][0], 0, 5)

    class Changed:
        """A context that says what it decoded before."""

        pix_fmt = "yuv444p"

    context, found = _create(kind, "x"), loops.compiled()
    assert found is not None
    context.open()
    room = [av.VideoFrame(0, 0, Changed.pix_fmt) for _ in range(6)]
    done = np.zeros(2, np.int32)
    places = coded.base, *coded.listed.addresses
    ends = [done.ctypes.data, done[1:].ctypes.data]
    for _ in range(2):  # nor is it the second time: what failed keeps nothing of the other format
        assert found.loops_decode(id(context), coded.data, *places, 5, loops._addresses(room), 6, -11, *ends) == -1
        assert done.tolist() == [0, 0]
        assert room[0].width == 0


@needs_c
def test_pictures_that_are_colours_already(tmp_path: Path, python: pytest.MonkeyPatch) -> None:
    """They are not converted but copied as they lie, so their planes must have a size."""
    path = tmp_path / "png.mov"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("png", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "rgb24"
        for picture in moving_pictures(12):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        out.mux(stream.encode(None))

    def written() -> np.ndarray:
        pictures = list(PictureDecoder(open_packets(str(path)), "x").pictures(np.arange(12), 4))
        colours = np.zeros((12, 3, 48, 64), np.uint8)
        Converter().write_all([frame for _, frame in pictures], [i for i, _ in pictures], colours)
        return colours

    in_python = written()
    python.undo()
    assert np.array_equal(written(), in_python)
    # Also those behind the first: PNG's decoder adds to the one before what is not called a key frame.
    assert np.array_equal(in_python.transpose(0, 2, 3, 1), container_decode(path))


@needs_c
def test_colours_are_the_same(python: pytest.MonkeyPatch) -> None:
    kind, frames = Colours("yuv420p", 48, 64, 2, 0), []
    for seed in range(5):
        frame = noise("yuv420p", 48, 64)
        for plane in frame.planes:
            plane.update(np.random.default_rng(seed).bytes(plane.buffer_size))
        frames.append(frame)

    def written() -> np.ndarray:
        out = np.zeros((6, 3, 48, 64), np.uint8)
        scaler = Scaler(kind)
        first = scaler.address(out)
        assert first is not None
        scaler.write(frames, [first + place * scaler.nbytes for place in (5, 0, 2, 1, 4)])
        return out

    in_python = written()
    python.undo()
    assert loops.compiled() is not None
    assert np.array_equal(written(), in_python)
    assert not in_python[3].any()
    assert all(in_python[place].any() for place in (5, 0, 2, 1, 4))


@needs_c
def test_nothing_is_left_behind(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Packets, pictures and what is sent to a decoder are freed: 90 MB would remain of pictures alone."""
    kind, coded = coded_from(clips["h264-gop2"][0], 0, COUNT)
    context = _create(kind, "x")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    for turn in range(440):
        if turn == 40:
            before = resident()
        frames, _, failed = loops.decode(context, coded, "yuv420p" if turn else "")
        assert not failed
        assert len(frames) + len(context.decode(None)) == COUNT
        context.flush_buffers()
    assert resident() - before < 8 << 20


@pytest.mark.parametrize(
    "why",
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
def test_where_it_cannot_be_used_python_does_it(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clips: dict[str, tuple[Path, np.ndarray]]
) -> None:
    if why == "not compiled":
        monkeypatch.setattr(loops, "COMPILED", tmp_path / "none.so")
    elif why == "compiled from another version":
        monkeypatch.setattr(loops, "SOURCE", tmp_path / "loops.c")
        loops.SOURCE.write_text("/* newer */")
    elif why.endswith("er PyAV"):
        monkeypatch.setattr(loops, "PYAV", 14 if why == "an older PyAV" else 99)
    elif why == "PyAV hides a function":
        monkeypatch.setattr(loops, "_FUNCTIONS", ("avcodec_send_packet_2", *loops._FUNCTIONS[1:]))
    elif why == "objects":
        monkeypatch.setattr(loops, "_WRAPPED", 16)
    elif why == "numbers":  # that are no addresses
        plain = struct.unpack
        monkeypatch.setattr(loops.struct, "unpack", lambda form, raw: plain(form, b"\xff" * len(raw)))  # type: ignore[attr-defined]
    elif why == "structures":
        plain = struct.unpack
        # As if a field had come before the others.
        monkeypatch.setattr(loops.struct, "unpack", lambda form, raw: plain(form, raw[8:] + b"\0" * 8))  # type: ignore[attr-defined]
    else:
        monkeypatch.setattr(loops, "COMPILED", tmp_path / "text.so")
        loops.COMPILED.write_text("no code")
    loops.compiled.cache_clear()
    loops.state.cache_clear()
    try:
        with pytest.warns(UserWarning, match="decoded in Python"):
            assert loops.compiled() is None
        assert loops.state().why
        monkeypatch.setenv("UNDERSTUDY_NATIVE", "require")
        loops.compiled.cache_clear()
        with pytest.raises(DatasetError) as error:
            open_video(clips["h264-gop2"][0])
        assert loops.state().why in str(error.value)
        assert "\n" not in str(error.value)
        monkeypatch.delenv("UNDERSTUDY_NATIVE")
        path, pictures = clips["h264-gop2"]
        kind, coded = coded_from(path, 0, COUNT)
        context = _create(kind, "x")
        frames, fed, failed = loops.decode(context, coded, "yuv420p")
        frames += context.decode(None)
        assert (fed, failed) == (COUNT, False)
        assert colours(frames) == [picture.tobytes() for picture in pictures]
    finally:
        monkeypatch.undo()
        loops.compiled.cache_clear()
        loops.state.cache_clear()


def run_with(native: str, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(["-c", program] if program else ["-m", "understudy"]), *arguments]
    return subprocess.run(command, env={**os.environ, "UNDERSTUDY_NATIVE": native}, capture_output=True, text=True)


_BATCH = """
import sys, warnings, zlib
import numpy as np
warnings.simplefilter("error")
from understudy.data import ffmpeg, loops
from understudy.video.pyav import open_video
pictures = open_video(sys.argv[1]).read(np.arange(20))
print(loops.compiled() is not None, ffmpeg.swscale() is not None, zlib.crc32(np.ascontiguousarray(pictures)))
"""


@needs_c
def test_the_variable_turns_it_off_or_asks_for_it(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    path, pictures = clips["h264-bframes"]
    sum_ = zlib.crc32(np.ascontiguousarray(pictures[:20]))
    for native, used in (("0", False), ("", True), ("1", True), ("require", True)):
        done = run_with(native, _BATCH, str(path))
        assert (done.stdout.split(), done.stderr) == ([str(used), str(used), str(sum_)], "")


def test_another_value_is_refused() -> None:
    for arguments in (["bench", "x"], ["order", "explain"]):
        done = run_with("yes", "", *arguments)
        assert done.returncode == 2
        assert len(done.stderr.splitlines()) == 1
        assert "UNDERSTUDY_NATIVE='yes'" in done.stderr


@needs_c
def test_versions_say_whether_it_is_used() -> None:
    lines = dict(line.split(None, 1) for line in run_with("1", "", "--version", "-v").stdout.splitlines())
    assert lines["av"] == av.__version__
    assert lines["numpy"] == np.__version__
    assert {"understudy", "python", "torch", "pyarrow", "ffmpeg"} <= set(lines)
    assert lines["native"].startswith("used")
    off = run_with("0", "", "--version", "-v").stdout.splitlines()[-1]
    assert off.startswith("native")
    assert "UNDERSTUDY_NATIVE=0" in off
    assert len(run_with("1", "", "--version").stdout.splitlines()) == 1
    seen = run_with(
        "1",
        "import sys; from understudy.cli.main import main; main(['--version', '-v']); print('torch' in sys.modules)",
    )
    assert seen.stdout.splitlines()[-1] == "False"


class _App:
    said = ""

    def display_warning(self, text: str) -> None:
        self.said = text


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The build hook over a copy of the C file."""
    interface = ModuleType("hatchling.builders.hooks.plugin.interface")
    interface.BuildHookInterface = object  # type: ignore[attr-defined]
    for name in ("hatchling", "hatchling.builders", "hatchling.builders.hooks", "hatchling.builders.hooks.plugin"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, interface.__name__, interface)
    made = runpy.run_path(str(ROOT / "hatch_build.py"))["Loops"]()
    made.root, made.target_name, made.app = str(tmp_path), "wheel", _App()
    folder = tmp_path / "src/understudy/data"
    folder.mkdir(parents=True)
    shutil.copy(ROOT / "src/understudy/video/native/loops.c", folder)
    return made


@needs_c
def test_installing_compiles(hook: Any) -> None:
    build: dict[str, Any] = {"artifacts": []}
    hook.initialize("editable", build)
    if hook.app.said:
        pytest.skip("the C compiler that was there when understudy was installed is gone")
    (library,) = Path(hook.root).rglob("*.so")
    assert library.relative_to(hook.root).as_posix() == build["artifacts"][0]
    assert build["tag"].startswith("py3-none-")
    assert not build["pure_python"]
    assert library.name == loops.COMPILED.name
    assert ctypes.CDLL(str(library)).loops_source() & 0xFFFFFFFF == zlib.crc32(loops.SOURCE.read_bytes())


@needs_c
def test_a_wheel_is_for_old_systems_or_for_all(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    build: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build)
    if hook.app.said:
        pytest.skip("the C compiler that was there when understudy was installed is gone")
    if os.uname().machine in ("x86_64", "aarch64"):
        assert build["tag"].startswith("py3-none-manylinux_2_17_")
    platform = type(hook).initialize.__globals__["_platform"]
    assert "manylinux" not in platform(b"\0GLIBC_2.34\0")
    assert "manylinux" not in platform(b"\0libssl.so.3\0")
    monkeypatch.setenv("UNDERSTUDY_NATIVE", "0")
    build = {"artifacts": []}
    hook.initialize("standard", build)
    assert build == {"artifacts": []}


def test_installing_works_where_nothing_can_be_written(hook: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setenv("CC", "false")
    monkeypatch.setattr(Path, "unlink", refused)
    build: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build)
    assert build == {"artifacts": []}
    assert "will decode slower" in hook.app.said


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false", "sh -c 'echo broken >&2; exit 1'"])
def test_installing_works_without_a_compiler(hook: Any, compiler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was compiled from an older file goes: Python that is right beats code that is old."""
    monkeypatch.setenv("CC", compiler)
    old = Path(hook.root, "src/understudy/video/native/_loops.so")
    old.write_bytes(b"")
    build: dict[str, Any] = {"artifacts": []}
    hook.initialize("standard", build)
    assert build == {"artifacts": []}
    assert not old.exists()
    assert "will decode slower" in hook.app.said


@needs_c
def test_pictures_that_somebody_refers_to_stay(clips: dict[str, tuple[Path, np.ndarray]]) -> None:
    """Those that nobody does are filled again, by the decoder that asks next; the others keep what they hold."""
    path, pictures = clips["h264-bframes"]
    decoder, converter = PictureDecoder(open_packets(str(path)), "x"), Converter()
    out = np.zeros((8, *pictures.transpose(0, 3, 1, 2).shape[1:]), np.uint8)
    loops._spare.by_form["yuv420p"].clear()
    next(decoder.runs(np.arange(1), 1))  # a decoder's first picture is PyAV's
    mine: list[tuple[int, av.VideoFrame]] = []
    reused = 0
    for begin in range(1, COUNT - 8, 8):
        before = {id(one) for one in loops._spare.by_form["yuv420p"]}
        frames = [frame for run in decoder.runs(np.arange(begin, begin + 8), 8) for frame in run]
        reused += len({id(frame) for frame in frames} & before)
        mine.append((begin + 3, frames[3]))
        decoder.forget()  # the last run of few
        converter.write_all(frames, range(8), out)
        frames.clear()
        assert np.array_equal(out.transpose(0, 2, 3, 1), pictures[begin : begin + 8])
        assert not {id(frame) for _, frame in mine} & {id(one) for one in loops._spare.by_form["yuv420p"]}
    assert reused > 8
    for position, frame in mine:
        assert np.array_equal(rgb(frame), pictures[position])
