"""Fixtures of tests of runs: a dataset, a mesh of one process, a tokenizer. A conftest.py imports
them.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from understudy.config.train import TrainConfig
from understudy.distributed.mesh import Mesh, join_mesh
from understudy.testing.runs import tiny_dataset


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset in a folder of this test file."""
    return tiny_dataset(tmp_path_factory.mktemp("data") / "dataset")


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with join_mesh(TrainConfig(device="cpu").mesh) as alone:
        yield alone


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    from understudy.testing.sentences import write_model

    return write_model(tmp_path_factory.mktemp("tokenizer"))
