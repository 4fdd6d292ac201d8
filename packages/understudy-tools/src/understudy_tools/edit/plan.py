"""Description of the dataset to write: its episodes as pieces of source episodes, its features,
tasks and videos.

Pieces are selected by id, condition, finding and ranges of frames, or cut at given times, where a
text column changes, or at idle gaps.
"""

import hashlib
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from understudy_base import MOST_IDS, DatasetError, Record, parse_ids
from understudy_data import (
    Catalog,
    Encoding,
    EpisodeNames,
    Feature,
    Lost,
    Part,
    Selection,
    VideoClip,
    Workers,
)
from understudy_tools.bucket import Bucket
from understudy_tools.motion import FindRanges, IdleRule


@dataclass(frozen=True)
class Piece:
    """One episode of the output: frames [start, stop) of one episode of a source.

    Attributes:
        source: number of the source.
        row: table row of its episode.
        start: first frame.
        stop: frame after the last one.
    """

    source: int
    row: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of frames."""
        return self.stop - self.start

    @property
    def frames(self) -> np.ndarray:
        """Frame numbers in the source's episode, int64 (length,)."""
        return np.arange(self.start, self.stop)


TextColumn = Callable[[Piece], Sequence[str]]
"""Texts of a new column for each frame of a piece."""
NumberColumn = Callable[[Piece], np.ndarray]
"""Numbers of a new column for each frame of a piece, (length, *shape) in the dtype of its feature.
"""


def same_task(piece: Piece, text: str) -> str:
    """Return the text."""
    return text


@dataclass(frozen=True)
class Base:
    """Counts of a dataset to whose end the output is appended, and its tasks. Files are numbered
    from 0 on disk.
    """

    episodes: int = 0
    frames: int = 0
    files: int = 0
    tasks: tuple[str, ...] = ()


class NewVideo(Protocol):
    """Videos of a new camera (`add_video.AddedVideo`)."""

    @property
    def path(self) -> str:
        """Path of the file."""

    def clips(self, plan: "Plan") -> Callable[[Piece], VideoClip]:
        """Return what gives the frames of a piece in the videos."""


@dataclass(frozen=True)
class Plan:
    """A dataset to write. Picklable: its functions are module-level ones and partial calls of them.

    Attributes:
        sources: catalogs, under the output's keys and dtypes (`features.py`).
        pieces: the episodes of the output, in order.
        features: the output's features, without the five default columns.
        fps: frames per second.
        robot_type: as info.json holds it.
        task_of: (piece, task text of a frame) -> text in the output.
        columns: new columns by key.
        origin: further entries of meta/edit.json, by name.
        metadata: values of the pieces by name, None where a piece has none.
        encode: cameras to encode completely.
        added: new cameras, from videos apart from the sources.
        files: contents of further JSON files of the output by path.
        skip_bad: leave pieces that cannot be read out, in place of an error.
        base: the dataset to whose end it is appended.
        bucket: receives each finished data and video file.
    """

    sources: tuple[Catalog, ...]
    pieces: tuple[Piece, ...]
    features: Mapping[str, Feature]
    fps: float
    robot_type: str | None
    task_of: Callable[[Piece, str], str] = same_task
    columns: Mapping[str, TextColumn | NumberColumn] = field(default_factory=dict)
    origin: Record = field(default_factory=dict)
    metadata: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    encode: Mapping[str, Encoding] = field(default_factory=dict)
    added: Mapping[str, NewVideo] = field(default_factory=dict)
    files: Record = field(default_factory=dict)
    skip_bad: bool = False
    base: Base = Base()
    bucket: Bucket | None = None

    @property
    def cameras(self) -> list[str]:
        """Keys of the cameras stored as video."""
        return [key for key, feature in self.features.items() if feature.is_video]

    @property
    def recorded_cameras(self) -> list[str]:
        """Keys of the cameras that the sources have as video."""
        return [key for key in self.cameras if key not in self.added]

    @property
    def frames(self) -> int:
        """Frames of all pieces."""
        return sum(piece.length for piece in self.pieces)

    @property
    def work(self) -> int:
        """Steps that `write_set` counts: each frame once for its rows and once per camera."""
        return self.frames * (1 + len(self.cameras))

    def without(self, numbers: Container[int]) -> "Plan":
        """Return the plan without the pieces of these numbers."""
        remaining = [number for number in range(len(self.pieces)) if number not in numbers]
        pieces = tuple(self.pieces[number] for number in remaining)
        metadata = {}
        for name, values in self.metadata.items():
            metadata[name] = [values[number] for number in remaining]
        return replace(self, pieces=pieces, metadata=metadata)


