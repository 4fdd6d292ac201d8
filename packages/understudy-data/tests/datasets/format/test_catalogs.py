"""Datasets that are opened together: each once, with its layout."""

from pathlib import Path

from understudy_base import DatasetError
from understudy_base.testing.refusals import refused
from understudy_data.datasets.format.catalog import Catalog
from understudy_data.datasets.format.catalogs import Catalogs
from understudy_data.testing.datasets import Spec, write_dataset


def test_one_dataset_is_opened_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_dataset(tmp_path / name, Spec(lengths=(4, 5)))
    catalogs = Catalogs()
    places = [catalogs.start(str(tmp_path / name), pairing="") for name in ("a", "b", "a")]
    by_columns = catalogs.start(str(tmp_path / "a"), pairing="columns")
    catalogs.read_tables()
    opened = [catalogs.open(place) for place in places]
    assert opened[0] is opened[2]
    assert opened[0] is not opened[1]
    assert opened[0].place == Catalog.open(tmp_path / "a").place
    assert catalogs.open(by_columns).episodes.pairing == "columns"
    with refused(where=str(tmp_path / "c"), kind=DatasetError):
        catalogs.start(str(tmp_path / "c"))
