"""EpisodeDataset: samples equal the written data, for every version, layout, codec and window."""

import gc
import multiprocessing
import os
import pickle
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets import episode_arrays
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.episode_arrays import EpisodeArrays
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import (
    SIDE,
    Spec,
    Truth,
    edit_json,
    expected,
    identity,
    write_dataset,
)
from understudy_data.testing.videos import rgb

torch.set_num_threads(1)

TOP = "observation.images.top"
SIDE_CAM = "observation.images.side"
PNG = "observation.images.png"


def same(sample: dict[str, Any], want: dict[str, Any], pictures: tuple[str, ...]) -> None:
    """A sample equals the expected one, value by value, dtype and shape included."""
    assert set(sample) == set(want)
    for key, value in want.items():
        got = sample[key]
        if key in pictures:
            assert got.dtype == torch.uint8
            who = [identity(p) for p in got.numpy().reshape(-1, 3, SIDE, SIDE)]
            assert who == [tuple(w) for w in np.asarray(value).reshape(-1, 3).tolist()], key
            assert got.ndim == (4 if f"{key}_is_pad" in want else 3)
        elif isinstance(value, (str, list)):
            assert got == value, key
        else:
            array = np.asarray(value)
            assert got.numpy().dtype == array.dtype, key
            np.testing.assert_array_equal(got.numpy(), array, err_msg=key)


def read_back(
    root: Path, truth: Truth, seconds: dict[str, list[float]], **options: Any
) -> EpisodeDataset:
    """Every sample of a dataset against the truth, alone and in one batch."""
    data = EpisodeDataset(root, seconds, **options)
    offsets = {key: [round(s * truth.spec.fps) for s in deltas] for key, deltas in seconds.items()}
    pictures = (*truth.spec.cameras, *truth.spec.images)
    assert len(data) == len(truth.frames)
    samples = [data[i] for i in range(len(data))]
    for sample, (episode, frame) in zip(samples, truth.frames):
        same(sample, expected(truth, episode, frame, offsets), pictures)
    shuffled = np.random.default_rng(0).permutation(len(data))
    chosen = np.asarray(truth.frames)[shuffled]
    batch = data.batch(chosen[:, 0], chosen[:, 1])
    for key, value in batch.items():
        alone = [samples[i][key] for i in shuffled]
        assert not torch.is_tensor(value) or value.is_contiguous()
        assert (
            torch.equal(value, torch.stack(alone)) or key in truth.spec.omit
            if torch.is_tensor(value)
            else value == alone
        )
    arrays = EpisodeArrays(root, seconds, **options).batch(chosen[:, 0], chosen[:, 1])
    assert arrays.keys() == batch.keys()
    for key, value in batch.items():
        if torch.is_tensor(value):
            assert (arrays[key].dtype, arrays[key].tobytes()) == (
                value.numpy().dtype,
                value.numpy().tobytes(),
            ), key
        else:
            assert arrays[key] == value, key
    return data


WINDOWS = {
    "action": [0, 0.1, 0.2, 0.5],
    "observation.state": [-0.2, 0.0],
    TOP: [-0.1, 0.0, 0.3],
    "next.reward": [0.0],
}


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0", "v3.1"])
def test_dataset_everything_at_once(tmp_path: Path, version: str) -> None:
    """Two cameras, images in the rows, strings, bool, arrays, lists, doubles, a gap in the ids,
    several files.
    """
    spec = Spec(
        version=version,
        lengths=(5, 1, 7, 0, 3),
        ids=(0, 2, 3, 7, 11),
        cameras=(TOP, SIDE_CAM),
        images=(PNG,),
        rich=True,
        fixed_lists=False,
        stored_double=True,
        extra=True,
        reverse_meta=True,
        tasks_spelling="plain",
    )
    truth = write_dataset(tmp_path / "d", spec)
    windows = {
        "note": [-0.1, 0.0],
        "next.done": [0.1],
        "matrix": [0.0, 0.1],
        PNG: [-0.2, 0.0],
        SIDE_CAM: [0.0],
    }
    data = read_back(tmp_path / "d", truth, {**WINDOWS, **windows})
    assert data.segments.tolist() == [[0, 0, 5], [2, 0, 1], [3, 0, 7], [11, 0, 3]]
    assert "battery" not in data[0]
    picked = EpisodeDataset(
        tmp_path / "d", {"battery": [0.0, 0.1]}, keys=["action", "battery", "operator"]
    )[2]
    assert picked["battery"].tolist() == [2.5, 3.5]
    assert picked["battery"].dtype == torch.float64
    assert picked["operator"] == "person 0"
    assert TOP not in picked


