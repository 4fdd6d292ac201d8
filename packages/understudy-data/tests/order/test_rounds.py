"""How far apart the samples of a lane are, by which the loader spreads its runs of frames."""

from types import SimpleNamespace

import numpy as np
import pytest

from understudy_data.load.images.clip_reader import first_round
from understudy_data.order import Order


@pytest.mark.parametrize("weights", [[0.5, 0.3, 0.2], [0.51, 0.3, 0.19], [1.0, 3.1, 0.02]])
def test_a_lane_comes_up_once_in_a_round(weights: list[float]) -> None:
    rows = np.array([[episode, 0, 300] for episode in range(2000)])
    sources = [SimpleNamespace(name=f"s{d}", segments=rows, gop=2, reach=(0, 16)) for d in range(3)]
    order = Order.from_datasets(sources, weights=weights, batch_size=64)
    positions = np.arange(20_000)
    source, lane = order.lanes(positions)
    for d in range(3):
        apart = np.diff(positions[(source == d) & (lane == 0)])
        assert set(apart.tolist()) == {first_round(order, d)}
