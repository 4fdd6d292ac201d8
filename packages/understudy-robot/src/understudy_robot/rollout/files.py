"""Files of rollouts: figures as JSON, and for every film a strip of images and an animation."""

import json
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image

from understudy_base import write_text
from understudy_robot.rollout.result import RolloutResult


def write_result(result: RolloutResult, folder: Path) -> Path:
    """Write `<world>-seed<seed>[-swapped].json`, with a strip of images (PNG) and an animation
    (WebP) per film.

    The JSON is `to_json`, with `pictures` and `films`: episode -> file name. Files of another
    evaluation with the same name move to a folder `earlier-<number>` beside them.

    Returns:
        Path of the JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{result.world}-seed{result.seed}"
    if result.swap_text:
        name += "-swapped"
    path = folder / f"{name}.json"
    pictures = {str(episode): f"{name}-episode{episode}.png" for episode in result.films}
    films = {str(episode): f"{name}-episode{episode}.webp" for episode in result.films}
    text = json.dumps(result.to_json() | {"pictures": pictures, "films": films}, indent=1) + "\n"
    if path.exists() and path.read_bytes() != text.encode():
        _put_aside(folder, name)
    for episode, film in result.films.items():
        _write_strip(film, folder / pictures[str(episode)])
        _write_film(film, folder / films[str(episode)], result.fps)
    write_text(path, text)
    return path


def _put_aside(folder: Path, name: str) -> None:
    """Move the files of an evaluation to the first folder `earlier-<number>` that does not
    exist.
    """
    folders = (folder / f"earlier-{number}" for number in count(1))
    aside = next(path for path in folders if not path.exists())
    aside.mkdir()
    for file in list(folder.iterdir()):
        if file.name.startswith((f"{name}.", f"{name}-episode")):
            file.rename(aside / file.name)


STRIP = 8
"""Number of frames of a strip."""


def _write_strip(film: np.ndarray, path: Path) -> None:
    """Write `STRIP` frames of a film (T, H, W, 3) side by side, evenly from first to last, as
    PNG.
    """
    chosen = film[np.linspace(0, len(film) - 1, STRIP).round().astype(int)]
    Image.fromarray(np.concatenate(list(chosen), axis=1)).save(path)


def _write_film(film: np.ndarray, path: Path, fps: float) -> None:
    """Write a film (T, H, W, 3) as a looping animated WebP with at most 20 frames per second."""
    every = max(1, round(fps / 20))
    first, *rest = [Image.fromarray(image) for image in film[::every]]
    first.save(
        path,
        "WEBP",
        save_all=True,
        append_images=rest,
        duration=round(1000 * every / fps),
        loop=0,
        quality=80,
    )
