"""The policy of the arm, its server and its observations."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from understudy.testing.arm import write_arm_policy
from understudy_client.testing.arm import Observation, arm_observations

if TYPE_CHECKING:
    from understudy.policies.inference import RobotPolicy
    from understudy_robot.serve.server import PolicyServer


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_arm_policy(tmp_path_factory.mktemp("arm") / "policy")


@pytest.fixture(scope="module")
def server(folder: Path) -> "Iterator[PolicyServer]":
    from understudy_robot.testing.serving import served

    with served(folder) as running:
        yield running


@pytest.fixture(scope="module")
def seen() -> list[Observation]:
    return arm_observations(6)


@pytest.fixture(scope="package")
def remembering(tmp_path_factory: pytest.TempPathFactory) -> "RobotPolicy":
    """A small pi0.5 that sees 0.2 and 0.5 s back, and was trained for up to two given actions."""
    pytest.importorskip("sentencepiece", reason="needs the extra pi05")
    from understudy.policies.inference import RobotPolicy
    from understudy.testing.pi05_policy import policy
    from understudy.testing.sentences import write_model

    tokenizer = write_model(tmp_path_factory.mktemp("tokenizer"))
    net = policy(tokenizer, history=(0.2, 0.5), state_history=True, max_delay=2)
    return RobotPolicy(net.eval(), {"heads": {"": {"fps": 10}}})


@pytest.fixture(scope="session")
def moments() -> list[dict[str, Any]]:
    """Observations of `remembering`."""
    rng = np.random.default_rng(0)
    images = ("observation.images.front", "observation.images.wrist")
    return [
        {key: rng.integers(0, 256, (12, 10, 3), np.uint8) for key in images}
        | {"observation.state": rng.random(2, np.float32), "task": "push"}
        for _ in range(14)
    ]
