"""Rules of video files and of the places of episodes in them, without decoding."""

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated

import numpy as np
import pyarrow as pa

from understudy_base import DatasetError, plural
from understudy_data import Catalog, EpisodeClips, VideoFile
from understudy_tools.check.findings import (
    EDIT,
    Finding,
    Findings,
    Place,
    Severity,
    correct,
    drop,
    restore,
)
from understudy_tools.check.image_facts import VideoFacts, frame_times
from understudy_tools.check.rules.files import TOLERANCE, split_gross
from understudy_tools.check.threshold import Threshold

EPISODES = "meta/episodes"
_DRIFT: Annotated[
    float,
    Threshold(
        "frames by which a start time may be off before another frame is nearer",
        fault="start_off_by_one_frame",
    ),
] = 0.5
_TAILS = 8  # videos with surplus frames that are compared with the next one
_COMPARED = 4  # frames of them
_ALIKE = 3.0  # mean difference of equal images of 0 to 255 after encoding
_JUMP: Annotated[
    float,
    Threshold(
        "frames between the errors of two start times, from which they do not drift",
        fault="start_off_by_one_frame",
    ),
] = 0.75


def check_videos(catalog: Catalog, facts: VideoFacts) -> Findings:
    """Yield findings about video files: unreadable ones, frame counts, encoding."""
    for camera, file, path, error in facts.unreadable:
        place = _place(catalog, camera, [file], path)
        yield Finding("videos.unreadable", "error", error.what, place, fix=restore(path, error.fix))
    for camera, files in facts.files.items():
        videos = catalog.videos(camera)
        surplus = []
        for video in files:
            expected = int(videos.expected[video.file])
            place = _place(catalog, camera, [video.file], video.path)
            if video.count < expected:
                message = (
                    f"the video holds {plural(video.count, 'frame')}, its episodes have "
                    f"{plural(expected, 'row')}"
                )
                fix = restore(video.path)
                score = float(expected - video.count)
                yield Finding(
                    "videos.count", "error", message, place, video.count, expected, fix, score
                )
            elif video.count > expected:
                surplus.append((video, expected, place))
        yield from _surplus(catalog, camera, surplus)
        yield from _encoding(catalog, facts, camera)
        yield from _shown(catalog, camera, files)


def _place(catalog: Catalog, camera: str, files: list[int], path: str) -> Place:
    """Place of the episodes in files of a camera, at the first file."""
    rows = np.flatnonzero(np.isin(catalog.videos(camera).file, files))
    return Place.from_rows(catalog, rows, camera=camera, file=path)


def _surplus(
    catalog: Catalog, camera: str, surplus: list[tuple[VideoFile, int, Place]]
) -> Findings:
    """Videos with more frames than rows: the extra ones may be anywhere, unless recorded times
    place the episodes.
    """
    videos = catalog.videos(camera)
    for number, (video, expected, place) in enumerate(surplus):
        count = video.count
        file = video.file
        packed = int((videos.file == file).sum()) > 1
        placed = videos.first_by_time is not None and bool(
            (videos.first_by_time[videos.file == file] >= 0).any()
        )
        unclear = float(videos.drift[file]) > _DRIFT
        message = (
            f"the video holds {plural(count, 'frame')}, its episodes have {plural(expected, 'row')}"
        )
        if placed:
            message += "; the recorded times place the episodes"
        elif unclear:
            message += ", and the recorded times do not show which frames belong to them"
        else:
            message += f"; the first {expected} are used"
        severity: Severity = "error" if unclear and packed and not placed else "warning"
        fix = restore(place.file)
        score = float(count - expected)
        if (
            number < _TAILS
            and (later := _tail_is_later(catalog, camera, video, expected)) is not None
        ):
            message += (
                f"; the first surplus ones equal the first images of episode {later}: the "
                "video was cut too late"
            )
            fix = f"{EDIT} leaves the surplus out; only if rows are missing, restore them"
        yield Finding("videos.count", severity, message, place, count, expected, fix, score)


