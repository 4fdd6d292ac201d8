"""Faults: each ends in one DatasetError with file, episode and remedy."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from understudy_base import DatasetError, MissingFileError
from understudy_base.testing.refusals import refused, warned
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.testing.datasets import (
    Spec,
    Truth,
    edit_json,
    episode_pictures,
    identity,
    picture,
    write_dataset,
    write_video,
)

torch.set_num_threads(1)

TOP = "observation.images.top"
PNG = "observation.images.png"
SPEC = Spec(lengths=(4, 5, 3), images=(PNG,), rich=True, foreign=False, gop=3, b_frames=1)
NAMES = {
    "v2.1": "videos/chunk-000/{}/episode_000001.mp4",
    "v3.0": "videos/{}/chunk-000/file-000.mp4",
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Truth]]:
    root = tmp_path_factory.mktemp("faults")
    return {
        v: (root / v, write_dataset(root / v, Spec(**{**vars(SPEC), "version": v}))) for v in NAMES
    }


@pytest.fixture
def copy(written: dict[str, tuple[Path, Truth]], tmp_path: Path) -> Callable[[str], Path]:
    def make(version: str) -> Path:
        shutil.copytree(written[version][0], tmp_path / version)
        return tmp_path / version

    return make


def refuses(
    act: Callable[[], Any], *values: object, where: str | None = "", kind: Any = DatasetError
) -> None:
    with refused(*values, where=where, kind=kind) as caught:
        act()
    assert "\n" not in str(caught.value)


# Damaged bytes


def damage(data: bytes, kind: str, at: float, value: int) -> bytes:
    """Another file than `data`: a flipped bit, a cut, a hole of zeros or bytes pushed in
    between.
    """
    place = min(int(at * len(data)), len(data) - 1)
    if kind == "cut":
        return data[:place]
    if kind == "zeros":
        return data[:place] + bytes(len(data[place : place + value])) + data[place + value :]
    if kind == "insert":
        return data[:place] + bytes([value]) + data[place:]
    return data[:place] + bytes([data[place] ^ 1 << value % 8]) + data[place + 1 :]


def read_all(root: Path, truth: Truth) -> None:
    """All samples are right, or a DatasetError is raised."""
    try:
        data = EpisodeDataset(root)
        data.catalog.report()
    except DatasetError as error:
        assert "\n" not in str(error)  # noqa: PT017 (refusing is one of two right answers)
        return
    for episode, start, stop in data.segments.tolist():
        for frame in range(start, stop):
            try:
                sample = data.sample(episode, frame)
            except DatasetError as error:
                assert "\n" not in str(error)  # noqa: PT017
                continue
            for key, column in truth.rows[episode].items():
                if isinstance(column, list):
                    assert sample.get(key, column[frame]) == column[frame]
                elif key in (TOP, PNG):
                    if key in sample:
                        assert sample[key].dtype == torch.uint8
                        assert sample[key].shape[0] == 3
                elif key in sample:
                    assert np.array_equal(sample[key].numpy(), column[frame]), key


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet", ".mp4"])
def test_faults_damaged_bytes(written: dict[str, tuple[Path, Truth]], suffix: str) -> None:
    """Derandomised: of the few cases in a million where damage makes another valid file, none
    should come by chance.
    """
    files = [(v, p) for v, (root, _) in written.items() for p in sorted(root.rglob(f"*{suffix}"))]

    @settings(derandomize=True, database=None)
    @given(
        which=st.integers(0, len(files) - 1),
        kind=st.sampled_from(["flip", "flip", "cut", "zeros", "insert"]),
        at=st.floats(0, 1),
        value=st.integers(0, 255),
    )
    def check(which: int, kind: str, at: float, value: int) -> None:
        version, path = files[which]
        sound = path.read_bytes()
        try:
            path.write_bytes(damage(sound, kind, at, value))
            read_all(*written[version])
        finally:
            path.write_bytes(sound)

    check()


WRONG_TYPES = [None, True, -1, 1.5, 1e300, 10**30, "x", [], {}, [None], {"x": [1]}]


def _paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value inside a JSON value is."""
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(path for key, one in inner for path in _paths(one, (*at, key)))]


