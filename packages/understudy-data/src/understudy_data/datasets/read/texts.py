"""Texts that a policy learns to answer with, such as the subtask of a frame, from a column or from
the instruction.

`EpisodePrompts` has the metadata of episodes and frames as texts for prompts
(`understudy_data/prompt_metadata.py`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from understudy_base import PROMPT_METADATA, RESPONSE, DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.features import INDEX_KEYS
from understudy_data.datasets.read.rows import Rows
from understudy_data.prompt_metadata import PromptMetadata
from understudy_data.storage.mapped_tables import SharedState, share_arrays

TASK = "task"
"""Name of the instruction as a response."""

STYLE = "subtask"
"""Style of the records of a language column unless another one is named."""


class Responses:
    """Responses of a dataset, by frame.

    Args:
        catalog: the dataset.
        name: a text column; "task", the instruction; "", the empty text for every frame; None, no
            response. A `language` column holds records, of which `COLUMN:STYLE` takes those of one
            style ("subtask" by default): the record of a frame, or the last one that began before
            it.

    Raises:
        DatasetError: there is no such column, or it holds no text.
    """

    def __init__(self, catalog: Catalog, name: str | None) -> None:
        column, _, style = (name or "").partition(":")
        self._name = name
        self._column = "" if name == TASK else column
        self._style = style or STYLE
        self._fps = float(catalog.fps)
        self._root = catalog.root
        feature = catalog.features.get(column)
        if not self._column:
            return
        texts = [key for key, text_feature in catalog.features.items() if text_feature.is_text]
        if feature is None or not feature.is_text:
            reason = "is not a feature" if feature is None else f"is {feature.dtype}, not text"
            problem = f"{column!r} {reason}"
            raise DatasetError(
                problem,
                where=catalog.root,
                fix=f"give one of {', '.join(map(repr, [*texts, TASK]))}",
            )
        if style and feature.dtype != "language":
            problem = f"{column!r} is {feature.dtype} and has no style {style!r}"
            raise DatasetError(
                problem,
                where=catalog.root,
                fix=f"give {column!r} alone; only language columns have styles",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns to read."""
        return (self._column,) if self._column else ()

    def read(
        self, rows: Rows, table_rows: np.ndarray, frames: np.ndarray, tasks: Sequence[str]
    ) -> dict[str, list[str]]:
        """Return {"response": B texts}, or {} without a response.

        Args:
            rows: reader of the columns.
            table_rows: int64 [B], table row of each episode.
            frames: int64 [B], frame numbers in the episodes.
            tasks: B instructions.

        Raises:
            DatasetError: a value is neither text nor a list of records, or cannot be read.
        """
        if self._name is None:
            return {}
        if not self._column:
            responses = list(tasks) if self._name else [""] * len(tasks)
            return {RESPONSE: responses}
        values = rows.take(table_rows, {self._column: frames})[self._column]
        return {
            RESPONSE: [
                self._text(value, int(frame)) for value, frame in zip(values, frames.tolist())
            ]
        }

    def _text(self, value: Any, frame: int) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        if not isinstance(value, list) or not all(isinstance(record, Mapping) for record in value):
            problem = (
                f"column {self._column!r} holds a {type(value).__name__}, expected text or records"
            )
            raise DatasetError(
                problem, where=self._root, fix="name a column of text as the response"
            )
        # Times become frames before they are compared: float32 seconds are up to half a frame off.
        starts = [
            (
                round(float(record.get("timestamp") or 0) * self._fps),
                str(record.get("content") or ""),
            )
            for record in value
            if record.get("style") == self._style
        ]
        begun = [start for start in starts if start[0] <= frame]
        return max(begun, key=lambda start: start[0])[1] if begun else ""


def prompt_names(catalog: Catalog) -> list[str]:
    """Return the names that prompts may have: metadata of episodes, and features with one number or
    text per frame.
    """
    features = catalog.features.items()
    columns = [
        key
        for key, f in features
        if not f.is_camera and f.dtype != "language" and np.prod(f.value_shape or (1,)) == 1
    ]
    return [*catalog.episode_metadata(), *(key for key in columns if key not in INDEX_KEYS)]


_MOST_TEXTS = 10_000
_CACHE = 64 << 20  # bytes of loaded data files


