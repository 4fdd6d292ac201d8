"""The policy of the arm, and its observations."""

import logging
from pathlib import Path

import pytest

pytest.importorskip("grpc", reason="needs the package understudy-lerobot-service")

from understudy.testing.arm import write_arm_policy
from understudy_client.testing.arm import Observation, arm_observations


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arm_policy(tmp_path_factory.mktemp("arm") / "policy")


@pytest.fixture(scope="module")
def seen() -> list[Observation]:
    return arm_observations(6)


@pytest.fixture(autouse=True)
def _all_lines_of_the_log() -> None:
    """Undo the level that `understudy replay` sets in its process."""
    logging.getLogger("understudy.serve").setLevel(logging.NOTSET)