@pytest.mark.parametrize(
    ("codec", "gop", "b_frames"),
    [
        ("libsvtav1", 2, 0),
        ("libx264", 1, 0),
        ("libx264", 250, 3),
        ("libx265", 12, 3),
        ("libx264", 12, 2),
    ],
)
def test_dataset_codecs(tmp_path: Path, codec: str, gop: int, b_frames: int) -> None:
    spec = Spec(codec=codec, gop=gop, b_frames=b_frames, lengths=(13, 6, 9), per_video_file=3)
    truth = write_dataset(tmp_path / "d", spec)
    data = read_back(tmp_path / "d", truth, {TOP: [-0.3, 0.0]})
    assert data.gop == min(gop, 28)
    assert data.reach == (3, 0)


@given(
    version=st.sampled_from(["v2.0", "v2.1", "v3.0"]),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any),
    gaps=st.lists(st.integers(1, 3), min_size=5, max_size=5),
    per_data_file=st.integers(1, 4),
    per_video_file=st.integers(1, 4),
    one_row_group=st.booleans(),
    fixed_lists=st.booleans(),
    stored_double=st.booleans(),
    rich=st.booleans(),
    late=st.booleans(),
    omit=st.sets(st.sampled_from(["frame_index", "index", "timestamp", "episode_index"])),
    offsets=st.lists(st.integers(-8, 8), min_size=1, max_size=4),
)
def test_dataset_any_shape_reads_back(
    tmp_path_factory: pytest.TempPathFactory, gaps: list[int], **shape: Any
) -> None:
    ids = tuple(np.cumsum(gaps)[: len(shape["lengths"])].tolist())
    offsets = shape.pop("offsets")
    late = shape.pop("late") and "timestamp" not in shape["omit"]
    omit = tuple(sorted(shape.pop("omit")))
    spec = Spec(
        ids=ids, late_timestamps=late, omit=omit, **{**shape, "lengths": tuple(shape["lengths"])}
    )
    root = tmp_path_factory.mktemp("shape") / "d"
    truth = write_dataset(root, spec)
    seconds = [o / spec.fps for o in offsets]
    read_back(root, truth, {"action": seconds, TOP: seconds, "timestamp": seconds})


@pytest.mark.parametrize("one_row_group", [False, True])
def test_dataset_images_in_rows_are_read_by_row_group(tmp_path: Path, one_row_group: bool) -> None:
    spec = Spec(
        lengths=(3, 4, 5), per_data_file=3, cameras=(), images=(PNG,), one_row_group=one_row_group
    )
    truth = write_dataset(tmp_path / "d", spec)
    data = read_back(tmp_path / "d", truth, {PNG: [-0.1, 0.0]})
    data.keep_rows(0, 0)
    data.sample(1, 0)
    assert list(data._stored._groups) == [(0, 0 if one_row_group else 1)]  # the one in use
    assert len(data._stored._groups.get((0, 0 if one_row_group else 1))) == (
        12 if one_row_group else 4
    )


def test_dataset_missing_task_index(tmp_path: Path) -> None:
    truth = write_dataset(tmp_path / "d", Spec(lengths=(3, 0, 4), omit=("task_index",)))
    data = EpisodeDataset(tmp_path / "d")
    assert [data[i]["task"] for i in range(7)] == truth.tasks[0] + truth.tasks[2]
    # episode 1 has two tasks
    write_dataset(tmp_path / "two", Spec(lengths=(3, 4), omit=("task_index",)))
    two = EpisodeDataset(tmp_path / "two")
    assert two[2]["task"] == truth.tasks[0][2]
    with refused("task_index", "2 tasks", where="file-000.parquet (episode 1)"):
        two[3]


