"""How the images of a camera looked in training: mean and deviation of a coarse grid of colors.

A print is small (16 x 16 cells) and knows no scene, but it distinguishes cameras, RGB from BGR,
upright from upside down, and a cropped image from a whole one. The misfit of an image is the mean
over all cells and channels of min(((x - mean) / max(deviation, 6))^2, 36), in gray levels. Images
of training have a misfit of about 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from understudy_base import Record

SIDE = 16
_LEAST_DEVIATION = 6.0  # gray levels: noise, compression and small changes of light
_FEW_EPISODES = 3.0  # the largest usual misfit of n episodes counts 1 + 3 / n times
_MOST = 36.0  # one cell counts no more
# gray levels between the cells of an image; with less the lens may be covered
_LEAST_CONTRAST = 2.0
# of a side; 0.75 and 0.5625 make 4:3 and 16:9 square
_CROPS = (0.95, 0.9, 0.85, 0.8, 0.75, 0.7, 0.6, 0.5625, 0.5)


@dataclass(frozen=True)
class CameraPrint:
    """Appearance of a camera in training.

    Attributes:
        mean: gray levels 0..255, float32 (16, 16, 3), RGB.
        deviation: deviation of the cells between images, float32 (16, 16, 3).
        usual: median misfit of training images.
        most: misfit that one training image in twenty exceeds.
    """

    mean: np.ndarray
    deviation: np.ndarray
    usual: float
    most: float

    @classmethod
    def of_images(
        cls, grids: Sequence[np.ndarray], episodes: Sequence[int] | None = None
    ) -> "CameraPrint":
        """Make the print of the grids (`shrink`) of images.

        A misfit is measured on an image of an episode that the mean does not contain, so that it is
        as large as for other episodes; without `episodes`, on an image of the other half of the
        images. The estimate from few episodes is uncertain, and larger by that. Raises ValueError
        for no image.

        Args:
            grids: grids of images, the same number from each part of the training.
            episodes: number of the episode of each image.
        """
        if not len(grids):
            raise ValueError("a print needs at least one image")
        cells = np.stack(grids).astype(np.float32)
        whole = cls(cells.mean(0), cells.std(0), 1.0, 1.0)
        halves = (cells[::2], cells[1::2]) if len(cells) > 3 else (cells, cells)
        parts = [halves, halves[::-1]]
        factor = 1.0
        if episodes is not None and len(numbers := np.unique(episodes)) > 1:
            masks = [np.asarray(episodes) == number for number in numbers]
            parts = [(cells[~mask], cells[mask]) for mask in masks]
            factor = 1 + _FEW_EPISODES / len(numbers)
        misfits: list[float] = []
        for images, others in parts:
            part = cls(images.mean(0), images.std(0), 1.0, 1.0)
            misfits += [part.misfit(grid) for grid in others]
        usual, most = map(float, np.quantile(misfits, (0.5, 0.95)))
        return cls(whole.mean, whole.deviation, usual, factor * most)

    def misfit(self, grid: np.ndarray) -> float:
        """Misfit of a grid (`shrink`)."""
        distance = (grid - self.mean) / np.maximum(self.deviation, _LEAST_DEVIATION)
        return float(np.minimum(distance**2, _MOST).mean())

    def cropped(self, height: float, width: float) -> "CameraPrint":
        """Print of the middle of the images, of a share of their height and width."""
        mean, deviation = (_middle(cells, height, width) for cells in (self.mean, self.deviation))
        return CameraPrint(mean, deviation, self.usual, self.most)

    def to_json(self) -> dict[str, Any]:
        """Return plain values, rounded to a tenth of a gray level."""
        return {
            "mean": np.round(self.mean.astype(float), 1).tolist(),
            "deviation": np.round(self.deviation.astype(float), 1).tolist(),
            "usual": round(self.usual, 3),
            "most": round(self.most, 3),
        }

    @classmethod
    def from_json(cls, stored: Record) -> "CameraPrint":
        """Read plain values that obey the schema of contracts. Raises ValueError for a negative
        deviation.
        """
        mean, deviation = (np.array(stored[name], np.float32) for name in ("mean", "deviation"))
        if (deviation < 0).any():
            raise ValueError(
                f"look: a deviation of its cells is {deviation.min():g}; it is 0 or more"
            )
        return cls(mean, deviation, stored["usual"], stored["most"])


def shrink(image: np.ndarray) -> np.ndarray:
    """Mean color of each cell of an image uint8 (H, W, 3), as float32 (16, 16, 3)."""
    height, width = image.shape[:2]
    rows = np.arange(SIDE) * height // SIDE
    columns = np.arange(SIDE) * width // SIDE
    row_sums = np.add.reduceat(image.astype(np.uint32), rows, axis=0)
    sums = np.add.reduceat(row_sums, columns, axis=1)
    heights = np.maximum(np.diff(np.append(rows, height)), 1)
    widths = np.maximum(np.diff(np.append(columns, width)), 1)
    pixels = heights[:, None] * widths
    return (sums / pixels[..., None]).astype(np.float32)


def _middle(cells: np.ndarray, height: float, width: float) -> np.ndarray:
    """Cells of the middle of an image, by linear interpolation."""
    for axis, share in ((0, height), (1, width)):
        places = (np.arange(SIDE) + 0.5 - SIDE / 2) * share + SIDE / 2 - 0.5
        low = np.clip(np.floor(places).astype(int), 0, SIDE - 2)
        shape = [1, 1, 1]
        shape[axis] = -1
        part = np.clip(places - low, 0, 1).reshape(shape)
        cells = cells.take(low, axis) * (1 - part) + cells.take(low + 1, axis) * part
    return np.asarray(cells, np.float32)


Explanation = tuple[str, str]
"""(kind of mismatch, description of the images that came)."""


_FAULTS: Mapping[Explanation, Callable[[np.ndarray], np.ndarray]] = {
    ("color order", "BGR"): lambda grid: grid[..., ::-1],
    ("orientation", "images upside down"): lambda grid: grid[::-1],
    ("orientation", "mirrored images"): lambda grid: grid[:, ::-1],
    ("orientation", "images turned by 180 degrees"): lambda grid: grid[::-1, ::-1],
}
"""Each is its own inverse."""


def explanations(
    camera: str, prints: Mapping[str, CameraPrint]
) -> dict[Explanation, Callable[[np.ndarray], float]]:
    """Misfit of a grid under each explanation of why the images of a camera do not fit its
    print.
    """
    print_ = prints[camera]
    misfits = {fault: _changed(print_, change) for fault, change in _FAULTS.items()}
    for other, its in prints.items():
        if other != camera:
            misfits["swapped cameras", f"images like those of {other}"] = its.misfit
    for share in _CROPS:
        sides = {
            "image": (share, share),
            "image's width": (1.0, share),
            "image's height": (share, 1.0),
        }
        for name, side in sides.items():
            middle = f"the middle {share:.0%} of the {name}"
            misfits["crop", middle] = print_.cropped(*side).misfit
            misfits["crop", f"more around the image: training saw {middle}"] = _uncropped(
                print_, *side
            )
    return misfits


def explain_grids(
    print_: CameraPrint,
    misfits: Mapping[Explanation, Callable[[np.ndarray], float]],
    grids: Sequence[np.ndarray],
    now: float,
) -> Explanation | None:
    """Return the explanation of images that do not fit the print of their camera; None where they
    fit.

    Args:
        print_: print of the camera.
        misfits: see `explanations`.
        grids: grids of the images (`shrink`).
        now: their usual misfit.
    """
    if now <= 1.25 * print_.most + 0.25:
        return None
    fits: dict[Explanation, float] = {}
    for explanation, misfit in misfits.items():
        fits[explanation] = float(np.median([misfit(grid) for grid in grids]))
    best = min(fits, key=lambda explanation: fits[explanation], default=None)
    contrast = np.median([grid.std(axis=(0, 1)).max() for grid in grids])
    is_flat = contrast < _LEAST_CONTRAST  # it looks like the middle of many images
    least = fits[best] if best is not None else np.inf
    if least < 0.5 * now and least <= 2 * print_.most + 0.5 and not is_flat:
        return best
    if now > 3 * print_.most + 1:
        return "unlike training", "images of one color" if is_flat else "other images"
    return None


def explain_look(
    camera: str, prints: Mapping[str, CameraPrint], look: CameraPrint
) -> Explanation | None:
    """Return the explanation of another print of a camera that does not fit; None where it fits, or
    there is none.
    """
    if camera not in prints:
        return None
    print_ = prints[camera]
    misfit = print_.misfit(look.mean)
    return explain_grids(print_, explanations(camera, prints), [look.mean], misfit)


def estimate_power(
    camera: str, prints: Mapping[str, CameraPrint], images: int, trials: int = 10
) -> dict[str, float]:
    """Estimate how often each fault of a camera is named after some observations, on images drawn
    from its print.

    Args:
        camera: key of the camera.
        prints: prints of all cameras by key.
        images: observations.
        trials: draws of that many images.

    Returns:
        Fault -> share of the trials in which its kind is named. A small one: not decidable for this
        scene.
    """
    print_ = prints[camera]
    rng = np.random.default_rng(0)
    misfits = explanations(camera, prints)
    shares = {description: 0.0 for _, description in _FAULTS}
    for _ in range(trials):
        drawn = print_.mean + print_.deviation * rng.standard_normal((images, SIDE, SIDE, 3))
        for (kind, description), change in _FAULTS.items():
            grids = [change(grid).astype(np.float32) for grid in np.clip(drawn, 0, 255)]
            now = float(np.median([print_.misfit(grid) for grid in grids]))
            explained = explain_grids(print_, misfits, grids, now)
            shares[description] += (explained is not None and explained[0] == kind) / trials
    return shares


def _changed(
    print_: CameraPrint, change: Callable[[np.ndarray], np.ndarray]
) -> Callable[[np.ndarray], float]:
    return lambda grid: print_.misfit(change(grid))


def _uncropped(print_: CameraPrint, height: float, width: float) -> Callable[[np.ndarray], float]:
    return lambda grid: print_.misfit(_middle(grid, height, width))
