"""Passes before the first robot: the first ones are slow, since memory, kernels and caches are made then."""

from typing import Any

import numpy as np
import torch

from understudy.batch_keys import STATE, TASK
from understudy.policies.acting.prepared import predict
from understudy.policies.inference import RobotPolicy
from understudy.serve.session import copy_for_robot


def warm_up(robot: RobotPolicy, max_batch: int, passes: int) -> None:
    """Compute `passes` chunks for a gray image and a mean state, alone and as a full batch.

    Torch's random generators stay as they are.
    """
    own, config = copy_for_robot(robot), robot.config
    facts = robot.facts
    observation: dict[str, Any] = {TASK: facts.tasks[0] if facts is not None and facts.tasks else ""}
    for camera in config.cameras:
        if camera in robot.metadata.get("cameras", config.cameras):
            known = facts.cameras.get(camera) if facts is not None else None
            height, width = known.size if known is not None and known.size[0] else config.image_size
            observation[camera] = np.full((height, width, 3), 128, np.uint8)
    if config.state_dim:
        center = facts.state.center if facts is not None and facts.state is not None else None
        dim = robot.policy.normalizer.dims[STATE][robot.head]
        observation[STATE] = np.zeros(dim, np.float32) if center is None else np.nan_to_num(center).astype(np.float32)
    generator = torch.Generator().manual_seed(0)
    for size in sorted({1, max_batch}) if passes else ():
        for _ in range(passes):
            own.reset()
            # with a history, time 0 is the start of an episode
            prepared = own.prepare(observation, time=0.0, generator=generator)
            predict(robot.policy, [prepared] * size)
