"""Episodes of one or more datasets as a list in pages, found by id or task."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from understudy.data.format.catalog import Catalog

PAGE = 100
"""Episodes of a page."""
_MOST_TEXT = 300


class EpisodeList:
    """Episodes in the sequence of their sources and ids.

    Args:
        names: of the sources.
        catalogs: their datasets.
        rows: table rows int64 (n,) of the listed episodes of each source, ascending.
    """

    def __init__(self, names: Sequence[str], catalogs: Sequence[Catalog], rows: Sequence[np.ndarray]) -> None:
        self._names, self._catalogs, self._rows = tuple(names), tuple(catalogs), tuple(rows)

    def __len__(self) -> int:
        return sum(map(len, self._rows))

    def contains(self, source: int, row: int) -> bool:
        """Return whether the episode of a table row of a source is listed."""
        rows = self._rows[source]
        place = int(np.searchsorted(rows, row))
        return place < len(rows) and int(rows[place]) == row

    def all(self) -> list[tuple[int, int]]:
        """Return (source, episode id) of every listed episode."""
        return [
            (source, int(episode))
            for source, rows in enumerate(self._rows)
            for episode in self._catalogs[source].episodes.ids[rows]
        ]

    def page(self, query: str = "", number: int = 0) -> dict[str, Any]:
        """Return a page of the episodes that match: {"total", "page", "size", "episodes"}.

        Args:
            query: ids "3" or "3-9", or parts of a task or of the name of one of several sources; all words must match.
            number: of the page, from 0 on.
        """
        words = query.lower().split()
        found = [rows[self._mask(source, rows, words)] for source, rows in enumerate(self._rows)]
        ends = np.cumsum([len(rows) for rows in found])
        total = int(ends[-1]) if len(ends) else 0
        first, last = number * PAGE, min((number + 1) * PAGE, total)
        episodes = []
        for place in range(max(0, first), last):
            source = int(np.searchsorted(ends, place, side="right"))
            row = int(found[source][place - (ends[source] - len(found[source]))])
            episodes.append(self.describe(source, row))
        return {"total": total, "page": number, "size": PAGE, "episodes": episodes}

    def describe(self, source: int, row: int) -> dict[str, Any]:
        """Return {"source", "id", "length", "seconds", "task"} of one episode."""
        catalog = self._catalogs[source]
        length = int(catalog.episodes.lengths[row])
        texts = [catalog.tasks[task] for task in catalog.episodes.tasks_of(row).tolist() if task >= 0]
        return {
            "source": source,
            "id": int(catalog.episodes.ids[row]),
            "length": length,
            "seconds": round(length / catalog.fps, 2),
            "task": "; ".join(texts)[:_MOST_TEXT],
        }

    def _mask(self, source: int, rows: np.ndarray, words: Sequence[str]) -> np.ndarray:
        """Rows that match all words, bool (n,)."""
        mask = np.ones(len(rows), bool)
        table = self._catalogs[source].episodes
        for word in words:
            matches = np.full(len(rows), len(self._names) > 1 and word in self._names[source].lower())
            if bounds := re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", word):
                low, high = int(bounds[1]), int(bounds[2] or bounds[1])
                ids = table.ids[rows]
                matches |= (ids >= low) & (ids <= high)
            matches |= self._has_task(source, rows, word)
            mask &= matches
        return mask

    def _has_task(self, source: int, rows: np.ndarray, word: str) -> np.ndarray:
        """Rows with a task whose text contains `word`, bool (n,)."""
        catalog = self._catalogs[source]
        fits = np.asarray([word in task.lower() for task in catalog.tasks] + [False])  # -1: a task of no list
        counts = np.concatenate([[0], np.cumsum(fits[catalog.episodes.task_indices])])
        offsets = catalog.episodes.task_offsets
        return np.asarray(counts[offsets[rows + 1]] > counts[offsets[rows]])
