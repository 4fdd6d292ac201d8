"""Rules of images: decodable, not black, not frozen, of the right camera, and cut where episodes
begin.
"""

from collections import defaultdict
from typing import Annotated

import numpy as np

from understudy_base import DatasetError, plural
from understudy_data import Catalog
from understudy_tools.check.findings import (
    LOOK,
    Finding,
    Findings,
    Place,
    drop,
    is_few,
    list_ids,
    restore,
    undecided,
)
from understudy_tools.check.image_facts import CUT, Clip, Cut, DepthRange, ImageFacts
from understudy_tools.check.row_facts import ACTION, STATE, RowFacts, runs_of
from understudy_tools.check.threshold import Threshold

BLACK: Annotated[
    float,
    Threshold(
        "brightness, in levels of 255, below which a whole image is black",
        fault="nearly_black_camera",
    ),
] = 6.0
_STILL: Annotated[
    float,
    Threshold(
        "change between images that no motion causes, in levels of 255", fault="frozen_camera"
    ),
] = 0.03
_REPEATS: Annotated[int, Threshold("equal images in a row", fault="camera_hangs_for_a_second")] = 6
_NOISE: Annotated[
    float,
    Threshold(
        "change of an image by coding noise, in levels of 255", fault="camera_hangs_for_a_second"
    ),
] = 1.5
_SAME: Annotated[
    float,
    Threshold(
        "largest change of a repeated image, in those of a lively one",
        fault="camera_hangs_for_a_second",
    ),
] = 0.2
_CATCH_UP: Annotated[
    float,
    Threshold(
        "change after a camera has hung, in the usual one", fault="camera_hangs_for_a_second"
    ),
] = 1.5
_APART: Annotated[
    float,
    Threshold(
        "levels of 255 between the usual images of two cameras, to distinguish them",
        fault="cameras_exchanged",
    ),
] = 4.0
_CLEAR: Annotated[
    float, Threshold("change at a cut, in those next to it", fault="each_image_one_frame_late")
] = 2.5
_STRANGE: Annotated[
    float,
    Threshold("robust z of the usual image of an episode", fault="camera_shows_another_scene"),
] = 12.0


def check_images(catalog: Catalog, rows: RowFacts, facts: ImageFacts) -> Findings:
    """Yield findings about decoded images."""
    for camera, row, error in facts.broken:
        place = Place.from_rows(catalog, [row], camera=camera, file=_path(catalog, camera, row))
        fix = error.fix or restore(place.file)
        yield Finding(
            "images.decode", "error", error.what, place, fix=f"{fix}; or {drop(place.episodes)}"
        )
    for camera, clips in facts.clips.items():
        if not clips:
            continue
        dark = [
            clip
            for clip in clips
            if clip.ends.mean(axis=(1, 2, 3)).max() < BLACK and clip.ends.max() < 4 * BLACK
        ]
        yield from _black(catalog, clips, dark)
        seen = [clip for clip in clips if clip not in dark]
        yield from _frozen(catalog, rows, seen)
        yield from _repeated(catalog, seen)
        yield from _duplicates(catalog, rows, seen)
        yield from _outliers(catalog, seen)
        yield from _statistics(catalog, camera, clips)
    yield from _exchanged(catalog, facts)
    for camera, cuts in facts.cuts.items():
        yield from _boundaries(catalog, camera, cuts)


def _path(catalog: Catalog, camera: str, row: int) -> str:
    try:
        if catalog.features[camera].is_video:
            return catalog.video_path(camera, row)
        return catalog.data_path(row)
    except DatasetError:
        return ""


def place_clips(catalog: Catalog, clips: list[Clip], odd: np.ndarray) -> Place:
    """Place of the clips of one camera in bool (n,)."""
    return Place.from_rows(
        catalog, np.array([clip.row for clip in clips])[odd], camera=clips[0].camera
    )


def _place(catalog: Catalog, clips: list[Clip], frame: int | None = None) -> Place:
    """Place of clips of one camera, with the file of the first."""
    row = clips[0].row
    camera = clips[0].camera
    rows = [clip.row for clip in clips]
    return Place.from_rows(
        catalog, rows, camera=camera, file=_path(catalog, camera, row), frame=frame
    )


def _moves(rows: RowFacts, row: int) -> float:
    """Motion of an episode: the largest range of a dimension of state or action, as a share of its
    usual range.
    """
    motion = 0.0
    for key in (ACTION, STATE):
        if key in rows.columns:
            column = rows.columns[key]
            usual = np.nanmedian(column.range, axis=0)
            share = np.divide(
                column.range[row], usual, out=np.zeros_like(usual), where=usual > 1e-6
            )
            motion = max(motion, float(share.max(initial=0.0)))
    return motion


