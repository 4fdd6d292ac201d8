"""A small recording with known values, and the expected content of its folder. Also a program: see
`main`.

The program records the same episodes in many forked children and kills each with SIGKILL before
another file operation, with one import for all.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from understudy_data.datasets.write import dataset_files
from understudy_data.datasets.write.writer import EpisodeWriter

FPS = 10
FEATURES: dict[str, dict[str, Any]] = {
    "observation.images.top": {"dtype": "video", "shape": (32, 32, 3)},
    "observation.images.wrist": {"dtype": "video", "shape": (16, 32, 3)},
    "observation.state": {"dtype": "float32", "shape": (3,), "names": ["x", "y", "z"]},
}
EPISODES = 3  # one full group of two in the killed recordings, and one that finish() packs


def length(episode: int) -> int:
    return 2 + episode % 2


def task(episode: int) -> str:
    return f"task {episode // 2}"


def shade(episode: int, frame: int, camera: int) -> int:
    """Grey level of an image, different for all images of a recording."""
    return 10 + (episode * 41 + frame * 13 + camera * 97) % 230


def state(episode: int, frame: int) -> np.ndarray:
    return np.array([episode, frame, episode * 100 + frame], np.float32)


def open_writer(root: Path, resume: bool = False) -> EpisodeWriter:
    return EpisodeWriter(root, fps=FPS, features=FEATURES, codec="libx264", resume=resume)


def record(
    writer: EpisodeWriter, episodes: range, saved: Callable[[int], None] = lambda episode: None
) -> None:
    for episode in episodes:
        for frame in range(length(episode)):
            pictures = {
                "observation.images.top": np.full((32, 32, 3), shade(episode, frame, 0), np.uint8),
                "observation.images.wrist": np.full(
                    (16, 32, 3), shade(episode, frame, 1), np.uint8
                ),
            }
            writer.add_frame(
                pictures | {"observation.state": state(episode, frame)}, task=task(episode)
            )
        assert writer.save_episode() == episode
        saved(episode)


def _kill_before(count: int) -> None:
    """Patch the file operations of this process: the `count`-th from now kills it."""
    left = [count]

    def fatal(plain: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(*args, **options)

        return operation

    os.replace = fatal(os.replace)
    os.fsync = fatal(os.fsync)
    os.unlink = fatal(os.unlink)  # type: ignore[assignment]
    Path.unlink = fatal(Path.unlink)  # type: ignore[method-assign]


def _child(root: Path, kill_before: int | None) -> None:
    """Record with groups of two episodes, and log each saved one beside the folder; with None,
    until killed.
    """
    dataset_files.MAX_EPISODES = 2
    progress = os.open(root.with_suffix(".saved"), os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    writer = open_writer(root, resume=True)
    if kill_before is not None:
        _kill_before(kill_before)
    end = EPISODES if kill_before is not None else 10**6
    episodes = range(writer.episodes, end)
    record(writer, episodes, lambda episode: os.write(progress, b"x") and None)
    writer.finish()


def main() -> None:
    """`recording.py points FOLDER EVERY`: one child and folder for every EVERY-th file operation,
    until a child is not killed. `recording.py endless FOLDER`: record into FOLDER until killed.
    """
    verb = sys.argv[1]
    folder = Path(sys.argv[2])
    if verb == "endless":
        _child(folder, None)
        return
    for point in range(0, 10**6, int(sys.argv[3])):
        child = os.fork()
        if child == 0:
            _child(folder / f"{point:03d}", point)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