def test_dataset_float_drift_does_not_move_images(tmp_path: Path) -> None:
    """Recorded start times that are off by whole frames are reported and not followed."""
    truth = write_dataset(
        tmp_path / "d", Spec(lengths=(5, 5, 5, 5), per_video_file=4, drift_s=0.11)
    )
    read_back(tmp_path / "d", truth, {})
    lines = [line for line in Catalog.open(tmp_path / "d").report() if "from_timestamp" in line]
    assert len(lines) == 1
    assert "3 episodes" in lines[0]
    assert "episode 1" in lines[0]
    write_dataset(tmp_path / "small", Spec(lengths=(5, 5, 5, 5), per_video_file=4, drift_s=0.01))
    assert not [
        line for line in Catalog.open(tmp_path / "small").report() if "from_timestamp" in line
    ]


def test_dataset_videos_packed_in_another_order_than_the_ids(tmp_path: Path) -> None:
    """The recorded start times decide here."""
    spec = Spec(lengths=(5, 3, 4, 6, 2), per_video_file=3, reverse_videos=True)
    truth = write_dataset(tmp_path / "d", spec)
    read_back(tmp_path / "d", truth, {TOP: [-0.1, 0.0]})
    assert not [line for line in Catalog.open(tmp_path / "d").report() if "from_timestamp" in line]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    root = tmp_path_factory.mktemp("plain") / "d"
    return root, write_dataset(root, Spec(lengths=(6, 9, 4, 8), images=(PNG,)))


def test_dataset_index_rules(plain: tuple[Path, Truth]) -> None:
    data = EpisodeDataset(plain[0], episodes=[3, 1])
    assert len(data) == 17
    assert data[0]["episode_index"] == 1
    assert data[-1]["index"] == 26
    assert data[-1]["frame_index"] == 7
    for index in (17, -18):
        with refused("sample", index, kind=IndexError):
            data[index]
    episodes, frames = data.locate([0, -1, 9, 8])
    assert episodes.tolist() == [1, 3, 3, 1]
    assert frames.tolist() == [0, 7, 0, 8]
    for sample, alone in zip(data.__getitems__([3, 12]), (data[3], data[12])):
        assert sample["task"] == alone["task"]
        assert torch.equal(sample[TOP], alone[TOP])
        assert torch.equal(sample["action"], alone["action"])


@pytest.mark.parametrize("number", [1.5, "1", True, None, slice(0, 2)], ids=repr)
def test_dataset_refuses_fractional_numbers(plain: tuple[Path, Truth], number: Any) -> None:
    data = EpisodeDataset(plain[0], keys=["action"])
    with refused("numbers", "integers", kind=TypeError):
        data[number]
    with refused("frames", "integers", kind=TypeError):
        data.batch(np.asarray([1]), np.asarray([number]))
    with refused("episodes", "integers", kind=TypeError):
        data.sample(number, 1)
    for kind in (np.int32, np.uint8, torch.tensor):
        assert data[kind(3)]["index"] == data[3]["index"]


def test_dataset_a_dropped_dataset_closes_its_files(plain: tuple[Path, Truth]) -> None:
    def descriptors() -> set[str]:
        return {
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if Path(f"/proc/self/fd/{fd}").exists()
        }

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        data = EpisodeDataset(plain[0], keys=[TOP])
        data[0]
        assert any(name.endswith(".mp4") for name in descriptors())
        del data
        gc.collect()
    assert not any(name.endswith(".mp4") and str(plain[0]) in name for name in descriptors())
    assert [str(w.message) for w in said] == []


def test_dataset_only_selected_frames_are_given(plain: tuple[Path, Truth]) -> None:
    data = EpisodeDataset(plain[0], episodes=[1], drop_n_first_frames=2)
    assert data.sample(1, 2)["frame_index"] == 2
    for episode, frame in [(1, 1), (1, 9), (0, 3), (1, -1), (99, 0), (1, 1 << 40)]:
        with refused(f"frame {frame}", f"episode {episode}", where="d"):
            data.sample(episode, frame)


