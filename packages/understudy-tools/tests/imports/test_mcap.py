"""MCAP files whose optional parts are absent, whose unused parts cannot be read, and whose bytes
are damaged.
"""

import json
import struct
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

pytest.importorskip("rosbags", reason="needs the extra `import`")

from understudy_tools.cli.importing import import_
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import ImportConfig
from understudy_tools.testing import mcap_files as mcap

COUNT = 40
VEC = "float64[2] v"
HUGE = (
    f"A[1000] a\n{'=' * 80}\nMSG: lab/A\nB[1000] b\n{'=' * 80}\nMSG: lab/B\nC[1000] c\n"
    f"{'=' * 80}\nMSG: lab/C\n"
)
SCHEMA = mcap.schema(1, "lab/msg/Vec", VEC)
STATISTICS = struct.pack("<QHIIIIQQI", 80, 1, 2, 0, 0, 10, 0, 0, 0)
DEFINED = SCHEMA + mcap.channel(1, 1, "/s") + mcap.channel(2, 1, "/a")
MAPPING: dict[str, Any] = {
    "fps": 10,
    "task": "t",
    "features": {
        "observation.state": {"stream": "/s", "field": "v"},
        "action": {"stream": "/a", "field": "v"},
    },
}


def vector(first: float, second: float = 1.0) -> bytes:
    return mcap.HEAD + struct.pack("<2d", first, second)


def pair(k: int) -> bytes:
    time = mcap.START + k * 10**8
    return mcap.message(1, time, vector(k / 10)) + mcap.message(2, time + 10**7, vector(k / 10))


LOOSE = b"".join(map(pair, range(COUNT)))


def chunks(kind: str, indexed: bool, inside: bytes = b"") -> bytes:
    """Ten chunks of four pairs, with or without indexes; `inside` begins the first."""
    content = b""
    for begin in range(0, COUNT, 4):
        body = b"" if begin else inside
        entries: dict[int, list[tuple[int, int]]] = {1: [], 2: []}
        for k in range(begin, begin + 4):
            time = mcap.START + k * 10**8
            entries[1].append((time, len(body)))
            entries[2].append((time + 10**7, len(body) + len(mcap.message(1, 0, vector(0)))))
            body += pair(k)
        first = mcap.START + begin * 10**8
        last = mcap.START + (begin + 3) * 10**8 + 10**7
        content += mcap.chunk(body, first, last, kind)
        content += b"".join(mcap.index(number, of) for number, of in entries.items()) * indexed
    return content


def run(folder: Path, source: Path, mapping: dict[str, Any] = MAPPING) -> np.ndarray:
    (folder / "map.json").write_text(json.dumps(mapping))
    out = folder / f"out {len(list(folder.iterdir()))}"
    import_(ImportConfig((str(source), str(out)), str(folder / "map.json"), storage="image"))
    table = pq.read_table(out / "data/chunk-000/file-000.parquet").to_pydict()
    return np.hstack([np.array(table[key]) for key in ("observation.state", "action")])


def findings(folder: Path) -> list[tuple[str, str]]:
    out = max(folder.glob("out *"), key=lambda path: path.stat().st_mtime_ns)
    content = json.loads((out / "meta/import.json").read_text())
    return [(of["kind"], of["stream"]) for of in content["recordings"][0]["findings"]]


def fault(call: Callable[[], object]) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        call()
    return caught.value


@pytest.fixture
def expected(tmp_path: Path) -> np.ndarray:
    values = run(tmp_path, mcap.write(tmp_path / "plain.mcap", DEFINED + LOOSE, DEFINED))
    assert values.shape == (COUNT - 1, 4)
    return values


