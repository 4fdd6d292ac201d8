"""SHA-256 of every key of many batches: training data must not depend on the versions of libraries.

    python scripts/batch_digests.py record FOLDER             record datasets with the tests' own
                                                              code
    python scripts/batch_digests.py digest FOLDER OUT.json    digest batches of these and of
                                                              UNDERSTUDY_TEST_DATA

All environments read the same files. So the digests compare codecs, colors, sizes, windows,
padding, order and draws, and not encoders. Keys are sorted; each digest covers dtype, shape and
bytes.
"""

import hashlib
import json
import os
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

import understudy as us
from understudy_data.order import sample_normal, sample_uniform

BATCH = 6
TOP = "observation.images.top"
WRIST = "observation.images.wrist"
PACKAGES = (
    "torch",
    "numpy",
    "av",
    "pyarrow",
    "fsspec",
    "safetensors",
    "pillow",
    "understudy",
    "lerobot",
)


def record(folder: Path) -> None:
    """Write small datasets of each format, codec and image storage."""
    from understudy_data.testing.datasets import Spec, write_dataset

    lengths = (14, 9, 21, 12, 17)
    for name, spec in {
        "h264": Spec(lengths=lengths, cameras=(TOP, WRIST)),
        "h264-b-frames": Spec(lengths=lengths, gop=8, b_frames=2, late_timestamps=True),
        "av1": Spec(lengths=lengths, codec="libsvtav1", gop=4, rich=True),
        "hevc": Spec(lengths=lengths, codec="libx265", gop=5),
        "mpeg4-v2.1": Spec(version="v2.1", lengths=lengths, codec="mpeg4", gop=6),
        "images-v2.0": Spec(
            version="v2.0", lengths=lengths, cameras=(), images=(TOP,), stored_double=True
        ),
    }.items():
        if not (folder / name).is_dir():
            write_dataset(folder / f"{name}.tmp", spec)
            (folder / f"{name}.tmp").rename(folder / name)


def digests(batch: dict[str, Any]) -> dict[str, str]:
    """Digest of each key of a batch or a sample."""

    def one(value: Any) -> str:
        if isinstance(value, torch.Tensor):
            array = value.contiguous().numpy()
            return hashlib.sha256(
                f"{array.dtype} {array.shape}".encode() + array.tobytes()
            ).hexdigest()
        return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()

    return {key: one(batch[key]) for key in sorted(batch)}


def few(batches: Any, count: int) -> Iterator[dict[str, str]]:
    for _, batch in zip(range(count), batches):
        yield digests(batch)


def of_one(
    root: Path, fps: float, cameras: list[str]
) -> Iterator[tuple[str, Iterator[dict[str, str]]]]:
    """(setting, digests of its batches) of one dataset."""
    frame = 1 / fps
    windows = {
        "action": [i * frame for i in range(5)],
        **{camera: [-frame, 0] for camera in cameras[:1]},
    }
    data = us.EpisodeDataset(root, delta_timestamps=windows)
    plain = us.EpisodeDataset(root)
    yield (
        "samples",
        (digests(data[i]) for i in np.linspace(0, len(data) - 1, 7).astype(int).tolist()),
    )
    order = us.Order.from_datasets([data], batch_size=BATCH, seed=3)
    for setting, options in {
        "loader": {},
        "loader, later, one thread": {"position": 40 * BATCH, "num_threads": 1},
        "loader, little memory": {"memory": "64MB", "num_threads": 2},
        "loader, 32 x 32": {"image_size": (32, 32)},
        "loader, 40 x 56": {"image_size": (40, 56)},
        "loader, second of two ranks": {"rank": 1, "world_size": 2},
    }.items():
        with us.Loader([data], order=order, **{"memory": "1GB", **options}) as loader:
            yield setting, few(loader, 6)
    clips = us.Order.from_datasets([data], batch_size=BATCH, seed=4, clip=8, lanes=2 * BATCH)
    stream = us.EpisodeStream([data], order=clips, memory="1GB")
    yield "stream, two workers", few(DataLoader(stream, batch_size=None, num_workers=2), 6)
    sampler = us.EpisodeSampler(plain, batch_size=BATCH, seed=5)
    yield "sampler", few(DataLoader(plain, batch_size=BATCH, sampler=sampler), 6)


def all_of(roots: dict[str, Path]) -> dict[str, list[dict[str, str]]]:
    found: dict[str, list[dict[str, str]]] = {}
    for name, root in roots.items():
        catalog = us.Catalog.open(root)
        for setting, batches in of_one(root, catalog.fps, list(catalog.camera_keys)):
            found[f"{name}: {setting}"] = list(batches)
    with_top = [us.EpisodeDataset(roots[name], keys=[TOP, "action"]) for name in ("h264", "av1")]
    order = us.Order.from_datasets(with_top, batch_size=BATCH, seed=6, weights=[3, 1])
    with us.Loader(with_top, order=order, memory="1GB") as loader:
        found["mixture: h264 three times as often as av1"] = list(few(loader, 8))
    at = np.array([0, 1, 977, 2**33])
    draws = {
        "normal": torch.from_numpy(sample_normal(7, "flow noise", at, (4, 16, 7))),
        "uniform": torch.from_numpy(sample_uniform(7, "flow time", at, (64,))),
    }
    found["draws: noise and time"] = [digests(draws)]
    return found


def versions() -> dict[str, str]:
    """Versions of Python and of the packages involved, without missing ones."""
    import av

    found = {"python": platform.python_version(), "ffmpeg": str(av.ffmpeg_version_info)}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found | {"torch": torch.__version__}


def main() -> None:
    folder = Path(sys.argv[2])
    if sys.argv[1] == "record":
        record(folder)
        return
    roots = {
        path.name: path
        for path in sorted(folder.iterdir())
        if path.is_dir() and path.suffix != ".tmp"
    }
    if real := os.environ.get("UNDERSTUDY_TEST_DATA"):
        roots |= {
            path.name: path
            for path in sorted(Path(real).iterdir())
            if (path / "meta/info.json").is_file()
        }
    Path(sys.argv[3]).write_text(
        json.dumps({"versions": versions(), "batches": all_of(roots)}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
