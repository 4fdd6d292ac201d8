"""Texts that a policy learns to answer with, such as the subtask of a frame, from a column or from the instruction."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from understudy.batch_keys import RESPONSE
from understudy.data.format.catalog import Catalog
from understudy.data.read.rows import Rows
from understudy.errors import DatasetError

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
        texts = [key for key, own in catalog.features.items() if own.is_text]
        if feature is None or not feature.is_text:
            reason = "is no feature" if feature is None else f"is {feature.dtype}, not text"
            what = f"{column!r} {reason}"
            raise DatasetError(what, where=catalog.root, fix=f"give one of {', '.join(map(repr, [*texts, TASK]))}")
        if style and feature.dtype != "language":
            what = f"{column!r} is {feature.dtype} and has no style {style!r}"
            raise DatasetError(
                what, where=catalog.root, fix=f"give {column!r} alone; only language columns have styles"
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
            what = f"column {self._column!r} holds a {type(value).__name__}, expected text or records"
            raise DatasetError(what, where=self._root, fix="name a column of text as the response")
        # Times become frames before they are compared: float32 seconds are up to half a frame off.
        starts = [
            (round(float(record.get("timestamp") or 0) * self._fps), str(record.get("content") or ""))
            for record in value
            if record.get("style") == self._style
        ]
        begun = [start for start in starts if start[0] <= frame]
        return max(begun, key=lambda start: start[0])[1] if begun else ""
