"""Open an environment by name: `open_world("tabletop")`."""

from __future__ import annotations

from collections.abc import Sequence

from understudy.envs.env import World
from understudy.extras import MissingExtra

WORLDS = ("tabletop", "metaworld")


def open_world(name: str, size: int = 64, cameras: Sequence[str] | None = None, tasks: Sequence[str] = ()) -> World:
    """A fresh world.

    Args:
        name: one of `WORLDS`.
        size: height and width of the pictures.
        cameras: which cameras are drawn; None is the world's own choice.
        tasks: short names ("red"; "push-v3") or sentences; none is all of them.
    Raises:
        ValueError: a name, camera or task that is not there. MissingExtra: the package behind the world is missing; the
            message names the extra that brings it.
    """
    if name not in WORLDS:
        raise ValueError(f"no world {name!r}; there are {', '.join(WORLDS)}")
    try:
        if name == "tabletop":
            from understudy.envs.tabletop.env import TabletopWorld

            return TabletopWorld(size, cameras, tasks)
        from understudy.envs.metaworld import MetaWorld

        return MetaWorld(size, cameras, tasks)
    except ModuleNotFoundError as error:
        extra = "demo" if name == "tabletop" else "sim"
        what = f"the {name} world needs {error.name}: pip install 'understudy[{extra}]'"
        raise MissingExtra(what, name=error.name) from error