def _black(catalog: Catalog, clips: list[Clip], dark: list[Clip]) -> Findings:
    if dark:
        level = max(float(clip.ends.mean()) for clip in dark)
        message = f"images are black: their mean is {level:.3g} of 255"
        if len(dark) == len(clips):
            message += ", in all sampled episodes"
        yield Finding("images.black", "warning", message, _place(catalog, dark), level, None, LOOK)


def _frozen(catalog: Catalog, rows: RowFacts, clips: list[Clip]) -> Findings:
    """Episodes whose images do not change at all, although the robot moves and images of the others
    change.
    """

    def change(clip: Clip) -> float:
        inner = float(np.abs(np.diff(clip.ends, axis=0)).mean(axis=(1, 2, 3)).max())
        return max(inner, float(clip.change.max(initial=0.0)))

    changes = np.array([change(clip) for clip in clips])
    usual = float(np.median(changes))
    still = changes < np.clip(0.06 * usual, _STILL, 1.5)
    if not still.any():
        return
    moving = [
        clip
        for clip, is_still in zip(clips, still)
        if is_still and _moves(rows, clip.row) > 0.2 and len(clip.window) > 4
    ]
    if not moving:
        return
    place = _place(catalog, moving)
    if still.mean() > 0.5:
        message = (
            "images never change in most episodes: a fixed image, or a camera that does not "
            "see the robot"
        )
        yield Finding("images.frozen", "note", message, place, 0.0, None, LOOK)
    elif usual > 10 * _STILL:
        message = (
            "images do not change while the robot moves; in the other episodes they change "
            f"by {usual:.3g} levels"
        )
        yield Finding("images.frozen", "warning", message, place, 0.0, usual, LOOK)


def _repeated(catalog: Catalog, clips: list[Clip]) -> Findings:
    """Images that repeat for many frames while the robot moves, in an episode whose images change
    otherwise.
    """
    for clip in clips:
        change = clip.change
        lively = float(np.quantile(change, 0.75)) if len(change) else 0.0
        if len(change) < 2 * _REPEATS or lively < 4 * _STILL:
            continue
        speed = _speed(clip)
        # Encoders give repeated images other noise. Where noise may be all of the change, only
        # equal images count.
        if lively > _NOISE:
            most_noise = min(_SAME * lively, _NOISE)
        else:
            most_noise = min(_STILL, 0.1 * lively)
        still = change < most_noise
        moved = speed[1:][~_within(still, clip)] if speed is not None else np.zeros(0)
        usual = float(np.median(moved)) if len(moved) else 0.0
        for start, stop in runs_of(still):
            if stop - start < _REPEATS - 1 or (
                stop < len(change) and change[stop] < _CATCH_UP * lively
            ):
                continue
            frame = clip.first_change + start
            inside = slice(frame - clip.begin, clip.first_change + stop - clip.begin)
            part = np.zeros(0)
            if speed is not None:
                part = speed[max(inside.start, 0) : max(inside.stop, 0)]
            if len(part) and np.median(part) > 0.3 * usual > 0:
                message = f"{stop - start + 1} images are the same while the robot moves"
                place = _place(catalog, [clip], frame - 1)
                yield Finding(
                    "images.repeated", "warning", message, place, stop - start + 1, 1, LOOK
                )
                break


def _within(flags: np.ndarray, clip: Clip) -> np.ndarray:
    """Return the flags of changes, bool (m,), for the changes inside the window: bool (n - 1,)."""
    start = clip.begin + 1 - clip.first_change
    return flags[start : start + len(clip.window) - 1]


def _speed(clip: Clip) -> np.ndarray | None:
    """Change of state and action at each frame of the window, in units of their range there:
    float64 (n,).
    """
    parts = []
    for values in (clip.action, clip.state):
        if values is not None and len(values) > 1 and np.isfinite(values).all():
            unit = np.ptp(values, axis=0)
            use = unit > 1e-6
            if use.any():
                parts.append((np.abs(np.diff(values[:, use], axis=0)) / unit[use]).sum(axis=1))
    if not parts:
        return None
    return np.concatenate([[0.0], np.sum(parts, axis=0)])


def _duplicates(catalog: Catalog, rows: RowFacts, clips: list[Clip]) -> Findings:
    """Episodes that show exactly the images of another one, with other rows."""
    groups: dict[bytes, list[Clip]] = defaultdict(list)
    for clip in clips:
        if np.abs(np.diff(clip.ends, axis=0)).mean(axis=(1, 2, 3)).min() > 4 * _STILL:
            groups[clip.ends.tobytes()].append(clip)
    repeated: list[list[Clip]] = []
    repeated_clips: list[Clip] = []
    for same in groups.values():
        digests = {rows.digest[clip.row] for clip in same}
        if len(digests) > 1:
            repeated.append(same)
            repeated_clips += same
    if repeated:
        ids = list_ids(_place(catalog, repeated[0]).episodes)
        message = f"episodes with different rows show the same images: {ids}"
        if len(repeated) > 1:
            message += f", and {len(repeated) - 1} more groups"
        place = _place(catalog, repeated_clips)
        yield Finding("images.duplicate", "warning", message, place, len(place.episodes), 1, LOOK)


