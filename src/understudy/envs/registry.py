"""Environments by name: `open_env("tabletop")`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from understudy.envs.env import Env
from understudy.optional_packages import MissingExtraError

ENVS = {"tabletop": ("TabletopEnv", "demo"), "recall": ("RecallEnv", "sim"), "metaworld": ("MetaWorldEnv", "sim")}
"""Environment, the name of its module -> its class, and the extra that it needs."""


def open_env(name: str, size: int = 64, cameras: Sequence[str] | None = None, tasks: Sequence[str] = ()) -> Env:
    """Make a fresh environment.

    Args:
        name: One of `ENVS`.
        size: Height and width of the images.
        cameras: Cameras to render; None is the environment's default.
        tasks: Short names ("red", "lit", "push-v3") or sentences; empty is all of them.

    Raises:
        ValueError: Unknown name, camera or task.
        MissingExtraError: The simulator is not installed; the message names the extra that installs it.
    """
    if name not in ENVS:
        raise ValueError(f"unknown environment {name!r}; known: {', '.join(ENVS)}")
    kind, extra = ENVS[name]
    try:
        module = import_module(f"understudy.envs.{name}")
    except ModuleNotFoundError as error:
        message = f"the environment {name!r} needs {error.name}: pip install 'understudy[{extra}]'"
        raise MissingExtraError(message, name=error.name) from error
    env: Env = getattr(module, kind)(size, cameras, tasks)
    return env
