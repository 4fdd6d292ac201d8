"""Statistics recorded with a dataset, for a comparison with its rows."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from understudy_base import DatasetError
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.recorded_stats import GLOBAL, PER_EPISODE
from understudy_data.datasets.stats.far_values import FAR, Fit, confront
from understudy_data.datasets.stats.stats_files import NEEDED, parse_figures, read_episode_stats
from understudy_data.datasets.stats.summary import DimensionMode, Statistics, offset_and_spread


class Far(NamedTuple):
    """Dimensions whose values the recorded figures normalize to far ones.

    Attributes:
        dims: dimension -> its values in words.
        modes: the modes of normalization that do so.
        limit: magnitude above which a normalized value is far.
    """

    dims: dict[int, str]
    modes: list[str]
    limit: float = FAR


class RecordedStatistics:
    """Statistics that a dataset has beside its rows.

    Args:
        catalog: the dataset.

    Attributes:
        path: their file under the root; of v2.1 that of the records of episodes where there is no
            other.
        episodes_path: file or folder of the records of episodes under the root; "" for none.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.path = GLOBAL
        self.episodes_path = ""
        if catalog.version.startswith("v3"):
            self.episodes_path = "meta/episodes"
        elif catalog.version == "v2.1" and not catalog.files.exists(GLOBAL):
            self.path = PER_EPISODE
            self.episodes_path = PER_EPISODE

    def of_episodes(self, keys: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
        """Read the records of episodes: key -> statistic -> float64 (N, D), NaN where an episode
        has none.

        Raises:
            DatasetError, ValueError, KeyError, AttributeError: they cannot be read.
        """
        catalog = self._catalog
        return read_episode_stats(catalog.files, catalog.version, catalog.episodes.ids, keys)

    def far(
        self,
        key: str,
        names: Sequence[str],
        entry: Mapping[str, np.ndarray],
        rows: np.ndarray,
    ) -> Far:
        """Find the dimensions that the recorded figures normalize to far values, and the figures of
        the rows do not.

        Args:
            key: the column.
            names: of its dimensions (D,).
            entry: its recorded statistics.
            rows: some of its rows, float64 (n, D), one at least.
        """
        q01, q99 = np.quantile(rows, [0.01, 0.99], axis=0)
        own = Statistics(len(rows), rows.mean(0), rows.std(0), rows.min(0), rows.max(0), q01, q99)
        dims: dict[int, str] = {}
        modes = list[str]()
        for mode in NEEDED:
            if mode == "identity":
                continue
            try:
                figures = parse_figures(entry, key, [mode] * len(names), len(names), self.path)
            except DatasetError:
                continue  # no training normalizes by it
            fit = _fit(rows, figures, mode)
            far = np.flatnonzero(fit.far & ~_fit(rows, own, mode).far).tolist()
            dims = {dim: fit.describe(key, dim, names) for dim in far} | dims
            if far:
                modes.append(mode)
        return Far(dims, modes)


def _fit(rows: np.ndarray, statistics: Statistics, mode: DimensionMode) -> Fit:
    maps = offset_and_spread(statistics, mode)
    return confront(rows, maps["offset"].astype(np.float64), maps["spread"].astype(np.float64))
