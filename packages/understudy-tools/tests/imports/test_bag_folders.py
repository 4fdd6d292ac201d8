"""Bags of several files, their metadata.yaml, messages of another time, and compressed bags."""

import json
import shutil
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml

pytest.importorskip("rosbags", reason="needs the extra `import`")

from understudy_tools.cli.importing import import_
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import ImportConfig
from understudy_tools.testing import mcap_files as mcap
from understudy_tools.testing.bags import EPOCH, SECOND, Bag

MAPPING: dict[str, Any] = {
    "fps": 10,
    "task": "t",
    "features": {
        "observation.state": {"stream": "/s", "field": "data"},
        "action": {"stream": "/a", "field": "data"},
    },
}


def run(
    folder: Path, source: Path, mapping: dict[str, Any] = MAPPING, **settings: Any
) -> np.ndarray:
    (folder / "map.json").write_text(json.dumps(mapping))
    out = folder / f"out {len(list(folder.glob('out *')))}"
    import_(
        ImportConfig((str(source), str(out)), str(folder / "map.json"), storage="image", **settings)
    )
    table = pq.read_table(out / "data/chunk-000/file-000.parquet").to_pydict()
    return np.stack(
        [np.array(table[key]).ravel() for key in MAPPING["features"] if key in table], 1
    )


def findings(folder: Path) -> list[dict[str, Any]]:
    out = folder / f"out {len(list(folder.glob('out *'))) - 1}"
    content: dict[str, Any] = json.loads((out / "meta/import.json").read_text())
    return list(content["recordings"][0]["findings"])


def fault(call: Callable[[], object]) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        call()
    return caught.value


def fill(bag: Bag, first: int, stop: int) -> None:
    for i in range(first, stop):
        bag.number("/s", i / 10, i)
        bag.number("/a", i / 10 + 0.01, -i)


ENDS = {"mcap": "mcap", "sqlite3": "db3"}


