"""An arm of seven joints with two cameras: its observations, and its input contract."""

from functools import cache, lru_cache
from typing import Any

import numpy as np

from understudy_client.contract.camera_print import CameraPrint, shrink
from understudy_client.contract.facts import CameraFacts, Contract, RobotFacts, VectorFacts

HEIGHT = 96
WIDTH = 128
CENTER = np.array([0.0, -0.6, 0.2, -1.9, 0.1, 1.5, 0.4])
DEVIATION = np.array([0.3, 0.4, 0.3, 0.4, 0.2, 0.3, 0.4])
CAMERAS = ("front", "wrist_left")
NAMES = ("base", "shoulder", "arm", "elbow", "roll", "wrist", "gripper")
TASKS = ("pick up the red block", "open the drawer")
Observation = dict[str, Any]


def states(count: int, seed: int) -> np.ndarray:
    """Joint angles in radians, and a gripper that is open or closed."""
    rng = np.random.default_rng(seed)
    found = CENTER + DEVIATION * np.clip(rng.standard_normal((count, 7)), -2.5, 2.5)
    found[:, 6] = 0.8 * (rng.random(count) < 0.4)
    return found


def images(camera: str, count: int, seed: int) -> np.ndarray:
    """A scene of the camera's own, a moving object, changing light and noise."""
    return drawn(camera, count, seed).copy()


@lru_cache(maxsize=4)
def drawn(camera: str, count: int, seed: int) -> np.ndarray:
    scene = np.random.default_rng(len(camera)).integers(0, 255, (6, 8, 3))
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(count):
        image = (scene + rng.normal(0, 8, 3)).repeat(16, axis=0).repeat(16, axis=1)
        x = rng.integers(0, WIDTH - 20)
        image[40:60, x : x + 20] = (200, 30, 30)
        found.append(np.clip(image + rng.normal(0, 3, image.shape), 0, 255).astype(np.uint8))
    return np.stack(found)


@cache
def look(camera: str) -> CameraPrint:
    """The print of 48 images of a camera."""
    return CameraPrint.of_images([shrink(image) for image in images(camera, 48, 1)])


def vector(key: str, values: np.ndarray) -> VectorFacts:
    figures = {
        "mean": values.mean(0),
        "std": values.std(0),
        "min": values.min(0),
        "max": values.max(0),
    }
    return VectorFacts(
        key,
        NAMES,
        figures | {"q01": np.quantile(values, 0.01, 0), "q99": np.quantile(values, 0.99, 0)},
    )


def arm_contract() -> Contract:
    """Two robots of a mixture, "arm" and "other"."""
    cameras = {}
    for name in CAMERAS:
        key = f"observation.images.{name}"
        cameras[key] = CameraFacts(f"cam_{name}", (HEIGHT, WIDTH), look(name))
    trained = states(4000, 1)
    robots = {
        head: RobotFacts(
            30, 16, head, "joint", vector("joints", own), vector("action", own), cameras, TASKS
        )
        for head, own in {"arm": trained, "other": trained[:, ::-1] * 1.7 + 2}.items()
    }
    return Contract(robots, {"run": "r"})


def arm_observations(steps: int, seed: int = 7) -> list[Observation]:
    """Observations of the arm under the keys of its recordings."""
    poses = states(steps, seed)
    front = images("front", steps, seed)
    wrist = images("wrist_left", steps, seed + 1)
    return [
        {
            "joints": poses[step],
            "cam_front": front[step],
            "cam_wrist_left": wrist[step],
            "task": TASKS[0],
        }
        for step in range(steps)
    ]
