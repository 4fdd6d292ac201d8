"""Order files: the samples of consecutive positions as the rows of a parquet file, written and read
by row groups.

An exported file has the columns of `SCHEMA`, sorted by position, and facts under `KEY` in its
metadata: the order, the datasets with digests, the batch size, a digest of each row group, and a
seal over all of that. A file of other tools has episode and frame (or LeRobot's episode_index and
frame_index), and may have dataset and step.
"""

import hashlib
import json
import os
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from understudy_base import DatasetError, refuse_existing, replace_file

GROUP = 1 << 17
"""Rows of a row group, about."""
KEY = b"understudy order"
FORMAT = 1
"""Version of the facts of an exported file; another one is refused."""
SCHEMA = pa.schema(
    {
        "step": pa.int64(),
        "position": pa.int64(),
        "rank": pa.int32(),
        "dataset": pa.dictionary(pa.int32(), pa.string()),
        "episode": pa.int64(),
        "frame": pa.int64(),
        "weight": pa.float32(),
    }
)
_OTHER_NAMES = {"episode_index": "episode", "frame_index": "frame"}
_MOST_BYTES = (32, 1024)  # of a number and of a name, as they are stored
_MOST_ROWS = 1 << 22  # of a row group, which is read whole
_STRIDE = 1 << 32  # above each number of an episode or a frame
# limits of the columns of `SCHEMA`
_MOST = (1 << 62, 1 << 62, 1 << 31, 1 << 31, _STRIDE, _STRIDE, np.inf)
_CACHE = 64 << 20  # bytes of the row groups that stay in memory


