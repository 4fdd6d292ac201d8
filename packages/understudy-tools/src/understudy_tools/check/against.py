"""Differences between two versions of a dataset, A and B, by episode: `compare`.

Episodes with the same id and the same numbers are matched first, then those with the same numbers
under another id, then the others by their ids. Each pair is read and compared: floats by their
bits, where NaN equals NaN, images by what is stored. Where that differs, a few are decoded.
Samples of a sensor are compared where both sides have one of that time.
"""

import time
import warnings
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa

from understudy_base import Progress
from understudy_data import (
    DEFAULTS,
    Catalog,
    Lost,
    Part,
    RecordedImages,
    Rows,
    SensorTable,
    Workers,
    open_episodes,
    spread_evenly,
    storable,
)
from understudy_tools.check.findings import to_plain
from understudy_tools.check.row_facts import RowFacts, read_rows, stored_columns

OF_EPISODES = ("episode", "column", "sensor", "images")
KINDS = ("info", "statistics", "removed", "added", "moved", *OF_EPISODES)
"""Kinds of differences: facts of meta/; recorded statistics; episodes of A or B alone, or under
another id; and of matched ones length, task or metadata, a column, samples of a sensor, and images
encoded anew.
"""
SAMPLED_IMAGES = 5
"""Images to decode of a camera and an episode that was encoded anew."""
ROUNDING = 1e-4
"""Difference of recorded statistics that rounding makes, as a share of the value."""
SAMPLING = 0.02
"""Difference of those of images, from 0 to 1, where writers sampled other images."""
_EXACT = {"int64": np.longdouble, "uint64": np.longdouble}
_PARTIAL = "undeclared, in some files alone"
_PART = 20_000  # frames
_BATCH = 32  # images
_CACHE = 256 << 20  # bytes

Pair = tuple[int, int]
"""Table rows of one episode in A and in B."""


@storable
@dataclass(frozen=True)
class Difference:
    """A difference between A and B.

    Attributes:
        kind: one of `KINDS`.
        name: fact, column, sensor or camera.
        episode: id in A; None where it has none.
        other: id in B; None where it has none.
        a, b: values, as JSON holds them, of a sensor the numbers of samples; None where a side has
            none.
        compared: frames that were compared, of images those that were decoded, of a sensor its
            samples.
        frames: those of them that differ.
        largest: largest difference, of images in levels; infinite where one side alone is finite,
            None of what is no number.
        share: largest difference as a share of the range of its dimension in A; None where a
            dimension that differs has no range there, or a difference is infinite.
    """

    kind: str
    name: str = ""
    episode: int | None = None
    other: int | None = None
    a: Any = None
    b: Any = None
    compared: int | None = None
    frames: int | None = None
    largest: float | None = None
    share: float | None = None

    def __str__(self) -> str:
        words = []
        for name, value in asdict(self).items():
            if value not in (None, "", self.kind) and (name, value) != ("other", self.episode):
                shown = f"{value:.6g}" if isinstance(value, float) else str(value)[:80]
                words.append(f"{name} {shown}")
        return f"{self.kind}: {', '.join(words)}"


