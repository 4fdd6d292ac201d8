"""Texts that a policy learns to answer with, such as the subtask of a frame, from a column or from the instruction.

`EpisodePrompts` has the metadata of episodes as texts for prompts (`understudy/prompt_metadata.py`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import numpy as np

from understudy.batch_keys import PROMPT_METADATA, RESPONSE
from understudy.data.format.catalog import Catalog
from understudy.data.read.rows import Rows
from understudy.errors import DatasetError
from understudy.prompt_metadata import label, metadata_lines

TASK = "task"
"""Name of the instruction as a response."""

STYLE = "subtask"
"""Style of the records of a language column unless another one is named."""


class Responses:
    """Responses of a dataset, by frame.

    Args:
        catalog: the dataset.
        name: a text column; "task", the instruction; "", the empty text for every frame; None, no response. A
            `language` column holds records, of which `COLUMN:STYLE` takes those of one style ("subtask" by default):
            the record of a frame, or the last one that began before it.

    Raises:
        DatasetError: there is no such column, or it holds no text.
    """

    def __init__(self, catalog: Catalog, name: str | None) -> None:
        column, _, style = (name or "").partition(":")
        self._name, self._column = name, "" if name == TASK else column
        self._style, self._fps, self._root = style or STYLE, float(catalog.fps), catalog.root
        feature = catalog.features.get(column)
        if not self._column:
            return
        texts = [key for key, text_feature in catalog.features.items() if text_feature.is_text]
        if feature is None or not feature.is_text:
            reason = "is not a feature" if feature is None else f"is {feature.dtype}, not text"
            problem = f"{column!r} {reason}"
            raise DatasetError(problem, where=catalog.root, fix=f"give one of {', '.join(map(repr, [*texts, TASK]))}")
        if style and feature.dtype != "language":
            problem = f"{column!r} is {feature.dtype} and has no style {style!r}"
            raise DatasetError(
                problem, where=catalog.root, fix=f"give {column!r} alone; only language columns have styles"
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
            return {RESPONSE: list(tasks) if self._name else [""] * len(tasks)}
        values = rows.take(table_rows, {self._column: frames})[self._column]
        return {RESPONSE: [self._text(value, int(frame)) for value, frame in zip(values, frames.tolist())]}

    def _text(self, value: Any, frame: int) -> str:
        if value is None or isinstance(value, str):
            return value or ""
        if not isinstance(value, list) or not all(isinstance(record, Mapping) for record in value):
            problem = f"column {self._column!r} holds a {type(value).__name__}, expected text or records"
            raise DatasetError(problem, where=self._root, fix="name a column of text as the response")
        # Times become frames before they are compared: float32 seconds are up to half a frame off.
        starts = [
            (round(float(record.get("timestamp") or 0) * self._fps), str(record.get("content") or ""))
            for record in value
            if record.get("style") == self._style
        ]
        begun = [start for start in starts if start[0] <= frame]
        return max(begun, key=lambda start: start[0])[1] if begun else ""


class EpisodePrompts:
    """Metadata of each episode as text, one field per line.

    Args:
        catalog: the dataset.
        names: metadata to deliver; None delivers nothing, an empty list the empty text.

    Attributes:
        names: as given.
        texts: the distinct texts.

    Raises:
        DatasetError: no episode has such metadata, or a value is not a text, number, true or false.
    """

    def __init__(self, catalog: Catalog, names: Sequence[str] | None) -> None:
        if isinstance(names, str):
            raise DatasetError(f"prompt_metadata is {names!r}", fix=f"give a list of names, as in [{names!r}]")
        self.names = None if names is None else tuple(names)
        self.texts: list[str] = [""]
        if not self.names:
            return
        metadata = catalog.episode_metadata()
        for name in self.names:
            if name not in metadata:
                near = get_close_matches(name, metadata, n=1)
                metadata_names = ", ".join(metadata) or "none; `edit --metadata` adds some"
                fix = f"did you mean {near[0]!r}?" if near else f"metadata of its episodes: {metadata_names}"
                raise DatasetError(f"prompt_metadata names {name!r}, which no episode has", where=catalog.root, fix=fix)
        known_texts: dict[str, int] = {}
        ids = catalog.episodes.ids.tolist()
        self._number = np.zeros(len(ids), np.int32)
        try:
            if len(labels := [label(name) for name in self.names]) > len(set(labels)):
                raise ValueError(f"prompt_metadata has one name twice: {', '.join(labels)}")
            for row, episode in enumerate(ids):
                text = metadata_lines({name: metadata[name].get(episode) for name in self.names}, self.names)
                self._number[row] = known_texts.setdefault(text, len(known_texts))
        except ValueError as error:
            raise DatasetError(str(error), where=catalog.root, fix="leave this name out") from error
        self.texts = list(known_texts)

    @property
    def digest(self) -> str:
        """Digest of the texts of all episodes."""
        numbers = self._number.tobytes() if self.names else b""
        return hashlib.sha256("\0".join(self.texts).encode() + numbers).hexdigest()[:16]

    def read(self, rows: np.ndarray) -> dict[str, list[str]]:
        """Return {"prompt_metadata": B texts} of table rows int64 [B]; {} without names."""
        if self.names is None:
            return {}
        numbers = self._number[rows].tolist() if self.names else [0] * len(rows)
        return {PROMPT_METADATA: [self.texts[number] for number in numbers]}
