"""Sets of episode ids or table rows as sorted arrays.

NumPy 2.3 and later hash in `np.unique`, and `setdiff1d` and `intersect1d` call it for both arguments. Sorting takes a
small part of that time where ids are in sequence.
"""

import numpy as np


def distinct(values: np.ndarray) -> np.ndarray:
    """Return the distinct values, ascending, as `np.unique` does."""
    found = np.sort(np.asarray(values), axis=None)
    return found[np.concatenate([[True], found[1:] != found[:-1]])] if len(found) else found


def difference(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distinct values that are not in `others`, ascending."""
    return np.setdiff1d(distinct(values), distinct(others), assume_unique=True)


def common(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the distinct values that are in both, ascending."""
    return np.intersect1d(distinct(values), distinct(others), assume_unique=True)