class Samples(NamedTuple):
    """Samples at rising positions: arrays (n,), int64 but for `rank` (int32) and `weight`
    (float32).
    """

    step: np.ndarray
    """Step of each sample, from 0: a batch size B that never changes puts position p into step p //
    B.
    """
    position: np.ndarray
    rank: np.ndarray
    """Rank that makes it."""
    source: np.ndarray
    """Number of its dataset."""
    episode: np.ndarray
    frame: np.ndarray
    weight: np.ndarray
    """Factor of its loss; 0 in a step that changed nothing."""

    @staticmethod
    def pack(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Pack numbers of (source, episode) or (episode, frame) into one, int64, in their
        sequence.
        """
        return first * np.int64(_STRIDE) + second

    @staticmethod
    def unpack(packed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers that `pack` packed."""
        return packed // _STRIDE, packed % _STRIDE

    def head(self, count: int) -> "Samples":
        """Return the first samples."""
        return Samples(*(column[:count] for column in self))

    @property
    def digest(self) -> str:
        """Digest of the columns."""
        return _digest(*(np.ascontiguousarray(column).data for column in self))


def _digest(*parts: Any) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def lengths_digest(source: Any, last: int | None = None) -> str:
    """Return "LAST DIGEST" of a dataset's or catalog's episode ids and lengths up to an id; ""
    without a catalog.
    """
    episodes = getattr(getattr(source, "catalog", source), "episodes", None)
    return "" if episodes is None else str(episodes.digest(last))


def _last_episode(digest: str) -> int | None:
    """LAST of a `lengths_digest`; None of an empty one."""
    return int(digest.partition(" ")[0]) if digest else None


def dataset_facts(source: Any) -> dict[str, str]:
    """Return what an order file states of a dataset: `lengths_digest`, and `version` and `address`
    of what was read.
    """
    files = getattr(getattr(source, "catalog", None), "files", None)
    version, address = (
        (files.version_read, files.version_address) if files is not None else ("", "")
    )
    return {"lengths": lengths_digest(source), "version": version, "address": address}


def find_segments(segments: np.ndarray, episode: np.ndarray, frame: np.ndarray) -> np.ndarray:
    """Row of the segment that holds each frame, int64 (n,), -1 where none does; segments do not
    overlap.
    """
    order = np.lexsort((segments[:, 2], segments[:, 1], segments[:, 0]))
    begins = Samples.pack(segments[order, 0], segments[order, 1])
    row = order[np.searchsorted(begins, Samples.pack(episode, frame), side="right") - 1]
    held, start, stop = segments[row].T
    return np.where((held == episode) & (frame >= start) & (frame < stop), row, -1)


def _name_numbers(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """Return the names of a column of a dictionary type in sequence of appearance, and the number
    of each row (n,).

    The names of the rows are never written out: together they may be a thousand times as large as
    the file.
    """
    array = column.unify_dictionaries().combine_chunks()
    entries, first, numbers = np.unique(
        array.indices.to_numpy(), return_index=True, return_inverse=True
    )
    by_row = np.argsort(first)
    place = np.empty(len(entries), np.int64)
    place[by_row] = np.arange(len(entries))
    return array.dictionary.take(pa.array(entries[by_row])).to_pylist(), place[numbers]


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 1 << 62


def _are_datasets(value: object) -> bool:
    entries = value if isinstance(value, list) else [None]
    texts = []
    for entry in entries:
        if isinstance(entry, dict):
            texts += [entry.get("name"), entry.get("lengths")]
            texts += [entry.get("version", ""), entry.get("address", "")]
    return (
        len(texts) == 4 * len(entries)
        and all(isinstance(text, str) for text in texts)
        and bool(entries)
    )


_FACTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "start": (lambda value: _is_count(value, 0), "it is a position from 0"),
    "batch": (
        lambda value: value is None or _is_count(value, 1),
        "it is a number of samples, or null",
    ),
    "datasets": (_are_datasets, "it is a list with name and lengths of each dataset"),
}
"""Fact of an exported file -> check of its value, and the rule in words."""


def _seal(facts: Mapping[str, Any]) -> str:
    return _digest(
        json.dumps({name: facts[name] for name in sorted(facts) if name != "seal"}).encode()
    )


def write_order_file(path: str | Path, blocks: Iterable[Samples], facts: Mapping[str, Any]) -> None:
    """Write an order file in one step: a kill leaves no file at `path`.

    Args:
        path: a new file.
        blocks: samples at consecutive positions; each becomes a row group.
        facts: `datasets`, a list with the `name` of each; `start`, the first position; `batch`; and
            others.

    Raises:
        ConfigError: something is at `path`. FileExistsError: something appeared there meanwhile.
    """
    refuse_existing(path, "order file", None)
    names = pa.array([dataset["name"] for dataset in facts["datasets"]])
    digests = []
    with (
        replace_file(Path(path), is_new=True) as draft,
        pq.ParquetWriter(draft, SCHEMA, compression="zstd") as writer,
    ):
        for block in blocks:
            columns = dict(zip(SCHEMA.names, block))
            columns["dataset"] = pa.DictionaryArray.from_arrays(
                block.source.astype(np.int32), names
            )
            writer.write_table(pa.table(columns, SCHEMA), row_group_size=len(block.step))
            digests.append(block.digest)
        whole = json.loads(json.dumps({"format": FORMAT, **facts, "digests": digests}))
        writer.add_key_value_metadata({KEY: json.dumps(whole | {"seal": _seal(whole)})})


class OrderFile:
    """Rows of an order file; a few row groups are in memory at a time. For several threads; may be
    pickled.

    Attributes:
        facts: of an exported file; {} of one of other tools.
        names: of the datasets; one empty name without the column `dataset`.
        batch_size: samples of each step; None where steps differ, or are not known.
        has_steps: whether steps are known; otherwise each row is one.
        start, stop: the first position, and the one behind the last.
        digest: of the content.

    Raises:
        DatasetError: the file is no order, was changed after it was written, or its rows are not
            well-defined.
    """

    def __init__(self, path: str | os.PathLike[str], digest: str | None = None) -> None:
        self.path = Path(path)
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):  # opening a pipe would block
                raise self._error("is no file", "give a parquet file, as `order export` writes it")
            self._metadata = pq.read_metadata(path)
        except (OSError, pa.ArrowException) as error:
            reason = getattr(error, "strerror", None) or error
            raise self._error(
                f"cannot be read: {reason}", "give a parquet file, as `order export` writes it"
            ) from error
        rows = [
            self._metadata.row_group(group).num_rows
            for group in range(self._metadata.num_row_groups)
        ]
        try:
            facts = json.loads((self._metadata.metadata or {}).get(KEY, b"{}"))
            is_sealed = not facts or (facts["seal"], len(facts["digests"])) == (
                _seal(facts),
                len(rows),
            )
        except (ValueError, TypeError, LookupError):
            is_sealed = False
        if not is_sealed:
            raise self._error("was changed after it was written", "export the order again")
        self.facts: dict[str, Any] = facts or {}
        if self.facts.get("format", FORMAT) != FORMAT:
            raise self._error(
                f"has format {self.facts['format']}",
                f"export it again: this version reads {FORMAT}",
            )
        self._check_facts()
        if wrong := [count for count in rows or [0] if not 0 < count <= _MOST_ROWS]:
            raise self._error(
                f"has a row group of {wrong[0]} rows", f"write 1 to {_MOST_ROWS} in each"
            )
        self._ends = np.cumsum(rows)
        self._held = lru_cache(max(2, _CACHE // (24 * max(rows))))(self._located)
        self.start: int = self.facts.get("start", 0)
        self.stop = self.start + int(self._ends[-1])
        self._texts = [name for name in self._metadata.schema.names if name == "dataset"]
        self.names = tuple(str(dataset["name"]) for dataset in self.facts.get("datasets", ()))
        self.batch_size: int | None = self.facts.get("batch")
        self.has_steps = "step" in self._metadata.schema.names
        self._digests: Sequence[str] = self.facts.get("digests", ())
        self.digest: str = self.facts.get("seal") or self._scan()
        if digest not in (None, self.digest):
            raise self._error("was changed since it was opened", "leave it as it is")

    @staticmethod
    def lengths_digest(dataset: Any, last: int | None = None) -> str:
        """Return "LAST DIGEST" of the ids and lengths of a dataset's episodes up to the id `last`,
        by which a file of its order knows it again (`lengths_digest`).
        """
        return lengths_digest(dataset, last)

    def _check_facts(self) -> None:
        """Refuse facts that `write_order_file` does not write; anyone can compute a seal."""
        for name, value in self.facts.items():
            is_good, rule = _FACTS.get(name, (lambda _: True, ""))
            if not is_good(value):
                raise self._error(
                    f"has {name} {str(value)[:80]!r}, and {rule}", "export the order again"
                )
        if self.facts and "datasets" not in self.facts:
            raise self._error("names no datasets", "export the order again")

    def _columns(self, file: pq.ParquetFile, group: int) -> list[str]:
        """Names of the stored columns that an order has. Raises DatasetError where one may not be
        read.

        A column that no order has may have any size, such as images in LeRobot's data files.
        """
        schema = file.schema_arrow
        facts = file.metadata.row_group(group)
        names = list[str]()
        for name in schema.names:
            column = _OTHER_NAMES.get(name, name)
            if column not in SCHEMA.names:
                continue
            kind = schema.field(name).type
            text = kind.value_type if pa.types.is_dictionary(kind) else kind
            is_text = pa.types.is_string(text) or pa.types.is_large_string(text)
            is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
            is_readable = is_text if column == "dataset" else is_number
            if not is_readable:
                fix = "write integers, floats as weights, and names of datasets"
                raise self._error(f"has {column} of the type {kind}", fix)
            place = next(
                number
                for number in range(facts.num_columns)
                if facts.column(number).path_in_schema == name
            )
            size = facts.column(place).total_uncompressed_size
            most = facts.num_rows * _MOST_BYTES[is_text] + (1 << 20)
            if not 0 <= size <= most:
                raise self._error(
                    f"has {size} bytes of {column} for {facts.num_rows} rows",
                    "write shorter values",
                )
            names.append(name)
        return names

    def __reduce__(self) -> tuple[Any, ...]:
        return OrderFile, (self.path, self.digest)

    def _error(self, problem: str, fix: str) -> DatasetError:
        return DatasetError(f"the order file {problem}", where=str(self.path), fix=fix)

    def _scan(self) -> str:
        """Read a file of other tools once: number its datasets, and find its batch size and its
        digest.
        """
        digests = list[str]()
        sizes = set[int]()
        last = None
        held = 0
        for samples in self.blocks():
            previous_step = samples.step[0] if last is None else last
            jumps = np.diff(samples.step, prepend=previous_step)
            if not np.isin(jumps, (0, 1)).all():
                raise self._error("has steps that do not rise one by one", "sort the rows by step")
            begins = np.flatnonzero(jumps)
            last = samples.step[-1]
            # a step may be several row groups
            sizes |= set(np.diff(begins, prepend=-held).tolist())
            held = len(jumps) - begins[-1] if len(begins) else held + len(jumps)
            digests.append(samples.digest)
        if self.has_steps and len(sizes) < 2 and held <= (size := min(sizes, default=held)):
            self.batch_size = int(size)
        self._digests = digests
        return _digest("".join(digests).encode())

    def check_datasets(self, sources: Sequence[Any]) -> None:
        """Compare datasets with those of the order, and all rows of a file of other tools with
        their frames.

        Another publication or commit is named in a warning: a dataset that has grown has the same
        samples.

        Raises:
            DatasetError: names or episode lengths differ, or a row is not in its dataset.
        """
        names = [source.name for source in sources]
        saved = [dataset["lengths"] for dataset in self.facts.get("datasets", ())]
        saved = saved or [""] * len(self.names)
        lasts = map(_last_episode, saved)
        current = [lengths_digest(source, last) for source, last in zip_longest(sources, lasts)]
        others = any(a and b and a != b for a, b in zip(current, saved))
        others = others or len(sources) != len(self.names)
        is_renamed = not self.facts and names != list(self.names) and self.names != ("",)
        if others or (names[1:] and is_renamed):
            made_of = [
                self._stated(number, "address") or name for number, name in enumerate(self.names)
            ]
            of_file = ", ".join(filter(None, made_of)) or "one dataset"
            problem = f"is of {of_file}, not of the episodes of {', '.join(names)}"
            raise self._error(problem, f"give {of_file}, as they were")
        if is_renamed and getattr(sources[0], "catalog", None) is not None:
            line = f"its rows are of {self.names[0]!r}, and are played over {names[0]!r}"
            warnings.warn(f"{self.path}: {line}", stacklevel=2)
        for number, source in enumerate(sources):
            stated = self._stated(number, "version")
            read = dataset_facts(source)
            if self._stated(number, "address") and read["address"] and read["version"] != stated:
                line = (
                    f"{source.name}: the order was made of {stated}, and is played over "
                    f"{read['version']}"
                )
                warnings.warn(f"{self.path}: {line}; its episodes are as long there", stacklevel=2)
        if self.facts:
            return
        for block in self.blocks():
            for number, source in enumerate(sources):
                rows = np.flatnonzero(block.source == number)
                row = find_segments(source.segments, block.episode[rows], block.frame[rows])
                if len(lost := rows[row < 0]):
                    sample = f"frame {block.frame[lost[0]]} of episode {block.episode[lost[0]]}"
                    raise self._error(
                        f"has {sample}, which is not in {source.name!r}",
                        "give rows of its frames alone",
                    )

    def _stated(self, number: int, fact: str) -> str:
        """Return a fact of a dataset that the order was made of; "" where it is not known."""
        datasets = self.facts.get("datasets", ())
        return str(datasets[number].get(fact, "")) if number < len(datasets) else ""

    def blocks(self) -> Iterator[Samples]:
        """Read all row groups in sequence."""
        return map(self.read, range(len(self._ends)))

    def read(self, group: int) -> Samples:
        """Read a row group, and compare it with its digest."""
        try:
            with pq.ParquetFile(
                self.path, metadata=self._metadata, read_dictionary=self._texts
            ) as file:  # a mapped file that shrinks ends the process
                table = file.read_row_group(group, self._columns(file, group))
        except (OSError, pa.ArrowException) as error:
            raise self._error(f"is damaged, or was changed: {error}", "restore it") from error
        table = table.rename_columns([_OTHER_NAMES.get(name, name) for name in table.column_names])
        stop = self.start + int(self._ends[group])
        position = np.arange(stop - table.num_rows, stop)
        columns: dict[str, Any] = {"step": position // (self.batch_size or 1), "position": position}
        columns |= {
            "rank": position * 0,
            "dataset": [""] * len(position),
            "weight": position * 0 + 1,
        }
        taken = SCHEMA.names if self.facts else ("step", "dataset", "episode", "frame", "weight")
        try:
            stored = {name: table[name] for name in taken if name in table.column_names}
            columns |= stored
            table = pa.table({name: columns[name] for name in SCHEMA.names}).cast(SCHEMA)
        except (KeyError, pa.ArrowException) as error:
            raise self._error(
                f"has no such numbers: {error}", "give a number of episode and frame per row"
            ) from error
        if any(column.null_count for column in table.columns):
            raise self._error("has no such numbers: nulls", "give every number of every row")
        names, numbers = _name_numbers(table["dataset"])
        if not self.facts:
            self.names += tuple(name for name in names if name not in self.names)
        source_of_name = []
        for name in names:
            number = self.names.index(name) if name in self.names else -1
            source_of_name.append(number)
        fields = []
        for name in SCHEMA.names:
            if name == "dataset":
                fields.append(np.array(source_of_name)[numbers])
            else:
                fields.append(table[name].to_numpy())
        samples = Samples(*fields)
        if not all(
            column.min() >= 0 and column.max() < most for column, most in zip(samples, _MOST)
        ):
            raise self._error(
                "has no such numbers: below 0, or too large", "give every number of every row"
            )
        if self._digests and samples.digest != self._digests[group]:
            fix = (
                "export the order again" if self.facts else "leave it as it was when it was opened"
            )
            raise self._error("was changed after it was written", fix)
        return samples

    def locate(self, positions: np.ndarray) -> np.ndarray:
        """Source, episode and frame, int64 (3, n), of positions uint64 (n,).

        Raises:
            DatasetError: a position is not in the file.
        """
        rows = positions.astype(np.int64) - self.start
        if len(outside := np.flatnonzero((rows < 0) | (rows >= self._ends[-1]))):
            fix = f"it has {self.start} to {self.stop - 1}; export more of them"
            raise self._error(f"has no position {positions[outside[0]]}", fix)
        located = np.empty((3, len(rows)), np.int64)
        group_of = np.searchsorted(self._ends, rows, side="right")
        for group in np.unique(group_of).tolist():
            chosen = np.flatnonzero(group_of == group)
            # from the end
            located[:, chosen] = self._held(group)[:, rows[chosen] - int(self._ends[group])]
        return located

    def _located(self, group: int) -> np.ndarray:
        samples = self.read(group)
        return np.stack([samples.source, samples.episode, samples.frame])