SHAPES = {
    "no summary": (DEFINED + LOOSE, b""),
    "a summary of channels alone": (
        DEFINED + LOOSE,
        mcap.channel(1, 1, "/s") + mcap.channel(2, 1, "/a"),
    ),
    "a summary without channels": (DEFINED + chunks("zstd", True), SCHEMA),
    "a summary with one of two channels": (
        chunks("lz4", True, DEFINED),
        SCHEMA + mcap.channel(2, 1, "/a"),
    ),
    "chunks with channels inside": (chunks("zstd", True, DEFINED), b""),
    "chunks without indexes": (chunks("", False, DEFINED), b""),
    "chunks without indexes, with a summary": (chunks("lz4", False), DEFINED),
    "a statistic alone": (chunks("", True, DEFINED), mcap.record(11, STATISTICS)),
    "unknown records": (
        mcap.record(0x85, b"x") + DEFINED + LOOSE + mcap.record(0x90, b""),
        mcap.record(0x86, b"y"),
    ),
    "a metadata record": (DEFINED + mcap.record(12, mcap.text("a") + mcap.text(b"")) + LOOSE, b""),
    "another profile": (DEFINED + LOOSE, DEFINED),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_import_reads_mcap_without_its_optional_parts(
    tmp_path: Path, expected: np.ndarray, shape: str
) -> None:
    data, summary = SHAPES[shape]
    profile = "" if shape == "another profile" else "ros2"
    path = mcap.write(tmp_path / "a.mcap", data, summary, profile=profile)
    np.testing.assert_array_equal(run(tmp_path, path), expected)
    assert findings(tmp_path) == []


@pytest.mark.parametrize("shape", SHAPES)
def test_propose_lists_the_topics_of_mcap_without_its_optional_parts(
    tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data, summary = SHAPES[shape]
    import_(ImportConfig((str(mcap.write(tmp_path / "a.mcap", data, summary)),), propose=True))
    printed = capsys.readouterr().out
    assert all(f"stream: {topic}," in printed for topic in ("/s", "/a"))
    assert printed.count("10.0 per second") == 2


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("kind", ["", "zstd"])
def test_import_sorts_messages_of_overlapping_chunks(
    tmp_path: Path, expected: np.ndarray, kind: str, shuffled: bool
) -> None:
    """One chunk of a topic each, as a writer with a cache of its own per topic has them."""
    rng = np.random.default_rng(0)
    content = DEFINED
    for number in (2, 1):
        rows = rng.permutation(COUNT).tolist() if shuffled else range(COUNT)
        times = [mcap.START + k * 10**8 + (number - 1) * 10**7 for k in rows]
        body = b"".join(mcap.message(number, time, vector(k / 10)) for time, k in zip(times, rows))
        content += mcap.chunk(body, min(times), max(times), kind)
    path = mcap.write(tmp_path / "a.mcap", content)
    if shuffled:  # a clock that goes back by seconds
        assert fault(lambda: run(tmp_path, path)).kind == "reset"
    else:
        np.testing.assert_array_equal(run(tmp_path, path), expected)


def odd_topics() -> Iterable[tuple[str, str, str, str, str]]:
    """Name, type, encoding of messages, encoding of the schema, and definition."""
    yield "json", "Event", "json", "jsonschema", '{"type": "object"}'
    yield "protobuf", "foxglove.Log", "protobuf", "protobuf", "\0\1\2"
    yield "ros1", "std_msgs/String", "ros1", "ros1msg", "string data"
    yield "no schema", "", "json", "", ""
    yield "text", "lab/msg/Odd", "cdr", "ros2msg", "this is <no> definition"
    yield (
        "service",
        "lab/srv/Add_Event",
        "cdr",
        "ros2msg",
        "service_msgs/ServiceEventInfo info\nAdd_Request[<=1] r",
    )
    yield "missing type", "lab/msg/Odd", "cdr", "ros2msg", "lab/Nowhere x"
    yield "idl", "lab/msg/Odd", "cdr", "ros2idl", "module {"
    yield "array of a missing type", "lab/msg/Odd", "cdr", "ros2msg", "lab/Nowhere[] x"
    yield "huge arrays", "lab/msg/Odd", "cdr", "ros2msg", HUGE
    yield "flatbuffer", "x.Y", "flatbuffer", "flatbuffer", "\0"


@pytest.mark.parametrize("odd", list(odd_topics()), ids=lambda odd: odd[0])
def test_import_needs_readable_types_of_used_topics_only(
    tmp_path: Path, expected: np.ndarray, odd: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    _, kind, messages, form, definition = odd
    defined = (mcap.schema(7, kind, definition, form) if form else b"") + mcap.channel(
        7, 7 if form else 0, "/odd", messages
    )
    path = mcap.write(
        tmp_path / "a.mcap",
        DEFINED + defined + mcap.message(7, mcap.START, b"{}") + LOOSE,
        DEFINED + defined,
    )
    np.testing.assert_array_equal(run(tmp_path, path), expected)
    capsys.readouterr()
    import_(ImportConfig((str(path),), propose=True))
    assert "/odd" in capsys.readouterr().out
    used = {**MAPPING, "features": {"action": {"stream": "/odd", "field": "v"}}}
    error = fault(lambda: run(tmp_path, path, used))
    assert (error.kind, error.stream) == ("unreadable", "/odd")
    assert "recover" not in error.fix
    assert any(word in error.what for word in (kind, messages) if word)


INNER = "MSG: lab/Inner\nfloat64 x"
EIGHTY = "=" * 80


@pytest.mark.parametrize(
    "definition",
    [
        f"lab/Inner[2] v\n{EIGHTY}\n{INNER}",
        f"lab/Inner[2] v\n{EIGHTY}\n{INNER}\n".replace("\n", "\r\n"),
        f"lab/Inner[2] v\r{EIGHTY}\r{INNER}\r",
        f"lab/Inner[2] v{EIGHTY}\n{INNER}",
        f"lab/Inner[2] v # two{EIGHTY}\n{INNER} # end",
        f"lab/Inner[2] v\n{'=' * 40}\n{INNER}",
        f"\n\n# head\n#====\nlab/Inner[2] v\n\n\n{EIGHTY}  \n\n{INNER}\n\n\t\n",
        f"\ufefflab/Inner[2] v\n{EIGHTY}\n{INNER}\0",
    ],
)
def test_import_reads_definitions_of_other_writers(
    tmp_path: Path, expected: np.ndarray, definition: str
) -> None:
    defined = (
        mcap.schema(1, "lab/msg/Vec", definition)
        + mcap.channel(1, 1, "/s")
        + mcap.channel(2, 1, "/a")
    )
    path = mcap.write(tmp_path / "a.mcap", defined + LOOSE)
    fields = ["v.0.x", "v.1.x"]
    features = {
        key: {"stream": of["stream"], "field": fields} for key, of in MAPPING["features"].items()
    }
    np.testing.assert_array_equal(run(tmp_path, path, {**MAPPING, "features": features}), expected)


def test_import_keeps_definitions_of_topics_apart(tmp_path: Path, expected: np.ndarray) -> None:
    """Two recorders in one file have another definition of a type below theirs."""
    wide = mcap.schema(
        9, "lab/msg/Wide", f"lab/Inner w\n{EIGHTY}\nMSG: lab/Inner\nfloat64 y\nfloat64 x"
    )
    defined = mcap.schema(1, "lab/msg/Vec", f"lab/Inner[2] v\n{EIGHTY}\n{INNER}") + mcap.channel(
        1, 1, "/s"
    )
    defined += mcap.channel(2, 1, "/a") + wide + mcap.channel(9, 9, "/w")
    wides = b"".join(mcap.message(9, mcap.START + k * 10**8, vector(5, k)) for k in range(COUNT))
    path = mcap.write(tmp_path / "a.mcap", defined + LOOSE + wides)
    features = {
        "observation.state": {"stream": "/s", "field": ["v.0.x", "v.1.x"]},
        "action": {"stream": "/w", "field": ["w.y", "w.x"]},
    }
    found = run(tmp_path, path, {**MAPPING, "features": features})
    np.testing.assert_array_equal(found[: len(expected), :2], expected[:, :2])
    assert found[3].tolist() == pytest.approx([0.3, 1, 5, 3])


@pytest.mark.parametrize(
    "part", ["data", "data of chunks", "chunk", "chunk zstd", "summary", "attachment"]
)
def test_import_uses_the_checksums_of_mcap(tmp_path: Path, expected: np.ndarray, part: str) -> None:
    fields = (
        struct.pack("<QQ", 0, 0)
        + mcap.text("notes")
        + mcap.text("text/plain")
        + struct.pack("<Q", 4)
        + b"note"
    )
    attached = mcap.record(9, fields + struct.pack("<I", zlib.crc32(fields)))
    data = {
        "data": LOOSE,
        "data of chunks": chunks("lz4", True),
        "chunk": chunks("", True),
        "chunk zstd": chunks("zstd", True),
    }
    content = DEFINED + data.get(part, LOOSE) + attached
    path = mcap.write(
        tmp_path / "a.mcap", content, DEFINED, part.startswith("data"), part == "summary"
    )
    np.testing.assert_array_equal(run(tmp_path, path), expected)
    assert findings(tmp_path) == []
    place = {
        "data": lambda raw: raw.find(vector(2.0)) + 10,
        "data of chunks": lambda raw: (
            raw.find(b"note\n") if b"note\n" in raw else raw.find(b"note") + 1
        ),
        "chunk": lambda raw: raw.find(vector(2.0)) + 10,
        "chunk zstd": lambda raw: raw.find(b"\x28\xb5\x2f\xfd") + 40,
        "summary": lambda raw: raw.rfind(b"Vec"),
        "attachment": lambda raw: raw.rfind(b"note") + 1,
    }[part]
    raw = bytearray(path.read_bytes())
    raw[place(raw)] ^= 0x20
    path.write_bytes(raw)
    if part == "attachment":  # which is not imported
        np.testing.assert_array_equal(run(tmp_path, path), expected)
        assert findings(tmp_path) == [("unreadable", "")]
        return
    error = fault(lambda: run(tmp_path, path))
    assert error.kind == "unreadable"
    assert "checksum" in error.what or part == "chunk zstd"
    assert "mcap recover" in error.fix


@pytest.mark.parametrize("cut", [0.3, 0.9, -1, -20, -60])
@pytest.mark.parametrize("kind", ["loose", "zstd"])
def test_import_names_a_cut_mcap(tmp_path: Path, kind: str, cut: float) -> None:
    path = mcap.write(
        tmp_path / "a.mcap", DEFINED + (LOOSE if kind == "loose" else chunks("zstd", True)), DEFINED
    )
    raw = path.read_bytes()
    path.write_bytes(raw[: int(len(raw) * cut)] if cut > 0 else raw[: int(cut)])
    error = fault(lambda: run(tmp_path, path))
    assert error.kind == "unreadable"
    assert "mcap recover" in error.fix


@pytest.mark.parametrize("at", range(20))
def test_import_of_a_damaged_mcap_is_an_error_or_right(
    tmp_path: Path, expected: np.ndarray, at: int
) -> None:
    """A byte anywhere, with all checksums: no other values, and no error of another kind."""
    path = mcap.write(tmp_path / "a.mcap", DEFINED + chunks("zstd", True), DEFINED, True, True)
    raw = bytearray(path.read_bytes())
    place = int(np.random.default_rng(at).integers(len(raw)))
    raw[place] ^= 1 << at % 8
    path.write_bytes(raw)
    try:
        found = run(tmp_path, path)
    except RecordingError:
        return
    np.testing.assert_array_equal(found, expected)


def test_propose_refuses_a_recording_without_streams(tmp_path: Path) -> None:
    path = mcap.write(tmp_path / "a.mcap", b"")
    assert fault(lambda: import_(ImportConfig((str(path),), propose=True))).kind == "empty"


@pytest.mark.parametrize("kind", ["zstd", "lz4"])
@pytest.mark.parametrize("stated", ["true", "small"])
def test_import_bounds_what_a_chunk_decodes_to(tmp_path: Path, kind: str, stated: str) -> None:
    big = bytes(1 << 24)
    size = 64 if stated == "small" else (1 << 28) + 1
    content = DEFINED + mcap.chunk(big, mcap.START, mcap.START + 1, kind, size)
    path = mcap.write(tmp_path / "a.mcap", content)
    for call in (
        lambda: run(tmp_path, path),
        lambda: import_(ImportConfig((str(path),), propose=True)),
    ):
        error = fault(call)
        assert error.kind == "size"
        assert "268,435,456" in error.what if stated == "true" else "64" in error.what
