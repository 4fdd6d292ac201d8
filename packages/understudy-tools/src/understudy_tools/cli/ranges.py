"""`understudy ranges PATH --output keep.json`: find the frames in which the robot moves, as
keep-ranges.
"""

import json
import math
import warnings
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy_base import DatasetError, Progress, refuse_existing, write_text
from understudy_data import Workers
from understudy_kit import Ge, Gt, Ids, Interval, Positional, WorkersConfig

if TYPE_CHECKING:
    from understudy_data import Catalog
    from understudy_tools.motion import IdleRule

SHOWN = 10
"""Episodes that the summary names."""
_VELOCITY = "action.joint_velocity"


@dataclass(frozen=True)
class RangesConfig(WorkersConfig):
    """Find the frames in which a robot moves, and write them as keep-ranges.

    By default only idle frames are left out: neither actions nor states, grippers included, change
    for more than a second. `--preset droid` is openpi's rule for DROID, with its numbers. That rule
    also leaves out some frames in which the robot moves.
    """

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    output: str = ""
    """JSON file to write, as `data.keep_ranges` takes it. Required; a file that is there is not
    overwritten.
    """
    preset: Literal["still", "droid"] = "still"
    """`still` leaves out pauses only, each from the frame before which nothing changed for
    `--min-idle` frames. `droid` is openpi's rule: it leaves out a pause from its first frame, the
    last 10 frames before it, and ranges of less than 16 frames between pauses.
    """
    keys: tuple[str, ...] = ()
    """Columns to read: joint velocities, actions or states. The default is all columns of actions
    and states, where a gripper counts like a joint (droid: `action.joint_velocity`, or `action`
    where there is none).
    """
    dims: Ids = ()
    """Dimensions of `--keys` to read, counted from 0; the default is all. Include the gripper's to
    see its motion.
    """
    difference: bool = True
    """Whether a frame is idle by its change since the frame before, below the threshold in every
    value; off: by the magnitude of the values themselves.
    """
    threshold: Annotated[float, Gt(0)] | None = None
    """Threshold for all dimensions, in the columns' own units; of a difference, per frame. The
    default is a threshold for each dimension by `--threshold-share` (droid: 0.001).
    """
    threshold_share: Annotated[float, Interval(gt=0, lt=1)] = 0.05
    """Threshold as a share of a dimension's own speed: of the 99th percentile of its changes per
    frame over the dataset, where it changes at all. A smaller change is still motion if it adds up
    to the threshold in a pause.
    """
    min_idle: Annotated[int, Ge(1)] | None = None
    """Least number of consecutive idle frames to leave out. The default is one second (droid: 7).
    """
    min_moving: Annotated[int, Ge(1)] | None = None
    """Least number of frames to keep between two pauses. The default is 1 (droid: 16)."""
    cut_last: Annotated[int, Ge(0)] | None = None
    """Frames cut from the end of each range, since action chunks that begin there reach into the
    pause. The default is 0 (droid: 10).
    """
    name_by: Literal["auto", "episode", "droid"] = "auto"
    """Keys of the file: episode ids, or DROID's "recording_folderpath--file_path". `auto` uses
    DROID's if the dataset has them.
    """
    warn_above: Annotated[float, Interval(ge=0, le=1)] = 0.3
    """Share of an episode's frames, and of the dataset's, above which a warning names the loss."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = []
        if not self.path:
            errors.append("path: required, the folder or URL of a dataset: understudy ranges PATH")
        folder = Path(self.output).absolute().parent
        if not self.output:
            errors.append("output: required, the JSON file to write: --output FILE.json")
        elif not folder.is_dir():
            errors.append(f"output: {folder} is no folder; create it first")
        if self.dims and not self.keys and self.preset != "droid":
            errors.append("dims: name their column with --keys")
        return errors + self.worker_problems()


def ranges(config: RangesConfig) -> None:
    """Write the file and print a summary."""
    from understudy_base import finite
    from understudy_data import open_episodes

    refuse_existing(config.output, "output", None)
    catalog = open_episodes(config.path)
    names = _episode_names(catalog, config.name_by)
    with Workers(config.processes(), config.ray, config.work) as workers:
        spans, facts = find_ranges(catalog, config, workers)
    _check_kept(facts, catalog.root)
    lines = [
        f"  {json.dumps(names[row], ensure_ascii=False)}: {json.dumps(pairs)}"
        for row, pairs in spans.items()
    ]
    write_text(Path(config.output), "{\n" + ",\n".join(lines) + "\n}\n", is_new=True)
    facts |= {"out": config.output}
    plain = json.dumps(finite(facts), ensure_ascii=False, allow_nan=False) if config.json else ""
    print(plain or format_summary(facts, config))
    warn_of_large_cuts(facts, config.warn_above)


def _check_kept(facts: dict[str, Any], where: str) -> None:
    """Raise DatasetError if no frame remains, or if frames are left out although there is no
    pause.
    """
    rule = facts["rule"]
    used = facts["frames_kept"]
    frames = facts["frames"]
    of = f"{', '.join(facts['keys'])} by {_threshold(facts)}"
    if not facts["frames_in_pauses"] and used < frames:
        message = (
            f"no frame is in a pause ({of}), but {frames - used:,} of {frames:,} frames "
            "would be left out: "
        )
        message += f"--min-moving {rule['min_moving']}, --cut-last {rule['cut_last']}"
        raise DatasetError(
            message, where=where, fix="give --min-moving 1 --cut-last 0, or train on all frames"
        )
    if not used:
        message = (
            f"no frame of {frames:,} would be kept, of which {facts['frames_in_pauses']:,} "
            f"are in pauses ({of})"
        )
        raise DatasetError(
            message, where=where, fix="give a smaller --threshold, --min-moving or --cut-last"
        )


def find_ranges(
    catalog: "Catalog", config: RangesConfig, workers: Workers
) -> tuple[dict[int, list[tuple[int, int]]], dict[str, Any]]:
    """Find the ranges to keep.

    Returns:
        (table row -> ranges, for every episode with frames; summary as plain values). The summary's
        `cut` lists [episode id, frames, frames kept] of each episode that loses frames, the largest
        share first.

    Raises:
        DatasetError: A column does not exist, is not numeric or cannot be read.
    """
    from understudy_tools.motion import FindRanges

    keys = keys_of(config, catalog)
    rule = rule_of(config, catalog, keys, workers)
    episodes = catalog.episodes
    spans: dict[int, list[tuple[int, int]]] = {}
    idle = 0
    paused = 0
    steps = 0
    work = FindRanges(catalog, tuple(keys), config.dims, rule)
    with Progress(int((episodes.lengths > 0).sum()), "ranges", "episode") as bar:
        for part in work.run(workers, lambda part: bar.update(len(part))):
            for row, pairs, paused_frames, idle_frames in part:
                spans[row] = pairs
                paused = paused + paused_frames
                idle = idle + idle_frames
                steps = steps + int(episodes.lengths[row]) - 1
    spans = dict(sorted(spans.items()))
    lengths = [stop - start for start, stop in chain.from_iterable(spans.values())]
    without = [int(episodes.ids[row]) for row, pairs in spans.items() if not pairs]
    threshold_share = config.threshold_share if isinstance(rule.threshold, tuple) else None
    idle_share = idle / steps if steps else 0.0
    return spans, {
        "root": catalog.root,
        "keys": keys,
        "rule": asdict(rule),
        "threshold_share": threshold_share,
        "episodes": len(spans),
        "frames": int(episodes.frames),
        "frames_kept": sum(lengths),
        "idle_share": idle_share,
        "frames_in_pauses": paused,
        "ranges": len(lengths),
        "shortest": min(lengths, default=0),
        "longest": max(lengths, default=0),
        "episodes_without": len(without),
        "first_without": without[:5],
        "cut": _cut_episodes(catalog, spans),
    }


def _cut_episodes(catalog: "Catalog", spans: dict[int, list[tuple[int, int]]]) -> list[list[int]]:
    """[Episode id, frames, frames kept] of each episode that loses frames, the largest share
    first.
    """
    cut: list[list[int]] = []
    for row, pairs in spans.items():
        frames = int(catalog.episodes.lengths[row])
        kept = sum(stop - start for start, stop in pairs)
        if kept < frames:
            cut.append([int(catalog.episodes.ids[row]), frames, kept])
    return sorted(cut, key=lambda counts: (counts[2] / counts[1], counts[0]))


def format_summary(facts: dict[str, Any], config: RangesConfig) -> str:
    """Format the summary for a terminal."""
    rule = facts["rule"]
    way = "changes" if config.difference else "values"
    share = facts["frames_kept"] / facts["frames"]
    pause = f"more than {rule['min_idle']} frames"
    if not rule["settled"]:
        pause = f"{rule['min_idle']} frames or more"
    lines = [
        f"{facts['out']}: {facts['frames_kept']:,} of {facts['frames']:,} frames kept "
        f"({share:.1%}), {facts['ranges']:,} ranges of {facts['shortest']} to {facts['longest']} "
        "frames",
        f"  idle in {facts['idle_share']:.1%} of the frames: {way} of {', '.join(facts['keys'])} "
        f"below {_threshold(facts)}",
        f"  pauses, idle for {pause}: {facts['frames_in_pauses']:,} frames are left out",
    ]
    if moving := facts["frames"] - facts["frames_in_pauses"] - facts["frames_kept"]:
        lines.append(
            f"  not idle and left out as well: {moving:,} frames, in stretches of less than "
            f"{rule['min_moving']} or among the last {rule['cut_last']} of one"
        )
    if cut := facts["cut"]:
        largest = f", the {SHOWN} largest shares:" if len(cut) > SHOWN else ":"
        lines.append(f"  {len(cut):,} of {facts['episodes']:,} episodes lose frames{largest}")
        lines += [
            f"    episode {episode}: {frames - used:,} of {frames:,} frames left out "
            f"({1 - used / frames:.1%})"
            for episode, frames, used in cut[:SHOWN]
        ]
    if facts["episodes_without"]:
        first = ", ".join(map(str, facts["first_without"]))
        if facts["episodes_without"] > 5:
            first += ", ..."
        lines.append(
            f"  {facts['episodes_without']:,} of {facts['episodes']:,} episodes are left with "
            f"nothing: {first}"
        )
    return "\n".join(lines)


def warn_of_large_cuts(facts: dict[str, Any], share: float) -> None:
    """Warn of the dataset and of the episodes that lose more than a share of their frames."""
    lost = 1 - facts["frames_kept"] / facts["frames"]
    if lost > share:
        warnings.warn(
            f"{facts['root']}: {lost:.1%} of its frames are left out, more than {share:.0%}",
            stacklevel=2,
        )
    large = [
        f"{episode} ({1 - used / n:.0%})"
        for episode, n, used in facts["cut"]
        if 1 - used / n > share
    ]
    if large:
        more = ", ..." if len(large) > SHOWN else ""
        text = (
            f"{len(large):,} episodes lose more than {share:.0%} of their frames: "
            f"{', '.join(large[:SHOWN])}{more}"
        )
        warnings.warn(
            f"{facts['root']}: {text}; look at them before you train on the rest", stacklevel=2
        )


def _threshold(facts: dict[str, Any]) -> str:
    if facts["threshold_share"] is not None:
        return f"{100 * facts['threshold_share']:.3g} % of each dimension's own speed"
    return f"{facts['rule']['threshold']:g}"


def _episode_names(catalog: "Catalog", name_by: str) -> dict[int, str]:
    """Table row -> key of the episode in the file."""
    from understudy_data import EpisodeNames

    ids = {row: str(int(episode)) for row, episode in enumerate(catalog.episodes.ids)}
    texts = EpisodeNames(catalog).droid() if name_by != "episode" else {}
    if name_by == "droid" and not texts:
        message = (
            "name_by: recording_folderpath and file_path are missing, or some episodes share them"
        )
        raise DatasetError(message, where=catalog.root, fix="name by episode")
    return texts or ids


def rule_of(
    config: RangesConfig, catalog: "Catalog", keys: list[str], workers: Workers | None = None
) -> "IdleRule":
    """Rule of the preset with the given changes; reads the rows where thresholds are shares of
    speeds.
    """
    from understudy_tools.motion import IdleRule, motion_thresholds

    droid = config.preset == "droid"
    rule = IdleRule.droid() if droid else IdleRule(min_idle=max(1, round(catalog.fps)))
    names = ("threshold", "difference", "min_idle", "min_moving", "cut_last")
    options: dict[str, Any] = {name: getattr(config, name) for name in names}
    if not droid and config.threshold is None:
        share = config.threshold_share
        difference = config.difference
        thresholds = motion_thresholds(
            catalog, keys, config.dims, share=share, difference=difference, workers=workers
        )
        options["threshold"], options["rates"] = thresholds
    return replace(rule, **{name: value for name, value in options.items() if value is not None})


def keys_of(config: RangesConfig, catalog: "Catalog") -> list[str]:
    """Columns to read.

    Raises:
        DatasetError: A column does not exist or is not numeric, or a dimension is beyond their
            width.
    """
    from understudy_tools.motion import motion_keys, numeric_keys

    numeric = numeric_keys(catalog)
    keys = list(config.keys)
    if not keys and config.preset == "droid":
        velocity = _VELOCITY if _VELOCITY in numeric else "action"
        keys = [velocity]
    if not keys:
        return motion_keys(catalog)
    for key in keys:
        if key not in numeric:
            feature = catalog.features.get(key)
            reason = "unknown column" if feature is None else f"is {feature.dtype}"
            raise DatasetError(
                f"key {key!r}: {reason}",
                where=catalog.root,
                fix=f"numeric columns: {', '.join(numeric)}",
            )
    width = sum(math.prod(catalog.features[key].value_shape) for key in keys)
    if config.dims and max(config.dims) >= width:
        message = (
            f"dims: {max(config.dims)} exceeds the {width} dimensions of {', '.join(keys)}, "
            "counted from 0"
        )
        raise DatasetError(message, where=catalog.root, fix="`check` shows them")
    return keys