def _usual(clips: list[Clip]) -> np.ndarray:
    """Mean image of each clip: float32 (n, 24 * 32 * 3)."""
    return np.stack([clip.ends.mean(axis=0).ravel() for clip in clips])


def _outliers(catalog: Catalog, clips: list[Clip]) -> Findings:
    """Episodes whose mean image is far from those of all others."""
    if len(clips) < 6:
        return
    images = _usual(clips)
    distance = np.abs(images - np.median(images, axis=0)).mean(axis=1)
    middle = float(np.median(distance))
    scatter = max(1.4826 * float(np.median(np.abs(distance - middle))), 0.15 * middle, 1.0)
    z = (distance - middle) / scatter
    if is_few(z > _STRANGE):
        farthest = float(distance.max())
        message = (
            f"images differ from those of the other episodes by {farthest:.3g} levels, usual "
            f"are {middle:.3g}"
        )
        place = _place(catalog, [clip for clip, score in zip(clips, z) if score > _STRANGE])
        yield Finding(
            "images.outlier", "warning", message, place, farthest, middle, LOOK, float(z.max())
        )


def _recorded(catalog: Catalog, camera: str, name: str) -> np.ndarray:
    """Recorded statistic of a camera, float64 (n,); empty without a readable one."""
    try:
        return np.ravel(catalog.stats.get(camera, {}).get(name, ())).astype(np.float64)
    except DatasetError:
        return np.zeros(0)


def _statistics(catalog: Catalog, camera: str, clips: list[Clip]) -> Findings:
    """Recorded mean of the images against that of the sampled ones."""
    recorded = _recorded(catalog, camera, "mean")
    if (
        len(recorded) != 3
        or not np.isfinite(recorded).all()
        or (recorded > 1.5).any()
        or len(clips) < 4
    ):
        return
    levels = np.stack([clip.ends.mean(axis=(0, 1, 2)) for clip in clips]) / 255
    mean = levels.mean(axis=0)
    slack = 0.08 + 4 * levels.std(axis=0) / np.sqrt(len(clips))
    off = np.abs(recorded - mean)
    if (off > slack).any():
        channel = int((off - slack).argmax())
        message = f"the recorded mean of channel {channel} is {recorded[channel]:.3g}, "
        message += f"that of sampled images {mean[channel]:.3g}"
        measured = float(recorded[channel])
        expected = float(mean[channel])
        place = Place(camera=camera, file="meta/")
        yield Finding(
            "statistics.images", "warning", message, place, measured, expected, "compute them again"
        )


def _exchanged(catalog: Catalog, facts: ImageFacts) -> Findings:
    """Pairs of cameras whose images are exchanged in some episodes, up to half of them."""
    by_row: dict[str, dict[int, Clip]] = {}
    for camera, clips in facts.clips.items():
        by_row[camera] = {clip.row: clip for clip in clips}
    cameras = list(by_row)
    for i, camera_a in enumerate(cameras):
        for camera_b in cameras[i + 1 :]:
            both = sorted(by_row[camera_a].keys() & by_row[camera_b].keys())
            if len(both) < 3:
                yield undecided(
                    "images.exchanged",
                    3,
                    f"sampled episodes of {camera_a} and {camera_b}",
                    len(both),
                )
                continue
            images_a = _usual([by_row[camera_a][row] for row in both])
            images_b = _usual([by_row[camera_b][row] for row in both])
            images = np.stack([images_a, images_b], axis=1)
            swapped = split_by(images, images[:, ::-1])
            usual = np.median(np.where(swapped[:, None, None], images[:, ::-1], images), axis=0)
            if np.abs(usual[0] - usual[1]).mean() < _APART:
                continue
            apart, cross = (
                np.abs(table - usual).mean(axis=(1, 2)) for table in (images, images[:, ::-1])
            )
            wrong = np.flatnonzero(apart > 2 * cross)
            if len(wrong) and len(wrong) <= 0.5 * len(both):
                clips = [by_row[camera_a][both[number]] for number in wrong]
                message = f"images resemble those of {camera_b} in the other episodes, "
                message += f"and those of {camera_b} resemble {camera_a}"
                place = _place(catalog, clips)
                measured = 2 * float(cross[wrong].min())
                expected = 2 * float(apart[wrong].max())
                yield Finding(
                    "images.exchanged",
                    "warning",
                    message,
                    place,
                    measured,
                    expected,
                    "exchange the files",
                )


