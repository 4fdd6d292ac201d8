"""A tiny run, trained once for all tests of this folder and of those in it."""

from pathlib import Path

import pytest

from understudy.testing.runs import tiny_config, tiny_dataset
from understudy.train import run


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete run of 4 steps; tests copy it before they change it."""
    root = tmp_path_factory.mktemp("compared")
    run.train(tiny_config(tiny_dataset(root / "dataset"), root / "run", steps=4, val={"every": 2}))
    return root / "run"
