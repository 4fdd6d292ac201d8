"""`understudy edit --add-video`: the frames of a naive reading, as a camera like any other."""

import bisect
import json
import subprocess
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.parts import Workers
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_data.testing.videos import (
    QUARTER_TURNS,
    container_decode,
    encode_video,
    moving_pictures,
    rgb,
    set_matrix,
)
from understudy_tools.check.examine import check_dataset
from understudy_tools.cli.edit import EditConfig, make_plans
from understudy_tools.edit.write_set import write_outputs
from understudy_tools.testing.edited import content, edit, episode

TOP = "observation.images.top"
NEW = "observation.images.outside"
FPS = 10
LENGTHS = (12, 9, 8)
STEADY = tuple(Fraction(i, 24) for i in range(100))
UNSTEADY = tuple(Fraction(37 * i + 6 * (i % 5), 1000) for i in range(100))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "set"
    write_dataset(root, Spec("v3.0", lengths=LENGTHS, gop=4))
    return root


def film(
    path: Path, times: tuple[Fraction, ...] = STEADY, b_frames: int = 2, seed: int = 5
) -> Path:
    """A video whose frames are shown at these seconds."""
    with av.open(str(path), "w") as out:
        options = {"g": "12", "bf": str(b_frames), "preset": "ultrafast"}
        stream = out.add_stream("libx264", rate=24, options=options)
        assert isinstance(stream, av.VideoStream)
        stream.height = 48
        stream.width = 64
        stream.pix_fmt = "yuv420p"
        unit = Fraction(1, 24000)
        stream.time_base = unit
        stream.codec_context.time_base = unit
        for image, second in zip(moving_pictures(len(times), seed=seed), times, strict=True):
            frame = av.VideoFrame.from_ndarray(image, format="rgb24")
            frame.time_base = unit
            frame.pts = round(second / unit)
            out.mux(stream.encode(frame))
        out.mux(stream.encode(None))
    return path


def naive(path: Path, wanted: list[Fraction]) -> list[np.ndarray]:
    """The frame that is shown nearest to each time, by PyAV alone."""
    with av.open(str(path)) as file:
        start = Fraction(file.start_time or 0, av.time_base)
        stream = file.streams.video[0]
        unit = stream.time_base or Fraction(0)
        shown = [((frame.pts or 0) * unit - start, rgb(frame)) for frame in file.decode(stream)]
    times = [second for second, _ in shown]
    images = []
    for second in wanted:
        place = bisect.bisect(times, second)
        near = [number for number in (place - 1, place) if 0 <= number < len(times)]
        chosen = min(near, key=lambda number: (round(abs(times[number] - second), 6), number))
        images.append(shown[chosen][1])
    return images


def times_of(start: Fraction, length: int, first: int = 0) -> list[Fraction]:
    return [start + Fraction(first + frame, FPS) for frame in range(length)]


def encoded(path: Path, images: list[np.ndarray], gop: int = 4) -> np.ndarray:
    """Images as the encoder of the camera leaves them, uint8 (n, 3, H, W)."""
    encode_video(path, images, FPS, "libx264", gop, 22, {"tune": "fastdecode"})
    return container_decode(path).transpose(0, 3, 1, 2)


def unchanged(path: Path) -> Path:
    return path


def cut_ten_frames(path: Path) -> Path:
    """Raise the first time of the edit list, so that the first ten frames are never shown."""
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 16  # version and flags, count, duration, then the media time
    media_time = int.from_bytes(data[at : at + 4], "big") + 10 * 1000
    data[at : at + 4] = media_time.to_bytes(4, "big")
    path.write_bytes(data)
    return path


def turned(path: Path) -> Path:
    return set_matrix(path, QUARTER_TURNS[1])


