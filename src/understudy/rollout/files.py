"""What rollouts leave on disk: figures as JSON, and for every film a strip of images and an animation."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from understudy.atomic import write_whole
from understudy.rollout.result import RolloutResult

if TYPE_CHECKING:
    import numpy as np


def write_result(result: RolloutResult, folder: Path) -> Path:
    """Write `<world>-seed<seed>[-swapped].json`, and for every film a strip of images (PNG) and the whole of it as an
    animation (WebP) beside it; returns the JSON's path. The JSON is `to_json`, and `pictures` and `films`: episode ->
    file name. The same evaluation again replaces its files."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{result.world}-seed{result.seed}{'-swapped' if result.swap_text else ''}"
    pictures, films = {}, {}
    for episode, film in result.films.items():
        pictures[str(episode)] = f"{name}-episode{episode}.png"
        films[str(episode)] = f"{name}-episode{episode}.webp"
        _write_strip(film, folder / pictures[str(episode)])
        _write_film(film, folder / films[str(episode)], result.fps)
    path = folder / f"{name}.json"
    write_whole(path, json.dumps(result.to_json() | {"pictures": pictures, "films": films}, indent=1) + "\n")
    return path


STRIP = 8
"""Images of a strip."""


def _write_strip(film: "np.ndarray", path: Path) -> None:
    """`STRIP` images of a film (T, H, W, 3) side by side, evenly from first to last, as PNG."""
    import numpy as np
    from PIL import Image

    chosen = film[np.linspace(0, len(film) - 1, STRIP).round().astype(int)]
    Image.fromarray(np.concatenate(list(chosen), axis=1)).save(path)


def _write_film(film: "np.ndarray", path: Path, fps: float) -> None:
    """A film (T, H, W, 3) as an animated WebP that plays again and again, at most 20 images a second of it."""
    from PIL import Image

    every = max(1, round(fps / 20))
    first, *rest = [Image.fromarray(image) for image in film[::every]]
    first.save(path, "WEBP", save_all=True, append_images=rest, duration=round(1000 * every / fps), loop=0, quality=80)
