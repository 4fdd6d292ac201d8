"""`check --against`: planted differences are found with place and size, and nothing else is."""

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from understudy_base import DatasetError
from understudy_data import Catalog, Workers
from understudy_data.testing.datasets import (
    Spec,
    edit_json,
    episode_pictures,
    picture,
    write_dataset,
    write_video,
)
from understudy_data.testing.servers import RangeServer, folder
from understudy_kit import main
from understudy_tools.check import against
from understudy_tools.check.against import SAMPLED_IMAGES, Difference, compare
from understudy_tools.testing.edited import edit
from understudy_tools.testing.sensors import IMU, Samples, add_sensor, jittered

TOP = "observation.images.top"
STILL = "observation.still"
SPEC = Spec(
    "v2.0",
    lengths=(6, 9, 4, 7),
    cameras=(TOP,),
    images=(STILL,),
    rich=True,
    nan_row=True,
    recorded_as=True,
    chunks_size=1000,
)
PAIR = {"dtype": "float32", "shape": [2], "names": None}
COUNT = {"dtype": "int64", "shape": [1], "names": None}
Found = dict[tuple[str, str, int | None, int | None], Difference]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("against") / "base"
    write_dataset(root, SPEC)
    return root


@pytest.fixture
def copy(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "copy"))


def found(a: Path | str, b: Path | str, **options: Any) -> Found:
    """Differences by kind, name, id in A and id in B."""
    result = compare(Catalog.open(a), Catalog.open(b), **options)
    places = {(one.kind, one.name, one.episode, one.other): one for one in result.differences}
    assert len(places) == len(result.differences)
    return places


def data(root: Path, episode: int) -> Path:
    return root / f"data/chunk-000/episode_{episode:06d}.parquet"


def change_rows(episode: int, key: str, row: int, change: Callable[[Any], Any]) -> Any:
    """A change of one value of a column; of a vector, the first number."""

    def plant(root: Path) -> None:
        table = pq.read_table(data(root, episode))
        values = table[key].to_pylist()
        if isinstance(values[row], list):
            values[row][0] = change(values[row][0])
        else:
            values[row] = change(values[row])
        column = pa.array(values, table.schema.field(key).type)
        place = table.column_names.index(key)
        pq.write_table(table.set_column(place, key, column), data(root, episode))

    return plant


def change_info(change: Callable[[dict[str, Any]], Any]) -> Any:
    return lambda root: edit_json(root / "meta/info.json", change)


def change_feature(key: str, **fields: Any) -> Any:
    return change_info(lambda info: info["features"][key].update(fields))


def change_statistics(root: Path) -> None:
    edit_json(root / "meta/stats.json", lambda stats: stats["action"]["mean"].__setitem__(0, 9.5))


def change_metadata(root: Path) -> None:
    path = root / "meta/episodes.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[2]["file_path"] = "/data/elsewhere"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def encoded(pixels: np.ndarray, level: int) -> dict[str, Any]:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", compress_level=level)
    return {"bytes": buffer.getvalue(), "path": "frame-0.png"}


def brighter(episode: int, frame: int, levels: int) -> np.ndarray:
    return np.asarray(picture(1, episode, frame) + np.uint8(levels), np.uint8)


def encode_anew(root: Path) -> None:
    path = root / f"videos/chunk-000/{TOP}/episode_000003.mp4"
    coarse = Spec("v2.0", lengths=SPEC.lengths, codec="mpeg4")
    pictures = episode_pictures(SPEC, 0, 3)
    path.unlink()
    write_video(path, pictures, coarse)


def rename_task(root: Path) -> None:
    for name in ("tasks", "episodes"):
        path = root / f"meta/{name}.jsonl"
        path.write_text(path.read_text().replace("wait", "stand still"))


