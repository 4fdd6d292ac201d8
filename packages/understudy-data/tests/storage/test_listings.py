"""Listings of local folders, kept while a dataset is opened."""

from pathlib import Path

from understudy_data.storage.dataset_root import Files


def test_listings_are_kept_until_they_are_dropped(tmp_path: Path) -> None:
    files = Files(tmp_path)
    (tmp_path / "one").touch()
    assert files.entries("") == [("one", False)]
    (tmp_path / "two").mkdir()
    assert files.entries("") == [("one", False), ("two", True)]

    files.keep_listings()
    assert files.entries("") == [("one", False), ("two", True)]
    assert files.entries("absent") == []
    (tmp_path / "one").unlink()
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "three").touch()
    assert files.entries("") == [("one", False), ("two", True)]
    assert files.entries("absent") == []

    files.drop_listings()
    assert files.entries("") == [("absent", True), ("two", True)]
    assert files.entries("absent") == [("three", False)]