@dataclass(frozen=True)
class PlanWork:
    """Work on items of pieces (`parts.Work`); its classes differ in `compute`.

    Attributes:
        plan: the output.
        mark: text that changes with the plan and its sources.
    """

    plan: Plan
    mark: str

    def depends_on(self, part: Part) -> Any:
        """Return the mark."""
        return self.mark

    def compute(self, item: Any) -> Any:
        """Compute the result of an item: the number of a piece, or the number of a file with those
        of its pieces.
        """
        raise NotImplementedError

    def __call__(self, part: Part) -> list[Any]:
        """Return the result of each item; with `Plan.skip_bad` its error."""
        results = []
        for item in part:
            try:
                results.append(self.compute(item))
            except DatasetError as error:
                if not self.plan.skip_bad:
                    raise
                results.append(error)
        return results


Bad = dict[int, DatasetError]
"""Number of a piece -> the reason to leave it out."""


def run_plan(
    plan: Plan,
    workers: Workers,
    work: PlanWork,
    parts: Sequence[Part],
    done: Callable[[Part], None] = lambda part: None,
) -> Iterator[tuple[Any, Any]]:
    """Yield each item with its result; with `Plan.skip_bad` that can be an error.

    Raises:
        DatasetError: an item cannot be read, or has ended its processes.
    """
    for part, results in workers.run(work, parts, done):
        if isinstance(results, Lost):
            numbers = part if isinstance(part[0], int) else part[0][1]
            pieces = [plan.pieces[number] for number in numbers]
            source = plan.sources[pieces[0].source]
            episodes = source.episodes.ids[
                [piece.row for piece in pieces if piece.source == pieces[0].source]
            ]
            problem = (
                f"episodes {Catalog.describe_ids(episodes)} cannot be written: {results.reason}"
            )
            error = DatasetError(
                problem,
                where=source.root,
                fix="leave them out: --skip-bad, or --exclude-episodes ID",
            )
            if not plan.skip_bad:
                raise error
            results = [error]
        yield from zip(part, results, strict=True)


class Results(NamedTuple):
    """Results of work on pieces.

    Attributes:
        values: result of each piece that has one, by its number.
        failures: the other pieces, with the reasons to leave them out.
    """

    values: dict[int, Any]
    failures: Bad


def gather(results: Iterable[tuple[int, Any]]) -> Results:
    """Gather the results of pieces, each a value or an error."""
    gathered = Results({}, {})
    for number, result in results:
        if isinstance(result, DatasetError):
            gathered.failures[number] = result
        else:
            gathered.values[number] = result
    return gathered


def write_files(
    plan: Plan,
    workers: Workers,
    work: PlanWork,
    files: Sequence[tuple[int, Sequence[int]]],
    take: Callable[[int, Any], None],
    done: Callable[[Part], None] = lambda part: None,
) -> Bad:
    """Write files of pieces; where a file cannot be written, try each of its pieces.

    Args:
        plan: the output.
        workers: processes.
        work: writes (number of a file, its pieces).
        files: number and pieces of each file.
        take: called with the number and the result of each file in order, up to the first error.
        done: called with each finished part.

    Returns:
        The pieces that cannot be written; files above the last one then have other pieces.

    Raises:
        DatasetError: a file cannot be written, and each of its pieces can.
    """
    parts: list[Part] = [((number, tuple(members)),) for number, members in files]
    failed = []
    for (file, members), result in run_plan(plan, workers, work, parts, done):
        if isinstance(result, DatasetError):
            failed.append((members, result))
        elif not failed:
            take(file, result)
    failures: Bad = {}
    for members, error in failed:
        trials: list[Part] = [((len(files) + number, (number,)),) for number in members]
        pairs = run_plan(plan, workers, work, trials)
        unwritable = gather((numbers[0], trial) for (_, numbers), trial in pairs).failures
        if not unwritable:
            raise error
        failures |= unwritable
    return failures


def select_pieces(catalog: Catalog, source: int, selection: Selection) -> list[Piece]:
    """Select the pieces of source number `source`. Each range of frames becomes an episode, so no
    window spans a cut.

    Raises:
        DatasetError: an unknown episode, an unusable condition or file, or no frame is left.
    """
    segments = replace(selection, keep_rule="start").apply(catalog).segments
    rows = catalog.episodes.rows_of(segments[:, 0]).tolist()
    return [
        Piece(source, row, start, stop) for row, (_, start, stop) in zip(rows, segments.tolist())
    ]