KINDS: dict[str, tuple[str, tuple[Fraction, ...], int, Callable[[Path], Path]]] = {
    "constant rate": ("mp4", STEADY, 2, unchanged),
    "variable rate": ("mp4", UNSTEADY, 2, unchanged),
    "late begin": ("mkv", tuple(second + 7 for second in UNSTEADY), 0, unchanged),
    "transport stream": ("ts", STEADY, 2, unchanged),
    "edit list": ("mp4", STEADY, 2, cut_ten_frames),
}


@pytest.mark.parametrize("kind", KINDS)
def test_images_are_those_of_a_naive_reading(kind: str, source: Path, tmp_path: Path) -> None:
    suffix, times, b_frames, change = KINDS[kind]
    path = change(film(tmp_path / f"outside.{suffix}", times, b_frames))
    edit(source, tmp_path / "out", add_video=(NEW, str(path)), start="0.21")
    edit(source, tmp_path / "plain")
    first = 0
    for number, length in enumerate(LENGTHS):
        wanted = naive(path, times_of(Fraction(21, 100), length, first))
        first += length
        images = encoded(tmp_path / f"{number}.mp4", wanted)
        found = episode(tmp_path / "out", number)
        assert np.array_equal(found[NEW], images)
        assert len(np.unique(found[NEW].reshape(length, -1), axis=0)) > length // 2
        assert np.array_equal(found[TOP], episode(source, number)[TOP])


def test_all_else_is_what_edit_writes_without_it(source: Path, tmp_path: Path) -> None:
    path = film(tmp_path / "outside.mp4")
    edit(source, tmp_path / "plain")
    edit(source, tmp_path / "out", add_video=(NEW, str(path)), start="0.5")
    plain = content(tmp_path / "plain")
    out = content(tmp_path / "out")
    own = {name for name in out if name.startswith(f"videos/{NEW}/")}
    assert own
    shared = {name for name in plain if name.startswith(("data", "videos", "meta/tasks"))}
    assert {name: out[name] for name in shared} == {name: plain[name] for name in shared}
    assert out.keys() == plain.keys() | own
    for name in ("meta/info.json", "meta/stats.json"):
        one = json.loads(plain[name])
        two = json.loads(out[name])
        entry = two.get("features", two).pop(NEW)
        assert one == two
        if name == "meta/info.json":
            assert entry["shape"] == [48, 64, 3]
            assert entry["info"]["video.g"] == one["features"][TOP]["info"].get("video.g", 4)
    images = np.concatenate([episode(tmp_path / "out", n)[NEW] for n in range(len(LENGTHS))])
    stats = json.loads(out["meta/stats.json"])[NEW]
    assert np.allclose(np.ravel(stats["mean"]), images.mean((0, 2, 3)) / 255, rtol=0, atol=1e-12)
    report = check_dataset(str(tmp_path / "out"), "all", show_progress=False)
    assert [one for one in report.findings if one.severity == "error"] == []
    origin = json.loads(out["origin"])["added_video"]
    assert origin["starts"] == {"0": 0.5, "1": 1.7, "2": 2.6}


def test_a_turned_video_is_shown_upright(source: Path, tmp_path: Path) -> None:
    path = turned(film(tmp_path / "outside.mp4"))
    edit(source, tmp_path / "out", add_video=(NEW, str(path)))
    upright = [np.rot90(image, 1) for image in naive(path, times_of(Fraction(0), LENGTHS[0]))]
    images = encoded(tmp_path / "0.mp4", [np.ascontiguousarray(image) for image in upright])
    assert np.array_equal(episode(tmp_path / "out", 0)[NEW], images)
    assert Catalog.open(tmp_path / "out").features[NEW].size == (64, 48)


