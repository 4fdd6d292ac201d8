"""Small LeRobot datasets with known answers, shipped in `datasets/` and unpacked into a temporary
folder.

Values are formulas of (episode, frame), exact in the dtype of their feature. An image shows 16
square blocks of 16 pixels: 15 are bits (dark 40, bright 215) of camera, episode, frame and a check
sum, and the last is red. Bits survive lossy video coding.
"""

import atexit
import shutil
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIDE = 64
BLOCK = 16
DARK = 40
BRIGHT = 215
RED = (200, 30, 30)
TASKS = ("lift the red block", "push the blue block", "wait")
FRONT = "observation.images.front"
WRIST = "observation.images.wrist"
FEATURES: dict[str, tuple[str, tuple[int, ...]]] = {
    "observation.state": ("float32", (4,)),
    "observation.gripper": ("float32", (1,)),
    "observation.clock": ("float64", (1,)),
    "action": ("float32", (2,)),
}
"""Feature -> (dtype, shape) of the columns that every set has."""


@dataclass(frozen=True)
class DemoSet:
    """A dataset with known answers.

    Attributes:
        name: of the file in `datasets/`, without `.zip`.
        version: of the format.
        lengths: frames of each episode.
        cameras: keys of the images, camera 0 first.
        images: those cameras whose frames are PNG files in the table, not video.
        packed: episodes in a video file of each camera.
        drift: frames by which the clock of a row is late at the end of its episode.
        fps: frames per second.
    """

    name: str
    version: str
    lengths: tuple[int, ...]
    cameras: tuple[str, ...]
    images: tuple[str, ...] = ()
    packed: tuple[int, ...] = (1, 1)
    drift: float = 0.0
    fps: int = 30

    @property
    def frames(self) -> list[tuple[int, int]]:
        """(episode, frame) in storage order."""
        places: list[tuple[int, int]] = []
        for episode, length in enumerate(self.lengths):
            places += [(episode, frame) for frame in range(length)]
        return places

    def timestamp(self, episode: int, frame: int) -> float:
        """Seconds of a row since the start of its episode."""
        return (frame + self.drift * frame / max(1, self.lengths[episode] - 1)) / self.fps

    def task_index(self, episode: int, frame: int) -> int:
        """Task of a frame: odd episodes change it in the middle."""
        return (episode + (episode % 2 and frame >= self.lengths[episode] // 2)) % len(TASKS)

    def unpack(self, folder: Path) -> Path:
        """Write the files of the dataset into a new folder inside `folder`."""
        root = folder / self.name
        with zipfile.ZipFile(
            str(files("understudy_conformance") / "datasets" / f"{self.name}.zip")
        ) as archive:
            archive.extractall(root)
        return root


V30 = DemoSet("v30", "v3.0", (6, 1, 9, 4, 7), (FRONT, WRIST), packed=(2, 3))
ONE_FILE = DemoSet("v30-one-file", "v3.0", (6, 1, 9, 4, 7), (FRONT, WRIST), packed=(5, 5))
DRIFT = DemoSet("v30-drift", "v3.0", (12, 11), (FRONT,), packed=(2,), drift=0.4)
V21 = DemoSet("v21", "v2.1", (5, 1, 8), (FRONT, WRIST), images=(WRIST,))
V20 = DemoSet("v20", "v2.0", (5, 1, 8), (FRONT, WRIST), images=(WRIST,))
SETS = (V30, ONE_FILE, V21, V20, DRIFT)
BASES = (V30, ONE_FILE, V21, V20)
"""Sets of the usual requirements: a subject is examined on the first that it opens."""


def values(episode: int, frame: int) -> dict[str, NDArray[Any]]:
    """Return the columns of `FEATURES` in a row."""
    e = float(episode)
    f = float(frame)
    return {
        "observation.state": np.array(
            [e + f / 64, -f / 4, (7 * e * e + 3 * f) % 11 / 8, 10_000 + f % 3], np.float32
        ),
        "observation.gripper": np.array([f % 2], np.float32),
        "observation.clock": np.array([1.7e9 + 100 * e + f / 32 + 2.0**-12], np.float64),
        "action": np.array([f / 8 - e, (e + f) % 5 / 4], np.float32),
    }


def paint(camera: int, episode: int, frame: int) -> NDArray[np.uint8]:
    """Return the uint8 (64, 64, 3) image of a camera in a row; camera < 2, episode < 16, frame <
    64.
    """
    number = camera << 10 | episode << 6 | frame
    number |= number * 7 % 13 << 11
    image = np.empty((SIDE, SIDE, 3), np.uint8)
    for block in range(15):
        y, x = (BLOCK * place for place in divmod(block, 4))
        image[y : y + BLOCK, x : x + BLOCK] = BRIGHT if number >> block & 1 else DARK
    image[-BLOCK:, -BLOCK:] = RED
    return image


def read_image(image: Any) -> tuple[tuple[int, int, int] | None, float]:
    """Return (camera, episode, frame) of an image, None if it shows none, and its largest error in
    levels of 255.

    Args:
        image: (H, W, 3) or (3, H, W), square, integers of 0..255 or floats of 0..1.
    """
    pixels = np.asarray(image)
    if pixels.ndim != 3 or 3 not in (pixels.shape[0], pixels.shape[-1]):
        raise ValueError(f"an image has the shape {pixels.shape}; give (H, W, 3) or (3, H, W)")
    if pixels.shape[-1] != 3:
        pixels = pixels.transpose(1, 2, 0)
    unit = 255 if pixels.dtype.kind == "f" else 1
    levels = pixels.astype(np.float64) * unit
    rows, columns = (np.linspace(0, size, 17).astype(int) for size in levels.shape[:2])
    means = []
    for y in range(4):
        row = levels[rows[4 * y + 1] : rows[4 * y + 3]]
        means += [row[:, columns[4 * x + 1] : columns[4 * x + 3]].mean((0, 1)) for x in range(4)]
    blocks = np.array(means)
    bright = blocks[:15].mean(1) > (DARK + BRIGHT) / 2
    truth = np.where(bright[:, None], BRIGHT, DARK)
    error = max(float(np.abs(blocks[:15] - truth).max()), float(np.abs(blocks[15] - RED).max()))
    number = int((bright << np.arange(15)).sum())
    code = number & 0x7FF
    if number >> 11 != code * 7 % 13:
        return None, error
    return (code >> 10, code >> 6 & 15, code & 63), error


@cache
def temporary_folder() -> Path:
    """Return a folder that is removed when the process ends."""
    folder = Path(tempfile.mkdtemp(prefix="conformance-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def root_of(demo: DemoSet) -> Path:
    """Return the folder of an unpacked set, one per process."""
    return demo.unpack(temporary_folder())


def copy_of(demo: DemoSet, name: str) -> Path:
    """Return a new copy of a set, which a requirement may damage."""
    return Path(
        shutil.copytree(root_of(demo), Path(tempfile.mkdtemp(dir=temporary_folder())) / name)
    )