def test_dataset_windows_see_dropped_frames(plain: tuple[Path, Truth]) -> None:
    """Bounds of a window are the episode's, not those of the samples."""
    root, truth = plain
    data = EpisodeDataset(
        root, {"action": [-0.2, 0.2], TOP: [-0.2, 0.2]}, drop_n_first_frames=2, drop_n_last_frames=2
    )
    for i, (episode, frame) in enumerate(
        (e, f) for e, f in truth.frames if 2 <= f < truth.spec.lengths[e] - 2
    ):
        same(
            data[i], expected(truth, episode, frame, {"action": [-2, 2], TOP: [-2, 2]}), (TOP, PNG)
        )
        assert not data[i]["action_is_pad"].any()


@pytest.mark.parametrize("rule", ["window", "start"])
def test_dataset_keep_ranges(plain: tuple[Path, Truth], rule: str) -> None:
    data = EpisodeDataset(
        plain[0],
        {"action": [0, 0.1, 0.2]},
        keep_ranges={1: [[1, 5]], 3: [[6, 8], [0, 1]]},
        keep_rule=rule,
    )
    kept = [(e, s, t) for e, s, t in data.segments.tolist()]
    if rule == "window":
        assert kept == [(1, 1, 3)]
        assert not any(data[i]["action_is_pad"].any() for i in range(len(data)))
    else:
        assert kept == [(1, 1, 5), (3, 0, 1), (3, 6, 8)]
        last = data.sample(1, 4)
        assert last["action_is_pad"].tolist() == [False, True, True]
        assert torch.equal(last["action"], last["action"][:1].expand(3, 2))
        assert data.sample(1, 2)["action_is_pad"].tolist() == [False, False, False]


def test_dataset_pickles_small_and_reads_after(plain: tuple[Path, Truth]) -> None:
    data = EpisodeDataset(plain[0])
    first = data[3]
    packed = pickle.dumps(data)
    assert len(packed) < 8_000
    again = pickle.loads(packed)[3]
    assert all(
        torch.equal(first[k], again[k]) if torch.is_tensor(first[k]) else first[k] == again[k]
        for k in first
    )


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_dataset_data_loader_workers(plain: tuple[Path, Truth], start: str) -> None:
    """Workers open files of their own, also when the parent had them open before the fork."""
    data = EpisodeDataset(plain[0], {TOP: [-0.1, 0.0]})
    want = [data[i] for i in range(len(data))]
    loader = torch.utils.data.DataLoader(
        data, batch_size=4, num_workers=2 if start == "fork" else 1, multiprocessing_context=start
    )
    seen = 0
    for batch in loader:
        for j in range(len(batch["task"])):
            for key, value in want[seen].items():
                got = batch[key][j]
                assert torch.equal(got, value) if torch.is_tensor(value) else got == value
            seen += 1
    assert seen == len(data)


def test_dataset_fork_while_a_thread_reads(plain: tuple[Path, Truth]) -> None:
    """A child forked while the parent's locks are taken does not wait for them."""
    data = EpisodeDataset(plain[0])
    want = data[2]
    with data._rows._lock, data.video_frames._lock, data.video_frames.readers.get((TOP, 0)).lock:
        child = multiprocessing.get_context("fork").Process(target=_same_as, args=(data, want))
        child.start()
        child.join(60)
        hung = child.is_alive()
        if hung:
            child.kill()
    assert not hung
    assert child.exitcode == 0


