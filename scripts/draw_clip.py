"""Draw the moving picture of the documentation: `python scripts/draw_clip.py RUN`.

RUN is the run of README.md. Its policy picks up a block of each color on the simulated table, in
scenes that training did not have.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import understudy as us
from understudy_robot.envs.env import layout_seed
from understudy_robot.envs.ray_camera import RayCamera
from understudy_robot.envs.tabletop import TabletopEnv

PICTURE = Path(__file__).parents[1] / "docs/img/table.webp"
SIDE = 240
"""Width and height in pixels."""
PAUSE = 8
"""Frames of rest at the end of an episode."""


def main(run: str) -> None:
    """Play three episodes and write them as one animation."""
    policy = us.load_policy(f"{run}/policy")
    env = TabletopEnv()
    camera = RayCamera(env.model, "front", SIDE, SIDE)
    images = list[np.ndarray]()
    for episode, task in enumerate(env.tasks):
        observation = env.reset(layout_seed(0, episode, evaluation=True), task)
        policy.reset(seed=0, position=episode * env.max_steps)
        done = False
        while not done:
            action = policy.select_action({**observation, "task": task}, horizon=4)
            observation, outcome = env.step(action)
            images.append(camera.render(env.data))
            done = outcome.done
        print(task, outcome.completed_task == task)
        images += [images[-1]] * PAUSE
    first, *rest = [Image.fromarray(image) for image in images]
    first.save(PICTURE, "WEBP", save_all=True, append_images=rest, duration=100, loop=0, quality=60)
    print(f"{PICTURE}: {PICTURE.stat().st_size} bytes, {len(images)} images")


if __name__ == "__main__":
    main(sys.argv[1])
