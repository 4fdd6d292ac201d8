"""`understudy edit SRC [SRC ...] OUT` and `understudy segment SRC OUT`: new datasets from episodes
of others.
"""

import json
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from understudy_base import DatasetError, Progress, is_taken, plural, strip_credentials
from understudy_kit import Ge, Gt, Ids, Interval, Positional, WorkersConfig
from understudy_tools.cli.ranges import RangesConfig, keys_of, rule_of

if TYPE_CHECKING:
    from understudy_client import RobotFacts
    from understudy_data import Catalog, Encoding, Feature
    from understudy_tools.bucket import Bucket
    from understudy_tools.edit.plan import Piece, Plan, TextColumn
    from understudy_tools.edit.write_set import Written


@dataclass(frozen=True)
class EditConfig(WorkersConfig):
    """Write a new dataset from one or more others: selected, merged, split, renamed, annotated,
    transcoded.

    The output is LeRobot v3.0 in a new folder, which appears complete or not at all; sources of
    v2.0, v2.1 and v3.x are never changed. Several sources are merged. Statistics are computed anew.
    Video packets are copied. An episode cut at a frame that is not a key frame, and each camera
    with `--size`, `--codec`, `--gop` or `--crf`, is encoded again.
    """

    paths: Positional[tuple[str, ...]] = ()
    """Datasets to read (folders or URLs), then the folder to write: a new or an empty one, or one
    in a bucket (`s3://BUCKET/OUT`) with `--work FOLDER`.
    """
    episodes: Ids = ()
    """Ids of the episodes to keep, as in `0-7 12`; the default is all."""
    exclude_episodes: Ids = ()
    """Ids of the episodes to leave out."""
    where: str = ""
    """Condition on the metadata of episodes, as in `success and quality >= 3`. Names are those of
    the metadata, and `episode`, `length`, `seconds`, `task`, `tasks`.
    """
    exclude_bad: str = ""
    """File of `understudy check --skip-bad`, or output of `understudy check --json`: leave its bad
    episodes out.
    """
    keep_ranges: str = ""
    """JSON file of keep-ranges; each range becomes an episode, and episodes without a key are left
    out.
    """
    drop_n_first_frames: Annotated[int, Ge(0)] = 0
    """Frames to leave out at the start of each episode."""
    drop_n_last_frames: Annotated[int, Ge(0)] = 0
    """Frames to leave out at the end of each episode."""
    split: tuple[str, ...] = ()
    """Parts of the output, each a dataset in a folder of its own: NAME=SHARE (`train=0.9 val=0.1`)
    or NAME=IDS (`train=0-7 val=8,9`).
    """
    seed: int = 0
    """Seed of the random order in which shares divide the episodes."""
    rename: tuple[str, ...] = ()
    """Features to rename: OLD=NEW."""
    drop_features: tuple[str, ...] = ()
    """Features to leave out."""
    cast: tuple[str, ...] = ()
    """Features to convert: KEY=DTYPE. A value that the dtype cannot hold is an error."""
    pairing: Literal["", "files", "columns"] = ""
    """Side that decides where names (places) of data files and their columns (`episode_index`) name
    different episodes: `files` if data files and videos were renamed or joined together, `columns`
    if data files alone were. By default such episodes are refused in a dataset with videos.
    """
    lengths: Literal["recorded", "rows"] = "recorded"
    """Lengths of episodes: `recorded` in meta/, or those of the `rows` where these are whole and
    videos have as many frames, so that only meta/ is wrong.
    """
    ignore_names: bool = False
    """Merge sources whose dimensions have other names; those of the first are kept."""
    robot_type: str = ""
    """Robot type of the output; the default is that of the sources."""
    task: str = ""
    """Task text of all frames, instead of theirs."""
    tasks: str = ""
    """JSON file of task texts to change: {"old text": "new text"}."""
    metadata: str = ""
    """JSON or CSV file with metadata of all episodes (docs/datasets.md): success, quality, operator
    and others.
    """
    subtasks: str = ""
    """JSON or CSV file with the subtasks of frames (docs/datasets.md), written as the text column
    `--subtask-key`."""
    subtasks_from: str = ""
    """Text column, or `COLUMN:STYLE` of a language column, to write as the column `--subtask-key`.
    """
    subtask_key: str = "subtask"
    """Key of the column that `--subtasks` or `--subtasks-from` writes."""
    unit: Literal["seconds", "frames"] = "seconds"
    """Unit of the times in the file of subtasks."""
    size: str = ""
    """Size of the images: `224` for the longer side with the aspect ratio kept, or `WIDTHxHEIGHT`.
    """
    codec: Literal["", "libx264", "libx265", "libsvtav1"] = ""
    """Encoder of the videos; the default is that of their codec."""
    gop: Annotated[int, Interval(ge=1, le=1_000_000)] | None = None
    """Frames from key frame to key frame; the default is the source's."""
    crf: Annotated[int, Interval(ge=0, le=63)] | None = None
    """Quality on the encoder's own scale, less is better. The default is 22, 24 and 20 for libx264,
    libx265 and libsvtav1, and 6 less where the source has the same codec and size.
    """
    cameras: tuple[str, ...] = ()
    """Cameras that `--size`, `--codec`, `--gop` and `--crf` are for; the default is all."""
    add_video: tuple[str, ...] = ()
    """Camera to add, and the video file of its images: KEY FILE. Each frame gets the image that the
    video shows nearest to its time. `{episode}` in FILE is the id of an episode, where each has a
    video. `--size`, `--codec`, `--gop` and `--crf` are for it, too; the default is the encoding of
    the first camera.
    """
    start: str = ""
    """Seconds in the video at which its first episode begins, and the others follow without a gap;
    with `{episode}` in FILE the start of each episode. Or a JSON file {"0": 12.5, ...}, or a CSV
    file with the columns episode_index and start, of each episode's first recorded frame.
    """
    on_uncovered: Literal["error", "drop"] = "error"
    """Episodes that leave the video to add: an error, or left out and named."""
    skip_bad: bool = False
    """Leave out episodes that cannot be read or that end three processes; they are named, and the
    exit code is 1.
    """
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = output_problems(self.paths, "edit", self.work) + self.worker_problems()
        edits = {
            "episodes": self.episodes,
            "exclude_episodes": self.exclude_episodes,
            "exclude_bad": self.exclude_bad,
        }
        edits |= {
            "pairing": self.pairing,
            "keep_ranges": self.keep_ranges,
            "metadata": self.metadata,
            "subtasks": self.subtasks,
            "add_video": self.add_video,
        }
        if len(self.paths) > 2:
            errors += [
                f"{name}: is for one source: edit the sources first, then merge"
                for name, on in edits.items()
                if on
            ]
        errors += pair_problems("rename", self.rename) + pair_problems("cast", self.cast)
        if self.add_video and len(self.add_video) != 2:
            errors.append("add_video: give the key of the camera and a file: --add-video KEY FILE")
        if not self.add_video and (self.start or self.on_uncovered != "error"):
            errors.append("add_video: required by --start and --on-uncovered")
        if self.task and self.tasks:
            errors.append("task: give either one text for all frames, or `tasks`")
        if self.subtasks and self.subtasks_from:
            errors.append("subtasks: give either a file, or `subtasks_from`")
        if self.pairing and self.lengths == "rows":
            errors.append(
                "lengths: give either `rows` or a pairing: edit with the pairing first, then its "
                "output"
            )
        if (self.crf or 0) > 51 and self.codec in ("libx264", "libx265"):
            errors.append(f"crf: {self.crf}: the scale of {self.codec} ends at 51")
        if self.cameras and not self.encodes():
            errors.append("cameras: name cameras together with --size, --codec, --gop or --crf")
        return errors

    def encodes(self) -> bool:
        """Return whether videos are to be encoded again."""
        return bool(self.size or self.codec or self.gop is not None or self.crf is not None)


