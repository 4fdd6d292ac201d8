"""Images against rows: motion in the images and in the rows has the same delay in all episodes.

Images change when the robot moves, so the delay between both is that of the camera. An episode with
another delay has the images of other rows. Besides, a linear map (ridge regression on principal
components of thumbnails) predicts action and state from the images of the other episodes. Where it
fails in one episode, that one may have the images of another episode.
"""

from itertools import combinations
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
from understudy_tools.check.image_facts import WINDOW, Clip, ImageFacts
from understudy_tools.check.rules.images import place_clips
from understudy_tools.check.threshold import Threshold

LAGS = range(-6, 7)
"""Frames by which the rows may follow the prediction of them from the images."""
DELAYS = range(-12, 13)
"""Frames by which the motion of the rows may follow that of the images."""
_COMPONENTS = 24
_LEAST_CLIPS = 5
_LEAST_FRAMES = 24
_FITS = 0.6  # correlation from which a prediction of the rows is trusted
_FOLLOWS: Annotated[
    float,
    Threshold("correlation of motion that shows a delay", fault="v2.1_video_played_backwards"),
] = 0.3
_GAIN: Annotated[
    float,
    Threshold(
        "excess of that correlation over the one at the usual delay",
        fault="v2.1_images_late_by_three",
    ),
] = 0.15
# frames of the means between which motion counts
_FAST = 3
_SLOW = 41
_LONGEST = 7  # lags are at most the frames divided by this
_STRANGE = 0.6  # correlation of rows with images that may be foreign, in that of the other clips
_SCENES = 8  # clips of which one may show another scene
_QUIET = 1.0  # levels of 255 of a change that may be noise
_MINORITY = 0.25  # share of the clips that may differ from the others
_SURE = 0.45  # correlation that shows a delay in the shortest clips
_SEEN = 3  # frames
_FAINT: Annotated[
    float,
    Threshold(
        "correlation that counts where its delay is the usual one",
        fault="v2.1_images_late_by_three",
    ),
] = 0.2
_CLEAR = 0.5  # share of the clips whose motion must show a delay
_SCATTER = 1.5  # frames by which the delays of clips may differ
_KNOWN = 0.8  # share of the pairs of other episodes whose motion correlates less


def check_motion(catalog: Catalog, facts: ImageFacts) -> Findings:
    """Yield findings about episodes whose images and rows do not belong together."""
    for camera, clips in facts.clips.items():
        use = [
            clip for clip in clips if len(clip.window) >= _LEAST_FRAMES and _rows(clip) is not None
        ]
        if len(use) < _LEAST_CLIPS:
            words = f"sampled episodes of {_LEAST_FRAMES} frames with action or state"
            yield undecided("images.shifted", _LEAST_CLIPS, words, len(use), Place(camera=camera))
            continue
        motion, is_pulse = follow(use)
        delayed = [
            *_delays(catalog, camera, use, motion),
            *_foreign(catalog, use, motion, is_pulse),
        ]
        yield from delayed
        fits = correlate(use)
        named = set[int]()
        for finding in delayed:
            named.update(finding.place.episodes)
        if fits is not None:
            for finding in _strangers(catalog, use, fits, motion):
                if not named & set(finding.place.episodes):
                    yield finding


def _rows(clip: Clip) -> np.ndarray | None:
    """State and action of the window side by side, float64 (n, D); None where they are absent or
    not finite.
    """
    parts = [values for values in (clip.state, clip.action) if values is not None]
    if not parts:
        return None
    values = np.concatenate(parts, axis=1)
    return values if np.isfinite(values).all() else None


