"""Rules of images in time and detail: every n-th image only, parts of other moments, blur and
colors.

Each compares an episode with the others of the camera. A wrist camera is blurred by motion in all
episodes, and a video with few key frames flickers in all of them.
"""

from collections.abc import Callable
from typing import Annotated

import numpy as np

from understudy_data import Catalog
from understudy_tools.check.findings import (
    LOOK,
    Finding,
    Findings,
    Place,
    Severity,
    is_few,
    undecided,
)
from understudy_tools.check.image_facts import Clip, ImageFacts
from understudy_tools.check.rules.images import place_clips, split_by
from understudy_tools.check.threshold import Threshold

ENOUGH = 4
"""Least number of sampled episodes."""
_MINORITY: Annotated[
    float,
    Threshold("share of the sampled episodes that may differ from the others", fault="v2.1_torn"),
] = 0.25
_HELD = range(2, 9)  # frames for which one image may be shown
_LEAST_TURNS = 6  # changes of the image in the window
_HELD_CHANGE: Annotated[
    float,
    Threshold(
        "change while an image is held, in changes to the next one", fault="v2.1_every_fourth_image"
    ),
] = 0.3
_REPEATED: Annotated[
    float,
    Threshold("change of a repeated image, in large changes", fault="v2.1_every_fourth_image"),
] = 0.1
_SLOWER: Annotated[
    float,
    Threshold(
        "share of fresh images, in that of the other episodes", fault="v2.1_every_fourth_image"
    ),
] = 0.65
_ALL_FRESH = 0.8
_LIVELY: Annotated[
    float, Threshold("levels of 255 from which images change", fault="v2.1_torn")
] = 0.15
_TORN: Annotated[
    float, Threshold("excess of a change there and back, in mean changes", fault="v2.1_torn")
] = 0.12
_MORE_TORN = 3.0  # excess of a change there and back, in that of the other episodes
_BLURRED: Annotated[
    float, Threshold("sharpness, in that of the other episodes", fault="v2.1_blurred")
] = 0.75
_TINT: Annotated[
    float,
    Threshold(
        "logarithm of the ratio of a channel's share to the usual one", fault="v2.1_green_tint"
    ),
] = 0.05
_MORE_TINT: Annotated[
    float, Threshold("deviation of colors, in that of the other episodes", fault="v2.1_green_tint")
] = 3.0
_PALE = 0.5  # logarithm of the ratio of the usual distance to gray to that of an episode
_SCENES = 6  # sampled episodes whose colors are compared
_LEAST_CHROMA = 4.0  # levels of 255 between colors and gray, from which a camera sees colors


def check_image_detail(catalog: Catalog, facts: ImageFacts) -> Findings:
    """Yield findings about episodes whose images differ in rate, order, sharpness or color."""
    for camera, clips in facts.clips.items():
        if len(clips) < ENOUGH:
            for rule in ("images.rate", "images.torn", "images.sharpness", "images.color"):
                yield undecided(rule, ENOUGH, "sampled episodes", len(clips), Place(camera=camera))
            continue
        yield from _rates(catalog, camera, clips)
        yield from _torn(catalog, clips)
        yield from _blurred(catalog, clips)
        yield from _colors(catalog, camera, clips)


def _finding(
    catalog: Catalog,
    rule: str,
    clips: list[Clip],
    odd: np.ndarray,
    message: str,
    measured: float,
    usual: float,
) -> Findings:
    """Warn of the clips in bool (n,), where they are a minority."""
    if is_few(odd, _MINORITY):
        yield Finding(
            rule, "warning", message, place_clips(catalog, clips, odd), measured, usual, LOOK
        )


def _others(values: np.ndarray, share: float) -> float:
    """Quantile of (n,) without a minority at the other end."""
    return float(np.quantile(values, share))