def output_problems(paths: Sequence[str], command: str, work: str | None = None) -> list[str]:
    """List errors of the positional arguments; with a setting `work`, the output can be in a
    bucket.
    """
    if len(paths) < 2:
        return [
            f"paths: required, the dataset to read and the folder to write: understudy {command} "
            "SRC OUT"
        ]
    protocol, separator, _ = paths[-1].partition("://")
    if separator and (work is None or protocol in ("file", "hf", "http", "https")):
        fix = "name a folder of this machine; `understudy push` publishes it on the hub"
        return [f"paths: {strip_credentials(paths[-1])} is not writable here; {fix}"]
    if separator:
        if work:
            return []
        return [
            "work: required for an output in a bucket: a folder for files until they are uploaded"
        ]
    if is_taken(paths[-1]):
        return [f"paths: {paths[-1]} exists; name a new folder, nothing is overwritten"]
    return []


def pair_problems(name: str, pairs: Sequence[str]) -> list[str]:
    """List errors of settings of the form KEY=VALUE."""
    bad = [pair for pair in pairs if not all(pair.partition("="))]
    keys = [pair.partition("=")[0] for pair in pairs]
    repeated = [key for key in dict.fromkeys(keys) if keys.count(key) > 1]
    return [f"{name}: {pair}: give KEY=VALUE" for pair in bad] + [
        f"{name}: {key}: is repeated" for key in repeated
    ]