def read_bad_episodes(path: str) -> list[int]:
    """Return the ids of the episodes that `understudy check --json` calls faulty (`bad_episodes`).

    Raises:
        DatasetError: the file is not such output.
    """
    try:
        content = json.loads(Path(path).read_bytes())
        episodes = content["bad_episodes"]
        if any(type(episode) is not int or not 0 <= episode < MOST_IDS for episode in episodes):
            raise ValueError("an episode id is not a whole number")
        return sorted(set(episodes))
    except OSError as error:
        raise DatasetError(
            f"cannot be read: {error.strerror}", where=path, fix="give the output of check"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        problem = f"is not the output of `understudy check --json`: {type(error).__name__}: {error}"
        raise DatasetError(
            problem, where=path, fix="write it with: understudy check DATASET --json > FILE"
        ) from None


def split_pieces(
    catalogs: Sequence[Catalog], pieces: Sequence[Piece], parts: Sequence[str], seed: int
) -> dict[str, list[Piece]]:
    """Divide pieces into named parts, whole source episodes only.

    Args:
        catalogs: the sources.
        pieces: the pieces to divide.
        parts: "NAME=SHARE" with a share from 0 to 1, or "NAME=IDS" with episode ids of the only
            source. The shares divide the episodes in a random order of `seed`; together they are at
            most 1.
        seed: seed of the random order.

    Raises:
        DatasetError: a part is malformed or empty, or an episode is in two parts.
    """
    shares: dict[str, float] = {}
    ids: dict[str, list[int]] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        fix = "as in --split train=0.9 val=0.1, or --split train=0-7 val=8,9"
        if not equals or not re.fullmatch(r"\w[\w.-]*", name) or name in shares or name in ids:
            raise DatasetError(
                f"split holds {part!r}, which is not a new NAME=SHARE or NAME=IDS", fix=fix
            )
        if re.fullmatch(r"0?\.\d+|1\.0*", value):
            shares[name] = float(value)
        else:
            try:
                ids[name] = parse_ids([value])
            except ValueError as error:
                raise DatasetError(f"split holds {part!r}: {error}", fix=fix) from None
    if shares and ids:
        raise DatasetError(
            "split mixes shares and ids",
            fix="give one kind; an id is a whole number, a share has a dot",
        )
    if sum(shares.values()) > 1 + 1e-9:
        raise DatasetError(
            f"the shares of split add up to {sum(shares.values()):g}", fix="give 1 at most"
        )
    divided = _by_share(pieces, shares, seed) if shares else _by_id(catalogs, pieces, ids)
    for name, part_pieces in divided.items():
        if not part_pieces:
            raise DatasetError(
                f"the part {name!r} of split holds no episode", fix="give it more episodes"
            )
    return divided


def _by_share(
    pieces: Sequence[Piece], shares: dict[str, float], seed: int
) -> dict[str, list[Piece]]:
    episodes = sorted({(piece.source, piece.row) for piece in pieces})
    keys = [_place(seed, source, row) for source, row in episodes]
    shuffled = [episodes[i] for i in np.argsort(keys, kind="stable")]
    divided = dict[str, list[Piece]]()
    first = 0
    total = 0.0
    for name, share in shares.items():
        total += share
        stop = round(total * len(shuffled))
        chosen = set(shuffled[first:stop])
        first = stop
        divided[name] = [piece for piece in pieces if (piece.source, piece.row) in chosen]
    return divided


def _place(seed: int, source: int, row: int) -> float:
    """Random place of an episode, the same for any number of episodes."""
    digest = hashlib.blake2b(
        f"understudy edit {seed} {source} {row}".encode(), digest_size=8
    ).digest()
    return int.from_bytes(digest, "little") / 2**64


def _by_id(
    catalogs: Sequence[Catalog], pieces: Sequence[Piece], ids: dict[str, list[int]]
) -> dict[str, list[Piece]]:
    if len(catalogs) > 1:
        raise DatasetError(
            "split gives ids, and there are several sources", fix="split by shares, or one source"
        )
    table = catalogs[0].episodes
    part_of = dict[int, str]()
    for name, episodes in ids.items():
        for row, episode in zip(table.rows_of(np.array(episodes)).tolist(), episodes):
            if row in part_of:
                raise DatasetError(
                    f"split gives episode {episode} to {part_of[row]!r} and {name!r}",
                    fix="name it once",
                )
            part_of[row] = name
    divided: dict[str, list[Any]] = {name: [] for name in ids}
    for piece in pieces:
        if piece.row in part_of:
            divided[part_of[piece.row]].append(piece)
    return divided


Unit = Literal["seconds", "frames"]

_FORMAT = "an object: key of an episode -> cut points [1.5, 4], or segments [[0, 1.5], [2, 4]]"


def cut_at_times(catalog: Catalog, source: int, path: str, unit: Unit) -> list[Piece]:
    """Cut episodes as a JSON file names it; episodes without a key are left out.

    Args:
        catalog: the source.
        source: its number.
        path: the file: key of an episode -> cut points, or segments [start, end). Keys are the same
            as in keep-ranges.
        unit: unit of the times in the file. Seconds are rounded to the nearest frame.

    Raises:
        DatasetError: the file cannot be read, or a segment is empty, overlaps another or leaves its
            episode.
    """
    content = EpisodeNames.read_object(path, _FORMAT)
    pieces = []
    for key, row in match_all(catalog, content, path):
        length = int(catalog.episodes.lengths[row])
        for start, stop in _segments(content[key], key, length, catalog.fps, unit, path):
            pieces.append(Piece(source, row, start, stop))
    return pieces


def _segments(
    entry: Any, key: object, length: int, fps: float, unit: Unit, path: str
) -> list[tuple[int, int]]:
    def refuse(problem: str) -> DatasetError:
        return DatasetError(f"{key!r}: {problem}", where=path, fix=f"give {_FORMAT}")

    if not isinstance(entry, list):
        raise refuse(f"{str(entry)[:60]} is not a list")
    pairs = all(isinstance(item, list) and len(item) == 2 for item in entry)
    flat = list(chain.from_iterable(entry)) if pairs else entry
    frames = [to_frame(time, fps, unit) for time in flat]
    if None in frames:
        raise refuse(f"{flat[frames.index(None)]!r} is not a time in {unit}")
    numbers = [frame for frame in frames if frame is not None]
    if not pairs:
        bounds = [0]
        for point in numbers:
            bounds += [point, point]
        numbers = [*bounds, length]
    segments = list(zip(numbers[::2], numbers[1::2]))
    for start, stop in segments:
        if not 0 <= start < stop <= length:
            raise refuse(f"frames {start} to {stop} of an episode of {length} frames")
    for (_, previous_stop), (start, _) in pairwise(segments):
        if start < previous_stop:
            raise refuse(f"segments overlap at frame {start}, or are not in order")
    return segments


def cut_by_text(catalog: Catalog, source: int, texts: TextColumn) -> list[Piece]:
    """Cut episodes where the text of a frame differs from the one before; frames with an empty text
    are left out.
    """
    pieces = []
    for row, length in enumerate(catalog.episodes.lengths.tolist()):
        if not length:
            continue
        frame_texts = list(texts(Piece(source, row, 0, length)))
        turns = [i for i in range(length) if i == 0 or frame_texts[i] != frame_texts[i - 1]]
        for start, stop in zip(turns, [*turns[1:], length]):
            if frame_texts[start].strip():
                pieces.append(Piece(source, row, start, stop))
    return pieces


def cut_at_pauses(
    catalog: Catalog, source: int, keys: Sequence[str], rule: IdleRule
) -> list[Piece]:
    """Cut episodes at their idle gaps, which are left out (`motion.py`).

    Args:
        catalog: the source.
        source: its number.
        keys: numeric columns that are compared.
        rule: definition of an idle frame and of a gap.

    Raises:
        DatasetError: a column cannot be read.
    """
    pieces = []
    for part in FindRanges(catalog, tuple(keys), (), rule).run(Workers()):
        for row, ranges, *_ in part:
            pieces += [Piece(source, row, start, stop) for start, stop in ranges]
    return sorted(pieces, key=lambda piece: (piece.row, piece.start))


def match_all(catalog: Catalog, entries: Record, path: str) -> list[tuple[str, int]]:
    """Return (key, table row) of each entry of a file, by row; keys are the same as in keep-ranges.

    Raises:
        DatasetError: a key is not an episode, or two keys are one episode.
    """
    matched, _ = EpisodeNames(catalog).match(list(entries), path)
    lost = [key for key in entries if key not in matched]
    if lost:
        raise DatasetError(
            f"{lost[0]!r} is not an episode of {catalog.root}", where=path, fix="remove it"
        )
    pairs = sorted(((key, matched[key]) for key in entries), key=lambda item: item[1])
    for (key, row), (next_key, next_row) in pairwise(pairs):
        if row == next_row:
            raise DatasetError(
                f"{key!r} and {next_key!r} are one episode",
                where=path,
                fix="give each episode one key",
            )
    return pairs


def to_frame(time: object, fps: float, unit: Unit) -> int | None:
    """Return the frame of a time; None for no finite number, or a fraction of a frame."""
    if isinstance(time, bool) or not isinstance(time, (int, float)) or not abs(time) < 1e12:
        return None
    if unit == "seconds":
        return round(time * fps)
    return int(time) if time == int(time) else None
