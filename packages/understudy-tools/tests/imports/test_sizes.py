"""Small files that declare or decode to much: each is refused by a named limit, before the memory
is taken.
"""

import io
import json
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from understudy_tools.cli.importing import import_
from understudy_tools.imports import limits
from understudy_tools.imports.hdf5 import check_size
from understudy_tools.imports.recording import RecordingError
from understudy_tools.imports.settings import ImportConfig
from understudy_tools.testing.bags import Bag, pixels

h5py = pytest.importorskip("h5py", reason="needs the extra `import`")
zarr = pytest.importorskip("zarr", reason="needs the extra `import`")

ROWS = 20
STATE = np.arange(3.0 * ROWS, dtype=np.float32).reshape(ROWS, 3)
MAPPING: dict[str, Any] = {"features": {"observation.state": "state"}, "fps": 10, "task": "t"}
IMAGES: dict[str, Any] = {"features": {"observation.images.a": "v"}, "fps": 10, "task": "t"}


def run(out: Path, source: Path, mapping: dict[str, Any], **settings: Any) -> list[Any]:
    file = out.with_suffix(".json")
    file.write_text(json.dumps(mapping))
    import_(ImportConfig((str(source), str(out)), str(file), **{"storage": "image", **settings}))
    (key,) = mapping["features"]
    values = pq.read_table(out / "data/chunk-000/file-000.parquet").column(key).to_pylist()
    if "images" in key:
        return [np.asarray(Image.open(io.BytesIO(value["bytes"]))) for value in values]
    return list(values)


def fault(call: Callable[[], object]) -> RecordingError:
    with pytest.raises(RecordingError) as caught:
        call()
    return caught.value


def replay_buffer(path: Path, version: int = 2, **options: Any) -> Path:
    group = zarr.open_group(zarr.storage.LocalStore(path), mode="w", zarr_format=version)
    group.create_array("data/state", data=STATE, chunks=STATE.shape, **options)
    group.create_array("meta/episode_ends", data=np.array([ROWS]))
    return path


def codec(name: str) -> Any:
    import numcodecs

    return {
        "zstd": numcodecs.Zstd(),
        "gzip": numcodecs.GZip(),
        "zlib": numcodecs.Zlib(),
        "bz2": numcodecs.BZ2(),
        "lzma": numcodecs.LZMA(),
        "lz4": numcodecs.LZ4(),
        "blosc": numcodecs.Blosc(),
    }[name]


@pytest.mark.short("lz4")
@pytest.mark.parametrize("name", ["zstd", "gzip", "zlib", "bz2", "lzma", "lz4", "blosc"])
def test_import_bounds_what_chunks_of_zarr_2_decode_to(tmp_path: Path, name: str) -> None:
    path = replay_buffer(tmp_path / "a.zarr", compressors=codec(name))
    assert run(tmp_path / "sound", path, MAPPING) == STATE.tolist()
    (path / "data/state/0.0").write_bytes(codec(name).encode(np.zeros(80 << 20, np.uint8)))
    error = fault(lambda: run(tmp_path / "out", path, MAPPING))
    assert (error.kind, error.stream, f"{1 << 26:,}" in error.what) == ("size", "state", True)