def edit(config: EditConfig) -> int:
    """Write the output and print a summary; return 1 if episodes were left out as bad."""
    from understudy_data import Catalog

    out = open_output(config.paths[-1])
    catalogs = [Catalog.open(path, pairing=config.pairing or None) for path in config.paths[:-1]]
    if config.lengths == "rows":
        catalogs = [_with_lengths_of_rows(catalog) for catalog in catalogs]
    return write_and_print(make_plans(config, catalogs, out), out, config)


def _with_lengths_of_rows(catalog: "Catalog") -> "Catalog":
    """Return a catalog with the lengths of whole rows, and name the episodes whose length
    changes.
    """
    from understudy_data import Catalog, FileCheck

    counted = FileCheck(catalog).counted()
    changed = counted.episodes.lengths != catalog.episodes.lengths
    if changed.any():
        count = plural(int(changed.sum()), "episode has", "episodes have")
        ids = Catalog.describe_ids(catalog.episodes.ids[changed])
        warnings.warn(
            f"{catalog.root}: {count} the length of its rows, not that of meta/: {ids}",
            stacklevel=2,
        )
    return counted


def open_output(path: str) -> "Path | Bucket":
    """Return the folder of a path or URL."""
    from understudy_tools.bucket import Bucket

    return Bucket(path) if "://" in path else Path(path)


def make_plans(
    config: EditConfig, catalogs: Sequence["Catalog"], out: "Path | Bucket"
) -> dict[str, "Plan"]:
    """Return the datasets to write by name; one dataset has the name ""."""
    from understudy_tools.edit.annotations import piece_metadata, read_metadata
    from understudy_tools.edit.features import (
        common_features,
        common_rate,
        common_robot,
        edit_features,
        resized,
        resized_feature,
    )
    from understudy_tools.edit.plan import Plan, split_pieces
    from understudy_tools.edit.write_set import check_output

    check_output(out, catalogs)
    casts = dict(_pairs(config.cast))
    sources = edit_features(catalogs, dict(_pairs(config.rename)), config.drop_features, casts)
    encode, sizes = _encodings(config, sources)
    compared = [resized(source, source_sizes) for source, source_sizes in zip(sources, sizes)]
    features = common_features(compared, config.ignore_names)
    features |= {key: resized_feature(features[key], size) for key, size in sizes[0].items()}
    texts = _texts(config, sources)
    features |= {key: _text_feature(key, features) for key in texts}
    pieces = _pieces(config, sources)
    attached = read_metadata(sources[0], config.metadata) if config.metadata else {}
    plan = Plan(
        sources=sources,
        pieces=tuple(pieces),
        features=features,
        fps=common_rate(sources),
        robot_type=common_robot(sources, config.robot_type),
        task_of=_task_of(config, sources),
        columns=texts,
        encode=encode,
        skip_bad=config.skip_bad,
    )
    if config.add_video:
        plan = _with_video(config, plan)
    parts: dict[str, list[Piece]] = {"": list(plan.pieces)}
    if config.split:
        parts = split_pieces(sources, plan.pieces, config.split, config.seed)
    return {
        name: replace(plan, pieces=tuple(part), metadata=piece_metadata(sources, part, attached))
        for name, part in parts.items()
    }


def _with_video(config: EditConfig, plan: "Plan") -> "Plan":
    """Return the plan with the camera of `add_video`."""
    from understudy_data import Encoding
    from understudy_tools.edit.add_video import VideoToAdd

    key, path = config.add_video
    video = VideoToAdd(key, path, config.start, config.on_uncovered)
    if not config.cameras or key in config.cameras:
        encoding = Encoding(None, config.codec or None, config.gop, config.crf)
        video = replace(video, encoding=encoding, size=config.size)
    return video.add(plan)


def _pairs(pairs: Sequence[str]) -> list[tuple[str, str]]:
    return [(pair.partition("=")[0], pair.partition("=")[2]) for pair in pairs]


