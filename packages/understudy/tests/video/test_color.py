"""RGB conversion equals the packed conversion in every way it can take, to the bit."""

import ctypes
import warnings

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import VideoReformatter
from hypothesis import example, given
from hypothesis import strategies as st
from torch.nn.functional import interpolate

from understudy.policies.common.encoders import as_network_input
from understudy_base.testing.refusals import refused
from understudy_data.testing.videos import rgb
from understudy_data.video import color
from understudy_data.video.color import AreaResize, Converter, planes_match_packed
from understudy_data.video.native import ffmpeg, swscale
from understudy_data.video.native.swscale import PixelLayout

FORMATS = (
    "yuv420p",
    "yuvj420p",
    "yuv422p",
    "yuv444p",
    "nv12",
    "gray",
    "rgb24",
    "gbrp",
    "yuv420p10le",
)


def random_frame(name: str, height: int, width: int, seed: int = 0) -> av.VideoFrame:
    rng = np.random.default_rng(seed)
    frame = av.VideoFrame(width, height, name)
    for plane in frame.planes:
        small = name.endswith("10le")
        data = (
            rng.integers(0, 1024, plane.buffer_size // 2).astype("<u2").tobytes() if small else None
        )
        plane.update(data or rng.bytes(plane.buffer_size))
    return frame


def packed(frame: av.VideoFrame) -> np.ndarray:
    return rgb(frame).transpose(2, 0, 1)


def aligned(height: int, width: int, guard: int = 64) -> tuple[np.ndarray, np.ndarray]:
    """uint8 (3, height, width) at an address that is a multiple of 64, and all memory around it,
    filled with sevens.
    """
    flat = np.full(3 * height * width + 64 + 2 * guard, 7, np.uint8)
    shift = guard + -(flat.__array_interface__["data"][0] + guard) % 64
    return flat[shift : shift + 3 * height * width].reshape(3, height, width), flat


@given(
    name=st.sampled_from(FORMATS),
    height=st.one_of(st.integers(1, 70), st.sampled_from([224, 480])),
    width=st.one_of(
        st.integers(2, 140),
        st.integers(1, 9).map(lambda n: 16 * n),
        st.sampled_from([224, 640, 848]),
    ),
    matrix=st.sampled_from([None, 1, 2, 5, 6, 7, 9]),
    color_range=st.sampled_from([None, 1, 2]),
    seed=st.integers(0, 3),
    direct=st.booleans(),
)
# Equal on the noise of the trial.
@example(name="yuv420p", height=7, width=11, matrix=None, color_range=2, seed=2, direct=False)
def test_converter_equals_the_packed_conversion(
    name: str,
    height: int,
    width: int,
    matrix: int | None,
    color_range: int | None,
    seed: int,
    direct: bool,
) -> None:
    """Straight into the array or through PyAV, in aligned memory, without a byte beside it."""
    frame = random_frame(name, height, width, seed)
    if matrix is not None:
        frame.colorspace = matrix
    if color_range is not None:
        frame.color_range = color_range
    out, around = aligned(height, width)
    with pytest.MonkeyPatch.context() as patch:
        if not direct:
            patch.setattr(color, "matches_pyav", lambda layout: False)
        Converter().write(frame, out)
    assert np.array_equal(out, packed(frame))
    out[...] = 7
    assert (around == 7).all()


@pytest.mark.parametrize("size", [None, (24, 32)])
@pytest.mark.parametrize("name", ["yuv420p", "yuv444p", "yuv420p10le"])
@pytest.mark.parametrize(
    ("matrix", "red", "blue"), [(1, 0.2126, 0.0722), (2, 0.299, 0.114), (9, 0.2627, 0.0593)]
)
@pytest.mark.parametrize("full", [False, True])
def test_converter_follows_matrix_and_range_of_the_frame(
    name: str, matrix: int, red: float, blue: float, full: bool, size: tuple[int, int] | None
) -> None:
    """Compared with the formula of the standards, in every version of PyAV: 15 and 16 ignore
    both.
    """
    deep = 4 if name.endswith("10le") else 1
    wanted = np.array([200, 90, 40]) / 255
    light = wanted @ [red, 1 - red - blue, blue]
    differences = (wanted[[2, 0]] - light) / (2 * (1 - np.array([blue, red])))
    parts = (
        [light * 255, *(128 + differences * 255)]
        if full
        else [16 + light * 219, *(128 + differences * 224)]
    )
    frame = av.VideoFrame(64, 48, name)
    frame.colorspace = matrix
    frame.color_range = 2 if full else 1
    for plane, part in zip(frame.planes, parts):
        kind = "<u2" if deep > 1 else "u1"
        plane.update(
            np.full(
                plane.buffer_size // np.dtype(kind).itemsize, round(part * deep), kind
            ).tobytes()
        )
    out = np.zeros((3, *(size or (48, 64))), np.uint8)
    with warnings.catch_warnings():  # about FFmpeg 7, whose bits differ
        warnings.simplefilter("ignore", UserWarning)
        Converter(size).write(frame, out)
    assert np.abs(out.reshape(3, -1).T - wanted * 255).max() < 4


@pytest.mark.skipif(
    ffmpeg.load_swscale() is None, reason="this PyAV hides the symbols of its FFmpeg"
)
@pytest.mark.parametrize("matrix", [0, 1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize(
    ("height", "width"), [(480, 640), (224, 224), (256, 256), (720, 1280), (48, 64)]
)
def test_matches_pyav_for_usual_cameras(height: int, width: int, matrix: int) -> None:
    assert all(
        swscale.matches_pyav(PixelLayout("yuv420p", height, width, matrix, full))
        for full in (0, 1, 2)
    )


def test_converter_writes_unaligned_memory() -> None:
    frame = random_frame("yuv420p", 48, 64)
    converter = Converter()
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
def test_matches_pyav_detects(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A swscale that differs from PyAV's is not used, and images are right."""
    plain = swscale.PlaneConverter.write

    def write(self: swscale.PlaneConverter, frames: list[av.VideoFrame], to: list[int]) -> None:
        if fault == "fails":
            raise RuntimeError("no")
        if fault != "nothing written":
            plain(self, frames, to)
        memory = (ctypes.c_uint8 * (self.nbytes + 1)).from_address(to[0])
        if fault == "another order":
            memory[: self.nbytes] = bytes(memory)[: self.nbytes][::-1]
        elif fault == "a byte beside":
            memory[self.nbytes] ^= 1

    if ffmpeg.load_swscale() is None:
        pytest.skip("this PyAV hides the symbols of its FFmpeg")
    kind = PixelLayout("yuv420p", 48, 96, 2, 0)
    swscale.matches_pyav.cache_clear()
    monkeypatch.setattr(swscale.PlaneConverter, "write", write)
    try:
        assert not swscale.matches_pyav(kind)
        frame = random_frame("yuv420p", 48, 96, 1)
        out = np.zeros((3, 48, 96), np.uint8)
        Converter().write(frame, out)
        assert np.array_equal(out, packed(frame))
    finally:
        swscale.matches_pyav.cache_clear()


@pytest.mark.parametrize("size", [None, (24, 32)])
@pytest.mark.parametrize("shift", [0, 1])
def test_write_all_equals_write(shift: int, size: tuple[int, int] | None) -> None:
    """Each frame goes to its place only, also where pixel layouts alternate and where memory is not
    aligned.
    """
    frames = [random_frame("yuv420p", 48, 64, seed) for seed in range(6)]
    for frame in frames[2:4]:
        frame.colorspace = 1
        frame.color_range = 2
    height, width = size or (48, 64)
    flat = np.full(9 * 3 * height * width + 64 + shift, 7, np.uint8)
    first = -flat.__array_interface__["data"][0] % 16 + shift
    out = flat[first : first + 9 * 3 * height * width].reshape(9, 3, height, width)
    places = [8, 1, 0, 5, 3, 2]
    converter = Converter(size)
    converter.write_all(frames, places, out)
    for frame, place in zip(frames, places):
        alone = np.empty((3, height, width), np.uint8)
        Converter(size).write(frame, alone)
        assert np.array_equal(out[place], alone)
    assert (out[[4, 6, 7]] == 7).all()
    assert (flat[:first] == 7).all()
    assert (flat[first + out.size :] == 7).all()
    with refused("64x48", kind=ValueError):
        converter.write_all([frames[0]], [0], np.empty((1, 3, 10, 10), np.uint8))


def test_converter_without_symbols(monkeypatch: pytest.MonkeyPatch) -> None:
    class Hidden:
        __file__ = "nowhere.so"

    ffmpeg.load_swscale.cache_clear()
    swscale.matches_pyav.cache_clear()
    try:
        monkeypatch.setattr(av.video, "reformatter", Hidden)
        assert ffmpeg.load_swscale() is None
        frame = random_frame("yuv420p", 48, 64, 3)
        out = np.zeros((3, 48, 64), np.uint8)
        Converter().write(frame, out)
        assert np.array_equal(out, packed(frame))
        with refused("swscale", kind=RuntimeError):
            swscale.PlaneConverter(PixelLayout("yuv420p", 48, 64, 2, 0))
    finally:
        ffmpeg.load_swscale.cache_clear()
        swscale.matches_pyav.cache_clear()


def test_converter_takes_all_layouts_and_strides() -> None:
    converter = Converter()
    for seed, (name, height, width) in enumerate(
        [("yuv420p", 48, 64), ("gray", 20, 30), ("yuv420p", 18, 50)] * 2
    ):
        frame = random_frame(name, height, width, seed)
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
def test_planes_match_packed_for_usual_cameras(height: int, width: int) -> None:
    assert planes_match_packed("yuv420p", height, width)


@pytest.mark.parametrize("name", ["yuv444p", "yuv420p10le", "nv12"])
def test_planes_do_not_match_packed_for_other_formats(name: str) -> None:
    assert not planes_match_packed(name, 480, 640)


def test_planes_that_differ_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trial on noise detects planes in another order. With the trial off they are delivered."""
    monkeypatch.setattr(color, "matches_pyav", lambda layout: False)
    monkeypatch.setattr(color, "PLANE_CHANNELS", (0, 1, 2))
    planes_match_packed.cache_clear()
    try:
        frame = random_frame("yuv420p", 48, 64, 1)
        out = np.zeros((3, 48, 64), np.uint8)
        Converter().write(frame, out)
        assert np.array_equal(out, packed(frame))
        monkeypatch.setattr(color, "planes_match_packed", lambda *_: True)
        Converter().write(frame, out)
        assert not np.array_equal(out, packed(frame))
    finally:
        planes_match_packed.cache_clear()


def test_converter_does_not_change_the_frame() -> None:
    frame = random_frame("yuv420p", 48, 64)
    before = [bytes(plane) for plane in frame.planes]
    Converter().write(frame, np.zeros((3, 48, 64), np.uint8))
    assert [bytes(plane) for plane in frame.planes] == before
    assert VideoReformatter().reformat(frame, format="yuv420p") is frame


@pytest.mark.parametrize(
    "shape", [(3, 48, 60), (48, 64, 3), (3, 24, 32), (1, 48, 64), (2, 3, 48, 64)]
)
def test_converter_refuses_another_shape(shape: tuple[int, ...]) -> None:
    with refused("64x48", "uint8", kind=ValueError):
        Converter().write(random_frame("yuv420p", 48, 64), np.zeros(shape, np.uint8))
    with refused("float32", kind=ValueError):
        Converter().write(random_frame("yuv420p", 48, 64), np.zeros((3, 48, 64), np.float32))


def camera_like(height: int, width: int, seed: int) -> av.VideoFrame:
    """Smooth colors, a few hard edges, a little noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    image = 120 + 60 * np.stack(
        [np.sin(x / 90 + seed), np.cos(y / 70), np.sin((x + y) / 120)], axis=-1
    )
    for _ in range(12):
        top = rng.integers(0, height - 40)
        left = rng.integers(0, width - 60)
        image[top : top + rng.integers(10, 40), left : left + rng.integers(10, 60)] = rng.integers(
            0, 256, 3
        )
    image = np.clip(image + rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8)
    return av.VideoFrame.from_ndarray(image, format="rgb24").reformat(format="yuv420p")


@given(
    height=st.integers(1, 90),
    width=st.integers(1, 90),
    high=st.integers(1, 100),
    wide=st.integers(1, 100),
    data=st.data(),
)
def test_area_resize_equals_torch(
    height: int, width: int, high: int, wide: int, data: st.DataObject
) -> None:
    planes = np.random.default_rng(data.draw(st.integers(0, 5))).integers(
        0, 256, (3, height, width), dtype=np.uint8
    )
    out = np.full((3, high, wide), 7, np.uint8)
    AreaResize(height, width, (high, wide))(planes, out)
    expected = interpolate(torch.from_numpy(planes)[None].double(), size=(high, wide), mode="area")[
        0
    ].numpy()
    assert np.abs(out - expected).max() <= 0.5 + 1e-9


def test_area_resize_long_windows_do_not_overflow() -> None:
    white = np.full((3, 1200, 700), 255, np.uint8)
    out = np.zeros((3, 2, 2), np.uint8)
    AreaResize(1200, 700, (2, 2))(white, out)
    assert (out == 255).all()


@pytest.mark.parametrize("size", [(64, 64), (224, 224), (96, 128), (480, 640)])
def test_resized_images_equal_those_of_the_policy(size: tuple[int, int]) -> None:
    converter = Converter(size)
    out = np.zeros((3, *size), np.uint8)
    for seed in range(2):
        frame = camera_like(480, 640, seed)
        converter.write(frame, out)
        full = torch.from_numpy(packed(frame).copy())[None]
        ours = as_network_input(torch.from_numpy(out)[None], size, torch.float32)
        theirs = as_network_input(full, size, torch.float32)
        assert (ours - theirs).abs().max() <= (0.5 + 1e-3) / 127.5


def test_area_resize_refuses_impossible_sizes() -> None:
    with refused("size=(0, 5)", kind=ValueError):
        AreaResize(48, 64, (0, 5))
    with pytest.raises(ValueError, match=r"size \(24, 32\)"):
        Converter((24, 32)).write(random_frame("yuv420p", 48, 64), np.zeros((3, 48, 64), np.uint8))
