"""`BadEpisodes`: selected episodes that a training cannot use, and why."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from understudy_data.datasets.check_files import FileCheck
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.episode_table import MissingFiles
from understudy_data.datasets.selection.select import common


@dataclass(frozen=True)
class BadEpisodes:
    """Incomplete and broken episodes of a dataset."""

    ids: tuple[int, ...]
    """Ascending."""
    reasons: tuple[str, ...]
    """What is missing or broken, one line for each file or row."""

    @classmethod
    def find(
        cls,
        catalog: Catalog,
        ids: np.ndarray,
        cameras: Sequence[str],
        keys: Sequence[str],
        opened: np.ndarray | None,
    ) -> "BadEpisodes | None":
        """Find those without one of their files, and broken ones, where a file cannot be used.

        Args:
            catalog: the dataset.
            ids: int64, the selected episodes.
            cameras: cameras in use.
            keys: columns in use.
            opened: int64, episodes whose files are opened, too, to find broken ones; None opens
                no file.

        Returns:
            None where folders cannot be listed, and no file is opened.

        Raises:
            DatasetError: a folder may not be read.
        """
        gaps = catalog.missing_files(cameras)
        if gaps is None and opened is None:
            return None
        selected = catalog.episodes.rows_of(ids)
        gaps = [gap for gap in gaps or [] if np.isin(selected, gap.rows).any()]
        if opened is not None:
            videos = [camera for camera in cameras if camera in catalog.episodes.videos]
            gaps += FileCheck(catalog).broken_episodes(
                videos, keys, catalog.episodes.rows_of(opened)
            )
        return cls._of(catalog, gaps, selected)

    @classmethod
    def contradicting(cls, catalog: Catalog, ids: np.ndarray) -> "BadEpisodes":
        """Find those whose rows contradict the metadata.

        Args:
            catalog: the dataset.
            ids: int64, the episodes to look at.
        """
        selected = catalog.episodes.rows_of(ids)
        return cls._of(catalog, FileCheck(catalog).broken_episodes((), (), selected), selected)

    @staticmethod
    def doubt(catalog: Catalog) -> str:
        """Return a line on files that contradict the table of a dataset, as after a recorder that
        was killed; "": there are none.
        """
        return FileCheck(catalog).doubt()

    @classmethod
    def _of(
        cls, catalog: Catalog, gaps: Sequence[MissingFiles], selected: np.ndarray
    ) -> "BadEpisodes":
        rows = np.concatenate([np.empty(0, np.int64), *(gap.rows for gap in gaps)])
        bad = catalog.episodes.ids[common(selected, rows.astype(np.int64))]
        return cls(tuple(bad.tolist()), tuple(gap.line for gap in gaps))