@pytest.fixture(params=["mcap", "sqlite3"])
def bag(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A bag of 30 frames in three files, as a recorder splits it: bag_2 is before bag_10."""
    folder = tmp_path / "bag"
    end = ENDS[request.param]
    names = []
    folder.mkdir()
    for part, number in enumerate((0, 2, 10)):
        with Bag(tmp_path / f"part{part}", request.param) as one:
            fill(one, 10 * part, 10 * part + 10)
        names.append(f"bag_{number}.{end}")
        shutil.move(next((tmp_path / f"part{part}").glob(f"*.{end}")), folder / names[-1])
        content = yaml.safe_load((tmp_path / f"part{part}/metadata.yaml").read_text())
    content["rosbag2_bagfile_information"]["relative_file_paths"] = names
    (folder / "metadata.yaml").write_text(yaml.safe_dump(content))
    return folder


def listed(bag: Path) -> list[str]:
    names: list[str] = yaml.safe_load((bag / "metadata.yaml").read_text())[
        "rosbag2_bagfile_information"
    ]["relative_file_paths"]
    return names


def change(bag: Path, **changes: Any) -> None:
    content = yaml.safe_load((bag / "metadata.yaml").read_text())
    content["rosbag2_bagfile_information"] |= changes
    (bag / "metadata.yaml").write_text(yaml.safe_dump(content))


def expected() -> np.ndarray:
    return np.array([[i, -i] for i in range(29)])


def test_import_reads_a_bag_of_several_files(tmp_path: Path, bag: Path) -> None:
    np.testing.assert_array_equal(run(tmp_path, bag), expected())
    assert findings(tmp_path) == []


@pytest.mark.parametrize("way", ["reversed", "last first", "twice", "with the folder", "dot"])
def test_import_reads_files_that_are_listed_in_another_way(
    tmp_path: Path, bag: Path, way: str
) -> None:
    names = listed(bag)
    change(
        bag,
        relative_file_paths={
            "reversed": names[::-1],
            "last first": [names[2], *names[:2]],
            "twice": [*names, names[1]],
            "with the folder": [f"bag/{name}" for name in names],  # as the first versions list them
            "dot": [f"./{name}" for name in names],
        }[way],
    )
    np.testing.assert_array_equal(run(tmp_path, bag), expected())
    kinds = [of["kind"] for of in findings(tmp_path)]
    assert set(kinds) == (set() if way in ("with the folder", "dot") else {"layout"})


def test_import_names_files_that_are_missing_or_not_listed(tmp_path: Path, bag: Path) -> None:
    names = listed(bag)
    change(bag, relative_file_paths=names[:2])
    error = fault(lambda: run(tmp_path, bag))
    assert (error.kind, names[2] in error.what, "reindex" in error.fix) == ("layout", True, True)
    change(bag, relative_file_paths=names)
    (bag / names[1]).rename(tmp_path / "elsewhere")
    error = fault(lambda: run(tmp_path, bag))
    assert (error.kind, names[1] in error.what) == ("missing", True)
    change(bag, relative_file_paths=[names[0], names[2]])
    (bag / "._bag_0.mcap").write_bytes(b"mac")
    (bag / "notes.txt").write_text("mine")
    assert fault(lambda: run(tmp_path, bag)).kind == "gap"  # of the second that is not there


@pytest.mark.parametrize("way", ["absolute", "above", "link", "link of metadata"])
def test_import_reads_no_file_outside_of_a_bags_folder(tmp_path: Path, bag: Path, way: str) -> None:
    names = listed(bag)
    (tmp_path / "private").mkdir()
    private = tmp_path / "private" / names[2]
    (bag / names[2]).rename(private)
    if way == "link":
        (bag / names[2]).symlink_to(private)
    elif way == "link of metadata":
        (bag / "metadata.yaml").rename(tmp_path / "private/metadata.yaml")
        (bag / "metadata.yaml").symlink_to(tmp_path / "private/metadata.yaml")
    else:
        change(
            bag,
            relative_file_paths=[
                *names[:2],
                str(private) if way == "absolute" else f"../private/{names[2]}",
            ],
        )
    assert fault(lambda: run(tmp_path, bag)).kind == "link"


def test_import_names_a_copy_and_a_clock_that_was_set_back_between_files(
    tmp_path: Path, bag: Path
) -> None:
    names = listed(bag)
    copied = names[2].replace("10", "11")
    shutil.copy(bag / names[1], bag / copied)
    change(bag, relative_file_paths=[*names, copied])
    error = fault(lambda: run(tmp_path, bag))
    assert (error.kind, names[1] in error.what or copied in error.what) == ("reset", True)
    (bag / copied).unlink()
    (bag / names[0]).rename(bag / copied)  # the first second comes last, by name and by list
    change(bag, relative_file_paths=[*names[1:], copied])
    error = fault(lambda: run(tmp_path, bag))
    assert (error.kind, copied in error.what) == ("reset", True)


@pytest.mark.parametrize(
    "content", ["", "a: [", "x: 1", *(f"rosbag2_bagfile_information: {of}" for of in (5, "{x: 1}"))]
)
def test_import_names_a_metadata_file_that_is_none(tmp_path: Path, bag: Path, content: str) -> None:
    (bag / "metadata.yaml").write_text(content)
    assert fault(lambda: run(tmp_path, bag)).kind in ("layout", "unreadable")


@pytest.mark.parametrize("mode", ["FILE", "MESSAGE"])
def test_import_reads_compressed_bags_and_bounds_them(
    tmp_path: Path, bag: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    from backports import zstd

    names = listed(bag)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "temporary").mkdir()
    if mode == "MESSAGE":
        if names[0].endswith("mcap"):
            pytest.skip("a writer compresses the chunks of MCAP")
        for name in names:
            base = sqlite3.connect(bag / name)
            for number, data in base.execute("SELECT id, data FROM messages").fetchall():
                base.execute(
                    "UPDATE messages SET data = ? WHERE id = ?", (zstd.compress(data), number)
                )
            base.commit()
            base.close()
        change(bag, compression_mode=mode, compression_format="zstd")
    else:
        for name in names:
            (bag / f"{name}.zstd").write_bytes(zstd.compress((bag / name).read_bytes()))
            (bag / name).unlink()
        change(
            bag,
            compression_mode=mode,
            compression_format="zstd",
            relative_file_paths=[f"{name}.zstd" for name in names],
        )
    np.testing.assert_array_equal(run(tmp_path, bag), expected())
    assert list((tmp_path / "temporary").iterdir()) == []
    if mode == "FILE":
        monkeypatch.setattr("understudy_tools.imports.bag_files._LEAST_UNPACKED", 1 << 20)
        (bag / f"{names[1]}.zstd").write_bytes(zstd.compress(bytes(1 << 22)))
    else:
        monkeypatch.setattr("understudy_tools.imports.bags.MAX_MESSAGES", 1 << 20)
        base = sqlite3.connect(bag / names[1])
        base.execute("UPDATE messages SET data = ? WHERE id = 5", (zstd.compress(bytes(1 << 22)),))
        base.commit()
        base.close()
    error = fault(lambda: run(tmp_path, bag))
    assert (error.kind, "1,048,576" in error.what) == ("size", True)
    assert list((tmp_path / "temporary").iterdir()) == []
    change(bag, compression_format="xz")
    assert fault(lambda: run(tmp_path, bag)).kind == "unreadable"


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
@pytest.mark.parametrize("topic", ["/tf_static", "/s", "/say"])
@pytest.mark.parametrize("time", [0.0, 4e9])
def test_import_names_the_stream_with_a_message_of_another_time(
    tmp_path: Path, storage: str, topic: str, time: float, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bag(tmp_path / "bag", storage, start=0, is_sorted=False) as bag:
        odd = bag.text if topic == "/say" else bag.number
        odd(topic, time, "pick" if topic == "/say" else 5)  # type: ignore[operator]
        bag.start = EPOCH
        fill(bag, 0, 30)
    mapping = (
        {**MAPPING, "task": "", "task_from": "/say"} if topic == "/say" and not time else MAPPING
    )
    if (topic, time) == ("/s", 4e9):  # a gap before it, within the frames
        error = fault(lambda: run(tmp_path, tmp_path / "bag", mapping))
        assert (error.kind, error.stream, error.time) == ("time", topic, time)
        return
    np.testing.assert_array_equal(run(tmp_path, tmp_path / "bag", mapping), expected())
    named = [(of["kind"], of["stream"], of["time"]) for of in findings(tmp_path)]
    assert named == [("time", topic, time)]
    capsys.readouterr()
    import_(ImportConfig((str(tmp_path / "bag"),), propose=True))
    printed = capsys.readouterr().out
    assert " 0.0 per second" not in printed
    assert printed.count("10.0 per second") == 2


@pytest.mark.parametrize("gaps", ["error", "hold"])
def test_import_names_a_message_of_another_time_in_a_recording_of_one_stream(
    tmp_path: Path, gaps: str
) -> None:
    alone = {**MAPPING, "features": {"observation.state": MAPPING["features"]["observation.state"]}}
    for name, time in (("early", 0.0), ("late", 4e9)):
        with Bag(tmp_path / name, start=0) as bag:
            bag.number("/s", time, 5)
            bag.start = EPOCH
            fill(bag, 0, 30)
        error = fault(partial(run, tmp_path, tmp_path / name, alone, gaps=gaps))
        assert (error.kind, error.stream, error.time) == ("time", "/s", time)


def test_propose_prints_no_rate_of_a_bag_of_nanoseconds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Bag(tmp_path / "bag") as bag:
        for i in range(5):
            bag.number("/s", i * 1e-9, i)
    import_(ImportConfig((str(tmp_path / "bag"),), propose=True))
    printed = capsys.readouterr().out
    assert "/s" in printed
    assert "per second" not in printed


@pytest.mark.parametrize("kind", ["bz2", "lz4", "none"])
def test_import_bounds_chunks_of_ros_1(tmp_path: Path, kind: str) -> None:
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    writer = Writer(tmp_path / "a.bag")
    if kind != "none":
        writer.set_compression(Writer.CompressionFormat[kind.upper()])
    with writer:
        for topic in ("/s", "/a"):
            connection = writer.add_connection(topic, "std_msgs/msg/Float64", typestore=store)
            for i in range(30):
                message = store.types["std_msgs/msg/Float64"](i if topic == "/s" else -i)
                time = EPOCH + i * SECOND // 10 + (topic == "/a") * SECOND // 100
                writer.write(
                    connection, time, store.serialize_ros1(message, "std_msgs/msg/Float64")
                )
    np.testing.assert_array_equal(run(tmp_path, tmp_path / "a.bag"), expected())
    if kind == "none":
        return
    raw = (tmp_path / "a.bag").read_bytes()
    place = (
        raw.index(b"size=", raw.index(b"compression="))
        if b"size=" in raw[raw.index(b"compression=") :]
        else -1
    )
    place = raw.index(b"size=") if place < 0 else place
    (tmp_path / "a.bag").write_bytes(
        raw[: place + 5] + (100).to_bytes(4, "little") + raw[place + 9 :]
    )
    error = fault(lambda: run(tmp_path, tmp_path / "a.bag"))
    assert (error.kind, "100" in error.what) == ("size", True)


def test_import_of_a_bag_with_odd_characters_in_its_path(tmp_path: Path, bag: Path) -> None:
    odd = tmp_path / "a #1?50% 夹"
    bag.rename(odd)
    np.testing.assert_array_equal(run(tmp_path, odd), expected())


@pytest.mark.parametrize("kind", ["loose", "chunk", "chunk with an index"])
def test_import_names_a_message_later_than_any_clock(tmp_path: Path, kind: str) -> None:
    never = (1 << 64) - 1
    content = mcap.schema(1, "std_msgs/msg/Float64", "float64 data")
    content += b"".join(
        mcap.channel(number, 1, topic) for number, topic in ((1, "/s"), (2, "/a"), (3, "/odd"))
    )
    for i in range(30):
        for number, value, late in ((1, i, 0), (2, -i, 10**7)):
            content += mcap.message(
                number, mcap.START + i * 10**8 + late, mcap.HEAD + struct.pack("<d", value)
            )
    odd = mcap.message(3, never, mcap.HEAD + bytes(8))
    indexed = mcap.index(3, [(never, 0)]) * (kind == "chunk with an index")
    content += odd if kind == "loose" else mcap.chunk(odd, never, never) + indexed
    np.testing.assert_array_equal(
        run(tmp_path, mcap.write(tmp_path / "a.mcap", content)), expected()
    )
    assert [(of["kind"], of["stream"]) for of in findings(tmp_path)] == [("time", "/odd")]


@pytest.mark.short("view")
@pytest.mark.parametrize("way", ["blob", "generated", "view"])
def test_import_bounds_messages_of_sqlite(tmp_path: Path, way: str) -> None:
    import sqlite3

    with Bag(tmp_path / "bag", "sqlite3") as bag:
        fill(bag, 0, 30)
    base = sqlite3.connect(tmp_path / "bag/bag.db3")
    base.execute("ALTER TABLE messages RENAME TO old")
    columns = "id INTEGER, topic_id INTEGER, timestamp INTEGER"
    source = "SELECT id, topic_id, timestamp FROM old"
    if way == "view":
        base.execute(
            "CREATE VIEW messages AS SELECT id, topic_id, timestamp, zeroblob(900000000) AS data "
            "FROM old"
        )
    elif way == "generated":
        base.execute(
            f"CREATE TABLE messages ({columns}, data BLOB GENERATED ALWAYS AS "
            "(zeroblob(900000000)))"
        )
        base.execute(f"INSERT INTO messages {source}")
    else:
        base.execute(f"CREATE TABLE messages ({columns}, data BLOB)")
        base.execute(f"INSERT INTO messages SELECT *, zeroblob(300000000) FROM ({source} LIMIT 1)")
    base.commit()
    base.close()
    error = fault(lambda: run(tmp_path, tmp_path / "bag"))
    assert error.kind in ("size", "unreadable")