@dataclass(frozen=True)
class Comparison:
    """Result of a comparison.

    Attributes:
        a, b: address, format and size of the datasets.
        differences: in the sequence of `KINDS`.
        not_compared: parts that were not compared, one line each.
        seconds: duration.
    """

    a: str
    b: str
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]
    seconds: float

    @property
    def counts(self) -> dict[str, int]:
        """Number of differences by kind, and of the episodes that are `changed`."""
        numbers = Counter(one.kind for one in self.differences)
        changed = {one.episode for one in self.differences if one.kind in OF_EPISODES}
        return {kind: numbers[kind] for kind in KINDS} | {"changed": len(changed)}

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as values of JSON."""
        about = {"equal": not self.differences, "counts": self.counts}
        return about | to_plain(asdict(self))

    def to_text(self, limit: int) -> str:
        """Format a summary, then at most `limit` lines of each kind."""
        counts = ", ".join(f"{count:,} {kind}" for kind, count in self.counts.items() if count)
        lines = [f"{counts or 'equal'}, {self.seconds:.1f} s", f"A: {self.a}", f"B: {self.b}"]
        for kind in KINDS:
            of_kind = [str(one) for one in self.differences if one.kind == kind]
            lines += of_kind[:limit]
            if len(of_kind) > limit:
                lines.append(f"{kind}: and {len(of_kind) - limit:,} more")
        return "\n".join([*lines, *(f"not compared: {line}" for line in self.not_compared)])


def compare(
    a: Catalog,
    b: Catalog,
    depth: str = "sample",
    workers: Workers | None = None,
    show_progress: bool = False,
) -> Comparison:
    """Compare two versions of a dataset.

    Args:
        a, b: the datasets; of a view, its episodes.
        depth: files to read, as of `check_dataset`. "metadata" matches episodes by their ids,
            "sample" decodes `SAMPLED_IMAGES` where an episode was encoded anew, "all" each image.
        workers: processes that read; None reads in this one.
        show_progress: whether to show progress on stderr.

    Raises:
        DatasetError: a file of A or B is missing or cannot be read; it is named.
    """
    begin = time.monotonic()
    workers = workers or Workers()
    sides = (open_episodes(a), open_episodes(b))
    kinds = _common_columns(*sides)
    cameras = [key for key in a.camera_keys if key in b.camera_keys]
    shapes = [
        {key: one.feature.value_shape for key, one in side.sensors.items()} for side in (a, b)
    ]
    sensors = [key for key, shape in shapes[0].items() if shapes[1].get(key) == shape]
    skipped: list[str] = []
    for side in sides:
        skipped += [f"{key} {why}" for key, why in side.skipped_features.items()]
    if depth in ("metadata", "rows"):
        skipped += [f"images of {key}" for key in cameras]
        cameras = []
    if depth == "metadata":
        skipped += ["rows", *(f"samples of {key}" for key in sensors)]
    facts = [RowFacts(side.num_episodes) for side in sides]
    if depth != "metadata":
        frames = sum(side.num_frames for side in sides)
        with Progress(frames, "rows", "row", shown=show_progress) as bar:
            for number, side in enumerate(sides):
                features = {key: side.features[key] for key in kinds if key in side.features}
                facts[number] = read_rows(replace(side, features=features), workers, bar.update)
    pairs, removed, added = _match(sides, facts)
    found: list[Difference] = []
    of_a, of_b = map(_facts, sides)
    undeclared = [_undeclared(*one) for one in zip(sides, facts)]
    of_a[""] |= undeclared[0]
    of_b[""] |= undeclared[1]
    both = [key for key in undeclared[0] if key in undeclared[1]]
    partial = [key for key in both if _PARTIAL in (undeclared[0][key], undeclared[1][key])]
    skipped += [f"{key} ({_PARTIAL})" for key in partial]
    both = [key for key in both if key not in partial]
    for kind in of_a:
        common = [name for name in of_a[kind] if name in of_b[kind]]
        names = common if kind else {**of_a[kind], **of_b[kind]}
        found += _differ(kind or "info", names, of_a[kind], of_b[kind])
    found += [Difference("removed", episode=int(sides[0].episodes.ids[row])) for row in removed]
    found += [Difference("added", other=int(sides[1].episodes.ids[row])) for row in added]
    metadata = [side.episode_metadata() for side in sides]
    for pair in pairs:
        ids = _ids(sides, pair)
        if ids["episode"] != ids["other"]:
            found.append(Difference("moved", **ids))
        left, right = map(_facts_of, sides, metadata, pair)
        found += [replace(one, **ids) for one in _differ("episode", {**left, **right}, left, right)]
    ranges = {
        key: np.fmax.reduce(column.high, axis=0) - np.fmin.reduce(column.low, axis=0)
        for key, column in facts[0].columns.items()
    }
    work = ComparePairs(
        sides, kinds, tuple(both), tuple(sensors), tuple(cameras), ranges, depth == "all"
    )
    costs = sides[0].episodes.lengths[[row for row, _ in pairs]].tolist()
    parts = Workers.cut(pairs, costs, _PART) if depth != "metadata" else []
    with Progress(len(pairs), "comparison", "episode", shown=show_progress) as bar:
        for _, result in workers.run(work, parts, lambda part: bar.update(len(part))):
            if isinstance(result, Lost):
                raise result.error
            found += result
    found.sort(key=lambda one: KINDS.index(one.kind))
    name_a, name_b = (repr(side).removeprefix("Catalog(")[:-1] for side in sides)
    seconds = time.monotonic() - begin
    return Comparison(name_a, name_b, tuple(found), tuple(skipped), seconds)


def _common_columns(a: Catalog, b: Catalog) -> dict[str, str]:
    """Return the dtype in which each column of both is compared, "" of texts."""
    kinds = {"task_index": ""}
    for key, ours in a.features.items():
        theirs = b.features.get(key)
        is_numbering = key in DEFAULTS and key != "timestamp"
        if theirs is None or is_numbering or ours.is_camera or theirs.is_camera:
            continue
        if ours.is_text and theirs.is_text:
            kinds[key] = ""
        elif ours.value_shape == theirs.value_shape and not (ours.is_text or theirs.is_text):
            kinds[key] = np.result_type(ours.dtype, theirs.dtype).name
    return kinds


def _facts(catalog: Catalog) -> dict[str, dict[str, Any]]:
    """Return facts about a dataset, and by kind those that a writer may leave out."""
    facts = {"fps": catalog.fps, "robot_type": catalog.robot_type}
    facts |= {f"task {text!r}": "listed" for text in catalog.tasks}
    details: dict[str, Any] = {}
    statistics = {}
    for key, feature in catalog.features.items():
        if key in DEFAULTS:
            continue
        shape = (feature.size, feature.channels) if feature.is_camera else feature.shape
        facts[key] = f"{feature.dtype} {shape}"
        if not feature.is_camera:
            details[f"{key}, names"] = feature.dimension_names
        elif feature.codec:
            details[f"{key}, codec"] = feature.codec
        if feature.is_depth:
            details[f"{key}, depth"] = str(feature.pixels)
        for name, values in catalog.stats.get(key, {}).items():
            if not feature.is_camera or name in ("mean", "std"):
                statistics[f"{key}, {name}"] = values
    for key, sensor in catalog.sensors.items():
        own = sensor.feature
        facts[key] = f"sensor {own.dtype} {own.shape}, linear {sensor.linear}, {sensor.max_age}"
        details[f"{key}, names"] = own.dimension_names
    return {"": facts, "info": details, "statistics": statistics}


def _undeclared(catalog: Catalog, facts: RowFacts) -> dict[str, str]:
    """Return the columns of the data files that info.json does not declare, and whether all files
    have them.
    """
    declared = {*catalog.features, *catalog.skipped_features, *DEFAULTS}
    for key in catalog.features:
        declared.update(stored_columns(catalog, key))
    files = [{name for name, _ in schema} for schema in facts.schemas]
    names = sorted(set().union(*files) - declared)
    return {
        name: "undeclared" if all(name in file for file in files) else _PARTIAL for name in names
    }


def _facts_of(catalog: Catalog, metadata: Mapping[str, Any], row: int) -> dict[str, Any]:
    """Facts about an episode."""
    tasks = [catalog.tasks[task] for task in catalog.episodes.tasks_of(row).tolist() if task >= 0]
    facts = {"length": int(catalog.episodes.lengths[row]), "tasks": sorted(tasks)}
    episode = int(catalog.episodes.ids[row])
    return facts | {name: values.get(episode) for name, values in metadata.items()}


def _differ(
    kind: str, names: Iterable[str], a: Mapping[str, Any], b: Mapping[str, Any]
) -> Iterator[Difference]:
    """Yield the facts that differ."""
    for name in names:
        left = a.get(name)
        right = b.get(name)
        largest = None
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
            if left.shape == right.shape:
                alike = SAMPLING if left.ndim == 3 else ROUNDING / 100
                if np.allclose(left, right, ROUNDING, alike, equal_nan=True):
                    continue
                largest = float(_apart(left, right)[1].max())
            left = left.tolist()
            right = right.tolist()
        if left != right and repr(left) != repr(right):
            yield Difference(kind, name, a=left, b=right, largest=largest)


def _apart(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where numbers of one shape differ in their bits, and by how much: infinite where one
    alone is finite.
    """
    is_equal = left == right
    is_nan = (left != left) & (right != right)
    with np.errstate(invalid="ignore"):
        apart = np.abs(left.astype(_EXACT.get(left.dtype.name, np.float64)) - right)
    apart = np.where(is_equal | is_nan, 0, np.where(np.isnan(apart), np.inf, apart))
    return ~(is_nan | (is_equal & (np.signbit(left) == np.signbit(right)))), apart


