"""Chunks of the flow policy that continue the one in execution."""

import numpy as np
import pytest
import torch

from understudy.policies.draws import generate_draws
from understudy.policies.inference import RobotPolicy
from understudy.testing.policies import batch, policy
from understudy_base.testing.refusals import refused


@pytest.mark.parametrize("rows", [1, 3])
def test_the_chunk_in_execution_guides_the_next(rows: int) -> None:
    """Strongly up to `delay`, weakly behind it; with no action to be guided by, it is a chunk of
    its own.
    """
    net = policy(chunk=4).eval()
    data = {key: value[:rows] for key, value in batch(4).items()}
    draws = generate_draws(net.random_spec("act"), rows, torch.Generator().manual_seed(0))
    free = net.act(data, draws)
    scale = net.normalizer.action.spread.abs().reshape(-1) + 1e-6
    rest = free + 2 * scale * torch.tensor([1.0, 0.0, 1.0])
    assert torch.allclose(net.continue_chunk(data, draws, rest, 0, horizon=0), free, atol=1e-5)

    def apart(delay: int, horizon: int) -> torch.Tensor:
        found = net.continue_chunk(data, draws, rest, delay, horizon=horizon)
        return ((found - rest) / scale).abs()[..., [0, 2]].mean((0, 2))

    alone = ((free - rest) / scale).abs()[..., [0, 2]].mean((0, 2))
    guided = apart(2, 4)
    assert (guided[:2] < 0.2 * alone[:2]).all()
    assert guided[3] > guided[:2].max()
    assert (apart(4, 4)[3] < guided[3]).all()


def test_a_robot_continues_its_chunk() -> None:
    robot = RobotPolicy(policy(chunk=4).eval(), {"heads": {"": {"fps": 10}}})
    robot.reset()
    images = {key: np.zeros((16, 16, 3), np.uint8) for key in robot.config.cameras}
    seen = {**images, "observation.state": np.zeros(2, np.float32), "task": "push"}
    first = robot.act(seen, generator=torch.Generator().manual_seed(0))
    next_one = robot.act(
        seen, generator=torch.Generator().manual_seed(1), previous=first[2:], delay=1, horizon=2
    )
    alone = robot.act(seen, generator=torch.Generator().manual_seed(1))
    assert np.abs(next_one[0] - first[2]).sum() < 0.5 * np.abs(alone[0] - first[2]).sum()


def test_numbers_that_cannot_guide_are_refused() -> None:
    net = policy(chunk=4).eval()
    data = batch(1)
    draws = generate_draws(net.random_spec("act"), 1)
    rest = torch.zeros(1, 3, 3)
    with refused("horizon", kind=ValueError):
        net.continue_chunk(data, draws, rest, 1)
    for delay, horizon in ((2, 1), (1, 4), (-1, 2)):
        with refused("delay", delay, "horizon", horizon, kind=ValueError):
            net.continue_chunk(data, draws, rest, delay, horizon=horizon)
    future = policy(chunk=4, future=True).eval()
    with refused("future", kind=ValueError):
        future.continue_chunk(
            data, generate_draws(future.random_spec("act"), 1), rest, 1, horizon=2
        )
