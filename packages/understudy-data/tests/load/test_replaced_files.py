"""Files of a dataset that are replaced while a loader reads them are refused, and not
substituted.
"""

import time
from itertools import islice
from pathlib import Path

from understudy_base import SourceError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.dataset import EpisodeDataset
from understudy_data.load.loader import Loader
from understudy_data.order import Order
from understudy_data.testing.datasets import Spec, replace_files, write_dataset


def test_a_loader_refuses_replaced_data_files(tmp_path: Path) -> None:
    spec = Spec(version="v3.0", lengths=(30,) * 60, cameras=(), per_data_file=1, foreign=False)
    write_dataset(tmp_path / "d", spec)
    order = Order.from_datasets(EpisodeDataset(tmp_path / "d"), batch_size=8, mode="sequential")
    with Loader(tmp_path / "d", order=order, num_threads=1, on_bad_frame="substitute") as loader:
        next(loader)
        time.sleep(0.02)
        replace_files(tmp_path / "d", "data/**/*.parquet", 0.0)
        with refused("open", where="", fix="start", kind=SourceError):
            list(islice(loader, 200))