def _same_as(data: EpisodeDataset, want: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    assert torch.equal(data[2][TOP], want[TOP])


def test_dataset_protocol_of_the_order(plain: tuple[Path, Truth]) -> None:
    data = EpisodeDataset(plain[0], {TOP: [-0.3, 0.1], "action": [0.0, 2.0]})
    assert data.name == "d"
    assert data.segments.dtype == np.int64
    assert data.segments.shape == (4, 3)
    assert data.gop == 2
    assert data.reach == (3, 1)  # of images, not of actions
    assert data.fps == 10
    assert EpisodeDataset(plain[0], keys=["action"]).gop == 1
    assert EpisodeDataset(plain[0], keys=["action"]).reach == (0, 0)


def test_dataset_caches_do_not_change_samples(
    plain: tuple[Path, Truth], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, truth = plain
    for rows, pictures in [(0, 0), (1 << 20, 3 * SIDE * SIDE * 5)]:
        monkeypatch.setattr(episode_arrays, "ROWS_IN_MEMORY", rows)
        read_back(root, truth, {TOP: [-0.1, 0.0]}, frame_cache_bytes=pictures)


def test_dataset_many_threads(plain: tuple[Path, Truth]) -> None:
    """Threads that share a dataset get the images they asked for, whether few are kept or all."""
    root, truth = plain
    for kept in (0, 3 * SIDE * SIDE * 4, 128 << 20):
        data = EpisodeDataset(root, frame_cache_bytes=kept)
        data.keep_rows(2_000, 2_000)  # files are read again and again

        def check(seed: int, data: EpisodeDataset = data) -> None:
            chosen = np.random.default_rng(seed).permutation(truth.frames)[:6]
            batch = data.batch(chosen[:, 0], chosen[:, 1])
            assert [identity(p)[1:] for p in batch[TOP].numpy()] == [
                tuple(c) for c in chosen.tolist()
            ]
            assert batch["frame_index"].tolist() == chosen[:, 1].tolist()

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(check, range(40)))


def test_dataset_limits_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("understudy_data.datasets.read.video_frames.OPEN_FILES", 2)
    truth = write_dataset(tmp_path / "d", Spec(version="v2.1", lengths=(2, 3, 1, 2)))
    data = read_back(tmp_path / "d", truth, {TOP: [-0.1, 0.0]}, frame_cache_bytes=0)
    assert len(data.video_frames.readers) == 2


def test_dataset_warns_about_camera_without_files(tmp_path: Path) -> None:
    write_dataset(tmp_path / "d", Spec())
    gone = {"dtype": "video", "shape": [8, 8, 3], "names": None}
    edit_json(
        tmp_path / "d/meta/info.json",
        lambda info: info["features"].update({"observation.images.gone": gone}),
    )
    with warned("observation.images.gone", "info.json"):
        data = EpisodeDataset(tmp_path / "d")
    assert "observation.images.gone" not in data[0]
    with refused("observation.images.gone", where="d", fix="keys"):
        EpisodeDataset(tmp_path / "d", keys=["observation.images.gone"])


def test_dataset_keeps_and_reports_nan(tmp_path: Path) -> None:
    truth = write_dataset(tmp_path / "d", Spec(lengths=(4, 5), nan_row=True))
    data = EpisodeDataset(tmp_path / "d")
    with warned("'observation.state'", "2 rows", 3):
        assert torch.isnan(data[3]["observation.state"][0])
    assert len(data.notes) == 1
    same(data[4], expected(truth, 1, 0, {}), (TOP,))


def test_dataset_has_lerobots_attributes(plain: tuple[Path, Truth]) -> None:
    data = EpisodeDataset(plain[0], episodes=[1, 3], drop_n_last_frames=1)
    assert (data.num_frames, data.num_episodes, data.fps) == (len(data), 2, plain[1].spec.fps)
    assert data.meta is data.catalog
    assert (data.meta.num_episodes, data.meta.num_frames) == (
        len(plain[1].spec.lengths),
        sum(plain[1].spec.lengths),
    )


def test_dataset_image_transforms_see_each_sample(plain: tuple[Path, Truth]) -> None:
    """A window is one tensor [T, C, H, W], an image without a window is [C, H, W]; rows stay as
    they are.
    """
    missing = "observation.images.missing"
    windows = {TOP: [-0.1, 0.0], "action": [0, 0.1]}
    shapes = []

    def halve(images: torch.Tensor) -> torch.Tensor:
        shapes.append((images.dtype, tuple(images.shape[:-2])))
        return images[..., ::2, ::2].float() / 255

    before = EpisodeDataset(plain[0], windows, missing_cameras={missing: (4, 6)})
    after = EpisodeDataset(
        plain[0], windows, missing_cameras={missing: (4, 6)}, image_transforms=halve
    )
    cameras = (*before.video_keys, *before.image_keys, missing)
    for old, new in zip([before[2], before[5]], after.__getitems__([2, 5])):
        assert old.keys() == new.keys()
        for key, value in old.items():
            if key in cameras:
                assert torch.equal(new[key], value[..., ::2, ::2].float() / 255), key
            else:
                assert torch.equal(new[key], value) if torch.is_tensor(value) else new[key] == value
    assert set(shapes) == {(torch.uint8, (2, 3)), (torch.uint8, (3,))}
    rows = after.row_batch(np.array([0]), np.array([1]))
    assert all(rows[key].dtype == torch.uint8 for key in after.image_keys)
    with refused("image_transforms", "'resize'"):
        EpisodeDataset(plain[0], image_transforms="resize")  # type: ignore[arg-type]


# Real recordings


def test_dataset_both_formats_give_the_same_samples(real_data: Path) -> None:
    """The rows of every frame, and the images of each fifth and of all around the ends of episodes,
    with windows.
    """
    camera = "observation.images.cam_high"
    windows = {
        "action": [i / 30 for i in range(5)],
        "observation.state": [-1 / 30, 0],
        camera: [-1 / 30, 0],
    }
    old, new = (
        EpisodeDataset(real_data / name, windows, frame_cache_bytes=8 << 20)
        for name in ("g1_v21", "g1_v30")
    )
    assert len(old) == len(new) == 2138
    everything = np.arange(2138)
    a, b = (data.row_batch(*data.locate(everything)) for data in (old, new))
    assert (
        a.keys()
        == b.keys()
        >= {"action", "action_is_pad", "observation.state", "task", "timestamp"}
    )
    for key, value in a.items():
        assert torch.equal(value, b[key]) if torch.is_tensor(value) else value == b[key], key
    episodes, frames = old.locate(everything)
    lengths = dict(zip(old.catalog.episodes.ids.tolist(), old.catalog.episodes.lengths.tolist()))
    left = np.array([lengths[episode] for episode in episodes.tolist()]) - frames
    for i in np.flatnonzero((everything % 5 == 0) | (frames < 3) | (left <= 3)).tolist():
        one = old[i]
        other = new[i]
        assert one.keys() == other.keys() >= {camera, f"{camera}_is_pad"}
        for key, value in one.items():
            assert (
                torch.equal(value, other[key]) if torch.is_tensor(value) else value == other[key]
            ), (i, key)


def test_dataset_a_real_dataset_with_every_oddity(real_data: Path) -> None:
    """Compared with a frame-accurate decode of each whole file."""
    import av
    import pyarrow.parquet as pq

    root = real_data / "gr1_sim_v20"
    camera = "observation.images.ego_view"
    with pytest.warns(UserWarning, match="egoview"):
        data = EpisodeDataset(root)
    assert len(data) == 2096
    assert data.gop == 250
    for episode, length in zip(
        data.catalog.episodes.ids.tolist(), data.catalog.episodes.lengths.tolist()
    ):
        table = pq.read_table(root / f"data/chunk-000/episode_{episode:06d}.parquet")
        state = np.asarray(table["observation.state"].to_pylist())
        with av.open(
            str(root / f"videos/chunk-000/{camera}/episode_{episode:06d}.mp4")
        ) as container:
            frames = 0
            for frame, shown in enumerate(container.decode(video=0)):
                frames += 1
                sample = data.sample(episode, frame)
                want = rgb(shown).transpose(2, 0, 1)
                assert np.array_equal(sample[camera].numpy(), want), (episode, frame)
                assert sample["frame_index"] == frame
                assert sample["observation.state"].dtype == torch.float64
                assert np.array_equal(sample["observation.state"].numpy(), state[frame])
                assert sample["timestamp"] == table["timestamp"][frame].as_py()
        assert frames == length