def held(change: np.ndarray) -> int:
    """Frames for which each image is shown, by the changes to the one before float64 (m,); 1
    without such a period.
    """
    for frames in reversed(_HELD):
        if len(change) < _LEAST_TURNS * frames:
            continue
        phase = int(np.argmax([np.median(change[offset::frames]) for offset in range(frames)]))
        turns = np.arange(len(change)) % frames == phase
        usual = float(np.median(change[turns]))
        if usual > _LIVELY and np.quantile(change[~turns], 0.9) < _HELD_CHANGE * usual:
            return frames
    return 1


def _rates(catalog: Catalog, camera: str, clips: list[Clip]) -> Findings:
    periods = np.array([held(clip.change) for clip in clips])
    fresh = np.array([_fresh(clip.change) for clip in clips])
    usual = float(np.median(fresh))
    if usual < _ALL_FRESH and (periods > 1).mean() <= 0.5:
        words = "sampled episodes without repeated images"
        yield undecided(
            "images.rate", len(clips), words, int((fresh >= _ALL_FRESH).sum()), Place(camera=camera)
        )
    odd = (periods > 1) & (fresh < _SLOWER * usual)
    usually_held = (periods > 1).mean() > 0.5
    if usually_held or odd.any():
        is_held = periods > 1 if usually_held else odd
        frames = int(np.median(periods[is_held]))
        message = (
            f"each image is shown for {frames} frames: the camera gave "
            f"{catalog.fps / frames:.3g} images a second"
        )
        place = Place(camera=camera) if usually_held else place_clips(catalog, clips, odd)
        severity: Severity = "note" if usually_held else "warning"
        yield Finding("images.rate", severity, message, place, frames, 1, LOOK)


def _fresh(change: np.ndarray) -> float:
    """Share of images that differ from the one before, by the changes (m,); 1 without motion."""
    lively = float(np.quantile(change, 0.9)) if len(change) else 0.0
    return float((change >= _REPEATED * lively).mean()) if lively > _LIVELY else 1.0


def torn(window: np.ndarray) -> float:
    """Measure images whose upper or lower half leaves the motion for one frame and returns.

    Args:
        window: float32 (n, H, W, 3), consecutive images.

    Returns:
        Mean excess of the changes there and back over the change across both, in mean changes; the
        larger half's.
    """
    half = window.shape[1] // 2
    result = 0.0
    for part in (window[:, :half], window[:, half:]):
        near = np.abs(part[1:] - part[:-1]).mean(axis=(1, 2, 3))
        far = np.abs(part[2:] - part[:-2]).mean(axis=(1, 2, 3))
        if len(far) and near.mean() > _LIVELY:
            result = max(
                result,
                float(np.maximum(np.minimum(near[1:], near[:-1]) - far, 0).mean() / near.mean()),
            )
    return result


def _torn(catalog: Catalog, clips: list[Clip]) -> Findings:
    excess = np.array([torn(clip.window) for clip in clips])
    odd = excess > max(_TORN, _MORE_TORN * _others(excess, 1 - _MINORITY))
    message = (
        "parts of images show another moment: changes there and back exceed the motion by "
        f"{excess.max():.2f} "
    )
    message += "of the mean change"
    yield from _finding(catalog, "images.torn", clips, odd, message, float(excess.max()), 0.0)


def _blurred(catalog: Catalog, clips: list[Clip]) -> Findings:
    detail = np.array([clip.sharpness for clip in clips])
    usual = _others(detail, _MINORITY)
    odd = detail < _BLURRED * usual
    message = (
        f"fine detail is {detail.min():.2g} of the coarse one, in the other episodes "
        f"{usual:.2g}: out of focus?"
    )
    yield from _finding(
        catalog, "images.sharpness", clips, odd, message, float(detail.min()), usual
    )