@pytest.mark.parametrize("way", ["gzip", "zstd", "blosc", "shard", "filter"])
def test_import_bounds_what_chunks_of_zarr_3_and_filters_decode_to(
    tmp_path: Path, way: str
) -> None:
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    big = np.zeros(80 << 20, np.uint8)
    options = {
        "gzip": GzipCodec(),
        "zstd": ZstdCodec(),
        "blosc": BloscCodec(),
        "shard": GzipCodec(),
    }
    if way == "filter":
        path = replay_buffer(tmp_path / "a.zarr", filters=[codec("zlib")], compressors=None)
        bomb = bytes(codec("zlib").encode(big))
    elif way == "shard":
        path = replay_buffer(tmp_path / "a.zarr", 3, compressors=options[way], shards=STATE.shape)
        bomb = bytes(codec("gzip").encode(big))
        index = np.array([0, len(bomb)], "<u8").tobytes()
        import google_crc32c

        bomb += index + int(google_crc32c.value(index)).to_bytes(4, "little")
    else:
        path = replay_buffer(tmp_path / "a.zarr", 3, compressors=options[way])
        bomb = bytes(codec(way).encode(big))
    assert run(tmp_path / "sound", path, MAPPING) == STATE.tolist()
    (path / ("data/state/0.0" if way == "filter" else "data/state/c/0/0")).write_bytes(bomb)
    error = fault(lambda: run(tmp_path / "out", path, MAPPING))
    assert (error.kind, error.stream) == ("size", "state")


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("what", ["rows", "chunk", "row", "stored"])
def test_import_bounds_what_arrays_of_zarr_declare(tmp_path: Path, version: int, what: str) -> None:
    group = zarr.open_group(
        zarr.storage.LocalStore(tmp_path / "a.zarr"), mode="w", zarr_format=version
    )
    shape = {
        "rows": (10**10, 2),
        "chunk": (10**5, 10**5),
        "row": (ROWS, 10**5, 10**5),
        "stored": (ROWS, 2),
    }[what]
    chunks = {
        "rows": (10**5, 2),
        "chunk": (10**5, 10**5),
        "row": (1, 100, 100),
        "stored": (ROWS, 2),
    }[what]
    group.create_array("data/state", shape=shape, chunks=chunks, dtype="f8")
    group.create_array("meta/episode_ends", data=np.array([10**9 if what == "rows" else ROWS]))
    if what == "stored":
        place = tmp_path / "a.zarr" / ("data/state/0.0" if version == 2 else "data/state/c/0/0")
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            file.truncate(100 << 20)  # of 320 bytes
    error = fault(lambda: run(tmp_path / "out", tmp_path / "a.zarr", MAPPING))
    assert (error.kind, error.stream) == ("size", "state")


def test_import_uses_the_checksums_of_arrays(tmp_path: Path) -> None:
    from zarr.codecs import Crc32cCodec

    path = replay_buffer(tmp_path / "a.zarr", 3, compressors=[Crc32cCodec()])
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("state", data=STATE, chunks=STATE.shape, fletcher32=True)
    for source, chunk in (
        (path, path / "data/state/c/0/0"),
        (tmp_path / "a.h5", tmp_path / "a.h5"),
    ):
        run(tmp_path / f"sound {source.suffix}", source, MAPPING)
        raw = bytearray(chunk.read_bytes())
        raw[raw.index(STATE[5:6].tobytes()) + 2] ^= 4
        chunk.write_bytes(raw)
        error = fault(partial(run, tmp_path / "out", source, MAPPING))
        assert (error.kind, error.stream) == ("unreadable", "state")
        assert "imagecodecs" not in error.fix


def test_import_gives_errors_of_zarr_their_own_remedies(tmp_path: Path) -> None:
    path = replay_buffer(tmp_path / "a.zarr")
    content = json.loads((path / "data/state/.zarray").read_text())
    remedies = set()
    for name in ("imagecodecs_jpegxl", "secret"):
        (path / "data/state/.zarray").write_text(
            json.dumps({**content, "compressor": {"id": name}})
        )
        error = fault(lambda: run(tmp_path / "out", path, MAPPING))
        assert error.kind == "unreadable"
        assert ("imagecodecs" in error.fix) == ("imagecodecs" in name)
        remedies.add(error.fix)
    (tmp_path / "a.zarr.zip").write_bytes(b"PK cut")
    remedies.add(fault(lambda: run(tmp_path / "out", tmp_path / "a.zarr.zip", MAPPING)).fix)
    assert len(remedies) == 3


def hdf5(path: Path, **options: Any) -> Path:
    with h5py.File(path, "w") as file:
        file.create_dataset("state", **options)
    return path


@pytest.mark.parametrize(
    "shape", [(10**10, 2), (3 * 10**6, 2), (10**6, 50), (ROWS, 10**5, 10**5), (ROWS, 10**8)]
)
@pytest.mark.parametrize("chunked", [False, True])
def test_import_bounds_rows_of_hdf5_that_are_not_stored(
    tmp_path: Path, shape: tuple[int, ...], chunked: bool
) -> None:
    chunks = tuple(min(length, 100) for length in shape) if chunked else None
    path = hdf5(tmp_path / "a.h5", shape=shape, dtype="f8", chunks=chunks)
    for mapping in (MAPPING, {**MAPPING, "time": "state"}):
        error = fault(partial(run, tmp_path / "out", path, mapping))
        assert (error.kind, error.stream) == ("size", "state")


