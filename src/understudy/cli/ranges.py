"""`understudy ranges PATH --output keep.json`: find the frames in which the robot moves, as keep-ranges."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from understudy.config.declare import Ge, Gt, Positional

if TYPE_CHECKING:
    from understudy.data.format.catalog import Catalog
    from understudy.data.selection.idle import IdleRule


@dataclass(frozen=True)
class RangesConfig:
    """Find the frames in which a robot moves, and write them as keep-ranges.

    By default only idle frames are left out: neither actions nor states change for more than a second. `--preset droid`
    is openpi's rule for DROID, where `--key` is the commanded joint velocity in rad/s at 15 frames per second. That
    rule also leaves out some frames in which the robot moves.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"out": "output"}

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    output: str = ""
    """JSON file to write, as `data.keep_ranges` takes it. Required; a file that is there is not overwritten."""
    preset: Literal["still", "droid"] = "still"
    """`still` leaves out pauses only, each from the frame before which nothing changed for `--min-idle` frames. `droid`
    is openpi's rule: it leaves out a pause from its first frame, the last 10 frames before it, and ranges of less than
    16 frames between pauses."""
    key: str = ""
    """Column to read: joint velocities, actions or a state. The default is all columns of actions and states, where a
    gripper counts like a joint (droid: `action`)."""
    dims: tuple[Annotated[int, Ge(0)], ...] = ()
    """Dimensions of `--key` to read, counted from 0; the default is all. Include the gripper's to see its motion."""
    difference: bool = True
    """Whether a frame is idle by its change since the frame before, below the threshold in every value; off: by the
    magnitude of the values themselves."""
    threshold: Annotated[float, Gt(0)] = 1e-3
    """Threshold in the columns' own units; of a difference, per frame."""
    min_idle: Annotated[int, Ge(1)] | None = None
    """Least number of consecutive idle frames to leave out. The default is one second (droid: 7)."""
    min_moving: Annotated[int, Ge(1)] | None = None
    """Least number of frames to keep between two pauses. The default is 1 (droid: 16)."""
    cut_last: Annotated[int, Ge(0)] | None = None
    """Frames cut from the end of each range, since action chunks that begin there reach into the pause. The default is
    0 (droid: 10)."""
    name_by: Literal["auto", "episode", "droid"] = "auto"
    """Keys of the file: episode ids, or DROID's "recording_folderpath--file_path". `auto` uses DROID's if the dataset
    has them."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        found = [] if self.path else ["path: required, the folder or URL of a dataset: understudy ranges PATH"]
        folder = Path(self.output).absolute().parent
        if not self.output:
            found.append("output: required, the JSON file to write: --output FILE.json")
        elif Path(self.output).exists():
            found.append(f"output: {self.output} exists; name another file, or remove it")
        elif not folder.is_dir():
            found.append(f"output: {folder} is no folder; create it first")
        if self.dims and not self.key and self.preset != "droid":
            found.append("dims: name their column with --key")
        return found


def ranges(config: RangesConfig) -> None:
    """Write the file and print a summary."""
    from understudy.atomic import write_text
    from understudy.data.format.catalog import Catalog
    from understudy.errors import DatasetError

    catalog = Catalog.open(config.path)
    names = _episode_names(catalog, config.name_by)
    kept, facts = find_ranges(catalog, config)
    _check_kept(facts, catalog.root)
    if Path(config.output).exists():  # it may be new since the settings were checked
        raise DatasetError("exists", where=config.output, fix="name another file")
    lines = [f"  {json.dumps(names[row], ensure_ascii=False)}: {json.dumps(own)}" for row, own in kept.items()]
    write_text(Path(config.output), "{\n" + ",\n".join(lines) + "\n}\n")
    facts |= {"out": config.output}
    print(json.dumps(facts, ensure_ascii=False) if config.json else format_summary(facts, config))


def _check_kept(facts: dict[str, Any], where: str) -> None:
    """Raise DatasetError if no frame remains, or if frames are left out although none is idle."""
    from understudy.errors import DatasetError

    rule, kept, frames = facts["rule"], facts["frames_kept"], facts["frames"]
    of = f"{', '.join(facts['keys'])} by a threshold of {rule['threshold']:g}"
    if not facts["frames_idle"] and kept < frames:
        message = f"no frame is idle ({of}), but {frames - kept:,} of {frames:,} frames would be left out: "
        message += f"--min-moving {rule['min_moving']}, --cut-last {rule['cut_last']}"
        raise DatasetError(message, where=where, fix="give --min-moving 1 --cut-last 0, or train on all frames")
    if not kept:
        message = f"no frame of {frames:,} would be kept, of which {facts['frames_idle']:,} are idle ({of})"
        raise DatasetError(message, where=where, fix="give a smaller --threshold, --min-moving or --cut-last")


def find_ranges(catalog: "Catalog", config: RangesConfig) -> tuple[dict[int, list[tuple[int, int]]], dict[str, Any]]:
    """Find the ranges to keep.

    Returns:
        (table row -> ranges, for every episode with frames; summary as plain values).

    Raises:
        DatasetError: The column does not exist, is not numeric or cannot be read.
    """
    import numpy as np

    from understudy.data.read.rows import Rows
    from understudy.data.selection.idle import idle_ranges, non_idle_ranges
    from understudy.progress import Progress

    keys, rule = _keys(catalog, config), rule_of(config, catalog.fps)
    episodes = catalog.episodes
    rows = Rows(catalog, keys, cache_bytes=0)
    by_file = np.argsort(episodes.data_file, kind="stable")  # each file is read once
    kept: dict[int, list[tuple[int, int]]] = {}
    idle = 0
    chosen = by_file[episodes.lengths[by_file] > 0].tolist()
    with Progress(len(chosen), "ranges", "episode") as bar:
        for row in chosen:
            frames = np.arange(int(episodes.lengths[row]))[None]
            taken = rows.take(np.asarray([row]), dict.fromkeys(keys, frames))
            values = np.concatenate([np.asarray(taken[key])[0].reshape(frames.size, -1) for key in keys], axis=1)
            values = values[:, list(config.dims)] if config.dims else values
            kept[row] = non_idle_ranges(values, rule)
            idle += sum(stop - start for start, stop in idle_ranges(values, rule))
            bar.update()
    kept = dict(sorted(kept.items()))
    lengths = [stop - start for own in kept.values() for start, stop in own]
    without = [int(episodes.ids[row]) for row, own in kept.items() if not own]
    return kept, {
        "root": catalog.root,
        "keys": keys,
        "rule": asdict(rule),
        "episodes": len(kept),
        "frames": int(episodes.frames),
        "frames_kept": sum(lengths),
        "frames_idle": idle,
        "ranges": len(lengths),
        "shortest": min(lengths, default=0),
        "longest": max(lengths, default=0),
        "episodes_without": len(without),
        "first_without": without[:5],
    }


def format_summary(facts: dict[str, Any], config: RangesConfig) -> str:
    """Format the summary for a terminal."""
    rule, way = facts["rule"], "changes" if config.difference else "values"
    share = facts["frames_kept"] / facts["frames"]
    lines = [
        f"{facts['out']}: {facts['frames_kept']:,} of {facts['frames']:,} frames kept ({share:.1%}), "
        f"{facts['ranges']:,} ranges of {facts['shortest']} to {facts['longest']} frames",
        f"  idle: {facts['frames_idle']:,} frames, {way} of {', '.join(facts['keys'])} below {rule['threshold']:g} for "
        + (f"more than {rule['min_idle']} frames" if rule["settled"] else f"{rule['min_idle']} frames or more"),
    ]
    if moving := facts["frames"] - facts["frames_idle"] - facts["frames_kept"]:
        lines.append(
            f"  not idle and left out as well: {moving:,} frames, in stretches of less than {rule['min_moving']} "
            f"or among the last {rule['cut_last']} of one"
        )
    if facts["episodes_without"]:
        first = ", ".join(map(str, facts["first_without"])) + (", ..." if facts["episodes_without"] > 5 else "")
        lines.append(
            f"  {facts['episodes_without']:,} of {facts['episodes']:,} episodes are left with nothing: {first}"
        )
    return "\n".join(lines)


def _episode_names(catalog: "Catalog", name_by: str) -> dict[int, str]:
    """Table row -> key of the episode in the file."""
    from understudy.data.selection.keep_keys import droid_keys
    from understudy.errors import DatasetError

    ids = {row: str(int(episode)) for row, episode in enumerate(catalog.episodes.ids)}
    texts = droid_keys(catalog) if name_by != "episode" else {}
    if name_by == "droid" and not texts:
        message = "name_by: recording_folderpath and file_path are missing, or some episodes share them"
        raise DatasetError(message, where=catalog.root, fix="name by episode")
    return texts or ids


def rule_of(config: RangesConfig, fps: float) -> "IdleRule":
    """Rule of the preset with the given changes."""
    from understudy.data.selection.idle import IdleRule

    droid = config.preset == "droid"
    rule = IdleRule.droid() if droid else IdleRule(min_idle=max(1, round(fps)))
    given = {name: getattr(config, name) for name in ("threshold", "difference", "min_idle", "min_moving", "cut_last")}
    return replace(rule, **{name: value for name, value in given.items() if value is not None})


def _keys(catalog: "Catalog", config: RangesConfig) -> list[str]:
    """Columns to read."""
    from understudy.errors import DatasetError
    from understudy.report.dataset.examine import row_keys

    known = row_keys(catalog)
    if not config.key and config.preset != "droid":
        if not (keys := [key for key in known if key.startswith(("action", "observation.state"))]):
            message = "no column is named action or observation.state"
            raise DatasetError(message, where=catalog.root, fix=f"name one with --key: {', '.join(known)}")
        return keys
    key = config.key or "action"
    feature = catalog.features.get(key)
    if feature is None or feature.is_camera or feature.is_text:
        reason = "unknown column" if feature is None else f"is {feature.dtype}"
        raise DatasetError(f"key {key!r}: {reason}", where=catalog.root, fix=f"numeric columns: {', '.join(known)}")
    width = math.prod(feature.value_shape)
    if config.dims and max(config.dims) >= width:
        message = f"dims: {max(config.dims)} exceeds the {width} dimensions of {key!r}, counted from 0"
        raise DatasetError(message, where=catalog.root, fix="`inspect` shows them")
    return [key]