def correlate(clips: list[Clip]) -> np.ndarray | None:
    """Correlate rows with their prediction from images, at each of `LAGS`.

    Returns:
        float64 (n, len(LAGS)), for each clip the mean correlation over the dimensions that images
        predict; None where they predict none.
    """
    images = [
        clip.window.mean(axis=3).reshape(len(clip.window), -1).astype(np.float64) for clip in clips
    ]
    values = [rows for rows in map(_rows, clips) if rows is not None]
    everything = np.concatenate(images)
    center = everything.mean(axis=0)
    _, _, axes = np.linalg.svd(
        (everything - center)[:: max(1, len(everything) // 800)], full_matrices=False
    )
    features = [(image - center) @ axes[:_COMPONENTS].T for image in images]
    unit = np.concatenate(values).std(axis=0)
    moving = unit > 1e-6
    if not moving.any():
        return None
    values = [rows[:, moving] / unit[moving] for rows in values]
    width = features[0].shape[1]
    tables = []
    gram = [feature.T @ feature for feature in map(_with_one, features)]
    product = [_with_one(feature).T @ rows for feature, rows in zip(features, values)]
    total_gram = np.sum(gram, axis=0)
    total_product = np.sum(product, axis=0)
    penalty = 1e-3 * np.trace(total_gram) / (width + 1) * np.eye(width + 1)
    for place, (feature, rows) in enumerate(zip(features, values)):
        weights = np.linalg.solve(
            total_gram - gram[place] + penalty, total_product - product[place]
        )
        tables.append(_at_lags(_with_one(feature) @ weights, rows))
    table = np.stack(tables)  # (n, lags, D)
    usual = np.nanmedian(table, axis=0)
    good = usual.max(axis=0) > _FITS
    if not good.any():
        return None
    return np.asarray(np.nanmean(table[:, :, good], axis=2))


def _with_one(feature: np.ndarray) -> np.ndarray:
    return np.concatenate([feature, np.ones((len(feature), 1))], axis=1)


def _at_lags(predicted: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Correlation of prediction and rows (n, D) at each lag: float64 (len(LAGS), D); NaN without
    motion.
    """
    margin = max(abs(LAGS[0]), abs(LAGS[-1]))
    x = predicted[margin : len(predicted) - margin]
    x = x - x.mean(axis=0)
    table = []
    for lag in LAGS:
        y = rows[margin + lag : len(rows) - margin + lag]
        y = y - y.mean(axis=0)
        scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
        table.append(
            np.divide(
                (x * y).sum(axis=0), scale, out=np.full(len(scale), np.nan), where=scale > 1e-9
            )
        )
    return np.stack(table)


def pulse(values: np.ndarray) -> np.ndarray:
    """Logarithm of motion (n,) without its slow part, in float64: peaks of fast and of slow motion
    count alike.
    """
    level = np.log(values + 0.02 * values.mean() + 1e-9)
    return _mean(level, _FAST) - _mean(level, _SLOW)


def _mean(values: np.ndarray, frames: int) -> np.ndarray:
    padded = np.pad(values, (frames // 2, frames - 1 - frames // 2), mode="edge")
    return np.convolve(padded, np.ones(frames) / frames, "valid")


def _motions(clip: Clip, is_pulse: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the motion of images and of rows: changes over two frames, or their `pulse`, float64
    (n - 2,) each.

    Over two frames, because key frames every two frames alternate with the others.
    """
    values = clip.state if clip.state is not None else clip.action
    assert values is not None
    speed = np.abs(values[2:] - values[:-2])
    unit = speed.std(axis=0) if is_pulse else np.ptp(values, axis=0)
    speed = speed / np.where(unit > 1e-6, unit, np.inf)
    change = np.abs(clip.window[2:] - clip.window[:-2])
    if not is_pulse:
        return change.mean(axis=(1, 2, 3), dtype=np.float64), speed.sum(axis=1)
    gray = np.abs((clip.window[2:] - clip.window[:-2]).mean(axis=3))
    cells = np.maximum(gray - _QUIET, 0).mean(axis=(1, 2), dtype=np.float64)
    return pulse(cells), pulse(np.sqrt((speed**2).sum(axis=1)))


def follow(clips: list[Clip]) -> tuple[np.ndarray, bool]:
    """Correlate the motion of the rows with that of the images, at each of `DELAYS`.

    Changes are compared as they are, and by their pulse. The measure that shows one delay in more
    clips is taken.

    Returns:
        float64 (n, len(DELAYS)), NaN for a clip without motion in either; and whether it is that of
        the pulse.
    """
    tables = []
    for of_pulse in (False, True):
        by_clip = [_at_each_delay(*_motions(clip, of_pulse)) for clip in clips]
        tables.append(np.stack(by_clip))
    counts = [int(_Delays(table, clips).alike.sum()) for table in tables]
    is_pulse = counts[1] >= counts[0]
    return tables[is_pulse], is_pulse


def _at_each_delay(images: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Correlation of two series (n,) at each of `DELAYS`, up to a seventh of n: motion repeats; NaN
    without motion.
    """
    table = np.full(len(DELAYS), np.nan)
    size = min(len(images), len(rows))
    margin = min(DELAYS[-1], size // _LONGEST)
    x = images[margin : size - margin]
    for place, lag in enumerate(DELAYS):
        if abs(lag) <= margin:
            y = rows[margin + lag : size - margin + lag]
            if x.std() > 1e-6 and y.std() > 1e-6:
                table[place] = np.corrcoef(x, y)[0, 1]
    return table


def _filled(motion: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(motion), motion, -1.0)


class _Delays:
    """Delays of clips by their table of correlations (n, len(DELAYS)): places in it, and which of
    them are clear.
    """

    def __init__(self, motion: np.ndarray, clips: list[Clip]) -> None:
        self.table = _filled(motion)
        self.best = self.table.argmax(axis=1)
        self.peak = self.table.max(axis=1)
        # The fewer frames, the larger is a correlation by chance.
        self.chance = np.sqrt(WINDOW / np.array([len(clip.window) for clip in clips]))
        inside = np.abs(self.best - len(DELAYS) // 2) < np.isfinite(motion).sum(axis=1) // 2
        self.clear = inside & (self.peak > np.minimum(_FOLLOWS * self.chance, _SURE))
        self.usual = len(DELAYS) / 2
        if self.clear.any():
            self.usual = float(np.median(self.best[self.clear]))
        self.alike = (np.abs(self.best - self.usual) <= _SCATTER) & (self.peak > _FAINT)


def _delays(catalog: Catalog, camera: str, clips: list[Clip], motion: np.ndarray) -> Findings:
    """Clips whose rows follow the images by another delay than in the other clips."""
    delays = _Delays(motion, clips)
    needs = max(_LEAST_CLIPS - 1, int(np.ceil(_CLEAR * len(clips))))
    if delays.alike.sum() < needs:
        words = "sampled episodes whose images move with the rows at one delay"
        yield undecided(
            "images.shifted", needs, words, int(delays.alike.sum()), Place(camera=camera)
        )
        return
    usual = round(delays.usual)
    limit = _GAIN * delays.chance
    deviation = np.abs(delays.best - delays.usual)
    scatter = 0.0
    if delays.clear.any():
        scatter = float(np.quantile(deviation[delays.clear], 1 - _MINORITY))
    odd = delays.clear & (deviation > _SCATTER) & (deviation >= 2 * scatter)
    odd &= delays.peak - delays.table[:, usual] > limit
    if is_few(odd, _MINORITY):
        lag = DELAYS[int(delays.best[odd][0])]
        normal = DELAYS[usual]
        message = f"rows follow the images by {lag} frames, in the other episodes by {normal}"
        yield Finding(
            "images.shifted",
            "warning",
            message,
            place_clips(catalog, clips, odd),
            lag,
            normal,
            LOOK,
        )
    away = np.abs(np.arange(len(DELAYS)) - delays.best[:, None]) >= _SEEN
    sharp = delays.clear & (delays.peak - np.where(away, delays.table, -1.0).max(axis=1) > limit)
    if not (sharp | odd).all():
        words = f"sampled episodes (all of them) whose motion shows a delay of {_SEEN} frames"
        yield undecided(
            "images.shifted", len(clips), words, int((sharp | odd).sum()), Place(camera=camera)
        )


def _foreign(catalog: Catalog, clips: list[Clip], motion: np.ndarray, is_pulse: bool) -> Findings:
    """Clips whose rows move with their images in reverse, or with those of another clip, and not
    with their own.

    The correlations of all other pairs show how alike the motion of different episodes is.
    """
    filled = _filled(motion)
    clear = filled.max(axis=1) > _FOLLOWS
    if clear.sum() < max(_LEAST_CLIPS - 2, 0.6 * len(clips)):
        return
    usual = int(np.median(filled[clear].argmax(axis=1)))
    around = slice(max(0, usual - 1), usual + 2)
    images, rows = zip(*(_motions(clip, is_pulse) for clip in clips))

    def alike(left: np.ndarray, right: np.ndarray) -> float:
        return float(np.nan_to_num(_at_each_delay(left, right)[around], nan=-1.0).max())

    follows = filled[:, around].max(axis=1)
    cross = np.zeros((len(clips), len(clips)))
    for i, image in enumerate(images):
        for j, row in enumerate(rows):
            cross[i, j] = alike(image, row)
    others = cross[~np.eye(len(clips), dtype=bool)]
    limit = max(_FOLLOWS, float(np.quantile(others, _KNOWN)))
    if np.median(follows) < limit:
        return
    strange = follows < _STRANGE * float(np.median(follows))
    back = np.array([alike(image[::-1], row) for image, row in zip(images, rows)])
    # sound clips resemble their reverse by chance
    by_chance = float(back[~strange].max()) if (~strange).any() else 1.0
    turned = (
        strange
        & (back > max(limit, by_chance, _STRANGE * float(np.median(follows))))
        & (back - follows > 2 * _GAIN)
    )
    if is_few(turned, _MINORITY):
        forward = float(follows[turned][0])
        reverse = float(back[turned][0])
        message = (
            f"the motion in the images correlates with that of the rows by {forward:.2f}, and by "
        )
        message += f"{reverse:.2f} in reverse"
        place = place_clips(catalog, clips, turned)
        yield Finding("images.shifted", "warning", message, place, forward, reverse, LOOK)
    lengths = catalog.episodes.lengths
    for pair in combinations(np.flatnonzero(strange & ~turned).tolist(), 2):
        first, second = pair
        alone = float(follows[list(pair)].max())
        exchanged = float(min(cross[first, second], cross[second, first]))
        same = lengths[clips[first].row] == lengths[clips[second].row]
        if same and exchanged > limit and exchanged - alone > _GAIN:
            message = f"the motion in the images correlates with that of the rows by {alone:.2f}, "
            message += f"and by {exchanged:.2f} if both exchange their images"
            place = place_clips(catalog, clips, np.isin(np.arange(len(clips)), pair))
            yield Finding("images.shifted", "warning", message, place, alone, exchanged, LOOK)


def _strangers(
    catalog: Catalog, clips: list[Clip], fits: np.ndarray, motion: np.ndarray
) -> Findings:
    """Clips whose rows the images do not predict, where those of the other clips do.

    A prediction also fails in a scene unlike the others. The images are foreign only if their
    `motion` does not follow that of the rows either; where it does not in most clips, this is a
    note.
    """
    has_fit = np.isfinite(fits).all(axis=1)
    peak = np.where(has_fit, np.nan_to_num(fits).max(axis=1), 1.0)
    usual = float(np.median(peak[has_fit])) if has_fit.any() else 0.0
    strange = peak < 0.25
    together = _filled(motion).max(axis=1)
    tells = float(np.median(together)) > _FOLLOWS and len(clips) >= _SCENES
    if tells:
        strange &= together < _FOLLOWS
    if usual > 0.75 and strange.any() and strange.sum() <= 0.25 * len(clips):
        worst = float(peak[strange].min())
        message = (
            f"images predict the rows by a correlation of {worst:.2f}, those of the other "
            "episodes by "
        )
        message += f"{usual:.2f}: they may belong to another episode"
        place = place_clips(catalog, clips, strange)
        severity: Severity = "warning" if tells else "note"
        yield Finding("images.shifted", severity, message, place, worst, usual, LOOK)