def _tail_is_later(catalog: Catalog, camera: str, video: VideoFile, expected: int) -> int | None:
    """Return the id of the next episode if its video starts with the surplus images of a video;
    None for others.
    """
    videos = catalog.videos(camera)
    table = catalog.episodes
    members = np.flatnonzero(videos.file == video.file)
    later = np.flatnonzero((videos.file >= 0) & (videos.file != video.file) & (table.lengths > 0))
    later = later[later > members.max()] if len(members) else later[:0]
    if not len(later):
        return None
    row = int(later[0])
    count = int(min(_COMPARED, video.count - expected, table.lengths[row]))
    clips = EpisodeClips([catalog], camera)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with closing(clips.video(0, int(members[0]))) as whole:
                tail = whole.read(np.arange(expected, expected + count))
                last = whole.read(np.arange(max(0, expected - 1), expected))
            with closing(clips.clip(0, row, 0, count)) as clip:
                head = clip.read(np.arange(count))
    except DatasetError:
        return None
    images = [np.asarray(part, np.float64) for part in (tail, head, last)]
    if images[0].shape != images[1].shape:
        return None
    off = np.abs(images[0] - images[1]).mean()
    # A scene at rest is alike everywhere: the tail has to be nearer to the next episode than to its
    # own.
    if off < _ALIKE and 2 * off < np.abs(images[0] - images[2][:1]).mean():
        return int(table.ids[row])
    return None


def _encoding(catalog: Catalog, facts: VideoFacts, camera: str) -> Findings:
    files = facts.files[camera]
    feature = catalog.features[camera]
    if not files:
        return
    sizes = Counter((video.width, video.height) for video in files)
    usual = sizes.most_common(1)[0][0]
    odd = [video for video in files if (video.width, video.height) != usual]
    if odd:
        message = (
            f"{plural(len(odd), 'file has', 'files have')} frames of "
            f"{odd[0].width}x{odd[0].height}, the others "
        )
        message += f"{usual[0]}x{usual[1]}"
        place = _place(catalog, camera, [video.file for video in odd], odd[0].path)
        yield Finding(
            "videos.encoding", "error", message, place, [odd[0].width, odd[0].height], list(usual)
        )
    place = Place(camera=camera, file=files[0].path)
    if feature.size is not None and feature.size != (usual[1], usual[0]):
        message = (
            f"frames are {usual[0]}x{usual[1]}, info.json declares shape {list(feature.shape)}"
        )
        fix = correct(f"the shape of {camera}: {usual[1]} high, {usual[0]} wide", Catalog.INFO)
        yield Finding(
            "videos.encoding", "warning", message, place, list(usual), list(feature.shape), fix
        )
    rates = [
        video for video in files if abs(video.fps / catalog.fps - 1) > 0.01 and video.count > 1
    ]
    if rates:
        message = (
            f"{plural(len(rates), 'video plays', 'videos play')} {rates[0].fps:.4g} frames "
            "per second, "
        )
        message += f"info.json declares {catalog.fps:g}"
        odd_files = [video.file for video in rates] if len(rates) < len(files) else []
        rate_place = _place(catalog, camera, odd_files, rates[0].path)
        fix = (
            "frames are paired by number here; for LeRobot write the videos with "
            f"{catalog.fps:g} frames per second"
        )
        yield Finding(
            "videos.encoding", "warning", message, rate_place, rates[0].fps, catalog.fps, fix
        )
    declared = feature.info.get("video.codec")
    codecs = Counter(video.codec for video in files)
    if feature.codec and feature.codec not in codecs:
        codec = codecs.most_common(1)[0][0]
        message = f"the codec is {codec}, info.json declares {declared}"
        fix = correct(f"video.codec of {camera}", Catalog.INFO)
        yield Finding("videos.encoding", "warning", message, place, codec, declared, fix)
    if len(codecs) > 1:
        message = (
            "files differ in codec: "
            f"{', '.join(f'{codec} ({count})' for codec, count in codecs.most_common())}"
        )
        yield Finding("videos.encoding", "note", message, Place(camera=camera), dict(codecs))


def _shown(catalog: Catalog, camera: str, files: list[VideoFile]) -> Findings:
    """Files whose container says more than the reader does, that are turned, or that hold several
    video streams.
    """
    unmet: dict[str, list[VideoFile]] = {}
    for video in files:
        for words in video.shown.unmet:
            unmet.setdefault(words, []).append(video)
    for words, some in unmet.items():
        message = f"by its container the video {words}, which is not done here, as in torchcodec, "
        message += f"in {plural(len(some), 'file')}"
        place = _place(catalog, camera, [video.file for video in some], some[0].path)
        fix = (
            "if images look wrong in view, encode the videos again as they are to be shown, "
            "without that entry"
        )
        yield Finding("videos.shown", "warning", message, place, len(some), 0, fix)
    turned = [video for video in files if video.shown.turns]
    if turned:
        angles = sorted({90 * video.shown.turns for video in turned})
        message = (
            f"{plural(len(turned), 'file is', 'files are')} turned to the left as the "
            "container says, by "
        )
        message += f"{', '.join(map(str, angles))} degrees; readers before torchcodec 0.11 do not"
        place = _place(catalog, camera, [video.file for video in turned], turned[0].path)
        fix = f"{EDIT} --gop 2 (writes upright images) for such readers"
        yield Finding("videos.shown", "note", message, place, len(turned), 0, fix)
    several = [video for video in files if video.streams > 1]
    if several:
        first = several[0]
        message = (
            f"{plural(len(several), 'file holds', 'files hold')} {first.streams} video "
            "streams; read is that with "
        )
        message += (
            f"as many frames as rows, or the enabled one: {first.count} of "
            f"{first.width}x{first.height}, {first.codec}"
        )
        place = _place(catalog, camera, [video.file for video in several], first.path)
        fix = "write each stream as a camera of its own"
        yield Finding("videos.streams", "warning", message, place, first.streams, 1, fix)


