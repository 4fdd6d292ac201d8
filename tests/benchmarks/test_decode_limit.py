"""`lab/benchmarks/decode_limit.py` and `loader_trial.py`: limits of the codec, and rounds of the
loader.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

import decode_limit as bench_limit
import loader_trial as bench_measure
from decode_limit import limits
from loader_trial import Round, Setting, Trial, default_seconds, median_round
from understudy_base.testing.refusals import refused
from understudy_data.testing.datasets import Spec, episode_pictures, write_dataset

TOP = "observation.images.top"
WRIST = "observation.images.wrist"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bench") / "dataset"
    write_dataset(path, Spec(lengths=(80, 61, 52, 94, 60, 75), cameras=(TOP, WRIST), gop=4))
    return path


@pytest.mark.long
def test_limits_without_video_are_none(root: Path) -> None:
    assert limits(Setting(str(root)).data())[0].ways
    data = Setting(str(root), cameras=()).data()
    for limit in limits(data):
        limit.measure(0.01)
        assert limit.figures() is None
        assert limit.share(5.0) is None


def test_limits_decode_the_stream_that_the_loader_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first stream of the file is another one, of smaller and of fewer images."""
    spec = Spec(lengths=(12,), foreign=False)
    write_dataset(tmp_path / "set", spec)
    (path,) = (tmp_path / "set/videos").rglob("*.mp4")
    images = episode_pictures(spec, 0, 0)
    with av.open(str(path), "w") as out:
        sides = (32, images[0].shape[0])
        streams = [
            out.add_stream("libx264", rate=10, width=side, height=side, pix_fmt="yuv420p")
            for side in sides
        ]
        for stream, shown in zip(streams, ([image[:32, :32] for image in images[:5]], images)):
            for image in shown:
                out.mux(
                    stream.encode(
                        av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
                    )
                )
            out.mux(stream.encode(None))
    widths = []

    def note(converter: Any, frame: av.VideoFrame, kind: str) -> av.VideoFrame:
        widths.append(frame.width)
        return frame

    monkeypatch.setattr(bench_limit, "reformat", note)
    (stretch,) = bench_limit.stretches(Setting(str(tmp_path / "set")).data(), 1)
    assert len(stretch.packets) == len(images)
    for way in (bench_limit.bare, bench_limit.pyav):
        frames = way(stretch)
        assert sum(next(frames) for _ in range(30)) == 30  # twice from the beginning
        assert set(widths) == {sides[1]}
        widths.clear()


def test_limits_of_remote_videos_are_those_of_the_codec(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library would read them at the speed of the network."""
    found = bench_limit.stretches(Setting(str(root)).data(), 2)
    monkeypatch.setattr(
        bench_limit, "stretches", lambda data, count: [replace(one, local=False) for one in found]
    )
    library, codec = limits(Setting(str(root)).data())
    for limit in (library, codec):
        limit.measure(0.05)
    assert library.figures() is None
    assert codec.share(1.0) is not None


@pytest.mark.long
def test_limit_decodes_the_frames_of_the_dataset(root: Path) -> None:
    """Every way decodes the files in a loop; the limit is the way with the best median."""
    data = Setting(str(root)).data()
    stretches = bench_limit.stretches(data, 4)
    # different cameras, files or places
    assert len({(one.path, one.packets[0]) for one in stretches}) == 4
    for way in (bench_limit.bare, bench_limit.pyav):
        pictures = way(stretches[0])
        seen = 0
        # beyond the end it continues from the beginning
        while seen < 2 * len(stretches[0].packets):
            seen += next(pictures)
    counted = {"bare codec": 0, "container": 0}

    def counting(name: str) -> Any:
        def way(stretch: bench_limit.Stretch) -> Iterator[int]:
            for pictures in bench_limit.bare(stretch):
                counted[name] += 1
                yield pictures

        return way

    limit = limits(data)[1]
    limit.ways = {name: counting(name) for name in counted}
    limit.measure(0.1)
    first = dict(counted)
    for _ in range(2):
        limit.measure(0.1)
    # each has its turn in every round
    assert all(counted[name] > first[name] > 0 for name in counted)
    rounds = limit.rounds = {
        "a": [Round(9, 1, 1)] + 2 * [Round(2, 1, 1)],
        "b": 3 * [Round(4, 1, 2)],
    }
    found = limit.figures()
    assert found is not None
    # one lucky round makes no limit
    assert (found["by"], found["samples_per_s"]) == ("b", 4 / limit.cameras)
    assert found["cpu_ms_per_sample"] == 500 * limit.cameras
    one_camera = limits(Setting(str(root), cameras=(TOP,)).data())[1]
    one_camera.rounds = rounds
    halved = one_camera.figures()
    assert halved is not None
    # a sample of two cameras is two
    assert halved["samples_per_s"] == pytest.approx(2 * found["samples_per_s"])


def test_limit_raises_an_error_of_the_decoder(root: Path) -> None:
    def broken(stretch: bench_limit.Stretch) -> Iterator[int]:
        yield 1
        raise OSError(5, "Input/output error")

    limit = limits(Setting(str(root)).data())[1]
    limit.ways = {"bare codec": broken}
    with refused(5, kind=OSError):
        limit.measure(0.05)


@pytest.mark.parametrize(
    ("frames", "seconds"), [(1, 1.0), (236, 1.0), (4_000, 2.0), (10_000, 5.0), (10**7, 5.0)]
)
def test_tiny_datasets_are_measured_for_less_time(frames: int, seconds: float) -> None:
    assert default_seconds(frames) == seconds


def test_median_round() -> None:
    rounds = [Round(100, 1.0, 0.5), Round(100, 2.0, 0.1), Round(100, 4.0, 0.3)]
    assert median_round(rounds) == {"samples_per_s": 50.0, "cpu_ms_per_sample": 3.0}


def test_trial_measures_its_setting(root: Path) -> None:
    with refused("none", where=str(root)):
        Setting(str(root), cameras=("none",)).data()
    trial = Trial(Setting(str(root), batch=4, chunk=5, cameras=(WRIST,), memory="4MB"))
    try:
        lanes = trial.order.spec.sources[0].lanes
        ahead = trial.loader.plan.policies[0].run_length
        assert lanes * ahead > 4 * bench_measure.WARM_BATCHES
        # before the first round a whole turn
        for thrown_away in (-(-lanes * ahead // 4), bench_measure.WARM_BATCHES):
            before = trial.loader.position
            found = trial.measure(0.05)
            made = trial.loader.position - before
            assert found.samples == made - 4 * thrown_away
        batch = next(trial.loader)
        assert batch["action"].shape[:2] == (4, 5)
        assert WRIST in batch
        assert TOP not in batch
    finally:
        trial.close()