class EpisodePrompts(SharedState):
    """Metadata of each episode, or of each frame, as text, one field per line.

    Features are read once, data file by data file. Memory is needed for the runs of frames with one
    text, and large tables are shared by the processes of a host.

    Args:
        catalog: the dataset.
        names: metadata of episodes, or features with one number or text per frame; None delivers
            nothing, an empty list the empty text.
        episodes: int64 (E,), ids of the episodes in use.

    Attributes:
        names: as given.
        texts: the distinct texts.

    Raises:
        DatasetError: no episode has such metadata, a value is not a text, number, true or false, or
            a feature has too many different values.
    """

    def __init__(self, catalog: Catalog, names: Sequence[str] | None, episodes: np.ndarray) -> None:
        if isinstance(names, str):
            raise DatasetError(
                f"prompt_metadata is {names!r}", fix=f"give a list of names, as in [{names!r}]"
            )
        self.names = None if names is None else tuple(names)
        self.texts: list[str] = [""]
        if not self.names:
            return
        metadata = catalog.episode_metadata()
        every = prompt_names(catalog)
        for name in self.names:
            if name not in every:
                near = get_close_matches(name, every, n=1)
                listed = ", ".join(every) or "none; `edit --metadata` adds some"
                fix = f"metadata of episodes, and features: {listed}"
                if near:
                    fix = f"did you mean {near[0]!r}?"
                raise DatasetError(
                    f"prompt_metadata names {name!r}, which no episode has",
                    where=catalog.root,
                    fix=fix,
                )
        columns = [name for name in self.names if name not in metadata]
        numbers: dict[str, int] = {}
        ids = catalog.episodes.ids.tolist()
        lengths = catalog.episodes.lengths
        first = np.cumsum(lengths) - lengths
        runs = list[tuple[np.ndarray, np.ndarray]]()
        reader = Rows(catalog, columns, _CACHE)
        prompts = PromptMetadata(self.names)
        try:
            if len(labels := [prompts.label(name) for name in self.names]) > len(set(labels)):
                raise ValueError(f"prompt_metadata has one name twice: {', '.join(labels)}")
            for row in np.sort(catalog.episodes.rows_of(episodes)).tolist():
                fixed = {
                    name: metadata[name].get(ids[row]) for name in self.names if name in metadata
                }
                starts, values = _runs(reader, row, int(lengths[row]), columns)
                texts = [prompts.lines(fixed | dict(zip(columns, run))) for run in values]
                of_run = np.array(
                    [numbers.setdefault(text, len(numbers)) for text in texts], np.int32
                )
                runs.append((first[row] + starts, of_run))
                if columns and len(numbers) > _MOST_TEXTS:
                    raise ValueError(
                        f"prompt_metadata has more than {_MOST_TEXTS:,} different texts"
                    )
        except ValueError as error:
            raise DatasetError(str(error), where=catalog.root, fix="leave this name out") from error
        self.texts = list(numbers)
        starts, of_run = map(np.concatenate, zip(*runs))
        begins_run = np.append(True, of_run[1:] != of_run[:-1])
        tables = {"first": first, "starts": starts[begins_run], "numbers": of_run[begins_run]}
        self._tables = share_arrays(tables, catalog.files.cache)

    @property
    def digest(self) -> str:
        """Digest of the texts of all episodes."""
        digest = hashlib.sha256("\0".join(self.texts).encode())
        if self.names:
            for table in self._tables.values():
                digest.update(np.ascontiguousarray(table).data)
        return digest.hexdigest()[:16]

    def read(self, rows: np.ndarray, frames: np.ndarray) -> dict[str, list[str]]:
        """Return {"prompt_metadata": B texts} of frames int64 [B] of table rows int64 [B]; {}
        without names.
        """
        if self.names is None:
            return {}
        if not self.names:
            return {PROMPT_METADATA: [""] * len(rows)}
        runs = (
            np.searchsorted(
                self._tables["starts"], self._tables["first"][rows] + frames, side="right"
            )
            - 1
        )
        return {
            PROMPT_METADATA: [
                self.texts[number] for number in self._tables["numbers"][runs].tolist()
            ]
        }


def _runs(
    reader: Rows, row: int, length: int, columns: Sequence[str]
) -> tuple[np.ndarray, list[tuple[Any, ...]]]:
    """First frame of each run of equal values of `columns` in an episode, int64 (R,), and the
    values.
    """
    if not columns or not length:
        return np.zeros(1, np.int64), [(None,) * len(columns)]
    frames = np.arange(length)
    taken = reader.take(np.full(length, row), dict.fromkeys(columns, frames))
    values = []
    for name in columns:
        dtype = object if isinstance(taken[name], list) else None
        values.append(np.asarray(taken[name], dtype).reshape(-1))
    starts = np.flatnonzero(
        np.append(True, np.any([column[1:] != column[:-1] for column in values], axis=0))
    )
    return starts, list(zip(*(column[starts].tolist() for column in values)))
