"""Speed of `understudy import`, beside plain reading of the source and beside encoding alone.

    python lab/benchmarks/ingest.py --json

Each row is one source: two cameras of smooth noise at 30 per second, and joints at 100 in bags, or
actions in arrays. Bags are MCAP with JPEG, MCAP with raw images, and sqlite3 with JPEG. In each
round, in this sequence:

    read      all samples by the source's own library, messages deserialized, images still encoded
    decode    the same, and all images decoded
    encode    the decoded images of all frames, from memory, as the videos of the import
    import    `understudy import` in this process

Figures are medians of the rounds; ratios are of the same round.
"""

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zarr
from rosbags.highlevel import AnyReader

from common import conditions
from parsers import make_parser
from understudy_data.video.encode import VideoEncoder
from understudy_tools.cli.importing import import_
from understudy_tools.imports.settings import ImportConfig
from understudy_tools.imports.values import to_image
from understudy_tools.testing.bags import JOINTS, Bag

FPS = 30
CAMERAS = ("front", "wrist")
BAG = {
    "fps": FPS,
    "task": "t",
    "features": {f"observation.images.{name}": f"/{name}" for name in CAMERAS}
    | {"observation.state": {"stream": "/joints", "field": "position", "joints": JOINTS}},
}
ROWS = {
    "fps": FPS,
    "task": "t",
    "features": {f"observation.images.{name}": f"{name}_rgb" for name in CAMERAS}
    | {"action": "actions"},
}


def images(count: int, height: int, width: int) -> np.ndarray:
    """Smooth noise that moves, uint8 (count, height, width, 3)."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 255, (count // 10 + 2, height // 16, width // 16, 3)).astype(
        np.float32
    )
    frames = np.empty((count, height, width, 3), np.uint8)
    for number in range(count):
        first, share = divmod(number, 10)
        mixed = coarse[first] + share / 10 * (coarse[first + 1] - coarse[first])
        frames[number] = np.kron(mixed, np.ones((16, 16, 1), np.float32))
    return frames


def write_bag(path: Path, frames: np.ndarray, storage: str, encoding: str) -> Path:
    with Bag(path, storage) as bag:
        for number, image in enumerate(frames):
            for camera in CAMERAS:
                if encoding == "jpeg":
                    bag.compressed(f"/{camera}", number / FPS, image, "jpeg")
                else:
                    bag.image(f"/{camera}", number / FPS, image)
        for number in range(len(frames) * 100 // FPS):
            bag.joints("/joints", number / 100, dict.fromkeys(JOINTS, number / 100))
    return path


def write_hdf5(path: Path, frames: np.ndarray) -> Path:
    with h5py.File(path, "w") as file:
        for camera in CAMERAS:
            file.create_dataset(f"{camera}_rgb", data=frames, chunks=(1, *frames.shape[1:]))
        file["actions"] = np.zeros((len(frames), 7))
    return path


def write_zarr(path: Path, frames: np.ndarray) -> Path:
    group = zarr.open_group(path, mode="w")
    for camera in CAMERAS:
        group.create_array(f"data/{camera}_rgb", data=frames, chunks=(1, *frames.shape[1:]))
    group.create_array("data/actions", data=np.zeros((len(frames), 7)))
    group.create_array("meta/episode_ends", data=np.array([len(frames)]))
    return path


def samples(path: Path) -> Iterator[tuple[str, Any]]:
    """Read all samples by the source's own library; arrays in blocks of 32 rows."""
    if path.suffix in (".h5", ".zarr"):
        file = (
            h5py.File(path, "r")
            if path.suffix == ".h5"
            else zarr.open_group(path, mode="r")["data"]
        )
        for key in [*(f"{camera}_rgb" for camera in CAMERAS), "actions"]:
            for begin in range(0, file[key].shape[0], 32):
                for row in file[key][begin : begin + 32]:
                    yield key, row
        return
    with AnyReader([path]) as reader:
        for connection, _, raw in reader.messages():
            yield connection.topic, reader.deserialize(raw, connection.msgtype)