def _replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = _replaced(copy[path[0]], path[1:], new)
    return copy


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("v2.1", "info.json"),
        ("v3.0", "info.json"),
        ("v2.1", "episodes.jsonl"),
        ("v2.1", "tasks.jsonl"),
        ("v2.1", "episodes_stats.jsonl"),
        ("v3.0", "stats.json"),
    ],
)
def test_faults_every_value_of_every_wrong_type(
    copy: Callable[[str], Path], version: str, name: str
) -> None:
    """Each value in the first object of the metadata, replaced by each of these: refused in one
    line, or read right.
    """
    root = copy(version)
    path = root / "meta" / name
    first, *rest = path.read_text().splitlines() if name.endswith("l") else [path.read_text()]
    sound = json.loads(first)
    if name == "info.json":  # a few of its features represent all
        sound["features"] = {
            key: sound["features"][key] for key in ("action", "note", TOP, "timestamp")
        }
    elif "stats" in name:
        entries = sound.get("stats", sound)
        for key in [key for key in entries if key != "action"]:
            del entries[key]
    outcomes = set()
    for place in _paths(sound):
        for new in WRONG_TYPES:
            path.write_text("\n".join([json.dumps(_replaced(sound, place, new)), *rest]))
            try:
                catalog = Catalog.open(root)
                catalog.report()
                EpisodeDataset(catalog)[0]
                outcomes.add("read")
            except DatasetError as error:
                assert "\n" not in str(error), (place, new)  # noqa: PT017
                outcomes.add("refused")
    assert "read" in outcomes
    assert ("refused" in outcomes) == ("stats" not in name)


def test_faults_the_judge_of_damage_sees_wrong_data(
    written: dict[str, tuple[Path, Truth]], tmp_path: Path
) -> None:
    """The negative control: the fuzzing test would catch a valid file with one other value."""
    root, truth = written["v2.1"]
    shutil.copytree(root, tmp_path / "d")
    path = tmp_path / "d/data/chunk-000/episode_000001.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("next.reward")
    pq.write_table(
        table.set_column(at, "next.reward", pa.array(np.arange(len(table)), pa.float32())), path
    )
    with pytest.raises(AssertionError, match=r"next\.reward"):
        read_all(tmp_path / "d", truth)


# Videos


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
@pytest.mark.parametrize("fault", ["missing", "folder", "empty", "cut", "text", "codec", "tables"])
def test_faults_videos_that_cannot_be_read(
    copy: Callable[[str], Path], version: str, fault: str
) -> None:
    root = copy(version)
    path = root / NAMES[version].format(TOP)
    sound = path.read_bytes()
    path.unlink()
    if fault == "folder":
        path.mkdir()
    elif fault != "missing":
        damaged = {"empty": b"", "cut": sound[:200], "text": b"no video at all" * 99}
        damaged |= {
            "codec": sound.replace(b"avc1", b"zzzz"),
            "tables": sound.replace(b"stbl", b"free"),
        }
        path.write_bytes(damaged[fault])
    data = EpisodeDataset(root)
    refuses(lambda: data.sample(1, 2), where=f"{path.name} (episode 1)")
    without = EpisodeDataset(root, keys=["action", PNG])
    assert identity(without.sample(1, 2)[PNG].numpy()) == (1, 1, 2)


