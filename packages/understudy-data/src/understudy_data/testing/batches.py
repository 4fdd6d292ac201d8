"""Comparison of batches, and the least memory of a Loader."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.loader import Loader
from understudy_data.order import Order


def batches(data: EpisodeDataset, order: Order, count: int, **options: Any) -> list[dict[str, Any]]:
    """The first `count` batches of a Loader."""
    with Loader([data], order=order, **options) as loader:
        return [next(loader) for _ in range(count)]


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether two batches have the same keys and under each the same, bit for bit."""
    if one.keys() != two.keys():
        return False
    for key, value in one.items():
        is_tensor = isinstance(value, torch.Tensor)
        is_equal = torch.equal(value, two[key]) if is_tensor else value == two[key]
        if not is_equal:
            return False
    return True


def all_same(one: Sequence[dict[str, Any]], two: Sequence[dict[str, Any]]) -> bool:
    """Whether both have the same number of batches, and each pair is the `same`."""
    return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two))


def least_memory(*data: EpisodeDataset, order: Order, **options: Any) -> int:
    """The least memory budget of a Loader, from its own error message."""
    with pytest.raises(ValueError, match="need") as caught:
        Loader(data, order=order, memory=1, **options)
    return int(str(caught.value).split("need ")[1].split(" bytes")[0])