def _pieces(config: EditConfig, sources: Sequence["Catalog"]) -> list["Piece"]:
    from understudy_data import Selection
    from understudy_tools.edit.plan import read_bad_episodes, select_pieces

    drop = list(config.exclude_episodes)
    if config.exclude_bad:
        drop += read_bad_episodes(config.exclude_bad)
    selection = replace(Selection.of(config), exclude_episodes=drop)
    pieces: list[Piece] = []
    for number, source in enumerate(sources):
        pieces += select_pieces(source, number, selection)
    return pieces


def _texts(config: EditConfig, sources: Sequence["Catalog"]) -> dict[str, "TextColumn"]:
    from understudy_tools.edit.annotations import read_subtasks, text_column

    if config.subtasks:
        return {config.subtask_key: read_subtasks(sources[0], config.subtasks, config.unit)}
    if config.subtasks_from:
        columns = [text_column(source, config.subtasks_from) for source in sources]
        return {config.subtask_key: partial(_source_texts, columns)}
    return {}


def _source_texts(columns: "Sequence[TextColumn]", piece: "Piece") -> Sequence[str]:
    return columns[piece.source](piece)


def _text_feature(key: str, features: Mapping[str, object]) -> "Feature":
    from understudy_data import Feature

    if key in features:
        raise DatasetError(
            f"subtask_key is {key!r}, which exists",
            fix="drop or rename that feature, or name another",
        )
    try:
        return Feature.text(key)
    except ValueError as error:
        raise DatasetError(f"subtask_key: {error}") from None


def _task_of(config: EditConfig, sources: Sequence["Catalog"]) -> "Callable[[Piece, str], str]":
    from understudy_tools.edit.annotations import read_tasks

    texts: list[str] = []
    for source in sources:
        texts += source.tasks
    changed = read_tasks(config.tasks, texts) if config.tasks else {}
    return partial(_change_task, config.task, changed)


def _change_task(task: str, changed: Mapping[str, str], piece: "Piece", text: str) -> str:
    return task or changed.get(text, text)


def _encodings(
    config: EditConfig, sources: Sequence["Catalog"]
) -> tuple[dict[str, "Encoding"], list[dict[str, tuple[int, int]]]]:
    """Encoding of each camera, and for each source the new (height, width) of cameras that are
    resized.
    """
    from understudy_data import Encoding
    from understudy_tools.edit.features import fit_size, parse_size

    videos = [key for key, feature in sources[0].features.items() if feature.is_video]
    for key in config.cameras:
        if key not in (*videos, *config.add_video[:1]):
            fix = f"its video cameras: {', '.join(videos) or 'none'}"
            raise DatasetError(f"cameras names {key!r}", where=sources[0].root, fix=fix)
    if not config.encodes():
        return {}, [{} for _ in sources]
    encode: dict[str, Encoding] = {}
    sizes: list[dict[str, tuple[int, int]]] = [{} for _ in sources]
    chosen = [key for key in videos if not config.cameras or key in config.cameras]
    for key in chosen:
        encode[key] = Encoding(None, config.codec or None, config.gop, config.crf)
        for source, source_sizes in zip(sources, sizes):
            if (
                config.size
                and key in source.features
                and (size := source.features[key].size) is not None
            ):
                source_sizes[key] = fit_size(size, parse_size(config.size))
                encode[key] = replace(encode[key], size=source_sizes[key])
    return encode, sizes