PLANTED: dict[str, tuple[Any, dict[tuple[str, str, int | None], dict[str, Any]]]] = {
    "rate": (
        change_info(lambda info: info.update(fps=20)),
        {("info", "fps", None): {"a": 10, "b": 20}},
    ),
    "robot": (
        change_info(lambda info: info.update(robot_type="other")),
        {("info", "robot_type", None): {"a": "test_arm", "b": "other"}},
    ),
    "names": (
        change_feature("observation.state", names=["a", "b", "z"]),
        {("info", "observation.state, names", None): {"b": ["a", "b", "z"]}},
    ),
    "codec": (
        change_feature(TOP, info={"video.codec": "av1"}),
        {("info", f"{TOP}, codec", None): {"a": "h264", "b": "av1"}},
    ),
    "dtype": (change_feature("action", dtype="float64"), {("info", "action", None): {}}),
    "feature": (
        change_info(lambda info: info["features"].pop("matrix")),
        {("info", "matrix", None): {"a": "float32 (2, 3)", "b": "undeclared"}},
    ),
    "statistics": (change_statistics, {("statistics", "action, mean", None): {}}),
    "metadata": (
        change_metadata,
        {("episode", "file_path", 2): {"a": "/data/run-2.h5", "b": "/data/elsewhere"}},
    ),
    "value": (
        change_rows(1, "next.reward", 3, lambda value: value + 0.5),
        {("column", "next.reward", 1): {"frames": 1, "compared": 9, "largest": 0.5}},
    ),
    "least bit": (
        change_rows(1, "action", 0, lambda value: np.nextafter(np.float32(value), np.float32(9))),
        {("column", "action", 1): {"frames": 1}},
    ),
    "number for NaN": (
        change_rows(3, "observation.state", 6, lambda value: 1.0),
        {("column", "observation.state", 3): {"frames": 1, "largest": float("inf")}},
    ),
    "text": (
        change_rows(2, "note", 1, lambda text: text + "!"),
        {("column", "note", 2): {"frames": 1, "largest": None}},
    ),
    "boolean": (
        change_rows(2, "next.done", 0, lambda done: not done),
        {("column", "next.done", 2): {"frames": 1, "largest": 1}},
    ),
    "task of a frame": (
        change_rows(0, "task_index", 5, lambda task: 1 - task),
        {("column", "task", 0): {"frames": 1}},
    ),
    "time": (
        change_rows(0, "timestamp", 5, lambda time: time + 0.25),
        {("column", "timestamp", 0): {"frames": 1}},
    ),
    "image in a row": (
        change_rows(2, STILL, 0, lambda image: encoded(brighter(2, 0, 7), 6)),
        {("images", STILL, 2): {"compared": 4, "frames": 1, "largest": 7}},
    ),
    "image compressed anew": (
        change_rows(2, STILL, 0, lambda image: encoded(picture(1, 2, 0), 1)),
        {("images", STILL, 2): {"compared": 4, "frames": 0, "largest": 0}},
    ),
    "video encoded anew": (
        encode_anew,
        {("images", TOP, 3): {"compared": SAMPLED_IMAGES, "frames": SAMPLED_IMAGES}},
    ),
    "task": (
        rename_task,
        {
            ("info", "task 'wait'", None): {"a": "listed", "b": None},
            ("info", "task 'stand still'", None): {"a": None, "b": "listed"},
            ("episode", "tasks", 2): {"a": ["wait"], "b": ["stand still"]},
            ("column", "task", 2): {"frames": 4, "compared": 4},
        },
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_difference_is_found_and_nothing_else(name: str, base: Path, copy: Path) -> None:
    plant, wanted = PLANTED[name]
    plant(copy)
    for a, b in ((base, copy), (copy, base)):
        differences = found(a, b)
        assert {place[:3] for place in differences} == set(wanted)
        assert all(place[2] == place[3] for place in differences)
        if b == copy:
            for (kind, key, episode, _), difference in differences.items():
                for field, value in wanted[kind, key, episode].items():
                    assert getattr(difference, field) == value, field


def test_the_sign_of_zero_is_a_difference(base: Path, copy: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    change_rows(0, "action", 0, lambda value: 0.0)(copy)
    change_rows(0, "action", 0, lambda value: -0.0)(other)
    differences = found(copy, other)
    assert set(differences) == {("column", "action", 0, 0)}
    difference = differences["column", "action", 0, 0]
    assert (difference.frames, difference.largest) == (1, 0)


def test_largest_difference_is_also_a_share_of_the_range(base: Path, copy: Path) -> None:
    change_rows(1, "action", 0, lambda value: value + 2)(copy)
    ((_, difference),) = found(base, copy).items()
    actions = [
        np.stack(pq.read_table(data(base, episode))["action"].to_numpy()) for episode in range(4)
    ]
    first = np.concatenate(actions)[:, 0]
    assert difference.largest == pytest.approx(2)
    assert difference.share == pytest.approx(2 / (first.max() - first.min()))


def test_a_dimension_without_a_range_has_no_share(base: Path, copy: Path, tmp_path: Path) -> None:
    """A constant dimension differs much, another one not at all."""
    other = Path(shutil.copytree(base, tmp_path / "other"))
    for root, first in ((copy, 1.0), (other, 6.0)):
        add_column(root, "extra", [[first, float(row)] for row in range(9)])
        change_info(lambda info: info["features"].update(extra=PAIR))(root)
    assert {one.largest for one in found(copy, other).values()} == {5}
    assert {one.share for one in found(copy, other).values()} == {None}


def add_column(root: Path, key: str, values: list[Any]) -> None:
    """Add a column to all data files; episodes take the first of the values."""
    for path in (root / "data").rglob("episode_*.parquet"):
        table = pq.read_table(path)
        pq.write_table(table.append_column(key, pa.array(values[: len(table)])), path)


@pytest.mark.parametrize(
    ("value", "changed", "largest"),
    [
        (2**60, 2**60 + 1, 1),
        ([0.5, 1.5], [0.5, 1.75], 0.25),
        ([0.5, 1.5], [0.5], None),
        (7, None, None),
        ("left", "right", None),
        ({"x": 1}, {"x": 2}, None),
    ],
)
def test_an_undeclared_column_is_compared(
    value: Any, changed: Any, largest: float | None, base: Path, copy: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    add_column(copy, "extra", [value] * 9)
    add_column(other, "extra", [value] * 8 + [changed])  # the last frame of the longest episode
    assert found(copy, copy) == {}
    ((place, difference),) = found(copy, other).items()
    assert place == ("column", "extra", 1, 1)
    assert (difference.compared, difference.frames) == (9, 1)
    assert difference.largest == largest
    ((place, difference),) = found(copy, base).items()
    assert (place[:2], difference.a, difference.b) == (("info", "extra"), "undeclared", None)


def test_an_undeclared_column_of_some_files_is_not_compared(base: Path, copy: Path) -> None:
    add_column(copy, "extra", [1] * 9)
    path = data(copy, 2)
    pq.write_table(pq.read_table(path).drop_columns("extra"), path)
    result = compare(Catalog.open(copy), Catalog.open(copy))
    assert result.differences == ()
    assert any(line.startswith("extra ") for line in result.not_compared)


def test_whole_numbers_of_64_bits_differ_exactly(base: Path, copy: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    for root, change in ((copy, 0), (other, 3)):
        add_column(root, "count", [2**60 + row * change for row in range(9)])
        change_info(lambda info: info["features"].update(count=COUNT))(root)
    assert found(copy, other)["column", "count", 1, 1].largest == 24


def samples() -> Samples:
    return jittered(SPEC.lengths, rate=50)


SENSOR_CHANGES: dict[str, tuple[Callable[[Samples], Any], dict[str, Any]]] = {
    "value": (lambda own: own[1][1].__setitem__((3, 0), 90.0), {"frames": 1}),
    "time": (lambda own: own[1][0].__setitem__(-1, 0.95), {"frames": 0}),
    "missing": (
        lambda own: own.update({1: (np.delete(own[1][0], 5), np.delete(own[1][1], 5, axis=0))}),
        {"frames": 0, "largest": 0},
    ),
}


@pytest.mark.parametrize("path", ["sensors/imu.parquet", "sensors/imu/{episode_index}.parquet"])
@pytest.mark.parametrize("name", SENSOR_CHANGES)
def test_samples_of_a_sensor_are_compared(
    name: str, path: str, base: Path, copy: Path, tmp_path: Path
) -> None:
    other = Path(shutil.copytree(base, tmp_path / "other"))
    change, wanted = SENSOR_CHANGES[name]
    changed = samples()
    count = len(changed[1][0])
    change(changed)
    add_sensor(copy, samples(), path=path)
    add_sensor(other, changed, path=path)
    assert found(copy, copy) == {}
    ((place, difference),) = found(copy, other).items()
    assert place == ("sensor", IMU, 1, 1)
    assert (difference.a, difference.b) == (count, len(changed[1][0]))
    assert difference.compared == count - (name != "value")
    for field, value in wanted.items():
        assert getattr(difference, field) == value, field
    assert found(copy, other, depth="metadata") == {}
    ((place, difference),) = found(copy, base).items()
    assert (place[:2], difference.b) == (("info", IMU), None)


@pytest.mark.parametrize("depth", ["metadata", "rows", "sample", "all"])
def test_a_copy_is_equal(depth: str, base: Path, copy: Path) -> None:
    assert found(base, copy, depth=depth) == {}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "spec",
    [
        replace(SPEC, nan_row=False),
        Spec("v2.1", cameras=(TOP, "observation.images.wrist"), ids=(0, 1, 2), rich=True),
        Spec("v3.0", b_frames=2, gop=6, lengths=(6, 12, 6), per_video_file=3),
        Spec("v3.0", cameras=(), images=(STILL,)),
    ],
)
def test_a_conversion_is_equal(spec: Spec, tmp_path: Path) -> None:
    write_dataset(tmp_path / "a", spec)
    edit(tmp_path / "a", tmp_path / "b")
    assert Catalog.open(tmp_path / "b").version == "v3.0"
    assert found(tmp_path / "a", tmp_path / "b") == {}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_episode_left_out_moves_the_later_ones(base: Path, tmp_path: Path) -> None:
    edit(base, tmp_path / "b", exclude_episodes=(1,))
    differences = found(base, tmp_path / "b")
    places = {place for place in differences if place[0] not in ("statistics", "info")}
    assert places == {
        ("removed", "", 1, None),
        ("moved", "", 2, 1),
        ("moved", "", 3, 2),
    }
    back = {
        place for place in found(tmp_path / "b", base) if place[0] not in ("statistics", "info")
    }
    assert back == {("added", "", None, 1), ("moved", "", 1, 2), ("moved", "", 2, 3)}


def test_a_moved_episode_is_compared_with_its_origin(base: Path, copy: Path) -> None:
    """Episodes 0 and 2 change places, and one of them gets another task and image."""
    paths = [data(copy, 0), data(copy, 2)]
    tables = [pq.read_table(path) for path in paths]
    for path, table, episode in zip(paths, tables[::-1], (0, 2)):
        ids = pa.array([episode] * len(table), pa.int64())
        place = table.column_names.index("episode_index")
        pq.write_table(table.set_column(place, "episode_index", ids), path)
    lines = [json.loads(line) for line in (copy / "meta/episodes.jsonl").read_text().splitlines()]
    for line, number in zip(lines, (2, 1, 0, 3)):
        line["episode_index"] = number
    (copy / "meta/episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    videos = [copy / f"videos/chunk-000/{TOP}/episode_00000{number}.mp4" for number in (0, 2)]
    contents = [path.read_bytes() for path in videos]
    for path, content in zip(videos, contents[::-1]):
        path.write_bytes(content)
    change_rows(2, "task_index", 0, lambda task: 1)(copy)
    assert set(found(base, copy)) == {
        ("moved", "", 0, 2),
        ("moved", "", 2, 0),
        ("column", "task", 0, 2),
    }


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_shorter_episode_has_another_length_alone(base: Path, tmp_path: Path) -> None:
    ranges = {str(episode): [[0, length]] for episode, length in enumerate((6, 9, 4, 5))}
    (tmp_path / "keep.json").write_text(json.dumps(ranges))
    edit(base, tmp_path / "whole")
    edit(base, tmp_path / "cut", keep_ranges=str(tmp_path / "keep.json"))
    differences = found(tmp_path / "whole", tmp_path / "cut")
    places = {place for place in differences if place[0] not in ("statistics", "info")}
    assert ("episode", "length", 3, 3) in places
    assert {place[1] for place in places} <= {"length", "end_is_cut"}
    length = differences["episode", "length", 3, 3]
    assert (length.a, length.b) == (7, 5)


def test_no_episode_is_common(base: Path, tmp_path: Path) -> None:
    """Other ids, rows, features and versions; one side has no videos."""
    write_dataset(tmp_path / "b", Spec("v3.0", lengths=(8, 3), ids=(7, 9), cameras=(), state_dim=2))
    differences = found(base, tmp_path / "b")
    episodes = {(kind, *ids) for kind, _, *ids in differences if kind not in ("info", "statistics")}
    assert episodes == {
        *(("removed", episode, None) for episode in range(4)),
        *(("added", None, episode) for episode in (7, 9)),
    }
    assert ("info", TOP, None, None) in differences
    assert ("info", "observation.state", None, None) in differences


def test_other_features_leave_common_columns_compared(base: Path, tmp_path: Path) -> None:
    write_dataset(tmp_path / "b", Spec("v3.0", lengths=SPEC.lengths, cameras=(), state_dim=2))
    columns = {place[1] for place in found(base, tmp_path / "b") if place[0] == "column"}
    assert "observation.state" not in columns
    assert {"action", "next.reward"} >= columns


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("name", ["data", "videos"])
def test_a_missing_file_is_named(name: str, side: int, base: Path, copy: Path) -> None:
    path = next((copy / name).rglob("episode_000002.*"))
    path.unlink()
    roots = (copy, base)[:: 1 - 2 * side]
    with pytest.raises(DatasetError) as raised:
        compare(Catalog.open(roots[0]), Catalog.open(roots[1]))
    assert str(path.relative_to(copy)) in str(raised.value.where)
    assert main(["check", str(roots[0]), "--against", str(roots[1])]) == 2


def test_all_images_are_compared_where_asked(base: Path, copy: Path) -> None:
    encode_anew(copy)
    assert found(base, copy, depth="all")["images", TOP, 3, 3].compared == 7
    assert found(base, copy, depth="rows") == {}


def test_workers_and_kept_parts_find_the_same(
    base: Path, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(against, "_PART", 1)
    encode_anew(copy)
    change_rows(1, "action", 0, lambda value: value + 2)(copy)
    alone = found(base, copy)
    for _ in range(2):  # the second time reads the kept parts
        with Workers(2, folder=tmp_path / "parts") as workers:
            assert found(base, copy, workers=workers) == alone
    parts = sorted((tmp_path / "parts").iterdir())
    change_rows(2, "action", 0, lambda value: value + 2)(copy)
    with Workers(folder=tmp_path / "parts") as workers:
        assert ("column", "action", 2, 2) in found(base, copy, workers=workers)
    assert len(sorted((tmp_path / "parts").iterdir())) > len(parts)


def test_command_prints_counts_and_ends_with_one(
    base: Path, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(base), "--against", str(copy)]) == 0
    assert capsys.readouterr().out.startswith("equal")
    for episode in range(3):
        change_rows(episode, "action", 0, lambda value: value + 2)(copy)
    assert main(["check", str(base), "--against", str(copy), "--limit", "2"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("column: name action") for line in lines) == 2
    assert "column: and 1 more" in lines
    assert main(["check", str(base), "--against", str(copy), "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert (content["equal"], content["counts"]["column"], content["counts"]["changed"]) == (
        False,
        3,
        3,
    )
    assert [one["episode"] for one in content["differences"]] == [0, 1, 2]


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_side_is_a_url_or_a_view(base: Path, copy: Path) -> None:
    change_rows(1, "action", 0, lambda value: value + 2)(copy)
    encode_anew(copy)
    with RangeServer(folder(copy, "/set")) as server:
        assert found(base, f"{server.url}/set") == found(base, copy)
    assert main(["select", str(copy), "some", "--episodes", "0-1"]) == 0
    assert set(found(f"{copy}#some", base)) == {
        ("column", "action", 1, 1),
        ("added", "", None, 2),
        ("added", "", None, 3),
    }


def test_settings_of_findings_are_refused(base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(base), "--against", str(base), "--page", "page.html"]) == 2
    assert "page" in capsys.readouterr().err
    assert main(["check", str(base), "--against", f"{base.parent}/*"]) == 2