def test_faults_no_permission(copy: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, since a test may run as a user who may read everything."""
    root = copy("v2.1")

    def forbidding(real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, *rest: Any, **named: Any) -> Any:
            if "episode_000001" in str(path):
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *rest, **named)

        return opened

    data = EpisodeDataset(root, keys=["action"])
    pictures = EpisodeDataset(root, keys=["action", TOP])
    # the rows are in memory, the video is not
    pictures.row_batch(np.arange(3), np.zeros(3, np.int64))
    monkeypatch.setattr("builtins.open", forbidding(open))
    monkeypatch.setattr("os.open", forbidding(os.open))
    refuses(lambda: data.sample(1, 0), "permission", where="episode_000001.parquet (episode 1)")
    refuses(lambda: pictures.sample(1, 0), where="episode_000001.mp4 (episode 1)")
    assert data.sample(0, 0)["index"] == 0


def shown_in(version: str) -> list[np.ndarray]:
    """The images in the file of episode 1, which v3 packs behind those of episode 0."""
    alone = episode_pictures(SPEC, 0, 1)
    return alone if version == "v2.1" else episode_pictures(SPEC, 0, 0) + alone


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_faults_fewer_images_than_rows(copy: Callable[[str], Path], version: str) -> None:
    root = copy(version)
    path = root / NAMES[version].format(TOP)
    shown = shown_in(version)
    write_video(path, shown[:-1], SPEC)
    data = EpisodeDataset(root)
    rows = 5 if version == "v2.1" else 9
    refuses(
        lambda: data.sample(1, 0),
        f"{rows - 1} frames",
        f"{rows} rows",
        where=f"{path.name} (episode 1)",
    )
    assert data.sample(2, 0)["index"] == 9


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_faults_notes_more_frames_than_rows(copy: Callable[[str], Path], version: str) -> None:
    root = copy(version)
    path = root / NAMES[version].format(TOP)
    shown = shown_in(version)
    write_video(path, [*shown, picture(3, 31, 7)], SPEC)
    data = EpisodeDataset(root)
    rows = 5 if version == "v2.1" else 9
    with warned(f"{path.name} (episode 1)", f"{rows + 1} frames", f"{rows} rows"):
        assert identity(data.sample(1, 4)[TOP].numpy()) == (0, 1, 4)
    assert len(data.notes) == 1


def test_faults_images_of_an_episode_that_the_table_lost(copy: Callable[[str], Path]) -> None:
    """The rows of episode 0 are gone from the metadata, its frames are still at the front of the
    packed video: order alone would give episode 1 the frames of episode 0. The recorded time
    locates its own.
    """
    root = copy("v3.0")
    path = root / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    data = EpisodeDataset(root)
    assert any("from_timestamp" in line for line in data.catalog.report())
    with pytest.warns(UserWarning, match="from_timestamp"):
        assert identity(data.sample(1, 0)[TOP].numpy()) == (0, 1, 0)


def test_faults_extra_images_where_no_times_are_recorded(copy: Callable[[str], Path]) -> None:
    """Two episodes in one file, one frame too many at an unknown place: refused; without the extra
    one, read.
    """
    root = copy("v3.0")
    for path in (root / "meta/episodes").glob("chunk-*/*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns([f"videos/{TOP}/from_timestamp"]), path)
    assert identity(EpisodeDataset(root).sample(1, 3)[TOP].numpy()) == (0, 1, 3)
    shown = [*episode_pictures(SPEC, 0, 0), picture(3, 0, 0), *episode_pictures(SPEC, 0, 1)]
    path = root / NAMES["v3.0"].format(TOP)
    write_video(path, shown, SPEC)
    refuses(
        lambda: EpisodeDataset(root).sample(1, 0),
        "10 frames",
        "recorded",
        where=f"{path.name} (episode 1)",
    )


def test_faults_an_episode_without_video(copy: Callable[[str], Path]) -> None:
    root = copy("v3.0")
    path = root / "meta/episodes/chunk-000/file-001.parquet"
    table = pq.read_table(path)
    column = f"videos/{TOP}/file_index"
    pq.write_table(
        table.set_column(table.column_names.index(column), column, pa.array([None], pa.int64())),
        path,
    )
    data = EpisodeDataset(root)
    assert f"{TOP}: 1 episode names no video, first 2" in data.catalog.report()
    refuses(lambda: data.sample(2, 0), "episode 2", TOP)
    refuses(lambda: data.batch(np.asarray([0, 2]), np.asarray([0, 0])), "episode 2", TOP)
    assert identity(data.sample(1, 0)[TOP].numpy()) == (0, 1, 0)


def test_faults_sizes_that_differ_in_a_batch(copy: Callable[[str], Path]) -> None:
    root = copy("v2.1")
    path = root / NAMES["v2.1"].format(TOP)
    import av

    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = 32
        stream.height = 16
        stream.pix_fmt = "yuv420p"
        for _ in range(5):
            container.mux(
                stream.encode(
                    av.VideoFrame.from_ndarray(np.zeros((16, 32, 3), np.uint8), format="rgb24")
                )
            )
        container.mux(stream.encode(None))
    data = EpisodeDataset(root)
    assert data.sample(1, 0)[TOP].shape == (3, 16, 32)
    where = "episode_000001.mp4 (episode 1)"
    refuses(
        lambda: data.batch(np.asarray([0, 1]), np.asarray([0, 0])), "64x64", "32x16", where=where
    )


def test_faults_videos_elsewhere_are_those_here(written: dict[str, tuple[Path, Truth]]) -> None:
    import fsspec

    root = written["v3.0"][0]
    for path in (p for p in root.rglob("*") if p.is_file()):
        fsspec.filesystem("memory").pipe(f"/faults/{path.relative_to(root)}", path.read_bytes())
    here = EpisodeDataset(root)
    there = EpisodeDataset("memory://faults")
    for key, value in here[5].items():
        assert (
            torch.equal(there[5][key], value)
            if isinstance(value, torch.Tensor)
            else there[5][key] == value
        )


# Images in the rows


def stored(root: Path, values: list[dict[str, Any] | None]) -> EpisodeDataset:
    path = root / "data/chunk-001/episode_000002.parquet"
    table = pq.read_table(path)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(
        table.set_column(table.column_names.index(PNG), PNG, pa.array(values, kind)), path
    )
    return EpisodeDataset(root, keys=[PNG], episodes=[2])


def encoded(array: np.ndarray, mode: str | None = None) -> dict[str, Any]:
    image = Image.fromarray(array)
    buffer = io.BytesIO()
    (image if mode is None else image.convert(mode)).save(buffer, "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


GRAY = np.arange(64 * 64, dtype=np.uint8).reshape(64, 64)
COLOR = np.stack([GRAY, 255 - GRAY, GRAY // 2], -1)


def test_faults_images_that_mean_rgb(copy: Callable[[str], Path]) -> None:
    """Grey fills the channels, an opaque alpha is dropped, a palette is applied."""
    opaque = np.dstack([COLOR, np.full((64, 64), 255, np.uint8)])
    data = stored(copy("v2.1"), [encoded(GRAY), encoded(opaque), encoded(GRAY, "P")])
    gray = np.broadcast_to(GRAY, (3, 64, 64))
    assert np.array_equal(data[0][PNG], gray)
    assert np.array_equal(data[1][PNG], COLOR.transpose(2, 0, 1))
    assert np.array_equal(data[2][PNG], gray)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "bytes"),
        ({"bytes": None, "path": None}, "bytes"),
        ({"bytes": b"", "path": None}, "UnidentifiedImageError"),
        ({"bytes": b"no picture", "path": None}, "UnidentifiedImageError"),
        ({"bytes": encoded(COLOR)["bytes"][:-60], "path": None}, "OSError"),
        ({"bytes": None, "path": "images/gone.png"}, "gone.png"),
        (encoded(np.dstack([COLOR, GRAY])), "transparent"),
        (encoded(GRAY.astype(np.uint16)), "mode I;16"),
    ],
)
def test_faults_images_that_are_refused(
    copy: Callable[[str], Path], value: dict[str, Any] | None, word: str
) -> None:
    data = stored(copy("v2.1"), [value] * 3)
    if "gone" in word:
        refuses(lambda: data[0], where=word, kind=MissingFileError)
    else:
        refuses(lambda: data[0], word, PNG, where="episode_000002.parquet (episode 2)")


def test_faults_images_beside_the_rows(copy: Callable[[str], Path]) -> None:
    """A path without bytes names a file under the root."""
    root = copy("v2.1")
    (root / "images").mkdir()
    (root / "images/a.png").write_bytes(encoded(COLOR)["bytes"])
    data = stored(root, [{"bytes": None, "path": "images/a.png"}] * 3)
    assert np.array_equal(data[0][PNG], COLOR.transpose(2, 0, 1))


def test_faults_one_channel(copy: Callable[[str], Path]) -> None:
    root = copy("v2.1")
    edit_json(root / "meta/info.json", lambda info: info["features"][PNG].update(shape=[1, 64, 64]))
    data = stored(root, [encoded(GRAY), encoded(COLOR), encoded(GRAY)])
    assert np.array_equal(data[0][PNG], GRAY[None])
    refuses(lambda: data[1], PNG, "color", "channel")


def test_faults_images_of_two_sizes(copy: Callable[[str], Path]) -> None:
    data = stored(copy("v2.1"), [encoded(GRAY), encoded(GRAY[:32]), encoded(GRAY)])
    assert data[1][PNG].shape == (3, 32, 64)
    refuses(lambda: data.batch(np.asarray([2, 2]), np.asarray([0, 1])), PNG, (3, 32, 64))


# Use


@pytest.mark.parametrize(
    ("options", "values", "where"),
    [
        ({"delta_timestamps": {"action": [0.05]}}, ["delta_timestamps['action']", "0.05 s"], None),
        ({"delta_timestamps": {"nothing": [0.0]}}, ["delta_timestamps", "'nothing'"], None),
        ({"episodes": [9]}, [9], None),
        ({"keep_ranges": "nowhere.json"}, [], "nowhere.json"),
        ({"keys": ["nothing"]}, ["keys", "'nothing'"], "v3.0"),
        ({"keys": "action"}, ["keys", "'action'"], None),
        ({"video_backend": "magic"}, ["video_backend", "'magic'"], None),
    ],
)
def test_faults_wrong_use_is_one_line(
    written: dict[str, tuple[Path, Truth]],
    options: dict[str, Any],
    values: list[Any],
    where: str | None,
) -> None:
    refuses(lambda: EpisodeDataset(written["v3.0"][0], **options)[0], *values, where=where)


def test_faults_shapes_of_a_batch(written: dict[str, tuple[Path, Truth]]) -> None:
    data = EpisodeDataset(written["v3.0"][0])
    for episodes, frames in [([0, 1], [0]), ([], []), ([[0]], [[0]])]:
        shapes = np.asarray(episodes).shape, np.asarray(frames).shape
        refuses(
            lambda e=episodes, f=frames: data.batch(np.asarray(e), np.asarray(f)),
            *shapes,
            where=None,
        )


def test_faults_a_pipe_is_not_waited_for(copy: Callable[[str], Path]) -> None:
    root = copy("v3.0")
    path = root / "meta/info.json"
    path.unlink()
    os.mkfifo(path)
    refuses(lambda: Catalog.open(root), "file", where="info.json")


def test_faults_catalog_of_a_file_given_as_root(written: dict[str, tuple[Path, Truth]]) -> None:
    refuses(lambda: Catalog.open(written["v3.0"][0] / "meta/info.json"), where="info.json")