def _colors(catalog: Catalog, camera: str, clips: list[Clip]) -> Findings:
    """Shares of the channels, and the distance to gray. Both differ between scenes, so more clips
    are needed.
    """
    if len(clips) < _SCENES:
        yield undecided(
            "images.color", _SCENES, "sampled episodes", len(clips), Place(camera=camera)
        )
        return
    # (n, pixels, 3)
    images = np.stack([np.median(clip.ends, axis=0).reshape(-1, 3) for clip in clips])
    tints = _tints(images, np.median(images, axis=0))
    off = np.abs(tints).max(axis=1)
    limit = max(_TINT, _MORE_TINT * _others(off, 1 - _MINORITY))
    exchanged = np.abs(_tints(images[..., ::-1], np.median(images, axis=0))).max(axis=1)
    odd = (off > limit) & (exchanged > 0.5 * off)  # `images.channels` names the others
    channel = ("red", "green", "blue")[int(np.abs(tints)[off.argmax()].argmax())]
    message = (
        f"the share of {channel} differs from that of the other episodes by "
        f"{np.exp(off.max()) - 1:.0%}"
    )
    yield from _finding(catalog, "images.color", clips, odd, message, float(off.max()), limit)
    chroma = np.log(np.ptp(images, axis=2).mean(axis=1) + 0.1)
    usual = float(np.median(chroma))
    limit = max(_PALE, _MORE_TINT * _others(np.abs(chroma - usual), 1 - _MINORITY))
    pale = (usual - chroma > limit) & (usual > np.log(_LEAST_CHROMA)) & ~odd
    least = float(np.exp(chroma.min()))
    message = (
        f"colors are {least:.3g} levels from gray, those of the other episodes {np.exp(usual):.3g}"
    )
    yield from _finding(catalog, "images.color", clips, pale, message, least, float(np.exp(usual)))


