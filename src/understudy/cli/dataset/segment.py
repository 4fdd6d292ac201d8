"""`understudy segment SRC OUT`: cut episodes into segments, each an episode of a new dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from understudy.cli.dataset.edit import output_problems
from understudy.cli.ranges import RangesConfig, keys_of, rule_of
from understudy.config.declare import Ge, Gt, Positional

if TYPE_CHECKING:
    from understudy.data.format.catalog import Catalog
    from understudy.edit.plan import Piece, Plan


@dataclass(frozen=True)
class SegmentConfig:
    """Cut episodes into segments: at given times, where a text column changes, or at idle gaps.

    Each segment becomes an episode of a new LeRobot v3.0 dataset, with the metadata of its episode. Video packets are
    copied where a segment begins at a key frame; other segments are encoded again.
    """

    paths: Positional[tuple[str, ...]] = ()
    """Dataset to read (a folder or URL), then the folder to write: a new or an empty one."""
    times: str = ""
    """JSON file, key of an episode -> cut points [1.5, 4] or segments [[0, 1.5], [2, 4]]. Episodes without a key are
    left out."""
    unit: Literal["seconds", "frames"] = "seconds"
    """Unit of the times in files."""
    by: str = ""
    """Cut where the text of this column differs from the frame before: a text column, `COLUMN:STYLE` of a language
    column, or `task`. Frames with an empty text are left out. `pauses` cuts at idle gaps and leaves them out; a dataset
    without any is refused."""
    subtasks: str = ""
    """JSON or CSV file with the subtasks of frames (docs/datasets.md): cut where they change."""
    task_from_text: bool = False
    """Make the text of a segment its task; for `--by COLUMN` and `--subtasks`."""
    keys: tuple[str, ...] = ()
    """Columns that are compared for idle gaps; the default is all of actions and states."""
    threshold: Annotated[float, Gt(0)] | None = None
    """A frame is idle when all values changed by less than this, in the columns' units. The default is that of
    `understudy ranges`: a share of each dimension's own speed."""
    min_idle: Annotated[int, Ge(1)] | None = None
    """Idle frames of a gap at least; the default is one second."""
    min_frames: Annotated[int, Ge(1)] = 1
    """Frames of a segment at least; shorter ones are left out."""
    num_workers: Annotated[int, Ge(1)] | None = None
    """Threads; the default is one per core."""
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        found = output_problems(self.paths, "segment")
        if len(self.paths) > 2:
            found.append("paths: give one dataset and the folder to write; merge with `understudy edit`")
        if sum(map(bool, (self.times, self.by, self.subtasks))) != 1:
            found.append("by: give one of --times FILE, --by COLUMN, --by pauses, --subtasks FILE")
        if self.by != "pauses" and (self.keys or self.min_idle is not None or self.threshold is not None):
            found.append("by: --keys, --threshold and --min-idle are for --by pauses")
        if self.task_from_text and (self.times or self.by == "pauses"):
            found.append("task_from_text: needs a text: --by COLUMN or --subtasks FILE")
        return found


def segment(config: SegmentConfig) -> None:
    """Write the output and print a summary."""
    from understudy.cli.dataset.summary import write_and_print
    from understudy.data.format.catalog import Catalog

    out = Path(config.paths[-1])
    plan = make_plan(config, Catalog.open(config.paths[0]), out)
    write_and_print({"": plan}, out, config.num_workers, config.json)


def make_plan(config: SegmentConfig, catalog: "Catalog", out: Path) -> "Plan":
    """Return the dataset to write."""
    from understudy.edit.annotations import piece_metadata, read_subtasks, text_column
    from understudy.edit.features import common_features, edit_features
    from understudy.edit.plan import Plan, cut_at_pauses, cut_at_times, cut_by_text
    from understudy.edit.write_set import check_output

    check_output(out, [catalog])
    sources = edit_features([catalog], {}, (), {})
    source = sources[0]
    texts = None
    if config.times:
        pieces = cut_at_times(source, 0, config.times, config.unit)
    elif config.by == "pauses":
        ranges = RangesConfig(keys=config.keys, threshold=config.threshold, min_idle=config.min_idle)
        keys = keys_of(ranges, source)
        pieces = cut_at_pauses(source, 0, keys, rule_of(ranges, source, keys))
    else:
        given = config.subtasks
        texts = read_subtasks(source, given, config.unit) if given else text_column(source, config.by)
        pieces = cut_by_text(source, 0, texts)
    _check_cut(config, source, pieces)
    pieces = _long_enough(pieces, config.min_frames, source)
    named = {piece: texts(piece)[0] for piece in pieces} if texts is not None and config.task_from_text else {}
    return Plan(
        sources=sources,
        pieces=tuple(pieces),
        features=common_features(sources),
        fps=catalog.fps,
        robot_type=catalog.robot_type,
        task_of=lambda piece, text: named.get(piece, text),
        metadata=piece_metadata(sources, pieces, {}),
    )


def _check_cut(config: SegmentConfig, source: "Catalog", pieces: "Sequence[Piece]") -> None:
    """Refuse pauses that cut nothing, and warn of texts and times that do: the output would be a copy of the source.

    Raises:
        DatasetError: `by` is `pauses`, and no episode has a gap.
    """
    import warnings

    from understudy.errors import DatasetError

    whole = [(row, 0, length) for row, length in enumerate(source.episodes.lengths.tolist()) if length]
    if [(piece.row, piece.start, piece.stop) for piece in pieces] != whole:
        return
    what = f"none of {len(whole)} episodes is cut"
    if config.by != "pauses":
        warnings.warn(f"{source.root}: {what}: the output has the same episodes", stacklevel=2)
        return
    gap = f"{config.min_idle} idle frames" if config.min_idle else "one second"
    fix = "give a smaller --min-idle or a larger --threshold; `understudy edit SRC OUT` makes a copy"
    raise DatasetError(f"{what}: there is no pause of {gap}", where=source.root, fix=fix)


def _long_enough(pieces: "Sequence[Piece]", least: int, source: "Catalog") -> "list[Piece]":
    from understudy.errors import DatasetError

    kept = [piece for piece in pieces if piece.length >= least]
    if not kept:
        what = f"no segment of {least} frames or more is left of {len(pieces)}"
        raise DatasetError(what, where=source.root, fix="cut less, or give a smaller --min-frames")
    return kept