def read(path: Path, decode: bool) -> None:
    for stream, value in samples(path):
        if decode and any(camera in stream for camera in CAMERAS):
            to_image(value)


def encode(folder: Path, frames: np.ndarray) -> None:
    """Encode the cameras in turn, image by image, as an import does: encoders have threads of their
    own.
    """
    encoders = [
        VideoEncoder(folder / f"{camera}.mp4", FPS, *frames.shape[1:3]) for camera in CAMERAS
    ]
    for image in frames:
        for encoder in encoders:
            encoder.add(image)
    for encoder in encoders:
        encoder.close()


def import_all(path: Path, folder: Path) -> None:
    mapping = folder / "mapping.json"
    mapping.write_text(json.dumps(ROWS if path.suffix in (".h5", ".zarr") else BAG))
    import_(ImportConfig((str(path), str(folder / "out")), str(mapping), json=True))


def seconds(call: Callable[..., None], *arguments: Any) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def measure(path: Path, frames: np.ndarray, rounds: int) -> dict[str, Any]:
    """One row: medians over the rounds."""
    size = sum(
        file.stat().st_size
        for file in ([path] if path.is_file() else path.rglob("*"))
        if file.is_file()
    )
    times: dict[str, list[float]] = {name: [] for name in ("read", "decode", "encode", "import")}
    for _ in range(rounds):
        with tempfile.TemporaryDirectory(dir=path.parent) as name:
            folder = Path(name)
            times["read"].append(seconds(read, path, False))
            times["decode"].append(seconds(read, path, True))
            times["encode"].append(seconds(encode, folder, frames))
            times["import"].append(seconds(import_all, path, folder))
    median = {name: statistics.median(of) for name, of in times.items()}
    ratios = {
        f"import_over_{name}": statistics.median(
            a / b for a, b in zip(times["import"], times[name])
        )
        for name in ("read", "decode", "encode")
    }
    work = [a / (b + c) for a, b, c in zip(times["import"], times["decode"], times["encode"])]
    return {
        "source": path.name,
        "mb": size / 1e6,
        "frames": len(frames),
        "rounds": rounds,
        **{f"{name}_mb_per_s": size / 1e6 / value for name, value in median.items()},
        **{f"{name}_frames_per_s": len(frames) / value for name, value in median.items()},
        **ratios,
        "import_over_decode_and_encode": statistics.median(work),
    }


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--frames", type=int, default=150)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--size", type=int, nargs=2, default=(240, 320), metavar=("HEIGHT", "WIDTH")
    )
    options = parser.parse_args(arguments)
    frames = images(options.frames, *options.size)
    folder = Path(tempfile.mkdtemp(prefix="ingest-"))
    # summaries of the imports
    stdout = sys.stdout
    sys.stdout = sys.stderr
    try:
        paths = [
            write_bag(folder / "mcap-jpeg", frames, "mcap", "jpeg"),
            write_bag(folder / "mcap-raw", frames, "mcap", "rgb8"),
            write_bag(folder / "sqlite3-jpeg", frames, "sqlite3", "jpeg"),
            write_hdf5(folder / "hdf5.h5", frames),
            write_zarr(folder / "buffer.zarr", frames),
        ]
        found = {
            "conditions": conditions(),
            "rows": [measure(path, frames, options.rounds) for path in paths],
        }
    finally:
        sys.stdout = stdout
        shutil.rmtree(folder)
    if options.json:
        print(json.dumps(found, indent=1))
        return 0
    for row in found["rows"]:
        speeds = ", ".join(
            f"{name} {row[f'{name}_frames_per_s']:.0f}"
            for name in ("read", "decode", "encode", "import")
        )
        print(
            f"{row['source']:14} frames/s: {speeds}; import / both "
            f"{row['import_over_decode_and_encode']:.2f}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