@pytest.mark.parametrize("form", ["json", "csv"])
def test_starts_of_a_file_and_a_cut(form: str, source: Path, tmp_path: Path) -> None:
    starts = {"2": 0.25, "1": 1.125}
    path = film(tmp_path / "outside.mp4", UNSTEADY)
    file = tmp_path / f"starts.{form}"
    file.write_text(json.dumps(starts))
    if form == "csv":
        file.write_text("episode_index,start\n2,0.25\n1,1.125\n")
    edit(
        source,
        tmp_path / "out",
        episodes=("1-2",),
        drop_n_first_frames=3,
        add_video=(NEW, str(path)),
        start=str(file),
    )
    for number, (start, length) in enumerate(((Fraction(9, 8), 9), (Fraction(1, 4), 8))):
        wanted = naive(path, times_of(start, length - 3, 3))
        images = encoded(tmp_path / f"{number}.mp4", wanted)
        assert np.array_equal(episode(tmp_path / "out", number)[NEW], images)


def test_a_video_of_each_episode(source: Path, tmp_path: Path) -> None:
    paths = [film(tmp_path / f"film_{number}.mp4", seed=number) for number in range(3)]
    name = str(tmp_path / "film_{episode}.mp4")
    edit(source, tmp_path / "out", add_video=(NEW, name), start="1.5")
    for number, length in enumerate(LENGTHS):
        wanted = naive(paths[number], times_of(Fraction(3, 2), length))
        images = encoded(tmp_path / f"{number}.mp4", wanted)
        assert np.array_equal(episode(tmp_path / "out", number)[NEW], images)


def test_an_episode_outside_the_video(source: Path, tmp_path: Path) -> None:
    path = film(tmp_path / "outside.mp4", STEADY[:60])  # 2.5 s, of 2.9
    with refused(
        "episode 2 needs 2.100 to 2.800 s", "0.000 to 2.500 s", where=path.name, kind=DatasetError
    ):
        edit(source, tmp_path / "out", add_video=(NEW, str(path)))
    with refused("episode 0 needs -0.200 to 0.900 s", where=path.name, kind=DatasetError):
        edit(source, tmp_path / "out", add_video=(NEW, str(path)), start="-0.2")
    file = tmp_path / "starts.json"
    file.write_text('{"0": 0.5, "2": 0}')
    with refused("episode 1", where=file.name, kind=DatasetError):
        edit(source, tmp_path / "out", add_video=(NEW, str(path)), start=str(file))
    assert not (tmp_path / "out").exists()
    with warned("add_video", "2"):
        written = edit(source, tmp_path / "out", add_video=(NEW, str(path)), on_uncovered="drop")
    assert written[""].episodes == 2
    with refused("3", where=path.name, kind=DatasetError):
        edit(
            source,
            tmp_path / "other",
            add_video=(NEW, str(path)),
            start="90",
            on_uncovered="drop",
        )


def test_settings_that_do_not_fit_are_refused(source: Path, tmp_path: Path) -> None:
    path = film(tmp_path / "outside.mp4")
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(path.read_bytes()[:4000])
    file = tmp_path / "starts.json"
    file.write_text('{"0": "soon"}')
    none = tmp_path / "none.mp4"
    for settings, part, where in (
        ({"add_video": (TOP, str(path))}, TOP, None),
        ({"add_video": ("a/b", str(path))}, "a/b", path.name),
        ({"add_video": (NEW, str(none))}, "episode 0", none.name),
        ({"add_video": (NEW, str(bad))}, "", bad.name),
        ({"add_video": (NEW, str(path)), "start": "nan"}, "nan", None),
        ({"add_video": (NEW, str(path)), "start": str(file)}, "soon", file.name),
    ):
        with refused(part, where=where, kind=DatasetError):
            edit(source, tmp_path / "out", **settings)
    paths = (str(source), str(tmp_path / "out"))
    for options in ({"add_video": (NEW,)}, {"start": "1"}, {"on_uncovered": "drop"}):
        assert EditConfig(paths=paths, **options).problems()
    several = EditConfig(paths=("a", "b", str(tmp_path / "out")), add_video=(NEW, str(path)))
    assert any("add_video" in line for line in several.problems())


