"""Images against rows: motion in the images and in the rows has the same delay in all episodes.

Images change when the robot moves, so the delay between both is that of the camera. An episode with another delay
has the images of other rows. Besides, a linear map (ridge regression on principal components of thumbnails) predicts
action and state from the images of the other episodes. Where it fails in one episode, that one may have the images of
another episode.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from understudy.check.findings import Finding, Place, Severity
from understudy.check.image_facts import Clip, ImageFacts
from understudy.check.remedies import LOOK
from understudy.data.format.catalog import Catalog

LAGS = range(-6, 7)
"""Frames by which the rows may follow the images."""
_COMPONENTS = 24
_LEAST_CLIPS, _LEAST_FRAMES = 5, 24
_FITS = 0.6  # correlation from which a prediction is trusted
_FOLLOWS, _GAIN = 0.45, 0.2  # correlation of motion that shows a delay, and its excess over that at the usual delay


def check_motion(catalog: Catalog, facts: ImageFacts) -> Iterator[Finding]:
    """Yield findings about episodes whose images and rows do not belong together."""
    for camera, clips in facts.clips.items():
        use = [clip for clip in clips if len(clip.window) >= _LEAST_FRAMES and _rows(clip) is not None]
        if len(use) < _LEAST_CLIPS:
            continue
        motion = follow(use)
        yield from _delays(catalog, camera, use, motion)
        yield from _exchanged(catalog, camera, use, motion)
        fits = correlate(use)
        if fits is not None:
            yield from _strangers(catalog, camera, use, fits, motion)


def _rows(clip: Clip) -> np.ndarray | None:
    """State and action of the window side by side, float64 (n, D); None where they are absent or not finite."""
    parts = [values for values in (clip.state, clip.action) if values is not None]
    if not parts:
        return None
    values = np.concatenate(parts, axis=1)
    return values if np.isfinite(values).all() else None


def correlate(clips: list[Clip]) -> np.ndarray | None:
    """Correlate rows with their prediction from images, at each of `LAGS`.

    Returns:
        float64 (n, len(LAGS)), for each clip the mean correlation over the dimensions that images predict; None where
        they predict none.
    """
    images = [clip.window.mean(axis=3).reshape(len(clip.window), -1).astype(np.float64) for clip in clips]
    values = [rows for clip in clips if (rows := _rows(clip)) is not None]
    everything = np.concatenate(images)
    center = everything.mean(axis=0)
    _, _, axes = np.linalg.svd((everything - center)[:: max(1, len(everything) // 800)], full_matrices=False)
    features = [(image - center) @ axes[:_COMPONENTS].T for image in images]
    unit = np.concatenate(values).std(axis=0)
    moving = unit > 1e-6
    if not moving.any():
        return None
    values = [rows[:, moving] / unit[moving] for rows in values]
    width, found = features[0].shape[1], []
    gram = [feature.T @ feature for feature in map(_with_one, features)]
    product = [_with_one(feature).T @ rows for feature, rows in zip(features, values)]
    total_gram, total_product = np.sum(gram, axis=0), np.sum(product, axis=0)
    penalty = 1e-3 * np.trace(total_gram) / (width + 1) * np.eye(width + 1)
    for at, (feature, rows) in enumerate(zip(features, values)):
        weights = np.linalg.solve(total_gram - gram[at] + penalty, total_product - product[at])
        found.append(_at_lags(_with_one(feature) @ weights, rows))
    table = np.stack(found)  # (n, lags, D)
    usual = np.nanmedian(table, axis=0)
    good = usual.max(axis=0) > _FITS
    if not good.any():
        return None
    return np.asarray(np.nanmean(table[:, :, good], axis=2))


def _with_one(feature: np.ndarray) -> np.ndarray:
    return np.concatenate([feature, np.ones((len(feature), 1))], axis=1)


def _at_lags(predicted: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Correlation of prediction and rows (n, D) at each lag: float64 (len(LAGS), D); NaN without motion."""
    margin = max(abs(LAGS[0]), abs(LAGS[-1]))
    x = predicted[margin : len(predicted) - margin]
    x = x - x.mean(axis=0)
    table = []
    for lag in LAGS:
        y = rows[margin + lag : len(rows) - margin + lag]
        y = y - y.mean(axis=0)
        scale = np.sqrt((x**2).sum(axis=0) * (y**2).sum(axis=0))
        table.append(np.divide((x * y).sum(axis=0), scale, out=np.full(len(scale), np.nan), where=scale > 1e-9))
    return np.stack(table)


def follow(clips: list[Clip]) -> np.ndarray:
    """Correlate the speed of the rows with the change of the images, at each of `LAGS`.

    Both are differences over two frames, so that key frames every two frames do not alternate with the others.

    Returns:
        float64 (n, len(LAGS)); NaN for a clip without motion in either.
    """
    table = np.full((len(clips), len(LAGS)), np.nan)
    margin = max(abs(LAGS[0]), abs(LAGS[-1]))
    for at, clip in enumerate(clips):
        values = clip.state if clip.state is not None else clip.action
        assert values is not None
        unit = np.ptp(values, axis=0)
        speed = (np.abs(values[2:] - values[:-2]) / np.where(unit > 1e-6, unit, np.inf)).sum(axis=1)
        change = np.abs(clip.window[2:] - clip.window[:-2]).mean(axis=(1, 2, 3))
        x = change[margin : len(change) - margin]
        for place, lag in enumerate(LAGS):
            y = speed[margin + lag : len(speed) - margin + lag]
            if x.std() > 1e-3 and y.std() > 1e-6:
                table[at, place] = np.corrcoef(x, y)[0, 1]
    return table


