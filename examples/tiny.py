"""The dataset of the examples: the folder or URL named on the command line, or a tiny recording
made on the spot.
"""

import atexit
import shutil
import sys
import tempfile

import numpy as np

import understudy as us


def dataset() -> str:
    return sys.argv[1] if len(sys.argv) > 1 else temporary()


def temporary() -> str:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return record(folder + "/tiny")


def record(root: str, episodes: int = 8, frames: int = 40) -> str:
    features = {
        "observation.images.front": {"dtype": "video", "shape": (64, 64, 3)},
        "observation.state": {"dtype": "float32", "shape": (4,)},
        "action": {"dtype": "float32", "shape": (4,)},
    }
    with us.EpisodeWriter(root, fps=10, features=features) as writer:
        for episode in range(episodes):
            state = np.full(4, episode / episodes, np.float32)
            for frame in range(frames):
                action = np.sin(frame / 5 + np.arange(4, dtype=np.float32))
                image = np.full((64, 64, 3), (frame * 6, episode * 30, 90), np.uint8)
                row = {
                    "observation.images.front": image,
                    "observation.state": state,
                    "action": action,
                }
                writer.add_frame(row, task="follow the light")
                state = state + 0.1 * action
            writer.save_episode()
    return root