def check_places(catalog: Catalog, opens_videos: bool) -> Findings:
    """Yield findings about recorded places of v3 episodes: rows of the dataset, and seconds of the
    videos.

    Args:
        catalog: the dataset.
        opens_videos: whether to compare suspicious seconds with the times in the videos.
    """
    if not catalog.version.startswith("v3"):
        return
    try:
        columns = _recorded(catalog)
    except DatasetError as error:
        place = Place(file=str(error.where or EPISODES).removeprefix(f"{catalog.root}/"))
        yield Finding("metadata.unreadable", "error", error.what, place, fix=error.fix)
        return
    lengths = catalog.episodes.lengths
    first = columns.get("dataset_from_index")
    stop = columns.get("dataset_to_index")
    if first is not None and stop is not None:
        wrong = np.flatnonzero(stop - first != lengths)
        if len(wrong):
            row = int(wrong[0])
            message = (
                f"dataset_from_index {first[row]:g} and dataset_to_index {stop[row]:g} enclose "
            )
            message += f"{stop[row] - first[row]:g} frames, length is {int(lengths[row])}"
            place = Place.from_rows(catalog, wrong, file=EPISODES)
            fix = correct("both", EPISODES)
            yield Finding(
                "episodes.range",
                "error",
                message,
                place,
                float(stop[row] - first[row]),
                int(lengths[row]),
                fix,
            )
        order = np.argsort(first, kind="stable")
        over = order[1:][first[order][1:] < (first + lengths)[order][:-1]]
        if len(over):
            message = (
                f"{plural(len(over), 'episode begins', 'episodes begin')} before the "
                "previous one ends"
            )
            place = Place.from_rows(catalog, over, file=EPISODES)
            fix = correct("dataset_from_index", EPISODES)
            yield Finding("episodes.range", "error", message, place, len(over), 0, fix)
    for camera in catalog.episodes.videos:
        begins = columns.get(f"videos/{camera}/from_timestamp")
        ends = columns.get(f"videos/{camera}/to_timestamp")
        if begins is not None:
            yield from _starts(catalog, camera, begins, ends, opens_videos)


def _recorded(catalog: Catalog) -> dict[str, np.ndarray]:
    """Number columns of meta/episodes in the order of the episode table, float64 (N,), NaN for
    null.
    """
    names = ["episode_index", "dataset_from_index", "dataset_to_index"]
    for camera in catalog.episodes.videos:
        names += [f"videos/{camera}/from_timestamp", f"videos/{camera}/to_timestamp"]
    parts: dict[str, list[np.ndarray]] = {}
    for path in catalog.episode_files():
        table = catalog.files.table(path, names)
        for name in table.column_names:
            kind = table.schema.field(name).type
            if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
                continue
            values = (
                table.column(name)
                .cast(pa.float64())
                .fill_null(np.nan)
                .to_numpy(zero_copy_only=False)
            )
            parts.setdefault(name, []).append(values)
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    complete = all(len(values) == len(catalog.episodes) for values in columns.values())
    if not complete or "episode_index" not in columns:
        return {}
    order = np.argsort(columns.pop("episode_index"), kind="stable")
    return {name: values[order] for name, values in columns.items()}


