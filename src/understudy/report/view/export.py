"""Episodes as a folder that opens without a server: the page, and beside it images and values of each episode.

A page from a file may not read JSON, so each resource of JSON is a script that hands its value over (`load.js`).
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from understudy.atomic import create_folder
from understudy.errors import ConfigError
from understudy.report.view.columns import BLOCK
from understudy.report.view.viewer import SCRIPTS, Viewer


def check_folder(folder: Path) -> None:
    """Raise ConfigError unless a folder is new or empty."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise ConfigError(f"{folder}: exists and is no empty folder; name a new one, nothing is overwritten")


def export_episodes(
    viewer: Viewer,
    episodes: Sequence[tuple[int, int]],
    folder: Path,
    count: Callable[[int], None] = lambda episodes: None,
) -> None:
    """Write episodes to a new or empty folder, in one step: a kill leaves nothing or all of it.

    Args:
        viewer: the content.
        episodes: (source, episode id) of each.
        folder: the folder; index.html is the page.
        count: called with 1 after each episode.

    Raises:
        ConfigError: the folder has content.
        UnknownResource: there is no such episode.
        DatasetError: an image cannot be read.
        OSError: the folder cannot be written.
    """
    check_folder(folder)
    page = viewer.page(episodes)
    if folder.exists():
        folder.rmdir()
    with create_folder(folder) as new:
        (new / "index.html").write_text(page, encoding="utf-8")
        for name in (*SCRIPTS, "view.css"):
            (new / name).write_bytes(viewer.read(name).content)
        for source, episode in episodes:
            _write_episode(viewer, new, f"{source}/{episode}")
            count(1)


def _write_episode(viewer: Viewer, folder: Path, base: str) -> None:
    (folder / base).mkdir(parents=True, exist_ok=True)
    content = _write_script(viewer, folder, f"{base}/episode.json")
    _write_script(viewer, folder, f"{base}/findings.json")
    if viewer.predicts:
        _write_script(viewer, folder, f"{base}/predicted.json")
    if any(curve["bucket"] > 1 for curve in content["curves"]):
        for number in range(-(-content["length"] // BLOCK)):
            _write_script(viewer, folder, f"{base}/rows-{number}.json")
    for camera, own in enumerate(content["cameras"]):
        if layout := own["layout"]:
            for number in range(-(-content["length"] // (layout["columns"] * layout["rows"]))):
                name = f"{base}/camera-{camera}-{number}.{layout['extension']}"
                (folder / name).write_bytes(viewer.read(name).content)


def _write_script(viewer: Viewer, folder: Path, name: str) -> dict[str, Any]:
    text = viewer.read(name).content.decode()
    (folder / f"{name}.js").write_text(f"receive({json.dumps(name)}, {text});\n", encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