def split_by(images: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """Split images (n, ...) into those that resemble each other, and the fewer that do so after a
    change: bool (n,).

    Args:
        images: the images.
        changed: the same images after a change that is its own inverse.
    """
    start = int(_nearest(images, images, changed).argmin())
    usual = images[start]
    turned = np.zeros(len(images), bool)
    axes = tuple(range(1, images.ndim))
    for _ in range(5):
        turned = np.abs(changed - usual).mean(axis=axes) < np.abs(images - usual).mean(axis=axes)
        usual = np.median(
            np.where(turned.reshape(-1, *[1] * (images.ndim - 1)), changed, images), axis=0
        )
    return ~turned if turned.sum() > 0.5 * len(images) else turned


def _nearest(images: np.ndarray, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Sum of the distances of each image to the nearer one of each pair, (n,): small for a typical
    image.
    """
    axes = tuple(range(1, images.ndim))
    sums = []
    for image in images:
        to_left = np.abs(left - image).mean(axis=axes)
        to_right = np.abs(right - image).mean(axis=axes)
        sums.append(np.minimum(to_left, to_right).sum())
    return np.array(sums)


def _boundaries(catalog: Catalog, camera: str, cuts: list[Cut]) -> Findings:
    """Cuts between episodes that lie some frames away from the place in the tables."""
    by_file: dict[int, list[tuple[int, Cut]]] = defaultdict(list)
    for cut in cuts:
        step = int(cut.change.argmax())
        other_changes = np.delete(cut.change, step)
        if cut.change[step] > max(_CLEAR * float(other_changes.max()), 4.0):
            by_file[cut.file].append((step - (CUT - 1), cut))
    for file, shifted_cuts in by_file.items():
        wrong = [(shift, cut) for shift, cut in shifted_cuts if shift]
        if not wrong:
            continue
        shifts = [shift for shift, _ in wrong]
        agree = len(set(shifts)) == 1 and len(wrong) >= 2 and len(wrong) > 0.5 * len(shifted_cuts)
        if not agree and all(
            cut.change.max() < 2 * _CLEAR * np.sort(cut.change)[-2] for _, cut in wrong
        ):
            continue
        later = "later" if shifts[0] > 0 else "earlier"
        message = f"the scene changes {plural(abs(shifts[0]), 'frame')} {later} than the tables "
        message += (
            f"begin the episode, at {len(wrong)} of {len(shifted_cuts)} clear cuts of the file"
        )
        path = catalog.videos(camera).files.path(file)
        place = Place.from_rows(
            catalog, [cut.row for _, cut in wrong], camera=camera, file=path, frame=0
        )
        fix = (
            "look at the first images: they are those of a camera's buffer, or all images belong "
            "to other rows"
        )
        yield Finding("images.boundary", "warning", message, place, shifts[0], 0, fix)


_SLACK = 1e-3  # of the range: values are rounded to the codes of a video


def check_depth(catalog: Catalog, facts: ImageFacts) -> Findings:
    """Yield findings about sampled depth images."""
    for camera, ranges in facts.depth.items():
        flat = [span for span in ranges if not span.most > span.least]
        if flat:
            place = Place.from_rows(catalog, [span.row for span in flat], camera=camera)
            message = "depth images hold one value: the camera measured nothing"
            yield Finding("depth.empty", "warning", message, place, flat[0].most, None, LOOK)
        yield from _depth_range(catalog, camera, [span for span in ranges if span not in flat])


def _depth_range(catalog: Catalog, camera: str, ranges: list[DepthRange]) -> Findings:
    """Sampled values beyond the recorded minimum and maximum, as after a change of unit."""
    recorded_range = [_recorded(catalog, camera, name) for name in ("min", "max")]
    if (
        not ranges
        or [part.size for part in recorded_range] != [1, 1]
        or not np.isfinite(recorded_range).all()
    ):
        return
    low, high = (float(part[0]) for part in recorded_range)
    slack = _SLACK * (high - low) + 1e-3 * abs(high)
    codes = catalog.features[camera].pixels.codes
    if codes is not None:
        low, high = np.clip([low, high], codes.minimum, codes.maximum).tolist()
    least = min(span.least for span in ranges)
    most = max(span.most for span in ranges)
    for measured, recorded, over in ((least, low, low - least), (most, high, most - high)):
        if over > slack:
            message = (
                f"sampled depth reaches {measured:.4g}, the recorded statistics end at "
                f"{recorded:.4g}"
            )
            fix = (
                "correct depth_unit or the scale in meta/info.json, or compute the statistics again"
            )
            yield Finding(
                "depth.range", "warning", message, Place(camera=camera), measured, recorded, fix
            )
            return