def _delays(catalog: Catalog, camera: str, clips: list[Clip], fits: np.ndarray) -> Iterator[Finding]:
    """Clips whose rows follow the images by another delay than in the other clips."""
    known = np.isfinite(fits).all(axis=1)
    filled = np.where(known[:, None], fits, -1.0)
    best, peak = filled.argmax(axis=1), filled.max(axis=1)
    clear = peak > _FOLLOWS
    if clear.sum() < max(_LEAST_CLIPS, 0.6 * len(clips)):
        return
    usual = int(np.median(best[clear]))
    if (np.abs(best[clear] - usual) <= 1).mean() < 0.75:
        return
    near = filled[:, max(0, usual - 1) : usual + 2].max(axis=1)
    odd = clear & (np.abs(best - usual) >= 2) & (peak - near > _GAIN)
    if odd.any() and odd.sum() <= 0.25 * len(clips):
        at = int(np.flatnonzero(odd)[0])
        message = f"rows follow the images by {LAGS[int(best[at])]} frames, in the other episodes by {LAGS[usual]}"
        place = _place(catalog, camera, clips, odd)
        yield Finding("images.shifted", "warning", message, place, LAGS[int(best[at])], LAGS[usual], LOOK)


def _exchanged(catalog: Catalog, camera: str, clips: list[Clip], motion: np.ndarray) -> Iterator[Finding]:
    """Pairs of clips whose rows move with the images of each other, and not with their own, at the usual delay."""
    filled = np.where(np.isfinite(motion), motion, -1.0)
    clear = filled.max(axis=1) > _FOLLOWS
    if clear.sum() < max(_LEAST_CLIPS, 0.6 * len(clips)):
        return
    usual = int(np.median(filled[clear].argmax(axis=1)))
    around = slice(max(0, usual - 1), usual + 2)
    own = filled[:, around].max(axis=1)
    if (own > _FOLLOWS).sum() < max(_LEAST_CLIPS, 0.6 * len(clips)):
        return
    lengths = catalog.episodes.lengths
    suspects = np.flatnonzero(own < _FOLLOWS - 0.05).tolist()
    pairs = [(a, b) for a in suspects for b in suspects if a < b and lengths[clips[a].row] == lengths[clips[b].row]]
    for a, b in pairs:
        one, two = clips[a], clips[b]
        both = [
            replace(one, state=two.state, action=two.action),
            replace(two, state=one.state, action=one.action),
        ]
        cross = np.nan_to_num(follow(both)[:, around], nan=-1.0).max(axis=1)
        if cross.min() > _FOLLOWS and (cross - own[[a, b]]).min() > _GAIN:
            message = f"the motion in the images correlates with that of the rows by {own[[a, b]].max():.2f}, "
            message += f"and by {cross.min():.2f} if both exchange their images"
            which = np.isin(np.arange(len(clips)), [a, b])
            place = _place(catalog, camera, clips, which)
            yield Finding(
                "images.shifted", "warning", message, place, float(own[[a, b]].max()), float(cross.min()), LOOK
            )


def _strangers(
    catalog: Catalog, camera: str, clips: list[Clip], fits: np.ndarray, motion: np.ndarray
) -> Iterator[Finding]:
    """Clips whose rows the images do not predict, where those of the other clips do.

    A prediction also fails in a scene unlike the others. The images are foreign only if their `motion` does not
    follow that of the rows either; where it does not in most clips, this is a note.
    """
    known = np.isfinite(fits).all(axis=1)
    peak = np.where(known, np.nan_to_num(fits).max(axis=1), 1.0)
    usual = float(np.median(peak[known])) if known.any() else 0.0
    strange = peak < 0.25
    together = np.where(np.isfinite(motion), motion, -1.0).max(axis=1)
    tells = float(np.median(together)) > _FOLLOWS
    if tells:
        strange &= together < _FOLLOWS
    if usual > 0.75 and strange.any() and strange.sum() <= 0.25 * len(clips):
        worst = float(peak[strange].min())
        message = (
            f"images predict the rows by a correlation of {worst:.2f}, those of the other episodes by {usual:.2f}: "
        )
        message += "they may belong to another episode"
        place = _place(catalog, camera, clips, strange)
        severity: Severity = "warning" if tells else "note"
        yield Finding("images.shifted", severity, message, place, worst, usual, LOOK)


def _place(catalog: Catalog, camera: str, clips: list[Clip], which: np.ndarray) -> Place:
    rows = np.array([clip.row for clip in clips])[which]
    return Place(tuple(np.sort(catalog.episodes.ids[rows]).tolist()), camera=camera)
