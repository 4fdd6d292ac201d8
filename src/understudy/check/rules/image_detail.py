"""Rules of images in time and detail: every n-th image only, parts of other moments, blur and colors.

Each compares an episode with the others of the camera. A wrist camera is blurred by motion in all episodes, and a video
with few key frames flickers in all of them.
"""

from collections.abc import Iterator

import numpy as np

from understudy.check.findings import Finding, Place, undecided
from understudy.check.image_facts import Clip, ImageFacts
from understudy.check.remedies import LOOK
from understudy.data.format.catalog import Catalog

ENOUGH = 4
"""Least number of sampled episodes."""
_MINORITY = 0.25
_HELD = range(2, 9)  # frames for which one image may be shown
_LEAST_TURNS = 6  # changes of the image in the window
_HELD_CHANGE = 0.3  # change while an image is held, in changes to the next
_REPEATED = 0.1  # change of a repeated image, in large changes
_SLOWER, _ALL_FRESH = 0.65, 0.8  # share of fresh images, in that of the others; and of a camera without repeated ones
_LIVELY = 0.15  # levels of 255
_TORN, _MORE_TORN = 0.12, 3.0  # excess of a change there and back, in mean changes; and in those of the others
_BLURRED = 0.75  # sharpness, in that of the others
_TINT, _MORE_TINT = 0.05, 3.0  # logarithm of a channel's share; and in deviations of the others
_PALE = 0.5  # logarithm of the ratio of the distances to gray
_SCENES = 6  # sampled episodes whose colors are compared
_LEAST_CHROMA = 4.0  # levels of 255


def check_image_detail(catalog: Catalog, facts: ImageFacts) -> Iterator[Finding]:
    """Yield findings about episodes whose images differ in rate, order, sharpness or color."""
    for camera, clips in facts.clips.items():
        if len(clips) < ENOUGH:
            for rule in ("images.rate", "images.torn", "images.sharpness", "images.color"):
                yield undecided(rule, ENOUGH, "sampled episodes", len(clips), Place(camera=camera))
            continue
        yield from _rates(catalog, camera, clips)
        yield from _torn(catalog, camera, clips)
        yield from _blurred(catalog, camera, clips)
        yield from _colors(catalog, camera, clips)


def _finding(
    catalog: Catalog,
    rule: str,
    camera: str,
    clips: list[Clip],
    odd: np.ndarray,
    message: str,
    measured: float,
    usual: float,
) -> Iterator[Finding]:
    """Warn of the clips in bool (n,), where they are a minority."""
    if odd.any() and odd.sum() <= max(1, _MINORITY * len(clips)):
        ids = sorted(int(catalog.episodes.ids[clips[place].row]) for place in np.flatnonzero(odd))
        yield Finding(rule, "warning", message, Place(tuple(ids), camera=camera), measured, usual, LOOK)


def _others(values: np.ndarray, share: float) -> float:
    """Quantile of (n,) without a minority at the other end."""
    return float(np.quantile(values, share))


def held(change: np.ndarray) -> int:
    """Frames for which each image is shown, by the changes to the one before float64 (m,); 1 without such a period."""
    for frames in reversed(_HELD):
        if len(change) < _LEAST_TURNS * frames:
            continue
        phase = int(np.argmax([np.median(change[offset::frames]) for offset in range(frames)]))
        turns = np.arange(len(change)) % frames == phase
        usual = float(np.median(change[turns]))
        if usual > _LIVELY and np.quantile(change[~turns], 0.9) < _HELD_CHANGE * usual:
            return frames
    return 1


def _rates(catalog: Catalog, camera: str, clips: list[Clip]) -> Iterator[Finding]:
    periods = np.array([held(clip.change) for clip in clips])
    fresh = np.array([_fresh(clip.change) for clip in clips])
    usual = float(np.median(fresh))
    if usual < _ALL_FRESH and (periods > 1).mean() <= 0.5:
        words = "sampled episodes without repeated images"
        yield undecided("images.rate", len(clips), words, int((fresh >= _ALL_FRESH).sum()), Place(camera=camera))
    odd = (periods > 1) & (fresh < _SLOWER * usual)
    if (periods > 1).mean() > 0.5:
        frames = int(np.median(periods[periods > 1]))
        message = f"each image is shown for {frames} frames: the camera gave {catalog.fps / frames:.3g} images a second"
        yield Finding("images.rate", "note", message, Place(camera=camera), frames, 1, LOOK)
    elif odd.any():
        frames = int(np.median(periods[odd]))
        message = f"each image is shown for {frames} frames: the camera gave {catalog.fps / frames:.3g} images a second"
        ids = sorted(int(catalog.episodes.ids[clips[place].row]) for place in np.flatnonzero(odd))
        yield Finding("images.rate", "warning", message, Place(tuple(ids), camera=camera), frames, 1, LOOK)


