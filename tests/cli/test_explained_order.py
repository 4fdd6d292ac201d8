"""`order explain` chooses the order that a loader chooses."""

from pathlib import Path

import pytest

from understudy_data.load.loader import Loader
from understudy_data.testing.datasets import Spec, write_dataset
from understudy_tools.cli.order import ExplainConfig, explained


@pytest.mark.parametrize("memory", ["4GB", "6MB"])
def test_explained_order_is_that_of_a_loader(tmp_path: Path, memory: str) -> None:
    root = tmp_path / "data"
    write_dataset(root, Spec(lengths=(60,) * 8, gop=30))
    config = ExplainConfig(batch_size=4, world_size=1, paths=(str(root),), memory=memory)
    choice = explained(config).choice
    assert choice is not None
    with Loader(root, batch_size=4, memory=memory, seed=config.seed) as loader:
        spec = loader.order.spec.sources[0]
        other = choice.order.spec.sources[0]
    assert (spec.clip, spec.lanes, spec.cut) == (other.clip, other.lanes, other.cut)
