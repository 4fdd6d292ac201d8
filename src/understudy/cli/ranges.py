"""`understudy ranges PATH --out keep.json`: finds where the robot moves, and writes keep-ranges without the rest."""

import json
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy.config.declare import Ge, Gt, Positional

if TYPE_CHECKING:
    from understudy.data.format.catalog import Catalog
    from understudy.data.selection.idle import IdleRule


@dataclass(frozen=True)
class RangesConfig:
    """Find the frames in which a robot moves, and write them as keep-ranges.

    By default only frames are left out in which the robot stands: neither actions nor states change, for more than a
    second. `--preset droid` is openpi's rule for DROID, where `--key` is the commanded joint velocity in rad/s at 15
    frames per second; it also leaves out frames in which the robot moves.
    """

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    out: str = ""
    """JSON file to write, as `data.keep_ranges` takes it. Required; a file that is there is not overwritten."""
    preset: Literal["still", "droid"] = "still"
    """`still`: leave out pauses, from the frame on before which nothing changed for `--min-idle` frames, and nothing
    else. `droid`: openpi's, which leaves out a pause from its first frame on, the last 10 frames before it, and
    stretches of less than 16 frames between pauses."""
    key: str = ""
    """The column to look at: joint velocities, actions, a state. None named: all columns of actions and states, in
    which a gripper counts like a joint (droid: `action`)."""
    dims: tuple[Annotated[int, Ge(0)], ...] = ()
    """Dimensions of `--key` to look at, counted from 0; none named: all. A gripper left out may close unseen."""
    difference: bool = True
    """A frame is idle when every value changed by less than the threshold since the frame before; off: when every value
    itself is below it in magnitude."""
    threshold: Annotated[float, Gt(0)] = 1e-3
    """In the columns' own units; of a difference, per frame."""
    min_idle: Annotated[int, Ge(1)] | None = None
    """Idle frames in a row from which on they are left out; shorter pauses stay. None: one second (droid: 7)."""
    min_moving: Annotated[int, Ge(1)] | None = None
    """Frames that a stretch between pauses must have to be kept. None: 1 (droid: 16)."""
    cut_last: Annotated[int, Ge(0)] | None = None
    """Frames cut from the end of each stretch: action chunks that begin there run into the pause. None: 0 (droid:
    10)."""
    name_by: Literal["auto", "episode", "droid"] = "auto"
    """Keys of the file: episode ids, or DROID's "recording_folderpath--file_path"; auto: that where the dataset has
    it."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        found = [] if self.path else ["path: required, the folder of a dataset"]
        folder = Path(self.out).absolute().parent
        if not self.out:
            found.append("out: required, the JSON file to write")
        elif Path(self.out).exists():
            found.append(f"out: {self.out} is there already; name another file, or remove it")
        elif not folder.is_dir():
            found.append(f"out: {folder} is no folder; make it first")
        if self.dims and not self.key and self.preset != "droid":
            found.append("dims: name the column that they are of by --key")
        return found


def ranges(config: RangesConfig) -> None:
    """Write the file and print what it keeps."""
    from understudy.atomic import write_text
    from understudy.data.format.catalog import Catalog
    from understudy.errors import DatasetError

    catalog = Catalog.open(config.path)
    called = _called(catalog, config.name_by)
    kept, facts = found(catalog, config)
    _refuse(facts, catalog.root)
    if Path(config.out).exists():  # since the settings were checked
        raise DatasetError("is there already", where=config.out, fix="name another file")
    lines = [f"  {json.dumps(called[row], ensure_ascii=False)}: {json.dumps(own)}" for row, own in kept.items()]
    write_text(Path(config.out), "{\n" + ",\n".join(lines) + "\n}\n")
    facts |= {"out": config.out}
    print(json.dumps(facts, ensure_ascii=False) if config.json else told(facts, config))


def _refuse(facts: dict[str, Any], where: str) -> None:
    """Raises DatasetError where nothing would be left, or where frames would go although none is idle."""
    from understudy.errors import DatasetError

    rule, kept, frames = facts["rule"], facts["frames_kept"], facts["frames"]
    of = f"{', '.join(facts['keys'])} by a threshold of {rule['threshold']:g}"
    if not facts["frames_idle"] and kept < frames:
        what = f"no frame is idle ({of}), and {frames - kept:,} of {frames:,} frames would go all the same: "
        what += f"--min-moving {rule['min_moving']}, --cut-last {rule['cut_last']}"
        raise DatasetError(what, where=where, fix="give --min-moving 1 --cut-last 0, or train on all frames")
    if not kept:
        what = f"nothing would be kept of {frames:,} frames, of which {facts['frames_idle']:,} are idle ({of})"
        raise DatasetError(what, where=where, fix="give a smaller --threshold, --min-moving or --cut-last")


def found(catalog: "Catalog", config: RangesConfig) -> tuple[dict[int, list[tuple[int, int]]], dict[str, Any]]:
    """(table row -> ranges to keep, of every episode that has frames; what there is to say of them).

    Raises:
        DatasetError: no such column of numbers, or it cannot be read.
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


def told(facts: dict[str, Any], config: RangesConfig) -> str:
    """The summary in words."""
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


def _called(catalog: "Catalog", name_by: str) -> dict[int, str]:
    """Table row -> key of the episode in the file."""
    from understudy.data.selection.keep_keys import droid_keys
    from understudy.errors import DatasetError

    ids = {row: str(int(episode)) for row, episode in enumerate(catalog.episodes.ids)}
    texts = droid_keys(catalog) if name_by != "episode" else {}
    if name_by == "droid" and not texts:
        what = (
            "name_by: the dataset does not hold recording_folderpath and file_path of its episodes, or some share them"
        )
        raise DatasetError(what, where=catalog.root, fix="name by episode")
    return texts or ids


def rule_of(config: RangesConfig, fps: float) -> "IdleRule":
    """The preset's rule with what was named of it."""
    from understudy.data.selection.idle import IdleRule

    droid = config.preset == "droid"
    rule = IdleRule.droid() if droid else IdleRule(min_idle=max(1, round(fps)))
    named = {name: getattr(config, name) for name in ("threshold", "difference", "min_idle", "min_moving", "cut_last")}
    return replace(rule, **{name: value for name, value in named.items() if value is not None})


def _keys(catalog: "Catalog", config: RangesConfig) -> list[str]:
    """The columns to look at."""

    from understudy.errors import DatasetError
    from understudy.report.dataset.facts import row_keys

    known = row_keys(catalog)
    if not config.key and config.preset != "droid":
        if not (keys := [key for key in known if key.startswith(("action", "observation.state"))]):
            what = "no column is called action or observation.state"
            raise DatasetError(what, where=catalog.root, fix=f"name one by --key: {', '.join(known)}")
        return keys
    key = config.key or "action"
    feature = catalog.features.get(key)
    if feature is None or feature.is_camera or feature.is_text:
        what = "there is no such column" if feature is None else f"it is {feature.dtype}"
        raise DatasetError(f"key {key!r}: {what}", where=catalog.root, fix=f"columns of numbers: {', '.join(known)}")
    width = math.prod(feature.value_shape)
    if config.dims and max(config.dims) >= width:
        what = f"dims names {max(config.dims)}, and {key!r} has {width}, counted from 0"
        raise DatasetError(what, where=catalog.root, fix="`inspect` shows them")
    return [key]
