"""Colours of pictures: whatever way they take, they are those of the packed form, to the bit."""

import ctypes
import warnings

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import VideoReformatter
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from support.videos import rgb
from understudy.policies.flow.vision import as_network_input
from understudy.video import color
from understudy.video.color import Converter, planar_is_equal
from understudy.video.native import ffmpeg, swscale
from understudy.video.native.swscale import Kind
from understudy.video.resize import AreaResize

FORMATS = ("yuv420p", "yuvj420p", "yuv422p", "yuv444p", "nv12", "gray", "rgb24", "gbrp", "yuv420p10le")


def noise(name: str, height: int, width: int, seed: int = 0) -> av.VideoFrame:
    rng, frame = np.random.default_rng(seed), av.VideoFrame(width, height, name)
    for plane in frame.planes:
        small = name.endswith("10le")
        data = rng.integers(0, 1024, plane.buffer_size // 2).astype("<u2").tobytes() if small else None
        plane.update(data or rng.bytes(plane.buffer_size))
    return frame


def packed(frame: av.VideoFrame) -> np.ndarray:
    return rgb(frame).transpose(2, 0, 1)


def aligned(height: int, width: int, guard: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (3, height, width) at an address that is a multiple of 64, and the whole memory around it, all sevens."""
    flat = np.full(3 * height * width + 64 + 2 * guard, 7, np.uint8)
    shift = guard + -(flat.__array_interface__["data"][0] + guard) % 64
    return flat[shift : shift + 3 * height * width].reshape(3, height, width), flat


@settings(max_examples=200, deadline=None)
@given(
    name=st.sampled_from(FORMATS),
    height=st.one_of(st.integers(1, 70), st.sampled_from([224, 480])),
    width=st.one_of(st.integers(2, 140), st.integers(1, 9).map(lambda n: 16 * n), st.sampled_from([224, 640, 848])),
    matrix=st.sampled_from([None, 1, 2, 5, 6, 7, 9]),
    colours=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 3),
    direct=st.booleans(),
)
@example(name="yuv420p", height=7, width=11, matrix=None, colours=2, seed=2, direct=False)  # equal on the trial's noise
def test_any_picture_equals_the_packed_conversion(
    name: str, height: int, width: int, matrix: int | None, colours: int | None, seed: int, direct: bool
) -> None:
    """Straight into the array or through PyAV, in aligned memory, and not one byte beside it."""
    frame = noise(name, height, width, seed)
    if matrix is not None:
        frame.colorspace = matrix
    if colours is not None:
        frame.color_range = colours
    out, around = aligned(height, width)
    with pytest.MonkeyPatch.context() as patch:
        if not direct:
            patch.setattr(color, "is_equal", lambda kind: False)
        Converter().write(frame, out)
    assert np.array_equal(out, packed(frame))
    out[...] = 7
    assert (around == 7).all()


@pytest.mark.parametrize("size", [None, (24, 32)])
@pytest.mark.parametrize("name", ["yuv420p", "yuv444p", "yuv420p10le"])
@pytest.mark.parametrize(("matrix", "red", "blue"), [(1, 0.2126, 0.0722), (2, 0.299, 0.114), (9, 0.2627, 0.0593)])
@pytest.mark.parametrize("full", [False, True])
def test_colours_follow_the_matrix_and_range_that_the_picture_names(
    name: str, matrix: int, red: float, blue: float, full: bool, size: tuple[int, int] | None
) -> None:
    """Held against the formula of the standards, in every version of PyAV: 15 and 16 do not look at either."""
    deep = 4 if name.endswith("10le") else 1
    wanted = np.array([200, 90, 40]) / 255
    light = wanted @ [red, 1 - red - blue, blue]
    differences = (wanted[[2, 0]] - light) / (2 * (1 - np.array([blue, red])))
    parts = [light * 255, *(128 + differences * 255)] if full else [16 + light * 219, *(128 + differences * 224)]
    frame = av.VideoFrame(64, 48, name)
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    for plane, part in zip(frame.planes, parts):
        kind = "<u2" if deep > 1 else "u1"
        plane.update(np.full(plane.buffer_size // np.dtype(kind).itemsize, round(part * deep), kind).tobytes())
    out = np.zeros((3, *(size or (48, 64))), np.uint8)
    for exact in (True, False):
        with warnings.catch_warnings():  # of FFmpeg 7, whose bits differ
            warnings.simplefilter("ignore", UserWarning)
            Converter(size, exact).write(frame, out)
        assert np.abs(out.reshape(3, -1).T - wanted * 255).max() < 4


@pytest.mark.skipif(ffmpeg.swscale() is None, reason="this PyAV hides the symbols of its FFmpeg")
@pytest.mark.parametrize("matrix", [0, 1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize(("height", "width"), [(480, 640), (224, 224), (256, 256), (720, 1280), (48, 64)])
def test_what_cameras_record_is_written_straight(height: int, width: int, matrix: int) -> None:
    assert all(swscale.is_equal(Kind("yuv420p", height, width, matrix, colours)) for colours in (0, 1, 2))


def test_memory_that_does_not_suit_goes_through_pyav() -> None:
    frame, converter = noise("yuv420p", 48, 64), Converter()
    for shift in range(1, 40):
        flat = np.full(3 * 48 * 64 + 64, 7, np.uint8)
        out = flat[shift : shift + 3 * 48 * 64].reshape(3, 48, 64)
        converter.write(frame, out)
        assert np.array_equal(out, packed(frame))
        assert (flat[:shift] == 7).all()
        assert (flat[shift + out.size :] == 7).all()
    frozen = np.full((3, 48, 64), 7, np.uint8)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        converter.write(frame, frozen)
    assert (frozen == 7).all()


@pytest.mark.parametrize("fault", ["another order", "a byte beside", "nothing written", "fails"])
def test_the_trial_notices(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a swscale that differs from PyAV's would do: nobody then uses it, and pictures are right all the same."""
    plain = swscale.Scaler.write

    def write(self: swscale.Scaler, frames: list[av.VideoFrame], to: list[int]) -> None:
        if fault == "fails":
            raise RuntimeError("no")
        if fault != "nothing written":
            plain(self, frames, to)
        memory = (ctypes.c_uint8 * (self.nbytes + 1)).from_address(to[0])
        if fault == "another order":
            memory[: self.nbytes] = bytes(memory)[: self.nbytes][::-1]
        elif fault == "a byte beside":
            memory[self.nbytes] ^= 1

    if ffmpeg.swscale() is None:
        pytest.skip("this PyAV hides the symbols of its FFmpeg")
    kind = Kind("yuv420p", 48, 96, 2, 0)
    swscale.is_equal.cache_clear()
    monkeypatch.setattr(swscale.Scaler, "write", write)
    try:
        assert not swscale.is_equal(kind)
        frame, out = noise("yuv420p", 48, 96, 1), np.zeros((3, 48, 96), np.uint8)
        Converter().write(frame, out)
        assert np.array_equal(out, packed(frame))
    finally:
        swscale.is_equal.cache_clear()


@pytest.mark.parametrize("size", [None, (24, 32)])
@pytest.mark.parametrize("shift", [0, 1])
def test_many_are_written_as_one_by_one(shift: int, size: tuple[int, int] | None) -> None:
    """Each in its place and nowhere else, also where kinds of picture alternate and where memory does not suit."""
    frames = [noise("yuv420p", 48, 64, seed) for seed in range(6)]
    for frame in frames[2:4]:
        frame.colorspace, frame.color_range = 1, 2
    height, width = size or (48, 64)
    flat = np.full(9 * 3 * height * width + 64 + shift, 7, np.uint8)
    first = -flat.__array_interface__["data"][0] % 16 + shift
    out = flat[first : first + 9 * 3 * height * width].reshape(9, 3, height, width)
    places, converter = [8, 1, 0, 5, 3, 2], Converter(size)
    converter.write_all(frames, places, out)
    for frame, place in zip(frames, places):
        alone = np.empty((3, height, width), np.uint8)
        Converter(size).write(frame, alone)
        assert np.array_equal(out[place], alone)
    assert (out[[4, 6, 7]] == 7).all()
    assert (flat[:first] == 7).all()
    assert (flat[first + out.size :] == 7).all()
    with pytest.raises(ValueError, match="does not fit"):
        converter.write_all([frames[0]], [0], np.empty((1, 3, 10, 10), np.uint8))


def test_without_the_symbols_pictures_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hidden:
        __file__ = "nowhere.so"

    ffmpeg.swscale.cache_clear()
    swscale.is_equal.cache_clear()
    try:
        monkeypatch.setattr(av.video, "reformatter", Hidden)
        assert ffmpeg.swscale() is None
        frame, out = noise("yuv420p", 48, 64, 3), np.zeros((3, 48, 64), np.uint8)
        Converter().write(frame, out)
        assert np.array_equal(out, packed(frame))
        with pytest.raises(RuntimeError, match="cannot be reached"):
            swscale.Scaler(Kind("yuv420p", 48, 64, 2, 0))
    finally:
        ffmpeg.swscale.cache_clear()
        swscale.is_equal.cache_clear()


def test_colours_that_change_on_the_way_are_followed() -> None:
    converter, (out, _) = Converter(), aligned(48, 64)
    for matrix, colours in [(1, 1), (1, 2), (9, 2), (1, 1), (6, 0)]:
        frame = noise("yuv420p", 48, 64)
        frame.colorspace, frame.color_range = matrix, colours
        converter.write(frame, out)
        assert np.array_equal(out, packed(frame))


def test_one_converter_for_pictures_of_all_kinds_and_into_any_strides() -> None:
    converter = Converter()
    for seed, (name, height, width) in enumerate([("yuv420p", 48, 64), ("gray", 20, 30), ("yuv420p", 18, 50)] * 2):
        frame = noise(name, height, width, seed)
        wide = np.zeros((2, 3, height, width + 5), np.uint8)
        converter.write(frame, wide[1, :, :, 2 : 2 + width])
        assert np.array_equal(wide[1, :, :, 2 : 2 + width], packed(frame))
        assert not wide[0].any()
        assert not wide[1, :, :, :2].any()
        assert not wide[1, :, :, 2 + width :].any()
        last = np.zeros((height, width, 3), np.uint8)
        converter.write(frame, last.transpose(2, 0, 1))
        assert np.array_equal(last.transpose(2, 0, 1), packed(frame))


@pytest.mark.parametrize(("height", "width"), [(480, 640), (224, 224), (256, 256)])
def test_what_cameras_record_is_converted_by_planes(height: int, width: int) -> None:
    assert planar_is_equal("yuv420p", height, width)


@pytest.mark.parametrize("name", ["yuv444p", "yuv420p10le", "nv12"])
def test_other_formats_are_taken_apart(name: str) -> None:
    assert not planar_is_equal(name, 480, 640)


def test_planes_that_differ_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial on noise is what protects: planes of another order are noticed, and with it switched off they are
    delivered."""
    monkeypatch.setattr(color, "is_equal", lambda kind: False)
    monkeypatch.setattr(color, "_PLANES", (0, 1, 2))
    planar_is_equal.cache_clear()
    try:
        frame, out = noise("yuv420p", 48, 64, 1), np.zeros((3, 48, 64), np.uint8)
        Converter().write(frame, out)
        assert np.array_equal(out, packed(frame))
        monkeypatch.setattr(color, "planar_is_equal", lambda *_: True)
        Converter().write(frame, out)
        assert not np.array_equal(out, packed(frame))
    finally:
        planar_is_equal.cache_clear()


def test_the_trial_leaves_no_trace_on_the_picture() -> None:
    frame = noise("yuv420p", 48, 64)
    before = [bytes(plane) for plane in frame.planes]
    Converter().write(frame, np.zeros((3, 48, 64), np.uint8))
    assert [bytes(plane) for plane in frame.planes] == before
    assert VideoReformatter().reformat(frame, format="yuv420p") is frame


@pytest.mark.parametrize("shape", [(3, 48, 60), (48, 64, 3), (3, 24, 32), (1, 48, 64), (2, 3, 48, 64)])
def test_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="64x48 does not fit uint8"):
        Converter().write(noise("yuv420p", 48, 64), np.zeros(shape, np.uint8))
    with pytest.raises(ValueError, match="does not fit float32"):
        Converter().write(noise("yuv420p", 48, 64), np.zeros((3, 48, 64), np.float32))


def camera_like(height: int, width: int, seed: int) -> av.VideoFrame:
    """Smooth colours, a few hard edges, a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    picture = 120 + 60 * np.stack([np.sin(x / 90 + seed), np.cos(y / 70), np.sin((x + y) / 120)], axis=-1)
    for _ in range(12):
        top, left = rng.integers(0, height - 40), rng.integers(0, width - 60)
        picture[top : top + rng.integers(10, 40), left : left + rng.integers(10, 60)] = rng.integers(0, 256, 3)
    picture = np.clip(picture + rng.normal(0, 3, picture.shape), 0, 255).astype(np.uint8)
    return av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    high=st.integers(1, 100),
    wide=st.integers(1, 100),
    data=st.data(),
)
def test_area_averaging_is_that_of_the_policies(
    height: int, width: int, high: int, wide: int, data: st.DataObject
) -> None:
    planes = np.random.default_rng(data.draw(st.integers(0, 5))).integers(0, 256, (3, height, width), dtype=np.uint8)
    out = np.full((3, high, wide), 7, np.uint8)
    AreaResize(height, width, (high, wide))(planes, out)
    expected = interpolate(torch.from_numpy(planes)[None].double(), size=(high, wide), mode="area")[0].numpy()
    assert np.abs(out - expected).max() <= 0.5 + 1e-9


def test_long_windows_do_not_overflow() -> None:
    white = np.full((3, 1200, 700), 255, np.uint8)
    out = np.zeros((3, 2, 2), np.uint8)
    AreaResize(1200, 700, (2, 2))(white, out)
    assert (out == 255).all()


@pytest.mark.parametrize("size", [(64, 64), (224, 224), (96, 128), (480, 640)])
def test_resized_pictures_are_what_the_policy_would_have_made(size: tuple[int, int]) -> None:
    converter, out = Converter(size), np.zeros((3, *size), np.uint8)
    for seed in range(2):
        frame = camera_like(480, 640, seed)
        converter.write(frame, out)
        full = torch.from_numpy(packed(frame).copy())[None]
        ours = as_network_input(torch.from_numpy(out)[None], size, torch.float32)
        theirs = as_network_input(full, size, torch.float32)
        assert (ours - theirs).abs().max() <= (0.5 + 1e-3) / 127.5


@pytest.mark.parametrize("size", [(64, 64), (224, 224), (96, 128), (50, 90)])
def test_the_quick_way_stays_within_its_tolerance(size: tuple[int, int]) -> None:
    exact, quick = Converter(size), Converter(size, exact=False)
    one, two = np.zeros((3, *size), np.uint8), np.zeros((3, *size), np.uint8)
    for seed in range(3):
        exact.write(camera_like(480, 640, seed), one)
        quick.write(camera_like(480, 640, seed), two)
        error = np.abs(one.astype(int) - two)
        assert 0 < error.mean() <= 2
        assert error.max() <= 50
    exact.write(camera_like(480, 640, 9), one)
    assert np.abs(one.astype(int) - two).mean() > 4  # another picture is far outside


def test_without_a_change_of_size_the_quick_way_is_exact() -> None:
    frame, out = noise("yuv420p", 48, 64), np.zeros((3, 48, 64), np.uint8)
    Converter((48, 64), exact=False).write(frame, out)
    assert np.array_equal(out, packed(frame))


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(ValueError, match=r"size=\(0, 5\)"):
        AreaResize(48, 64, (0, 5))
    with pytest.raises(ValueError, match=r"size \(24, 32\)"):
        Converter((24, 32)).write(noise("yuv420p", 48, 64), np.zeros((3, 48, 64), np.uint8))