def test_size_and_codec_of_the_new_camera_alone(source: Path, tmp_path: Path) -> None:
    path = film(tmp_path / "outside.mp4")
    edit(
        source,
        tmp_path / "out",
        add_video=(NEW, str(path)),
        cameras=(NEW,),
        size="32",
        gop=2,
        crf=30,
    )
    out = Catalog.open(tmp_path / "out")
    assert out.features[NEW].size == (24, 32)
    assert out.features[NEW].info["video.g"] == 2
    assert out.features[TOP].size == Catalog.open(source).features[TOP].size
    assert np.array_equal(episode(tmp_path / "out", 1)[TOP], episode(source, 1)[TOP])


def test_workers_write_the_same_bytes(source: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"add_video": (NEW, str(film(tmp_path / "outside.mp4", UNSTEADY)))}
    edit(source, tmp_path / "one", **settings)
    edit(source, tmp_path / "two", workers=Workers(2, folder=tmp_path / "work"), **settings)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_kill_and_a_second_call(source: Path, tmp_path: Path) -> None:
    path = film(tmp_path / "outside.mp4")
    out = tmp_path / "out"
    words = ["edit", str(source), str(out), "--add-video", NEW, str(path)]
    command = [sys.executable, "-m", "understudy_kit", *words, "--work", str(tmp_path / "work")]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    parts = tmp_path / "work"
    while first.poll() is None and not list(parts.rglob(f"*/{NEW}/*.mp4")):
        time.sleep(0.005)
    first.kill()
    first.wait(60)
    assert not out.exists() or first.returncode == 0
    if not out.exists():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    edit(source, tmp_path / "whole", add_video=(NEW, str(path)))
    assert content(out) == content(tmp_path / "whole")


def test_a_plan_names_its_recorded_cameras(source: Path, tmp_path: Path) -> None:
    path = film(tmp_path / "outside.mp4")
    paths = (str(source), str(tmp_path / "out"))
    config = EditConfig(paths=paths, add_video=(NEW, str(path)))
    plan = make_plans(config, [Catalog.open(source)], tmp_path / "out")[""]
    assert plan.cameras == [TOP, NEW]
    assert plan.recorded_cameras == [TOP]


def test_a_video_that_changes_meanwhile_is_refused(source: Path, tmp_path: Path) -> None:
    path = film(tmp_path / "outside.mp4")
    config = EditConfig(paths=(str(source), str(tmp_path / "out")), add_video=(NEW, str(path)))
    plans = make_plans(config, [Catalog.open(source)], tmp_path / "out")
    film(path, STEADY[:80])
    with refused("changed", where=path.name, kind=DatasetError):
        write_outputs(plans, tmp_path / "out", ["understudy", "edit"])
    assert not (tmp_path / "out").exists()


def test_videos_of_several_sizes_need_one_size(source: Path, tmp_path: Path) -> None:
    for number in range(3):
        path = film(tmp_path / f"film_{number}.mp4")
        if number == 1:
            turned(path)
    name = str(tmp_path / "film_{episode}.mp4")
    for size in ("", "32"):
        with refused("48x64", "64x48", where="film_1.mp4", fix="--size", kind=DatasetError):
            edit(source, tmp_path / "out", add_video=(NEW, name), cameras=(NEW,), gop=2, size=size)
    edit(source, tmp_path / "out", add_video=(NEW, name), cameras=(NEW,), size="32x32")
    assert Catalog.open(tmp_path / "out").features[NEW].size == (32, 32)


def test_skip_bad_leaves_out_a_first_episode_without_its_own_video(tmp_path: Path) -> None:
    root = tmp_path / "set"
    write_dataset(root, Spec("v2.1", lengths=LENGTHS, gop=4))
    sorted(root.glob("videos/**/*.mp4"))[0].unlink()
    path = film(tmp_path / "outside.mp4")
    written = edit(root, tmp_path / "out", add_video=(NEW, str(path)), skip_bad=True)
    assert written[""].episodes == 2
    assert episode(tmp_path / "out", 1)[NEW].shape == (8, 3, 48, 64)
