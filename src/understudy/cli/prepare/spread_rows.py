"""Rows of samples that are evenly spread over a dataset."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from understudy.data.dataset import EpisodeDataset


def spread_rows(dataset: "EpisodeDataset", count: int, batch: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `count` samples, evenly spread over `dataset`, in batches of up to `batch` samples."""
    import numpy as np

    wanted = np.linspace(0, len(dataset) - 1, count).round().astype(np.int64)
    for begin in range(0, count, batch):
        yield dataset.row_batch(*dataset.locate(wanted[begin : begin + batch]))