@dataclass(frozen=True)
class SegmentConfig(WorkersConfig):
    """Cut episodes into segments: at given times, where a text column changes, or at idle gaps.

    Each segment becomes an episode of a new LeRobot v3.0 dataset, with the metadata of its episode.
    Video packets are copied where a segment begins at a key frame; other segments are encoded
    again.
    """

    paths: Positional[tuple[str, ...]] = ()
    """Dataset to read (a folder or URL), then the folder to write: a new or an empty one, or one in
    a bucket (`s3://BUCKET/OUT`) with `--work FOLDER`.
    """
    times: str = ""
    """JSON file, key of an episode -> cut points [1.5, 4] or segments [[0, 1.5], [2, 4]]. Episodes
    without a key are left out.
    """
    unit: Literal["seconds", "frames"] = "seconds"
    """Unit of the times in files."""
    by: str = ""
    """Cut where the text of this column differs from the frame before: a text column,
    `COLUMN:STYLE` of a language column, or `task`. Frames with an empty text are left out. `pauses`
    cuts at idle gaps and leaves them out; a dataset without any is refused.
    """
    subtasks: str = ""
    """JSON or CSV file with the subtasks of frames (docs/datasets.md): cut where they change."""
    task_from_text: bool = False
    """Make the text of a segment its task; for `--by COLUMN` and `--subtasks`."""
    keys: tuple[str, ...] = ()
    """Columns that are compared for idle gaps; the default is all of actions and states."""
    threshold: Annotated[float, Gt(0)] | None = None
    """A frame is idle when all values changed by less than this, in the columns' units. The default
    is that of `understudy ranges`: a share of each dimension's own speed.
    """
    min_idle: Annotated[int, Ge(1)] | None = None
    """Idle frames of a gap at least; the default is one second."""
    min_frames: Annotated[int, Ge(1)] = 1
    """Frames of a segment at least; shorter ones are left out."""
    skip_bad: bool = False
    """Leave out episodes that cannot be read or that end three processes; they are named, and the
    exit code is 1.
    """
    json: bool = False
    """Print the summary as one JSON object."""

    def problems(self) -> list[str]:
        """List errors in the settings, one line each."""
        errors = output_problems(self.paths, "segment", self.work) + self.worker_problems()
        if len(self.paths) > 2:
            errors.append(
                "paths: give one dataset and the folder to write; merge with `understudy edit`"
            )
        if sum(map(bool, (self.times, self.by, self.subtasks))) != 1:
            errors.append("by: give one of --times FILE, --by COLUMN, --by pauses, --subtasks FILE")
        if self.by != "pauses" and (
            self.keys or self.min_idle is not None or self.threshold is not None
        ):
            errors.append("by: --keys, --threshold and --min-idle are for --by pauses")
        if self.task_from_text and (self.times or self.by == "pauses"):
            errors.append("task_from_text: needs a text: --by COLUMN or --subtasks FILE")
        return errors


def segment(config: SegmentConfig) -> int:
    """Write the output and print a summary; return 1 if segments were left out as bad."""
    from understudy_data import open_episodes

    out = open_output(config.paths[-1])
    plan = make_plan(config, open_episodes(config.paths[0]), out)
    return write_and_print({"": plan}, out, config)


def make_plan(config: SegmentConfig, catalog: "Catalog", out: "Path | Bucket") -> "Plan":
    """Return the dataset to write."""
    from understudy_tools.edit.annotations import piece_metadata, read_subtasks, text_column
    from understudy_tools.edit.features import common_features, edit_features
    from understudy_tools.edit.plan import Plan, cut_at_pauses, cut_at_times, cut_by_text
    from understudy_tools.edit.write_set import check_output

    check_output(out, [catalog])
    sources = edit_features([catalog], {}, (), {})
    source = sources[0]
    texts = None
    if config.times:
        pieces = cut_at_times(source, 0, config.times, config.unit)
    elif config.by == "pauses":
        ranges = RangesConfig(
            keys=config.keys, threshold=config.threshold, min_idle=config.min_idle
        )
        keys = keys_of(ranges, source)
        pieces = cut_at_pauses(source, 0, keys, rule_of(ranges, source, keys))
    else:
        subtasks_file = config.subtasks
        if subtasks_file:
            texts = read_subtasks(source, subtasks_file, config.unit)
        else:
            texts = text_column(source, config.by)
        pieces = cut_by_text(source, 0, texts)
    _check_cut(config, source, pieces)
    pieces = _long_enough(pieces, config.min_frames, source)
    named = {}
    if texts is not None and config.task_from_text:
        named = {piece: texts(piece)[0] for piece in pieces}
    return Plan(
        sources=sources,
        pieces=tuple(pieces),
        features=common_features(sources),
        fps=catalog.fps,
        robot_type=catalog.robot_type,
        task_of=partial(_name_task, named),
        metadata=piece_metadata(sources, pieces, {}),
        skip_bad=config.skip_bad,
    )


def _name_task(named: "Mapping[Piece, str]", piece: "Piece", text: str) -> str:
    return named.get(piece, text)


