"""`understudy ranges PATH --out keep.json`: finds where the robot moves, and writes keep-ranges without the rest.

Not here: the rule (`data/idle.py`), what is done with the file (`data/select.py`; `data.keep` of a run).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy.declare import Ge, Gt, Positional

if TYPE_CHECKING:
    import numpy as np

    from understudy.data.catalog import Catalog


@dataclass(frozen=True)
class RangesConfig:
    """Find the frames in which a robot moves, and write them as keep-ranges.

    The defaults are openpi's for DROID, where `key` is the commanded joint velocity in rad/s at 15 frames per second;
    for other columns and rates choose a threshold that suits them.
    """

    path: Positional[str] = ""
    """Folder (or URL) of a LeRobot dataset."""
    out: str = ""
    """JSON file to write, as `data.keep` takes it. Required; a file that is there is not overwritten."""
    key: str = "action"
    """The column to look at: joint velocities, actions, a state."""
    dims: tuple[Annotated[int, Ge(0)], ...] = ()
    """Its dimensions to look at, counted from 0 (those of the joints, say, and not of the gripper); none named: all."""
    difference: bool = True
    """A frame is idle when every value changed by less than the threshold since the frame before; off: when every value
    itself is below it in magnitude."""
    threshold: Annotated[float, Gt(0)] = 1e-3
    """In the column's own units; of a difference, per frame."""
    min_idle: Annotated[int, Ge(1)] = 7
    """Idle frames in a row from which on they are left out; shorter pauses stay."""
    min_moving: Annotated[int, Ge(1)] = 16
    """Frames that a stretch between pauses must have to be kept."""
    cut_last: Annotated[int, Ge(0)] = 10
    """Frames cut from the end of each stretch: action chunks that begin there run into the pause."""
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
        return found


def ranges(config: RangesConfig) -> None:
    """Write the file and print what it keeps."""
    from understudy.data.catalog import Catalog
    from understudy.data.errors import DatasetError
    from understudy.train.rundir import write_whole

    catalog = Catalog.open(config.path)
    called = _called(catalog, config.name_by)
    kept, facts = found(catalog, config)
    if not facts["frames_kept"]:
        what = f"nothing would be kept of {facts['frames']:,} frames: {config.key!r} is idle by a threshold of "
        what += f"{config.threshold:g} in {facts['frames_idle']:,}, and no stretch is long enough"
        raise DatasetError(what, where=catalog.root, fix="give a smaller --threshold, --min-moving or --cut-last")
    if Path(config.out).exists():  # since the settings were checked
        raise DatasetError("is there already", where=config.out, fix="name another file")
    lines = [f"  {json.dumps(called[row], ensure_ascii=False)}: {json.dumps(own)}" for row, own in kept.items()]
    write_whole(Path(config.out), "{\n" + ",\n".join(lines) + "\n}\n")
    facts |= {"out": config.out}
    print(json.dumps(facts, ensure_ascii=False) if config.json else told(facts, config))


def found(catalog: "Catalog", config: RangesConfig) -> tuple[dict[int, list[tuple[int, int]]], dict[str, Any]]:
    """(table row -> ranges to keep, of every episode that has frames; what there is to say of them).

    Raises:
        DatasetError: no such column of numbers, or it cannot be read.
    """
    import numpy as np

    from understudy.data.idle import IdleRule, idle_ranges, non_idle_ranges
    from understudy.data.rows import Rows
    from understudy.progress import tqdm

    _check(catalog, config)
    rule = IdleRule(config.threshold, config.difference, config.min_idle, config.min_moving, config.cut_last)
    episodes = catalog.episodes
    rows = Rows(catalog, [config.key], cache_bytes=0)
    by_file = np.argsort(episodes.data_file, kind="stable")  # each file is read once
    kept: dict[int, list[tuple[int, int]]] = {}
    idle = 0
    for row in tqdm(by_file[episodes.lengths[by_file] > 0].tolist(), desc="episodes", unit="", leave=False):
        frames = np.arange(int(episodes.lengths[row]))[None]
        values = np.asarray(rows.take(np.asarray([row]), {config.key: frames})[config.key])[0]
        values = _chosen(values, config.dims)
        kept[row] = non_idle_ranges(values, rule)
        idle += sum(stop - start for start, stop in idle_ranges(values, rule))
    kept = dict(sorted(kept.items()))
    lengths = [stop - start for own in kept.values() for start, stop in own]
    without = [int(episodes.ids[row]) for row, own in kept.items() if not own]
    return kept, {
        "root": catalog.root,
        "key": config.key,
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
    way = "changes" if config.difference else "values"
    lines = [
        f"{facts['out']}: {facts['frames_kept']:,} of {facts['frames']:,} frames kept "
        f"({facts['frames_kept'] / facts['frames']:.1%}), {facts['ranges']:,} ranges of {facts['shortest']} to "
        f"{facts['longest']} frames",
        f"  idle: {way} of {config.key!r} below {config.threshold:g} for {config.min_idle} frames or more, "
        f"{facts['frames_idle']:,} frames; stretches of less than {config.min_moving} frames are left out as well, and "
        f"the last {config.cut_last} of each",
    ]
    if facts["episodes_without"]:
        first = ", ".join(map(str, facts["first_without"])) + (", ..." if facts["episodes_without"] > 5 else "")
        lines.append(
            f"  {facts['episodes_without']:,} of {facts['episodes']:,} episodes are left with nothing: {first}"
        )
    return "\n".join(lines)


def _called(catalog: "Catalog", name_by: str) -> dict[int, str]:
    """Table row -> key of the episode in the file."""
    from understudy.data.errors import DatasetError
    from understudy.data.keep_keys import droid_keys

    ids = {row: str(int(episode)) for row, episode in enumerate(catalog.episodes.ids)}
    texts = droid_keys(catalog) if name_by != "episode" else {}
    if name_by == "droid" and not texts:
        what = (
            "name_by: the dataset does not hold recording_folderpath and file_path of its episodes, or some share them"
        )
        raise DatasetError(what, where=catalog.root, fix="name by episode")
    return texts or ids


def _check(catalog: "Catalog", config: RangesConfig) -> None:
    import numpy as np

    from understudy.data.errors import DatasetError
    from understudy.tools.examine import row_keys

    feature = catalog.features.get(config.key)
    if feature is None or feature.is_picture or feature.is_text:
        what = "there is no such column" if feature is None else f"it is {feature.dtype}"
        known = ", ".join(row_keys(catalog))
        raise DatasetError(f"key {config.key!r}: {what}", where=catalog.root, fix=f"columns of numbers: {known}")
    width = int(np.prod(feature.value_shape, dtype=np.int64))
    if config.dims and max(config.dims) >= width:
        what = f"dims names {max(config.dims)}, and {config.key!r} has {width}, counted from 0"
        raise DatasetError(what, where=catalog.root, fix="`inspect` shows them")


def _chosen(values: "np.ndarray", dims: tuple[int, ...]) -> "np.ndarray":
    """Numbers (L, D): the dimensions asked for."""
    flat = values.reshape(len(values), -1)
    return flat[:, list(dims)] if dims else flat
