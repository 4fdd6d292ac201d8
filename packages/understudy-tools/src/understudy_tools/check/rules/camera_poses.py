"""Cameras whose pose differs from that in the other episodes, or changes: shifted, turned or zoomed
scenes.

The measure is the correlation of the fine structure of two images, as they are and after the best
change of pose.
"""

from typing import Annotated

import numpy as np

from understudy_data import Catalog
from understudy_tools.check.findings import LOOK, Finding, Findings, Place, undecided
from understudy_tools.check.image_facts import Clip, ImageFacts
from understudy_tools.check.threshold import Threshold

ENOUGH = 6
"""Least number of sampled episodes."""
_MINORITY: Annotated[
    float, Threshold("share of the episodes that may show another pose", fault="texture_zoomed")
] = 0.25
_STATIC: Annotated[
    float,
    Threshold(
        "correlation of scenes in most episodes, from which a camera sees a static one",
        fault="texture_zoomed",
    ),
] = 0.35
_LOST = 0.6  # correlation of a moved scene, in that of the others
_BACK: Annotated[
    float,
    Threshold(
        "correlation after the change of pose, in that before", fault="texture_camera_moved_midway"
    ),
] = 1.3
_ZOOMS = (0.7, 0.75, 0.8, 0.85, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4)
_TURNS = (-12.0, -9.0, -6.0, -3.0, 3.0, 6.0, 9.0, 12.0)  # degrees
_LEAST_SHIFT: Annotated[
    float,
    Threshold(
        "share of the image by which a camera moves; a humanoid sways by less",
        fault="texture_camera_moved",
    ),
] = 0.035
_FAR = 4  # largest shift is the size divided by this
_BOX = 12  # pixels of the means that are taken off


def check_camera_poses(catalog: Catalog, facts: ImageFacts) -> Findings:
    """Yield findings about cameras with another pose, or one that changes."""
    for camera, clips in facts.clips.items():
        place = Place(camera=camera)
        if len(clips) < ENOUGH:
            yield undecided("images.moved", ENOUGH, "sampled episodes", len(clips), place)
            continue
        images = np.stack([fine(clip.gray) for clip in clips])
        starts = [(image[0], image[2]) for image in images]
        yield from _moved(
            catalog, camera, clips, starts, "the scene moves between the first and the last image"
        )
        usual = np.median(np.median(images, axis=1), axis=0)
        pairs = [(usual, np.median(image, axis=0)) for image in images]
        yield from _moved(
            catalog, camera, clips, pairs, "the scene differs from that of the other episodes"
        )


def _moved(
    catalog: Catalog,
    camera: str,
    clips: list[Clip],
    pairs: list[tuple[np.ndarray, np.ndarray]],
    words: str,
) -> Findings:
    alike = np.array([correlation(*pair) for pair in pairs])
    usual = float(np.quantile(alike, _MINORITY))
    if usual < _STATIC:
        count = int((alike >= _STATIC).sum())
        needs = int(np.ceil((1 - _MINORITY) * len(clips)))
        yield undecided(
            "images.moved", needs, "episodes of a static scene", count, Place(camera=camera)
        )
        return
    odd: list[tuple[int, str]] = []
    for number in np.flatnonzero(alike < _LOST * usual).tolist():
        after, pose = best_pose(*pairs[number])
        if pose and after > max(_BACK * alike[number], alike[number] + 0.15, 0.5 * usual):
            odd.append((number, pose))
    if odd and len(odd) <= max(1, _MINORITY * len(clips)):
        message = f"{words}: by {odd[0][1]}"
        place = Place.from_rows(catalog, [clips[number].row for number, _ in odd], camera=camera)
        yield Finding(
            "images.moved", "warning", message, place, float(alike[odd[0][0]]), usual, LOOK
        )


def fine(images: np.ndarray) -> np.ndarray:
    """Take off the mean around each pixel of images (n, H, W), and limit the rest: objects do not
    count more.
    """
    details = images - _box(_box(images, 1), 2)
    scale = details.std(axis=(1, 2), keepdims=True) + 1e-6
    return np.asarray(np.clip(details / scale, -2, 2))


