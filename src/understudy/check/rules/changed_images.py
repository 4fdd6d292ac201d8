"""Episodes whose images are those of the others after a change: mirrored, with exchanged colors, or noisy."""

from collections.abc import Callable, Iterator

import numpy as np

from understudy.check.findings import Finding, Place, undecided
from understudy.check.image_facts import Clip, ImageFacts
from understudy.check.rules.images import split_by
from understudy.data.format.catalog import Catalog

_ENOUGH = 6  # sampled episodes
_MINORITY = 0.2
_LEAST = 4.0  # levels of 255 between the episode and the usual image, in the middle of all pixels
_UNUSUAL = 2.5  # ratio of this to the other episodes'
_BACK = 0.5  # ratio that remains after the change is undone
_WARM = 0.1  # logarithm of red to blue
_NOISY = 3.0  # ratio of the noise to the usual one
_LEAST_NOISE = 2.5  # levels of 255
_SILENT = 0.5  # levels: less is no noise
_FIX = "leave the episode out with --data.exclude-episodes, or correct its video"

_CHANGES: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "mirrored left to right": ("images.mirrored", lambda images: images[:, :, ::-1]),
    "upside down, mirrored": ("images.mirrored", lambda images: images[:, ::-1]),
    "rotated by half a turn": ("images.mirrored", lambda images: images[:, ::-1, ::-1]),
    "red and blue exchanged": ("images.channels", lambda images: images[..., ::-1]),
}


def check_changed_images(catalog: Catalog, facts: ImageFacts) -> Iterator[Finding]:
    """Yield findings about episodes whose images differ from those of the others by one known change."""
    for camera, clips in facts.clips.items():
        if len(clips) >= _ENOUGH:
            yield from _changed(catalog, camera, clips)
            yield from _noisy(catalog, camera, clips)
            yield from _exchanged_colors(catalog, camera, clips)
        else:
            for rule in ("images.mirrored", "images.channels", "images.noise"):
                yield undecided(rule, _ENOUGH, "sampled episodes", len(clips), Place(camera=camera))


def _place(catalog: Catalog, camera: str, clips: list[Clip], odd: np.ndarray) -> Place:
    return Place(tuple(sorted(int(catalog.episodes.ids[clips[place].row]) for place in odd.tolist())), camera=camera)


def _distance(images: np.ndarray, usual: np.ndarray) -> np.ndarray:
    """Median over the pixels of the distance to the usual image, (n,): motion and differences at few places are out."""
    return np.asarray(np.median(np.abs(images - usual).mean(axis=3).reshape(len(images), -1), axis=1))


def _changed(catalog: Catalog, camera: str, clips: list[Clip]) -> Iterator[Finding]:
    images = np.stack([np.median(clip.ends, axis=0) for clip in clips])  # (n, 24, 32, 3)
    usual = np.median(images, axis=0)
    distance = _distance(images, usual)
    limit = max(_LEAST, _UNUSUAL * float(np.median(distance)))
    alike = _UNUSUAL * max(float(np.median(distance)), 1.0)  # as far as other episodes are
    undone = np.stack([_distance(undo(images), usual) for _, undo in _CHANGES.values()])
    for number, (words, (rule, _)) in enumerate(_CHANGES.items()):
        best = undone.argmin(axis=0) == number
        back = (undone[number] < _BACK * distance) & (undone[number] < alike)
        odd = np.flatnonzero(best & (distance > limit) & back)
        if len(odd) and len(odd) <= max(1, _MINORITY * len(clips)):
            worst = int(odd[distance[odd].argmax()])
            measured, left = float(distance[worst]), float(undone[number, worst])
            message = f"images are {words}: they differ from the other episodes' by {measured:.3g} levels, and by "
            message += f"{left:.3g} when that is undone"
            yield Finding(rule, "warning", message, _place(catalog, camera, clips, odd), measured, left, _FIX, measured)


def _noisy(catalog: Catalog, camera: str, clips: list[Clip]) -> Iterator[Finding]:
    noise = np.array([clip.noise for clip in clips])
    usual = float(np.median(noise))
    odd = np.flatnonzero(noise > max(_LEAST_NOISE, _NOISY * max(usual, _SILENT)))
    if len(odd) and len(odd) <= max(1, _MINORITY * len(clips)):
        worst = float(noise[odd].max())
        message = f"images have noise of {worst:.3g} levels, those of the other episodes {usual:.3g}"
        place = _place(catalog, camera, clips, odd)
        yield Finding("images.noise", "warning", message, place, worst, usual, _FIX, worst)


def _exchanged_colors(catalog: Catalog, camera: str, clips: list[Clip]) -> Iterator[Finding]:
    """More episodes than a minority, up to half of them, whose red and blue are those of the others exchanged.

    Either the images resemble each other after the exchange, or the scenes differ and are equally warm after it.
    """
    images = np.stack([np.median(clip.ends, axis=0) for clip in clips])
    odd = split_by(images, images[..., ::-1])
    usual = np.median(np.where(odd[:, None, None, None], images[..., ::-1], images), axis=0)
    distance, undone = _distance(images, usual), _distance(images[..., ::-1], usual)
    right, wrong = np.where(odd, undone, distance), np.where(odd, distance, undone)
    clear = wrong - right > _LEAST
    warmth = np.log((images[..., 0] + 4) / (images[..., 2] + 4)).mean(axis=(1, 2)) * np.where(odd, -1, 1)
    warm = float(np.median(warmth))
    alike = abs(warm) > max(_WARM, 3 * float(np.quantile(np.abs(warmth - warm), 0.9)))
    if not clear.all() and not alike:
        words = "sampled episodes whose red and blue differ"
        yield undecided("images.channels", len(clips), words, int(clear.sum()), Place(camera=camera))
    elif odd.sum() > max(1, _MINORITY * len(clips)) and ((right < _BACK * wrong).all() or alike):
        message = f"red and blue are exchanged in {odd.sum()} of {len(clips)} episodes, or in the others"
        place = _place(catalog, camera, clips, np.flatnonzero(odd))
        measured, left = float(distance[odd].min()), float(undone[odd].max())
        yield Finding("images.channels", "warning", message, place, measured, left, _FIX, measured)
