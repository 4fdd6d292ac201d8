"""Addresses of datasets on a local disk."""

import itertools
import os
from pathlib import Path

import pytest

from understudy_base.dataset_address import absolute_path


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders a/b, a/c and x/y/z, with links a/far -> x/y and a/near -> a/b."""
    for folder in ("a/b", "a/c", "x/y/z"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "a/far").symlink_to(tmp_path / "x/y")
    (tmp_path / "a/near").symlink_to("b")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_the_folder_that_the_system_finds(tree: Path) -> None:
    names = ["a", "far", "near", "..", "y"]
    walks = itertools.chain(*(itertools.product(names, repeat=count) for count in range(5)))
    paths = ["/".join(["a", *parts]) for parts in walks]
    there = [path for path in paths if os.path.isdir(path)]
    assert any(not os.path.isdir(os.path.normpath(path)) for path in there)
    for path in there:
        found = absolute_path(path)
        assert os.path.samefile(found, path), path
        assert os.path.isabs(found)
        assert ".." not in found.split("/")


def test_a_link_stays_where_no_dots_follow(tree: Path) -> None:
    assert absolute_path("a/far") == f"{tree}/a/far"
    assert absolute_path("a/near/../far/z") == f"{tree}/a/far/z"
    assert absolute_path("a/far/../y") == f"{tree}/x/y"


def test_a_path_that_does_not_exist(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert absolute_path("~/new/../data/") == f"{tree}/data"
    assert absolute_path("") == str(tree)
