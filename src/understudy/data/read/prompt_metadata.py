"""Metadata of episodes as texts for prompts (`understudy/prompt_metadata.py`)."""

import hashlib
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from understudy.batch_keys import PROMPT_METADATA
from understudy.data.format.catalog import Catalog
from understudy.errors import DatasetError
from understudy.prompt_metadata import label, metadata_lines


class EpisodePrompts:
    """Metadata of each episode as text, one field per line.

    Args:
        catalog: the dataset.
        names: metadata to deliver; None delivers nothing, an empty list the empty text.

    Attributes:
        names: as given.
        texts: the distinct texts.

    Raises:
        DatasetError: no episode has such metadata, or a value is no text, number, true or false.
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
                known = ", ".join(metadata) or "none; `edit --metadata` adds some"
                fix = f"did you mean {near[0]!r}?" if near else f"metadata of its episodes: {known}"
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
