"""A cache folder of a test's own, with files of the smallest tables."""

from pathlib import Path

import pytest

from understudy_data.datasets.read import row_tables
from understudy_data.storage import mapped_tables


def own_cache(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    """Give this process a cache folder in `folder`, in which each table of two rows and each data
    file has a file.

    Returns:
        The folder of the cache: `tables` and `rows` are in it.
    """
    patch.setenv("XDG_CACHE_HOME", str(folder / "xdg"))
    patch.setattr(mapped_tables, "MIN_ROWS", 2)
    patch.setattr(mapped_tables, "_LARGE", 0)
    patch.setattr(row_tables, "LEAST_DATASET", 0)
    patch.setattr(row_tables, "LEAST_FILE", 0)
    return folder / "xdg" / "understudy"