def _check_cut(config: SegmentConfig, source: "Catalog", pieces: "Sequence[Piece]") -> None:
    """Refuse pauses that cut nothing, and warn of texts and times that do: the output would be a
    copy of the source.

    Raises:
        DatasetError: `by` is `pauses`, and no episode has a gap.
    """
    whole = [
        (row, 0, length) for row, length in enumerate(source.episodes.lengths.tolist()) if length
    ]
    if [(piece.row, piece.start, piece.stop) for piece in pieces] != whole:
        return
    problem = f"none of {len(whole)} episodes is cut"
    if config.by != "pauses":
        warnings.warn(f"{source.root}: {problem}: the output has the same episodes", stacklevel=2)
        return
    gap = f"{config.min_idle} idle frames" if config.min_idle else "one second"
    fix = (
        "give a smaller --min-idle or a larger --threshold; `understudy edit SRC OUT` makes a copy"
    )
    raise DatasetError(f"{problem}: there is no pause of {gap}", where=source.root, fix=fix)


def _long_enough(pieces: "Sequence[Piece]", least: int, source: "Catalog") -> "list[Piece]":
    long_pieces = [piece for piece in pieces if piece.length >= least]
    if not long_pieces:
        problem = f"no segment of {least} frames or more is left of {len(pieces)}"
        raise DatasetError(
            problem, where=source.root, fix="cut less, or give a smaller --min-frames"
        )
    return long_pieces


_LARGER = 2.0
"""Ratio of bytes from which a summary names `--crf`."""


def write_and_print(
    plans: "Mapping[str, Plan]", out: "Path | Bucket", config: EditConfig | SegmentConfig
) -> int:
    """Write datasets into the new folder `out`, and print a summary; return 1 if something was left
    out as bad.
    """
    from understudy_data import Workers
    from understudy_tools.edit.write_set import write_outputs

    plans = {name: replace(plan, files=state_contract(plan)) for name, plan in plans.items()}
    total = sum(plan.work for plan in plans.values())
    pool = Workers(config.processes(total), config.ray, config.work, apart=config.skip_bad)
    with pool as workers, Progress(total, "edit", "frame") as bar:
        written = write_outputs(plans, out, ["understudy", *sys.argv[1:]], workers, bar.update)
    facts: dict[str, dict[str, Any]] = {}
    for name, output in written.items():
        root = f"{out}/{name}" if name else str(out)
        facts[name] = describe(output, root)
    if config.json:
        printed = facts[""] if list(facts) == [""] else facts
        print(json.dumps(printed, ensure_ascii=False))
    else:
        lines: list[str] = []
        for output_facts in facts.values():
            lines += format_summary(output_facts)
        print("\n".join(lines))
    return int(any(output.skipped for output in written.values()))


def state_contract(plan: "Plan") -> dict[str, Any]:
    """Return meta/contract.json of an output by its path: statements of the sources that hold for
    it, too.

    Returns:
        {} where sources state different facts, or one states none.
    """
    from understudy_client import Contract, RobotFacts

    path = f"meta/{Contract.FILE}"
    contracts = []
    for source in plan.sources:
        if not source.files.exists(path):
            return {}
        robot = _hold(
            RobotFacts.read_stated(source.read_json(path), source.files.where(path)),
            plan,
            source.stored_names,
        )
        contracts.append(Contract({"": robot}, kind="dataset").to_json())
    return {path: contracts[0]} if all(contract == contracts[0] for contract in contracts) else {}


def _hold(robot: "RobotFacts", plan: "Plan", stored_names: Mapping[str, str]) -> "RobotFacts":
    """Return the statements about a robot that hold for the output: its keys, names, sizes and
    rate; no figures.
    """
    from understudy_client import VectorFacts

    outputs = {stored_names.get(key, key): feature for key, feature in plan.features.items()}
    vectors: dict[str, VectorFacts | None] = {}
    for name in ("state", "action"):
        vector: VectorFacts | None = getattr(robot, name)
        feature = outputs.get(vector.key) if vector is not None else None
        vectors[name] = None
        if (
            vector is not None
            and feature is not None
            and tuple(feature.dimension_names) == vector.names
        ):
            unknown = VectorFacts.unmeasured(feature.key, vector.names)
            vectors[name] = replace(
                vector,
                key=feature.key,
                figures=unknown.figures,
                normalization=unknown.normalization,
            )
    cameras = {}
    for camera in robot.cameras.values():
        if (feature := outputs.get(camera.key)) is not None:
            cameras[feature.key] = replace(
                camera, key=feature.key, size=feature.size or (0, 0), look=None
            )
    return replace(
        robot,
        fps=float(plan.fps),
        robot_type=plan.robot_type or "",
        state=vectors["state"],
        action=vectors["action"] or VectorFacts.unmeasured("", ()),
        cameras=cameras,
        tasks=(),
        tasks_left_out=0,
        episodes=0,
    )