def _box(images: np.ndarray, axis: int) -> np.ndarray:
    pad = [(0, 0)] * 3
    pad[axis] = (_BOX + 1, _BOX)
    total = np.pad(images, pad, mode="edge").cumsum(axis=axis, dtype=np.float64)
    size = images.shape[axis]
    sums_after, sums_before = (
        np.take(total, np.arange(size) + shift, axis=axis) for shift in (2 * _BOX + 1, 0)
    )
    return np.asarray((sums_after - sums_before) / (2 * _BOX + 1))


def correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Correlation of two images; 0 where one is plain."""
    a = first - first.mean()
    b = second - second.mean()
    scale = float(np.sqrt((a * a).sum() * (b * b).sum()))
    return float((a * b).sum()) / scale if scale > 0 else 0.0


def best_pose(image: np.ndarray, target: np.ndarray) -> tuple[float, str]:
    """Change the pose of image `one` (H, W) so that it equals `two`.

    Returns:
        The correlation then, and the change in words, "" where none is better than the smallest.
    """
    best = 0.0
    words = ""
    for zoom, turn in [*((zoom, 0.0) for zoom in _ZOOMS), *((1.0, turn) for turn in _TURNS)]:
        changed, valid = _warp(image, zoom, turn)
        down, right = _shift(changed, target)
        area = _overlap(valid, down, right)
        if area.mean() < 0.3:
            continue
        alike = correlation(np.roll(changed, (down, right), (0, 1))[area], target[area])
        if alike > best:
            parts = []
            if zoom != 1:
                size = "larger" if zoom > 1 else "smaller"
                parts.append(f"{100 * abs(zoom - 1):.0f} % {size}")
            if turn != 0:
                parts.append(f"{abs(turn):.0f} degrees")
            if max(abs(down) / image.shape[0], abs(right) / image.shape[1]) >= _LEAST_SHIFT:
                parts.append(
                    f"{100 * down / image.shape[0]:.0f} % down and "
                    f"{100 * right / image.shape[1]:.0f} % right"
                )
            best = alike
            words = ", ".join(parts)
    return best, words


def _warp(image: np.ndarray, zoom: float, turn: float) -> tuple[np.ndarray, np.ndarray]:
    """Enlarge an image about its center and turn it, and say which pixels it fills: nearest
    neighbors.
    """
    height, width = image.shape
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    y = (y - (height - 1) / 2) / zoom
    x = (x - (width - 1) / 2) / zoom
    angle = np.radians(turn)
    rows = np.rint(np.cos(angle) * y + np.sin(angle) * x + (height - 1) / 2).astype(int)
    columns = np.rint(np.cos(angle) * x - np.sin(angle) * y + (width - 1) / 2).astype(int)
    valid = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    return np.where(
        valid, image[np.clip(rows, 0, height - 1), np.clip(columns, 0, width - 1)], 0.0
    ), valid


def _shift(image: np.ndarray, target: np.ndarray) -> tuple[int, int]:
    """Rows and columns by which `one` must be moved to resemble `two`, by the peak of their
    cross-correlation.
    """
    product = np.fft.rfft2(target) * np.conj(np.fft.rfft2(image))
    table = np.fft.irfft2(product, image.shape)
    far = [size // _FAR for size in image.shape]
    for axis, size in enumerate(image.shape):
        away = np.minimum(np.arange(size), size - np.arange(size)) > far[axis]
        if axis == 0:
            table[away, :] = -np.inf
        else:
            table[:, away] = -np.inf
    peak = np.unravel_index(int(table.argmax()), table.shape)
    down, right = (
        int(offset) - size * (int(offset) > size // 2) for offset, size in zip(peak, image.shape)
    )
    return down, right


def _overlap(valid: np.ndarray, down: int, right: int) -> np.ndarray:
    """Pixels that an image fills after it was moved, bool (H, W)."""
    area = np.roll(valid, (down, right), (0, 1))
    height, width = area.shape
    area[: max(down, 0)] = False
    area[height + min(down, 0) :] = False
    area[:, : max(right, 0)] = False
    area[:, width + min(right, 0) :] = False
    return area
