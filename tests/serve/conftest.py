"""The policy of the arm, its server and its observations."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.arm import Observation, arm_observations, write_arm_policy

if TYPE_CHECKING:
    from understudy.serve.server import PolicyServer


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arm_policy(tmp_path_factory.mktemp("arm") / "policy")


@pytest.fixture(scope="module")
def server(folder: Path) -> "Iterator[PolicyServer]":
    from support.serving import served

    with served(folder) as running:
        yield running


@pytest.fixture(scope="module")
def seen() -> list[Observation]:
    return arm_observations(6)