def _starts(
    catalog: Catalog, camera: str, begins: np.ndarray, ends: np.ndarray | None, opens_videos: bool
) -> Findings:
    """Compare recorded seconds with the number of frames before each episode in its file."""
    videos = catalog.videos(camera)
    lengths = catalog.episodes.lengths
    fps = float(catalog.fps)
    used = (videos.file >= 0) & (lengths > 0) & np.isfinite(begins)
    first, off, jumps, is_proven = _start_errors(catalog, camera, begins, used, opens_videos)
    size = np.abs(off)
    lerobot_fix = f"frames are paired by number here; for LeRobot: {EDIT} (writes these times anew)"

    def groups(rows: np.ndarray, size: np.ndarray) -> Iterator[tuple[int, Place]]:
        for group in split_gross(rows, size):
            yield (
                int(group[size[group].argmax()]),
                Place.from_rows(catalog, group, camera=camera, file=EPISODES),
            )

    for row, place in groups(np.flatnonzero(size > _DRIFT), size):
        severity: Severity = "warning"
        if jumps:
            message = f"from_timestamp is {begins[row]:.6g} s, frame {begins[row] * fps:.2f}; "
            message += f"{int(first[row])} frames precede the episode in its video"
            measured = float(begins[row])
            expected = float(first[row] / fps)
            fix = f"{EDIT} (writes these times anew): LeRobot shows the frame of that time"
            severity = "error" if is_proven else "warning"
            doubtful = catalog.videos(camera).doubtful
            if doubtful is not None and doubtful[catalog.videos(camera).file[row]]:
                severity = "error"
                message += "; the times put episodes into another order than their rows have"
                file = catalog.videos(camera).file
                place = Place.from_rows(
                    catalog, np.flatnonzero(doubtful[file] & (file >= 0)), camera=camera
                )
                fix = (
                    f"correct from_timestamp in {EPISODES}, or leave the episodes out: "
                    f"{drop(place.episodes)}"
                )
        else:
            message = (
                f"from_timestamp drifts by up to {off[row]:.2f} frames from the place in the video"
            )
            measured = float(off[row])
            expected = 0.0
            fix = lerobot_fix
        yield Finding(
            "videos.start", severity, message, place, measured, expected, fix, float(size[row])
        )
    for row, place in groups(np.flatnonzero((size > TOLERANCE * fps) & (size <= _DRIFT)), size):
        seconds = float(off[row] / fps)
        message = f"from_timestamp is {begins[row]:.6g} s, {seconds:+.3g} s from the frame; "
        message += f"LeRobot allows {TOLERANCE:g} s"
        severity = "warning" if is_proven else "note"
        yield Finding(
            "videos.start", severity, message, place, seconds, 0.0, lerobot_fix, float(size[row])
        )
    if ends is not None:
        spans = (ends - begins) * fps
        differs = np.where(used & np.isfinite(ends), np.abs(spans - lengths), 0.0)
        for row, place in groups(np.flatnonzero(differs > 1.5), differs):
            message = (
                f"from_timestamp and to_timestamp enclose {spans[row]:.2f} frames, length is "
                f"{int(lengths[row])}"
            )
            fix = correct("to_timestamp", EPISODES)
            yield Finding(
                "videos.length",
                "warning",
                message,
                place,
                float(spans[row]),
                int(lengths[row]),
                fix,
            )


def _start_errors(
    catalog: Catalog, camera: str, begins: np.ndarray, used: np.ndarray, opens_videos: bool
) -> tuple[np.ndarray, np.ndarray, bool, bool]:
    """Return the frames before each episode, int64 (N,), and the frames by which its seconds are
    off, float64 (N,).

    Where they differ, the times in the video decide: the frames of a file may have gaps. Also
    returned are whether the errors jump from one episode to the next, and whether a video proved
    some of them.
    """
    videos = catalog.videos(camera)
    lengths = catalog.episodes.lengths
    fps = float(catalog.fps)
    first = videos.first.copy()
    by_time = videos.first_by_time if videos.first_by_time is not None else np.full(len(first), -1)
    off = np.where(used, begins * fps - first, 0.0)
    jumps = is_proven = False
    for file in np.unique(videos.file[used]).tolist():
        rows = np.flatnonzero(used & (videos.file == file))
        rows = rows[np.argsort(first[rows], kind="stable")]
        previous_lengths = np.concatenate([[0], lengths[rows][:-1]])
        if not (np.abs(off[rows]) > TOLERANCE * fps).any():
            continue
        times = frame_times(catalog, camera, file) if opens_videos else None
        if (by_time[rows] >= 0).all() and (times is None or len(times) > videos.expected[file]):
            first[rows] = by_time[rows]  # the file holds episodes that the tables do not list
            off[rows] = begins[rows] * fps - first[rows]
        elif times is not None and len(times) > first[rows].max():
            off[rows] = (begins[rows] - times[first[rows]]) * fps
            is_proven = True
        steps = np.diff(off[rows], prepend=0.0)
        jumps |= bool((np.abs(steps) > np.maximum(_JUMP, 0.004 * previous_lengths)).any())
    return first, off, jumps, is_proven