def describe(written: "Written", root: str) -> dict[str, Any]:
    """Return the facts of one output; cameras that were encoded again have quality and decode
    cost.
    """
    from understudy_data import Catalog
    from understudy_tools.edit.decode_cost import measure_cost

    plan = written.plan
    skipped_features = dict[str, str]()
    for source in plan.sources:
        skipped_features |= source.skipped_features
    facts: dict[str, Any] = {
        "root": root,
        "episodes": written.episodes,
        "frames": written.frames,
        "tasks": written.tasks,
        "timestamps_rewritten": written.clocks,
        "undeclared_columns": written.undeclared,
        "skipped_features": skipped_features,
        "cameras": {},
        "skipped": written.skipped,
        "left_out": written.left_out,
    }
    output = Catalog.open(root)
    for key in plan.cameras:
        videos = written.videos[key]
        camera: dict[str, Any] = {"copied": videos.copied, "encoded": len(videos.encoded)}
        camera |= {"bytes_before": videos.bytes_before, "bytes": videos.bytes}
        if key in plan.added:
            camera["added"] = plan.added[key].path
        if videos.encoded:
            quality = videos.quality
            camera |= {
                "images_compared": quality.images,
                "psnr_db": _finite(quality.psnr),
                "ssim": quality.ssim,
            }
        if key in plan.encode and key not in plan.added:
            cost = measure_cost(plan.sources, plan.pieces, output, key)
            camera |= {"decode_ms_before": asdict(cost[0]), "decode_ms": asdict(cost[1])}
        facts["cameras"][key] = camera
    return facts


def format_summary(facts: Mapping[str, Any]) -> list[str]:
    """Format the facts for a terminal."""
    counts = ", ".join(plural(facts[f"{unit}s"], unit) for unit in ("episode", "frame", "task"))
    lines = [f"{facts['root']}: {counts}"]
    for key, camera in facts["cameras"].items():
        sizes = f"{_size(camera['bytes_before'])} -> {_size(camera['bytes'])}"
        lines.append(
            f"  {key}: {plural(camera['copied'], 'episode')} copied, {camera['encoded']:,} "
            f"encoded, {sizes}"
        )
        if camera["encoded"]:
            compared = f"{camera['images_compared']:,} images compared"
            psnr = "equal images"
            if camera["psnr_db"] is not None:
                psnr = f"PSNR {camera['psnr_db']:.1f} dB"
            lines.append(f"    {psnr}, SSIM {camera['ssim']:.4f} ({compared})")
        is_larger = camera["bytes"] > _LARGER * camera["bytes_before"] > 0
        if camera["encoded"] and is_larger and "added" not in camera:
            lines.append(
                f"    {camera['bytes'] / camera['bytes_before']:.1f} times the bytes: other cuts "
                f"than at key frames encode; `understudy edit {facts['root']} OUT --crf N` with a "
                "larger N makes them smaller"
            )
        if "decode_ms" in camera:
            old_cost = camera["decode_ms_before"]
            new_cost = camera["decode_ms"]
            lines.append(
                f"    decoding, CPU ms per image: {old_cost['stretch']:.3f} -> "
                f"{new_cost['stretch']:.3f} in a row, {old_cost['single']:.3f} -> "
                f"{new_cost['single']:.3f} at random places"
            )
    if facts["timestamps_rewritten"]:
        lines.append(
            f"  timestamps of {facts['timestamps_rewritten']:,} episodes differed from frame / "
            "fps; now equal"
        )
    lines += [
        f"  column {name} is not declared in info.json: left out"
        for name in facts["undeclared_columns"]
    ]
    lines += [f"  {key} {why}: left out" for key, why in facts["skipped_features"].items()]
    lines += [f"  {line}" for line in facts["left_out"]]
    if skipped := facts["skipped"]:
        lines.append(f"  {plural(len(skipped), 'bad episode')} left out")
        lines += [
            f"    episode {bad['episode']} of source {bad['source']}: {bad['reason']}"
            for bad in skipped
        ]
    return lines


def _finite(psnr: float) -> float | None:
    """PSNR as JSON holds it; None for equal images."""
    return psnr if isfinite(psnr) else None


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.1f} kB"