def _fresh(change: np.ndarray) -> float:
    """Share of images that differ from the one before, by the changes (m,); 1 without motion."""
    lively = float(np.quantile(change, 0.9)) if len(change) else 0.0
    return float((change >= _REPEATED * lively).mean()) if lively > _LIVELY else 1.0


def torn(window: np.ndarray) -> float:
    """Measure images whose upper or lower half leaves the motion for one frame and returns.

    Args:
        window: float32 (n, H, W, 3), consecutive images.

    Returns:
        Mean excess of the changes there and back over the change across both, in mean changes; the larger half's.
    """
    half, result = window.shape[1] // 2, 0.0
    for part in (window[:, :half], window[:, half:]):
        near = np.abs(part[1:] - part[:-1]).mean(axis=(1, 2, 3))
        far = np.abs(part[2:] - part[:-2]).mean(axis=(1, 2, 3))
        if len(far) and near.mean() > _LIVELY:
            result = max(result, float(np.maximum(np.minimum(near[1:], near[:-1]) - far, 0).mean() / near.mean()))
    return result


def _torn(catalog: Catalog, camera: str, clips: list[Clip]) -> Iterator[Finding]:
    excess = np.array([torn(clip.window) for clip in clips])
    odd = excess > max(_TORN, _MORE_TORN * _others(excess, 1 - _MINORITY))
    message = f"parts of images show another moment: changes there and back exceed the motion by {excess.max():.2f} "
    message += "of the mean change"
    yield from _finding(catalog, "images.torn", camera, clips, odd, message, float(excess.max()), 0.0)


def _blurred(catalog: Catalog, camera: str, clips: list[Clip]) -> Iterator[Finding]:
    detail = np.array([clip.sharpness for clip in clips])
    usual = _others(detail, _MINORITY)
    odd = detail < _BLURRED * usual
    message = f"fine detail is {detail.min():.2g} of the coarse one, in the other episodes {usual:.2g}: out of focus?"
    yield from _finding(catalog, "images.sharpness", camera, clips, odd, message, float(detail.min()), usual)


def _colors(catalog: Catalog, camera: str, clips: list[Clip]) -> Iterator[Finding]:
    """Shares of the channels, and the distance to gray. Both differ between scenes, so more clips are needed."""
    if len(clips) < _SCENES:
        yield undecided("images.color", _SCENES, "sampled episodes", len(clips), Place(camera=camera))
        return
    images = np.stack([np.median(clip.ends, axis=0).reshape(-1, 3) for clip in clips])  # (n, pixels, 3)
    tints = _tints(images, np.median(images, axis=0))
    off = np.abs(tints).max(axis=1)
    limit = max(_TINT, _MORE_TINT * _others(off, 1 - _MINORITY))
    exchanged = np.abs(_tints(images[..., ::-1], np.median(images, axis=0))).max(axis=1)
    odd = (off > limit) & (exchanged > 0.5 * off)  # `images.channels` names the others
    channel = ("red", "green", "blue")[int(np.abs(tints)[off.argmax()].argmax())]
    message = f"the share of {channel} differs from that of the other episodes by {np.exp(off.max()) - 1:.0%}"
    yield from _finding(catalog, "images.color", camera, clips, odd, message, float(off.max()), limit)
    chroma = np.log(np.ptp(images, axis=2).mean(axis=1) + 0.1)
    usual = float(np.median(chroma))
    limit = max(_PALE, _MORE_TINT * _others(np.abs(chroma - usual), 1 - _MINORITY))
    pale = (usual - chroma > limit) & (usual > np.log(_LEAST_CHROMA)) & ~odd
    least = float(np.exp(chroma.min()))
    message = f"colors are {least:.3g} levels from gray, those of the other episodes {np.exp(usual):.3g}"
    yield from _finding(catalog, "images.color", camera, clips, pale, message, least, float(np.exp(usual)))


def _tints(images: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Logarithms of the ratio of each channel (n, pixels, 3) to the usual image's, less their mean: (n, 3).

    The median over the pixels leaves objects out.
    """
    ratio = np.median(np.log(images + 4) - np.log(usual + 4), axis=1)
    return np.asarray(ratio - ratio.mean(axis=1, keepdims=True))