def _ids(sides: Sequence[Catalog], pair: Pair) -> dict[str, Any]:
    ids = [int(side.episodes.ids[row]) for side, row in zip(sides, pair)]
    return dict(zip(("episode", "other"), ids))


def _match(
    sides: Sequence[Catalog], facts: Sequence[RowFacts]
) -> tuple[list[Pair], list[int], list[int]]:
    """Return matched table rows, and those of A and of B that are left."""
    pairs = []
    keys = []
    free = [list(range(side.num_episodes)) for side in sides]
    for number, (side, rows) in enumerate(zip(sides, facts)):
        ids = side.episodes.ids.tolist()
        digests = [digest or (number, row) for row, digest in enumerate(rows.digest)]
        keys.append((list(zip(ids, rows.digest)), digests, ids))
    for keys_a, keys_b in zip(*keys):
        waiting = defaultdict[Any, deque[int]](deque)
        for row in free[1]:
            waiting[keys_b[row]].append(row)
        left = []
        for row in free[0]:
            if others := waiting[keys_a[row]]:
                pairs.append((row, others.popleft()))
            else:
                left.append(row)
        free = [left, sorted(chain(*waiting.values()))]
    return sorted(pairs), free[0], free[1]


@dataclass(frozen=True)
class ComparePairs:
    """Differences of matched episodes, as a function of their table rows (`parts.Work`).

    Attributes:
        sides: A and B.
        kinds: dtype in which each column is compared, "" of texts.
        undeclared: columns to compare that info.json does not declare.
        sensors, cameras: keys of those to compare.
        ranges: column -> range of each dimension in A, float64 (D,).
        is_whole: whether to decode each image where some were encoded anew.
    """

    sides: tuple[Catalog, Catalog]
    kinds: Mapping[str, str]
    undeclared: tuple[str, ...]
    sensors: tuple[str, ...]
    cameras: tuple[str, ...]
    ranges: Mapping[str, np.ndarray]
    is_whole: bool

    def __call__(self, part: Part) -> list[Difference]:
        """Return the differences."""
        keys = [key for key in self.kinds if key not in DEFAULTS]
        rows = [Rows(side, keys, _CACHE) for side in self.sides]
        images = [RecordedImages(side) for side in self.sides]
        tables = {
            key: [SensorTable(side, side.sensors[key]) for side in self.sides]
            for key in self.sensors
        }
        others = [_Undeclared(*one, self.undeclared) for one in zip(self.sides, rows)]
        found: list[Difference] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # irregularities are findings of a check
            for pair in part:
                lengths = [int(s.episodes.lengths[row]) for s, row in zip(self.sides, pair)]
                if min(lengths):
                    differing = [*self._compare_columns(pair, rows, min(lengths))]
                    if self.undeclared:
                        values = [one.read(row, min(lengths)) for one, row in zip(others, pair)]
                        differing += [*self._compare_undeclared(*values)]
                    for key, of_key in tables.items():
                        differing += _compare_samples(key, pair, of_key)
                    for camera in self.cameras:
                        differing += self._compare_images(pair, camera, images, lengths)
                    found += [replace(one, **_ids(self.sides, pair)) for one in differing]
        return found

    def depends_on(self, part: Part) -> Any:
        """Return the metadata, the settings, and the versions of the files."""
        causes: list[Any] = [self.kinds, self.undeclared, self.sensors, self.cameras, self.is_whole]
        causes.append({key: limits.tolist() for key, limits in self.ranges.items()})
        for number, side in enumerate(self.sides):
            rows = [pair[number] for pair in part]
            paths = list(map(side.data_path, rows))
            for camera in side.episodes.videos:
                paths += [side.video_path(camera, row) for row in rows]
            for key in self.sensors:
                paths += side.sensor_files(side.sensors[key])
            causes += [side.mark, side.marks(dict.fromkeys(paths))]
        return causes

    def _compare_columns(
        self, pair: Pair, readers: Sequence[Rows], length: int
    ) -> Iterator[Difference]:
        frames = dict.fromkeys(self.kinds, np.arange(length)[None])
        a, b = (one.take(np.full(1, row), frames) for one, row in zip(readers, pair))
        for key, dtype in self.kinds.items():
            measured = {}
            if dtype:
                both = [np.asarray(side[key], dtype).reshape(length, -1) for side in (a, b)]
                is_odd, apart = _apart(*both)
                measured = self._measure(key, apart)
            else:
                texts = [np.array(self._texts(*one)) for one in zip(self.sides, (key, key), (a, b))]
                is_odd = (texts[0] != texts[1])[:, None]
            yield from _column("task" if key == "task_index" else key, is_odd, measured)

    def _compare_undeclared(self, a: pa.Table, b: pa.Table) -> Iterator[Difference]:
        for key in self.undeclared:
            values = [table[key].to_pylist() for table in (a, b)]
            measured = {}
            try:
                numbers = np.array(values)  # of one shape
            except ValueError:
                numbers = np.array("")
            if numbers.dtype.kind in "biuf":
                is_odd, apart = _apart(*numbers.reshape(2, len(a), -1))
                measured = self._measure(key, apart)
            else:
                texts = [np.array(list(map(repr, column))) for column in values]
                is_odd = (texts[0] != texts[1])[:, None]
            yield from _column(key, is_odd, measured)

    def _texts(self, side: Catalog, key: str, values: Mapping[str, Any]) -> list[str]:
        column = values[key][0]
        if key == "task_index":
            tasks = set(column.tolist())
            texts = {task: side.tasks[task] for task in tasks if 0 <= task < len(side.tasks)}
            column = map(texts.get, column.tolist())
        return list(map(repr, column))

    def _measure(self, key: str, apart: np.ndarray) -> dict[str, Any]:
        """Return the largest of distances (L, D), and as a share of the range."""
        extents = apart.max(axis=0)
        with np.errstate(all="ignore"):
            shares = (extents / self.ranges.get(key, np.nan))[extents > 0]
        share = float(shares.max(initial=0))
        return {"largest": float(extents.max()), "share": share if np.isfinite(share) else None}

    def _compare_images(
        self, pair: Pair, camera: str, readers: Sequence[RecordedImages], lengths: list[int]
    ) -> Iterator[Difference]:
        length = min(lengths)
        stored = [one.stored(camera, row, length) for one, row in zip(readers, pair)]
        if all(ours == theirs for ours, theirs in zip_longest(*stored)):
            return
        frames = np.array(spread_evenly(length, None if self.is_whole else SAMPLED_IMAGES))
        odd = 0
        largest = 0.0
        for batch in np.split(frames, range(_BATCH, len(frames), _BATCH)):
            a, b = (one.read(camera, row, batch) for one, row in zip(readers, pair))
            if a.shape != b.shape:
                yield Difference("images", camera, a=a.shape[1:], b=b.shape[1:])
                return
            apart = _apart(a, b)[1].reshape(len(batch), -1).max(axis=1)
            odd += int((apart > 0).sum())
            largest = max(largest, float(apart.max()))
        # packets at the end of the shorter one may depend on later frames
        if odd or lengths[0] == lengths[1]:
            measured = {"compared": len(frames), "frames": odd}
            yield Difference("images", camera, **measured, largest=largest)