def _tints(images: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Logarithms of the ratio of each channel (n, pixels, 3) to the usual image's, less their mean:
    (n, 3).

    The median over the pixels leaves objects out.
    """
    ratio = np.median(np.log(images + 4) - np.log(usual + 4), axis=1)
    return np.asarray(ratio - ratio.mean(axis=1, keepdims=True))


_ENOUGH_CHANGED = 6  # sampled episodes
_LEAST: Annotated[
    float,
    Threshold(
        "levels of 255 between an episode and the usual image, in the middle of all pixels",
        fault="camera_is_mirrored",
    ),
] = 4.0
_UNUSUAL: Annotated[
    float,
    Threshold(
        "distance of an episode to the usual image, in that of the other episodes",
        fault="camera_is_mirrored",
    ),
] = 2.5
_BACK: Annotated[
    float,
    Threshold(
        "distance to the usual image that remains after a change is undone, in that before",
        fault="camera_is_mirrored",
    ),
] = 0.5
_WARM = 0.1  # logarithm of red to blue, from which a scene is warm or cold
_NOISY: Annotated[
    float, Threshold("noise of the images, in the usual one", fault="camera_is_noisy")
] = 3.0
_LEAST_NOISE: Annotated[
    float, Threshold("levels of 255 of noise from which images are noisy", fault="camera_is_noisy")
] = 2.5
_SILENT: Annotated[
    float, Threshold("levels of 255 up to which noise is none", fault="camera_is_noisy")
] = 0.5
_FIX = "leave the episode out with --data.exclude-episodes, or correct its video"

_CHANGES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "mirrored left to right": ("images.mirrored", lambda images: images[:, :, ::-1]),
    "upside down, mirrored": ("images.mirrored", lambda images: images[:, ::-1]),
    "rotated by half a turn": ("images.mirrored", lambda images: images[:, ::-1, ::-1]),
    "red and blue exchanged": ("images.channels", lambda images: images[..., ::-1]),
}


def check_changed_images(catalog: Catalog, facts: ImageFacts) -> Findings:
    """Yield findings about episodes whose images differ from those of the others by one known
    change.
    """
    for camera, clips in facts.clips.items():
        if len(clips) >= _ENOUGH_CHANGED:
            yield from _changed(catalog, clips)
            yield from _noisy(catalog, clips)
            yield from _exchanged_colors(catalog, camera, clips)
        else:
            for rule in ("images.mirrored", "images.channels", "images.noise"):
                yield undecided(
                    rule, _ENOUGH_CHANGED, "sampled episodes", len(clips), Place(camera=camera)
                )


def _distance(images: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Median over the pixels of the distance to the usual image, (n,): motion and differences at
    few places are out.
    """
    return np.asarray(
        np.median(np.abs(images - usual).mean(axis=3).reshape(len(images), -1), axis=1)
    )


def _changed(catalog: Catalog, clips: list[Clip]) -> Findings:
    images = np.stack([np.median(clip.ends, axis=0) for clip in clips])  # (n, 24, 32, 3)
    usual = np.median(images, axis=0)
    distance = _distance(images, usual)
    limit = max(_LEAST, _UNUSUAL * float(np.median(distance)))
    alike = _UNUSUAL * max(float(np.median(distance)), 1.0)  # as far as other episodes are
    undone = np.stack([_distance(undo(images), usual) for _, undo in _CHANGES.values()])
    for number, (words, (rule, _)) in enumerate(_CHANGES.items()):
        best = undone.argmin(axis=0) == number
        back = (undone[number] < _BACK * distance) & (undone[number] < alike)
        odd = best & (distance > limit) & back
        if is_few(odd):
            worst = int(np.where(odd, distance, -1.0).argmax())
            measured = float(distance[worst])
            left = float(undone[number, worst])
            message = (
                f"images are {words}: they differ from the other episodes' by {measured:.3g} "
                "levels, and by "
            )
            message += f"{left:.3g} when that is undone"
            place = place_clips(catalog, clips, odd)
            yield Finding(rule, "warning", message, place, measured, left, _FIX, measured)


def _noisy(catalog: Catalog, clips: list[Clip]) -> Findings:
    noise = np.array([clip.noise for clip in clips])
    usual = float(np.median(noise))
    odd = noise > max(_LEAST_NOISE, _NOISY * max(usual, _SILENT))
    if is_few(odd):
        worst = float(noise[odd].max())
        message = (
            f"images have noise of {worst:.3g} levels, those of the other episodes {usual:.3g}"
        )
        place = place_clips(catalog, clips, odd)
        yield Finding("images.noise", "warning", message, place, worst, usual, _FIX, worst)


def _exchanged_colors(catalog: Catalog, camera: str, clips: list[Clip]) -> Findings:
    """More episodes than a minority, up to half of them, whose red and blue are those of the others
    exchanged.

    Either the images resemble each other after the exchange, or the scenes differ and are equally
    warm after it.
    """
    images = np.stack([np.median(clip.ends, axis=0) for clip in clips])
    odd = split_by(images, images[..., ::-1])
    usual = np.median(np.where(odd[:, None, None, None], images[..., ::-1], images), axis=0)
    distance = _distance(images, usual)
    undone = _distance(images[..., ::-1], usual)
    right = np.where(odd, undone, distance)
    wrong = np.where(odd, distance, undone)
    clear = wrong - right > _LEAST
    warmth = np.log((images[..., 0] + 4) / (images[..., 2] + 4)).mean(axis=(1, 2)) * np.where(
        odd, -1, 1
    )
    warm = float(np.median(warmth))
    alike = abs(warm) > max(_WARM, 3 * float(np.quantile(np.abs(warmth - warm), 0.9)))
    if not clear.all() and not alike:
        words = "sampled episodes whose red and blue differ"
        yield undecided(
            "images.channels", len(clips), words, int(clear.sum()), Place(camera=camera)
        )
    elif odd.any() and not is_few(odd) and ((right < _BACK * wrong).all() or alike):
        message = (
            f"red and blue are exchanged in {odd.sum()} of {len(clips)} episodes, or in the others"
        )
        place = place_clips(catalog, clips, odd)
        measured = float(distance[odd].min())
        left = float(undone[odd].max())
        yield Finding("images.channels", "warning", message, place, measured, left, _FIX, measured)