@pytest.mark.short("twice")
@pytest.mark.parametrize("way", ["small chunk", "large chunk", "twice"])
def test_import_bounds_what_chunks_of_hdf5_decode_to(tmp_path: Path, way: str) -> None:
    shape = (ROWS, 3) if way != "large chunk" else (ROWS, 30_000)
    kind = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    kind.set_chunk(shape)
    kind.set_deflate(4)
    if way == "twice":
        kind.set_filter(1, 0, (4,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        space = h5py.h5s.create_simple(shape)
        made = h5py.h5d.create(file.id, b"state", h5py.h5t.NATIVE_FLOAT, space, kind)
        data = zlib.compress(bytes(300 << 20), 9)
        made.write_direct_chunk((0, 0), zlib.compress(data) if way == "twice" else data)
    error = fault(lambda: run(tmp_path / "out", tmp_path / "a.h5", MAPPING))
    assert (error.kind, error.stream) == ("size", "state")


def test_import_reads_compressed_hdf5_of_any_content(tmp_path: Path) -> None:
    images = np.stack([pixels(row) for row in range(ROWS)])
    for name, data in (("zeros", np.zeros_like(images)), ("images", images)):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset(
                "v", data=data, chunks=True, compression="gzip", compression_opts=9, shuffle=True
            )
        np.testing.assert_array_equal(run(tmp_path / name, tmp_path / f"{name}.h5", IMAGES), data)


def test_import_looks_once_at_each_chunk_of_hdf5(tmp_path: Path) -> None:
    """The library walks over all chunks to find one by its number: 20,000 chunks took more than a
    minute.
    """
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        values = file.create_dataset(
            "state", (20_000, 3), np.float32, chunks=(1, 3), compression="gzip"
        )
        values[:] = np.arange(60_000, dtype=np.float32).reshape(-1, 3)
        begin = time.process_time()
        check_size(values)
        assert time.process_time() - begin < 10


def encoded(size: tuple[int, int], kind: str, mode: str = "RGB", **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size).save(buffer, kind, **options)
    return buffer.getvalue()


def stored(folder: Path, holder: str, data: bytes) -> tuple[Path, dict[str, Any]]:
    """Write two samples of an encoded image into a recording; returns it with its mapping."""
    if holder == "bag":
        with Bag(folder / "bag") as bag:
            image = bag.type("sensor_msgs/msg/CompressedImage")
            for i in range(2):
                bag.add(
                    "/v", i / 10, image(bag.header(i / 10), "jpeg", np.frombuffer(data, np.uint8))
                )
        return folder / "bag", {**IMAGES, "features": {"observation.images.a": "/v"}}
    rows = np.stack([np.frombuffer(data, np.uint8)] * 2)
    if holder == "hdf5":
        with h5py.File(folder / "a.h5", "w") as file:
            file["v"] = rows
        return folder / "a.h5", IMAGES
    group = zarr.open_group(zarr.storage.LocalStore(folder / "a.zarr"), mode="w")
    group.create_array("data/v", data=rows)
    group.create_array("meta/episode_ends", data=np.array([2]))
    return folder / "a.zarr", IMAGES


@pytest.mark.short("size1-JPEG-zarr", "size1-JPEG-hdf5")
@pytest.mark.parametrize("holder", ["bag", "hdf5", "zarr"])
@pytest.mark.parametrize(
    ("size", "kind"), [((6000, 6000), "PNG"), ((60_000, 600), "JPEG"), ((20_000, 20_000), "PNG")]
)
def test_import_bounds_the_pixels_of_images(
    tmp_path: Path, holder: str, size: tuple[int, int], kind: str
) -> None:
    data = encoded(size, kind, "1" if size[0] == 20_000 else "RGB")
    source, mapping = stored(tmp_path, holder, data)
    error = fault(lambda: run(tmp_path / "out", source, mapping))
    assert (error.kind, error.stream) == ("size", "/v" if holder == "bag" else "v")
    assert f"{limits.MAX_PIXELS:,}" in error.what


@pytest.mark.parametrize("holder", ["bag", "hdf5", "zarr"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_import_turns_images_by_their_exif_orientation(
    tmp_path: Path, holder: str, orientation: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    picture = Image.fromarray(pixels(3)).resize((48, 32))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", exif=exif)
    source, mapping = stored(tmp_path, holder, buffer.getvalue())
    expected = np.asarray(ImageOps.exif_transpose(Image.open(buffer)))
    assert expected.shape[:2] == ((48, 32) if orientation > 4 else (32, 48))
    for image in run(tmp_path / "out", source, mapping):
        np.testing.assert_array_equal(image, expected)
    column = (
        pq.read_table(tmp_path / "out/data/chunk-000/file-000.parquet")
        .column("observation.images.a")
        .to_pylist()
    )
    assert 0x0112 not in Image.open(io.BytesIO(column[0]["bytes"])).getexif()


@pytest.mark.parametrize(
    ("mode", "kind"),
    [("CMYK", "JPEG"), ("I;16", "PNG"), ("F", "TIFF"), ("LA", "PNG"), ("1", "PNG")],
)
def test_import_gives_modes_of_images_their_own_remedies(
    tmp_path: Path, mode: str, kind: str
) -> None:
    source, mapping = stored(tmp_path, "hdf5", encoded((48, 32), kind, mode))
    if mode in ("LA", "1"):
        assert run(tmp_path / "out", source, mapping)[0].shape == (32, 48, 3)
        return
    error = fault(lambda: run(tmp_path / "out", source, mapping))
    assert (error.kind, error.stream, mode in error.what) == ("image", "v", True)
    assert ("depth" in error.fix) == (mode != "CMYK")


def robomimic(path: Path, **attributes: str) -> Path:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data["demo_0/actions"], data["demo_0/states"] = STATE, STATE
        data["demo_0/obs/robot0_eef_pos"] = STATE
        data.attrs["env_args"] = '{"env_kwargs": {"control_freq": 20}}'
        for name, value in attributes.items():
            data.attrs[name] = value
    return path


ENV: dict[str, Any] = {"env_kwargs": {"control_freq": 20}}


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        ({"env_args": '{"env_kwargs": [1]}'}, "rate"),
        ({"env_args": '{"env_kwargs": "20"}'}, "rate"),
        ({"env_args": '{"env_kwargs": {"control_freq": true}}'}, "rate"),
        ({"env_args": "[]"}, "unreadable"),
        ({"env_args": "{"}, "unreadable"),
        ({"env_args": "[" * 100_000}, "unreadable"),
        ({"env_args": 5}, "unreadable"),
        ({"problem_info": "5"}, "unreadable"),
        ({"problem_info": '{"language_instruction": 5}'}, "task"),
        ({"problem_info": '{"language_instruction": [5]}'}, "task"),
        ({"problem_info": '{"language_instruction": {"a": 1}}'}, "task"),
        ({"problem_info": '{"language_instruction": null}'}, "task"),
    ],
)
def test_import_names_attributes_of_hdf5_that_are_not_as_expected(
    tmp_path: Path, attributes: dict[str, Any], kind: str
) -> None:
    path = robomimic(tmp_path / "a.hdf5", **attributes)
    error = fault(lambda: import_(ImportConfig((str(path), str(tmp_path / "out")))))
    assert error.kind == kind
    assert str(error.where).startswith(str(path))
    if kind == "task":  # a fact that is given counts
        import_(ImportConfig((str(path), str(tmp_path / "out")), task="t"))
    if kind == "rate":
        run(
            tmp_path / "out",
            path,
            {**MAPPING, "features": {"observation.state": "states"}, "source_fps": 20},
        )


def test_import_refuses_a_robomimic_file_without_observations(tmp_path: Path) -> None:
    path = robomimic(tmp_path / "a.hdf5")
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs"]
    error = fault(lambda: import_(ImportConfig((str(path), str(tmp_path / "out")), task="t")))
    assert (error.kind, "states" in error.what, "dataset_states_to_obs" in error.fix) == (
        "layout",
        True,
        True,
    )
    assert (
        run(
            tmp_path / "out",
            path,
            {**MAPPING, "fps": 20, "features": {"observation.state": "states"}},
        )
        == STATE.tolist()
    )


@pytest.mark.parametrize("kind", ["uint8", "later floats", "zeros"])
def test_import_names_images_that_look_black(tmp_path: Path, kind: str) -> None:
    masks = np.stack([pixels(row) > 90 for row in range(ROWS)])
    data = {
        "uint8": masks.astype(np.uint8),
        "zeros": masks.astype(np.uint8) * 0,
        "later floats": masks * 1.0,
    }[kind]
    for number, rows in enumerate([np.stack([pixels(row) for row in range(ROWS)]), data]):
        with h5py.File(tmp_path / f"{number}.h5", "w") as file:
            file["v"] = rows if kind != "later floats" else rows * 1.0
    (tmp_path / "map.json").write_text(json.dumps(IMAGES))
    sources = [str(tmp_path / f"{number}.h5") for number in range(2)]
    import_(
        ImportConfig((*sources, str(tmp_path / "out")), str(tmp_path / "map.json"), storage="image")
    )
    content = json.loads((tmp_path / "out/meta/import.json").read_text())["recordings"]
    assert [[of["kind"] for of in part["findings"]] for part in content] == [[], ["image"]]