class _Undeclared:
    """Columns of the data files of a dataset that info.json does not declare, as they are stored.

    Args:
        catalog: the dataset.
        rows: its rows.
        names: of the columns.
    """

    def __init__(self, catalog: Catalog, rows: Rows, names: Sequence[str]) -> None:
        self._catalog = catalog
        self._rows = rows
        self._names = list(names)
        self._path = ""
        self._table = pa.table({})

    def read(self, row: int, length: int) -> pa.Table:
        """Read the first frames of a table row. Keeps the last file."""
        path = self._catalog.data_path(row)
        if path != self._path:
            self._table = self._catalog.files.table(path, self._names)
            self._path = path
        return self._table.take(self._rows.file_rows(np.array([row]), np.arange(length)[None])[0])


def _column(name: str, is_odd: np.ndarray, measured: Mapping[str, Any]) -> Iterator[Difference]:
    """Yield the difference of a column where flags (L, D) have some."""
    if is_odd.any():
        odd = int(is_odd.any(axis=1).sum())
        yield Difference("column", name, compared=len(is_odd), frames=odd, **measured)


def _compare_samples(key: str, pair: Pair, tables: Sequence[SensorTable]) -> Iterator[Difference]:
    """Yield the difference of the samples of a sensor, by their times."""
    spans = [slice(*table.first[row : row + 2]) for table, row in zip(tables, pair)]
    a, b = (table.times[span] for table, span in zip(tables, spans))
    times, *places = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    values = [
        table.values[span][place].reshape(len(times), -1)
        for table, span, place in zip(tables, spans, places)
    ]
    is_odd, apart = _apart(*values)
    if is_odd.any() or len(times) < max(len(a), len(b)):
        odd = int(is_odd.any(axis=1).sum())
        largest = float(apart.max(initial=0))
        counts = {"a": len(a), "b": len(b), "compared": len(times), "frames": odd}
        yield Difference("sensor", key, **counts, largest=largest)
